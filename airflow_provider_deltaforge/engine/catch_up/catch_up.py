"""Carries the log to one sink that is behind, until it has come to where its lane stands.

The sink's thread is taken over with the batch that it could not take: that one is tried again and
again, so a log that stands still needs no second reader. What came after it is read again beside
the lane, from the sink's own checkpoint, which moves under the lane's fence.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TypeVar

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.catch_up.lag_limit import LagLimit
from airflow_provider_deltaforge.engine.catch_up.own_checkpoint import CatchUpEnded, OwnCheckpoint
from airflow_provider_deltaforge.engine.catch_up.rejoin_point import OF_THE_LANE
from airflow_provider_deltaforge.engine.catch_up.second_reader import (
    CatchUpContext,
    RenderedBatch,
    SecondReader,
)
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.rewind import ask_rewound
from airflow_provider_deltaforge.engine.deliver.sink_answers import SinkAnswers
from airflow_provider_deltaforge.engine.deliver.sink_gap import gap_of, log_gap
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkResult, SinkThread
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    PositionLostError,
    RetryableError,
    TableError,
)
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.storage.records.gaps import Gaps, SinkCommand
from airflow_provider_deltaforge.storage.records.rewinds import Rewind, Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")
Rest = Callable[[float], None]

_POLL_S = 0.1
_SOON_S = 2.0

_log = logging.getLogger(__name__)


class CatchUp:
    """Catches one sink up, in a thread of its own.

    Args:
        shared: the lane's.
        sink: the description.
        sink_thread: owns the sink's connection; it is the lane's again once the sink has joined.
        at: the sink's checkpoint.
        pending: the batch that ``sink_thread`` are still trying.
        waits: the sink has refused us, and is left alone for a while.
        rewind: the rewind that it gets the log again for; None: it has fallen behind.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        sink: Sink,
        sink_thread: SinkThread,
        at: Position,
        pending: RenderedBatch | None = None,
        *,
        waits: bool = False,
        rewind: Rewind | None = None,
    ) -> None:
        self._shared = shared
        source = shared.context.pipeline.spec.source
        self._rewind, self._covers = rewind, source.covers
        self._lag_limit = LagLimit(sink, source, shared.stats, at, is_rewound=rewind is not None)
        self._sink, self._id, self._sink_thread = sink, sink.id, sink_thread
        self._pending, self._waits = pending, waits
        self._inside = False
        """The sink may hold a part of a transaction behind its checkpoint."""
        self._ending = threading.Event()
        self.given_up = False
        self.unwanted: SinkCommand | None = None
        """Somebody's command to give the sink up."""
        self._dead_letters = DeadLetterQueue(
            shared.context,
            shared.stats.dead_letters,
            lambda _, error: self._tell(error),
            self._ending,
            shared.confirm,
            behind=sink.id,
        )
        self._own = OwnCheckpoint(shared, sink.id, sink_thread, self._dead_letters, at, self._retry)
        self._thread = threading.Thread(target=self._run, name=f"behind-{sink.id}", daemon=True)
        self._thread.start()

    @property
    def at(self) -> Position:
        """Return what is stored of the sink's position."""
        return self._own.at

    def end(self) -> None:
        """Ask it to end; what the sink was given so far is kept."""
        self._ending.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def is_ending(self) -> bool:
        """Return whether it was asked to end, and the sink was not given up."""
        return self._ending.is_set() and not self.given_up

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more is done for the sink."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        self._rest(self._shared.context.job.tuning.refused_sink_s if self._waits else 0.0)
        with suppress(CatchUpEnded):
            while not self._is_over() and not self._tried():
                pass

    def _tried(self) -> bool:
        """Try to catch the sink up; return whether nothing more is to be done for it."""
        try:
            self._attempt()
        except PositionLostError as error:
            self._give_up(error)
        except OF_THE_LANE as error:
            self._shared.rejoin_point.fail(error)
        except CatchUpEnded:
            raise
        except Exception as error:  # noqa: BLE001 - tried again; the lane goes on meanwhile
            _log.warning("sink %s cannot be caught up now: %s", self._id, redacted(str(error)))
            self._tell(error)
            self._shared.rejoin_point.strays(self._id)
            self._shared.stats.set_status(self._id, "behind")
            soon = isinstance(error, (RetryableError, TableError))  # The lane stops a table first.
            self._rest(_SOON_S if soon else self._shared.context.job.tuning.refused_sink_s)
            return False
        return True

    def _attempt(self) -> None:
        """Give the sink what it lacks, until it has joined."""
        self._own.load()
        if self._rewind is not None:
            self._adopt(self._rewind)
        if self._pending is not None:
            self._end_pending(self._pending)
            if self._joins():
                return
            self._retry(self._dead_letters.begin)  # Read again from the checkpoint.
        self._sink_thread.read_again()
        self._own.empty_progress.ends()
        again = SecondReader(
            self._shared,
            self._id,
            self.at,
            self._tell,
            self._is_over,
            self._retry,
            self._rewind,
        )
        with closing(again):
            self._retry(again.open, self._rest_unless_late)
            while not self._joins():
                if (batch := again.next(_POLL_S)) is not None:
                    self._deliver(batch)
                    again.acknowledge(self.at)
                self._check()
                self._own.keep()

    def _adopt(self, rewind: Rewind) -> None:
        """Store the position that a sink holds itself, so that it does not count now."""
        context, stand = self._shared.context, self._own.stand
        if not self._sink_thread.is_exact or stand is None or stand.held is not None:
            return
        asking = SinkAnswers(context, self._shared.stats, self._ending)
        self._own.begin(ask_rewound(context, asking, self._sink, stand, rewind))
        reach(CrashPoint.REWIND_ADOPTED)

    def _end_pending(self, pending: RenderedBatch) -> None:
        """Finish the batch that the sink's thread is still trying."""
        self._pending, self._inside = None, True
        deferred = self._id in pending.rendered.deferred
        if pending.continues and (deferred or not self._sink_thread.is_exact):
            self._awaited().durable()  # All of the transaction is read again.
        elif deferred:
            self._deliver(self._filled(pending))
        else:
            self._settle(pending, self._result(pending))

    def _deliver(self, batch: RenderedBatch) -> None:
        if batch.source.rows.num_rows == 0 and not self._is_searching:
            if batch.source.position is not None:
                self._own.empty_progress.passes(batch.source.position)
                self._inside = False
            return
        self._inside = True
        self._shared.stats.set_status(self._id, "catching_up", batch.first_ms)
        if (deferred := batch.rendered.deferred.get(self._id)) is not None:
            self._sink_thread.submit(deferred)
            batch = self._filled(batch)
        self._retry(self._shared.confirm)
        rendered = batch.rendered
        messages, held = self._retry(lambda: self._dead_letters.held_back(rendered, [self._id]))
        batch.held = {**held}
        if self._sink_thread.is_exact:
            refused = self._held(batch) or rendered.rejections[self._id]
            if refused or self._dead_letters.order.would_tell(rendered, [self._id]):
                self._set_aside(batch, self._held(batch))
        self._sink_thread.submit(self._sink_batch(batch, messages[self._id]))
        self._settle(batch, self._result(batch))

    def _sink_batch(self, batch: RenderedBatch, messages: Messages) -> SinkBatch:
        rows = batch.rendered.processed.rows
        at, stand = batch.source.position, self._own.stand
        return SinkBatch(messages, at, stand, rows=rows, log=batch.log)

    @property
    def _is_searching(self) -> bool:
        """Return whether the checkpoint must not move; see ``SinkThread.is_searching``."""
        return self._sink_thread.is_searching(self._own.stand)

    def _result(self, batch: RenderedBatch) -> SinkResult:
        """Wait until the sink has taken what it was given."""
        refused: list[Rejection] = []
        while (outcome := self._awaited()).is_nothing:
            refused += outcome.rejections
            self._set_aside(batch, [*self._held(batch), *refused])
            sink_batch = self._sink_batch(batch, batch.rendered.messages[self._id])
            self._sink_thread.submit(sink_batch.without([*self._held(batch), *refused]))
        return replace(outcome, rejections=[*refused, *outcome.rejections])

    def _held(self, batch: RenderedBatch) -> Sequence[Rejection]:
        return batch.held.get(self._id, ())

    def _filled(self, batch: RenderedBatch) -> RenderedBatch:
        """Wait until the messages are rendered which the sink is to be given."""
        self._awaited().durable()
        return replace(batch, rendered=batch.rendered.grown([self._id]))

    def _awaited(self) -> SinkResult:
        """Wait for the result of what the sink's thread does, however long that takes."""
        while (outcome := self._sink_thread.result(_POLL_S)) is None:
            self._check()
            if self._sink_thread.failing:
                self._shared.stats.set_status(self._id, "behind")
                self._shared.rejoin_point.strays(self._id)
        if outcome.error is not None and self._is_over():
            raise CatchUpEnded
        return outcome

    def _settle(self, batch: RenderedBatch, outcome: SinkResult) -> None:
        """Store how far the sink is with this batch, with what it refused of it."""
        refused = [*self._held(batch), *outcome.durable()]
        self._dead_letters.take(batch.of_sink, batch.source.rows, {self._id: refused})
        reach(CrashPoint.CAUGHT_UP_WRITTEN)
        self._lag_limit.moved()
        self._tell(None)
        self._shared.stats.caught_up(self._id, None, batch.rendered.taken(self._id, refused))
        self._shared.stats.set_status(self._id, "catching_up", batch.last_ms)
        self._own.empty_progress.ends()
        self._inside = batch.source.position is None or self._is_searching
        if batch.source.position is not None and not self._inside:
            self._own.commit(batch.source.position)
            self._shared.rejoin_point.comes(self._id, batch.last_ms)
        elif self._dead_letters.overflows and self._dead_letters.awaits_room():
            self._own.store([])

    def _set_aside(self, batch: RenderedBatch, refused: Sequence[Rejection]) -> None:
        """Store what is refused before the sink holds the rest, which is not read again then."""
        self._dead_letters.take(batch.of_sink, batch.source.rows, {self._id: refused})
        self._own.store_early()

    def _joins(self) -> bool:
        """Offer to join where the lane stands; return True if the sink is the lane's again."""
        position = self._own.reached
        if self._rewind is not None and (
            self._rewind.is_limited_at(position, self._covers)
            or not self._shared.seam_is_over(position)
        ):
            return False
        exact = self._sink_thread.is_exact
        if exact and self._inside:
            return False  # The lane would give it that part again.
        if not self._shared.rejoin_point.holds(position, exact=exact):
            return False
        if position != self.at:
            self._own.commit(position)  # The source may forget what lies before it.
        return self._shared.rejoin_point.offer(self._id, position, self._is_over, exact=exact)

    def _check(self, *, unread: bool = False) -> None:
        """See whether the sink is to be given up, or the lane ends."""
        if self._is_over():
            raise CatchUpEnded
        lane_at = self._shared.rejoin_point.at
        too_late = self._lag_limit.exceeded(self._own.reached, lane_at, unread=unread)
        why = too_late if self.unwanted is None else f"{self.unwanted.by} gave it up"
        if why is not None:
            raise PositionLostError(why)

    def _give_up(self, error: PositionLostError) -> None:
        """Record what the sink lacks from here on; nothing is kept for it any more."""
        context, command = self._shared.context, self.unwanted
        gaps = Gaps(context.store, context.pipeline.name)
        writes = [gap_of(context, self._id, self.at, error)]
        if command is not None:
            writes += gaps.granted(command)
        if self._rewind is not None:
            rewinds = Rewinds(context.store, context.pipeline.name)
            writes.append(rewinds.end(self._rewind, redacted(str(error))))
        try:
            self._own.store(writes)
        except (DeltaForgeError, CatchUpEnded):
            return  # Another lane is there, or this one ends: the next one judges anew.
        reach(CrashPoint.SINK_GIVEN_UP)
        self._sink_thread.has_ended()  # It would go on trying, and hide why the sink was given up.
        log_gap(self._shared.context, self._id, self.at, error)
        self._shared.stats.set_status(self._id, "given_up")
        self._tell(error)
        self._ending.set()
        self.given_up = True
        spec, name = context.pipeline.spec, context.pipeline.name
        given_up = self._retry(gaps.open)
        if self._id in RequiredSinks.of(spec).lacks([sink.id for sink in spec.sinks], given_up):
            self._shared.rejoin_point.fail(
                PositionLostError(
                    f"sink {self._id} was given the log again and cannot be given all of it: "
                    f"{error}. Let it go on without what it lacks with `deltaforge sinks resume "
                    f"{name} {self._id}`, start the pipeline again, and copy the tables with "
                    "`deltaforge snapshot FILE --again`"
                )
            )

    def _tell(self, error: BaseException | None) -> None:
        self._shared.stats.report_sink_error(self._id, error)

    def _is_over(self) -> bool:
        return self._ending.is_set() or self._shared.over()

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_over() and time.monotonic() < deadline:
            self._ending.wait(_POLL_S)
            deadline = deadline if self.unwanted is None else 0.0

    def _rest_unless_late(self, seconds: float) -> None:
        self._rest(seconds)
        self._check(unread=True)

    def _retry(self, call: Callable[[], Result], rest: Rest | None = None) -> Result:
        try:
            return retry_until(call, self._tell, self._is_over, rest or self._rest)
        except RetryableError:
            if self._is_over():
                raise CatchUpEnded from None
            raise
