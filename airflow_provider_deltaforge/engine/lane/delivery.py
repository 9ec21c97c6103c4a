"""Gives a batch to the sinks that a lane waits for; the others are left, to be caught up."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_provider_deltaforge.engine.archive.lane_archive import LaneArchive
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.catch_up.lagging_sinks import LaggingSinks
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext, RenderedBatch
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.start_positions import StartPositions
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.engine.deliver.sink_group import DeliveryRules, SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkResult
from airflow_provider_deltaforge.engine.render.render_queue import DeferredRender
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints


class Delivery:
    """Delivers for one opening of the log. Used by the delivery thread.

    Args:
        shared: what the lane shares with those that catch its sinks up.
        skip_list: which sinks lack a batch.
        checkpoints: the lane's.
        dead_letters: hold back what waits behind dead letters.
        heartbeat: says when to give up.
        archive: the source keeps its log until it has it, too.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        skip_list: SkipList,
        checkpoints: Checkpoints,
        dead_letters: DeadLetterQueue,
        heartbeat: Heartbeat,
        archive: LaneArchive,
    ) -> None:
        pipeline = shared.context.pipeline
        spec = pipeline.spec
        self._sinks = SinkGroup(
            spec.sinks,
            pipeline.name,
            shared.stats,
            heartbeat.ending,
            spec.sink_batch_deadline_secs,
            SinkFences(shared.context),
            spec.delivery.parallelism,
        )
        self._lagging = LaggingSinks(shared, self._sinks, skip_list, checkpoints)
        self._shared, self._checkpoints = shared, checkpoints
        self._exact = {sink.id for sink in spec.sinks if sink.holds_position}
        self._skip_list, self._source = skip_list, spec.source
        self._dead_letters, self._heartbeat = dead_letters, heartbeat
        self._archive = archive
        self._reached: Position | None = None
        self._acknowledged: Position | None = None

    def begin(self, start_positions: StartPositions) -> None:
        """Begin to catch up who stands behind the lane already."""
        self._lagging.begin(start_positions)
        if self._archive.is_kept:  # It may get there while nothing is written.
            self._reached = self._lagging.rejoin_point.at

    def acknowledge(self, reader: LogReader, reached: Position | None = None) -> None:
        """Acknowledge to the source what every sink holds that was not given up.

        Args:
            reader: of the lane.
            reached: up to where the lane has delivered, if that is news.
        """
        self._reached = reached if reached is not None else self._reached
        if self._reached is None or self._skip_list.any:
            return
        stands = map(self._checkpoints.stand, self.searching)
        behind = [stand.position for stand in stands if stand is not None]
        needed = self._source.earliest([self._reached, *behind]) or self._reached
        position = self._archive.earliest(self._lagging.earliest(needed))
        if position != self._acknowledged:
            reader.acknowledge(position)
            self._acknowledged = position
            reach(CrashPoint.SOURCE_ACKNOWLEDGED)

    def put(self, name: str, position: Position) -> Write:
        """Return the write that moves a sink's checkpoint."""
        return self._checkpoints.put(name, position, self._held_by(name))

    def takes_rows(self) -> bool:
        """Return whether every sink holds what the lane has delivered, and nothing behind it."""
        is_ahead = self._skip_list.any or bool(self.searching)
        return not is_ahead and not self._shared.stats.lagging

    @property
    def searching(self) -> list[str]:
        """Return the sinks of the lane that hold events which the log has not shown again.

        Their checkpoints stay where they are; see ``SinkThread.is_searching``.
        """
        return [
            name
            for name in self._exact
            if self._skip_list.goes(name)
            and self._sinks.thread(name).is_searching(self._checkpoints.stand(name))
        ]

    def close(self) -> None:
        """Close every sink."""
        self._lagging.close()
        self._sinks.close()

    @property
    def may_arrive(self) -> Sequence[str]:
        """Return the sinks to which something may be under way although all are closed."""
        return self._sinks.may_arrive

    def rejoin(self) -> bool:
        """Take in sinks that have caught up; return whether any is or was behind.

        Raises:
            Exception: what catching up has met that concerns the whole lane.
        """
        self._lagging.rewind()
        if not self._lagging.any:
            return False
        self._lagging.wait()
        if self._lagging.tend():
            self._shared.retry(self._dead_letters.read_on)
        return True

    def passed(self, batch: RenderedBatch) -> None:
        """Note that the lane has gone beyond a batch: who joins now must hold it."""
        source = batch.source
        self._lagging.rejoin_point.passed(source.position, batch.last_ms, source.boundary)
        self._skip_list.passed(source.position)
        batch.rendered.passed()

    def deliver(self, batch: RenderedBatch) -> dict[str, list[Rejection]] | None:
        """Deliver a batch.

        Returns:
            What was refused, by each sink that has the batch now; None if it was given up.

        Raises:
            Exception: what a sink could not do that the pipeline does not go on without.
        """
        source = batch.source
        sink_batches = self._sink_batches(batch, self._lacking(batch))
        self._shared.retry(self._heartbeat.confirm)
        rules = DeliveryRules(
            self._heartbeat.gives_up,
            enough=lambda taken: self.is_enough(taken, source.position, source.boundary),
            joining=(lambda: self._joining(batch)) if self._lagging.any else dict,
            set_aside=lambda name, refused: self._refused(batch, name, refused),
            filled=lambda name: self._made(batch, name),
        )
        outcomes = self._sinks.deliver(sink_batches, rules)
        self._shared.stats.catch_up_wait.ends()
        return None if outcomes is None else self._taken(batch, outcomes)

    def is_enough(
        self,
        taken: Collection[str],
        position: Position | None,
        boundary: Position | None = None,
    ) -> bool:
        """Return whether the lane goes on when these sinks have taken a batch.

        Args:
            taken: the sinks.
            position: where the batch ends; None inside a transaction.
            boundary: behind the last whole transaction of what ends inside another.
        """
        others = self._skip_list.holders(position) + self._lagging.holders(position, boundary)
        return self._lagging.waited_for.holds([*taken, *others])

    def passed_alone(self, position: Position) -> list[Write]:
        """Return what is stored where the lane has come to while no sink goes with it."""
        return self._lagging.passed_alone(position)

    def _joining(self, batch: RenderedBatch) -> dict[str, SinkBatch | DeferredRender]:
        """Return the batch for sinks that have caught up while it is delivered."""
        if not self._sinks.unanswered:
            self._shared.stats.catch_up_wait.goes_on()
        if self._lagging.tend():
            self._shared.retry(self._dead_letters.read_on)
        # Whoever was not given it, whatever was told of who joins: its checkpoint moves with it.
        lacking = [name for name in self._lacking(batch) if name not in batch.receivers]
        return self._sink_batches(batch, lacking)

    def _lacking(self, batch: RenderedBatch) -> list[str]:
        """Return the sinks that are given a batch.

        The checkpoint of one that holds a part of it goes back to the lane first. Where it is, the
        next lane could leave out what follows that part: older states would be the sink's last.
        """
        names = self._skip_list.behind(batch.source.position)
        back = [name for name in names if self._skip_list.is_ahead(name)]
        if moved := [name for name in back if name not in self._exact]:
            self._shared.retry(lambda: self._return_to_lane(moved))
        for name in back:
            self._skip_list.return_to_lane(name)
        return names

    def _return_to_lane(self, names: Sequence[str]) -> None:
        context, at = self._shared.context, self._lagging.rejoin_point.at
        writes = [self._checkpoints.put(name, at, back=True) for name in names]
        context.store.transact(writes, context.fence)
        for name in names:
            self._shared.stats.caught_up(name, at, None)

    def _sink_batches(
        self, batch: RenderedBatch, sink_ids: Sequence[str]
    ) -> dict[str, SinkBatch | DeferredRender]:
        """Return what sinks are given of a batch, or what is to be rendered for them first."""
        batch.receivers += sink_ids
        batch.rendered = batch.rendered.grown(sink_ids)
        deferred = {
            name: queue for name, queue in batch.rendered.deferred.items() if name in sink_ids
        }
        return {
            **self._filled(batch, [name for name in sink_ids if name not in deferred]),
            **deferred,
        }

    def _made(self, batch: RenderedBatch, name: str) -> SinkBatch:
        """Return what a sink is given whose messages took a while to render."""
        self._shared.retry(self._heartbeat.confirm)
        return self._filled(batch, [name])[name]

    def _filled(self, batch: RenderedBatch, sink_ids: Sequence[str]) -> dict[str, SinkBatch]:
        if not sink_ids:
            return {}
        batch.rendered = batch.rendered.grown(sink_ids)
        messages, held = self._shared.retry(
            lambda: self._dead_letters.held_back(batch.rendered, sink_ids)
        )
        batch.held.update(held)
        at, stand = batch.source.position, self._checkpoints.stand
        rows, log = batch.rendered.processed.rows, batch.log
        sink_batches = {
            name: SinkBatch(each, at, stand(name), rows=rows, log=log)
            for name, each in messages.items()
        }
        self._set_aside_first(batch, sink_batches)
        return sink_batches

    def _set_aside_first(self, batch: RenderedBatch, sink_batches: Collection[str]) -> None:
        """Store what is refused before a sink is written to that holds the position itself.

        Once it holds the batch, that is not read again.
        """
        exact = [name for name in sink_batches if name in self._exact]
        held = {name: batch.held.get(name, ()) for name in exact}
        rendered = batch.rendered
        is_refused = any(held[name] or rendered.rejections[name] for name in exact)
        is_refused = is_refused or self._dead_letters.order.would_tell(rendered, exact)
        if exact and (is_refused or rendered.processed.refused):
            self._set_aside(batch, held)

    def _refused(self, batch: RenderedBatch, name: str, refused: Sequence[Rejection]) -> None:
        """Set aside what a sink refuses that is given the rest of the batch then."""
        # What is held back of the batch, and is stored already, overtakes nothing either.
        batch.held[name] = [*batch.held.get(name, ()), *refused]
        self._set_aside(batch, {name: batch.held[name]})

    def _set_aside(self, batch: RenderedBatch, refused: Mapping[str, Sequence[Rejection]]) -> None:
        self._dead_letters.take(batch.rendered, batch.source.rows, refused)
        if not self._shared.retry(self._dead_letters.awaits_room):
            raise RetryableError("asked to end before there was room for dead letters")
        with self._shared.storing:
            self._shared.retry(lambda: self._dead_letters.transact([]))
            self._shared.retry(self._dead_letters.stored)

    def _held_by(self, name: str) -> tuple[str, ...] | None:
        """Return what a sink may tell that holds the position itself; see ``Checkpoints.put``."""
        return self._sinks.thread(name).holds(self._checkpoints.stand(name))

    def _taken(
        self, batch: RenderedBatch, outcomes: Mapping[str, SinkResult]
    ) -> dict[str, list[Rejection]]:
        """Leave the sinks that have not taken the batch."""
        durable = [name for name, outcome in outcomes.items() if outcome.error is None]
        if not self.is_enough(durable, batch.source.position, batch.source.boundary):
            for outcome in outcomes.values():
                outcome.durable()
        for name in batch.receivers:
            if name in durable:
                continue
            failed = outcomes[name].error if name in outcomes else None
            inside = self._lagging.rejoin_point.inside
            pending = replace(batch, held={**batch.held}, continues=inside)
            self._lagging.leave(name, pending if failed is None else None, failed)
        return {name: [*batch.held.get(name, ()), *outcomes[name].rejections] for name in durable}
