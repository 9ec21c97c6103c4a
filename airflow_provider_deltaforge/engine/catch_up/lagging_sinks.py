"""The sinks that a lane goes on without: who leaves, who is caught up, who joins again."""

import logging
import time

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.catch_up.catch_up import CatchUp
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext, RenderedBatch
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.start_positions import StartPositions, log_resumed
from airflow_provider_deltaforge.engine.deliver.rewind import (
    begin_rewind,
    refuse_rewind,
    rewind_refusal,
)
from airflow_provider_deltaforge.engine.deliver.sink_group import SinkGroup
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gap, Gaps, SinkCommand
from airflow_provider_deltaforge.storage.records.rewinds import Rewind, Rewinds
from airflow_provider_deltaforge.telemetry.redaction import redacted

_CLOSE_S = 3.0
_RENEW_S = 0.02

_log = logging.getLogger(__name__)


class LaggingSinks:
    """Keeps them for one opening of the log. Used by the delivery thread.

    Args:
        shared: the lane's.
        sinks: their connections.
        skip_list: which sink holds what; learns which leave and join.
        checkpoints: the lane's.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        sinks: SinkGroup,
        skip_list: SkipList,
        checkpoints: Checkpoints,
    ) -> None:
        context = shared.context
        self._shared, self._sinks, self._skip_list = shared, sinks, skip_list
        self._source = context.pipeline.spec.source
        self._described = {sink.id: sink for sink in context.pipeline.spec.sinks}
        self._checkpoints = checkpoints
        self._gaps = Gaps(context.store, context.pipeline.name)
        self.rejoin_point = shared.rejoin_point
        self._given_up: dict[str, Gap] = {}
        self._behind: dict[str, CatchUp] = {}
        self._policy = RequiredSinks.of(context.pipeline.spec)
        self._rewinds = Rewinds(context.store, context.pipeline.name)
        self._rewound: dict[str, Rewind] = {}
        self._parting: dict[str, Position] = {}
        """Sinks whose connection is closing before they get the log again."""
        self._possible: dict[str, SinkCommand] = {}
        """The rewind of each sink that is about to begin, after nothing was found against it."""
        self._look_at = self._rewind_at = 0.0
        self._commands_s = context.job.tuning.sink_commands_s

    def begin(self, start_positions: StartPositions) -> None:
        """Begin to catch up who stands behind the lane already."""
        self._given_up = dict(start_positions.given_up)
        for name, gap in self._given_up.items():
            self._skip_list.leave(name)
            self._shared.stats.given_up(name, gap.since_ms, gap.why)
        for name in start_positions.known:
            if name not in start_positions.behind:
                self._shared.stats.set_status(name, "running")
        self._rewound = dict(start_positions.rewinds)
        for name in start_positions.behind:
            if name in self._rewound:
                self._renew(name)
            self._leave(name, start_positions.known[name], None, None)
        self._shared.retry(self._forget_wishes)

    def leave(self, name: str, pending: RenderedBatch | None, error: Exception | None) -> None:
        """Go on without a sink that did not take a batch.

        Args:
            name: the sink.
            pending: the batch that it is still trying; None if it has given up on it.
            error: why it did.
        """
        self._shared.settle()
        self._shared.retry(self._forget_wishes)  # It had caught up when they came.
        at = self._shared.retry(self._checkpoints.load)[name]
        lacks_ms = pending.first_ms if pending is not None else None
        self._leave(name, at, pending, lacks_ms, waits=error is not None)
        reach(CrashPoint.SINK_LEFT)

    def tend(self) -> list[str]:
        """Take in who has caught up, and do what people want; return who has joined.

        Raises:
            Exception: what catching up has met that concerns the whole lane.
        """
        joined: list[str] = []
        if self.any:
            if self.rejoin_point.failure is not None:
                raise self.rejoin_point.failure
            if time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + self._commands_s
                self._shared.retry(lambda: self._hear(joined))
            for name in [
                name for name, catching_up in self._behind.items() if catching_up.given_up
            ]:
                del self._behind[name]
                self._rewound.pop(name, None)
                self._shared.stats.show_rewind(name, None)
                self._shared.stats.policy = self.waited_for
                self._given_up = self._shared.retry(self._gaps.open)
        for name, position in self.rejoin_point.taken().items() if self._behind else ():
            self._join(name, position)
            joined.append(name)
        if joined:
            self._shared.retry(self._forget_wishes)
        return joined

    def rewind(self) -> None:
        """Begin requested rewinds; called between batches, while no sink is written to.

        The lane goes on without such a sink, whatever the document says, until it has caught up.
        """
        if time.monotonic() >= self._rewind_at:
            self._rewind_at = time.monotonic() + self._commands_s
            self._shared.retry(self._begin_rewinds)

    @property
    def waited_for(self) -> RequiredSinks:
        """Which sinks the lane waits for now."""
        absent = (self._rewound.keys() & self._behind.keys()) | self._parting.keys()
        return self._policy.without(
            absent, len(self._described) - len(absent | self._given_up.keys())
        )

    def passed_alone(self, position: Position) -> list[Write]:
        """Return what is stored where the lane has come to while no sink goes with it."""
        if not self._rewound or any(self._skip_list.goes(name) for name in self._described):
            return []
        return [self._rewinds.passed_alone(rewind, position) for rewind in self._rewound.values()]

    def wait(self) -> None:
        """Stand for a moment for one that is about to arrive."""
        self.rejoin_point.wait(self._shared.over)

    def earliest(self, position: Position) -> Position:
        """Return up to where the source may forget the log: a position, or where the last stands.

        Whoever is given up does not count.
        """
        behind = [catching_up.at for catching_up in self._behind.values()]
        behind += self._parting.values()
        found: Position | None = self._source.earliest([position, *behind])
        return position if found is None else found

    def holders(self, position: Position | None, boundary: Position | None = None) -> list[str]:
        """Return who holds a batch, although it has not joined.

        A sink that is given nothing twice joins only where the lane stands, which may wait for it.

        Args:
            position: where the batch ends; None inside a transaction, which whoever is further than
                all whole ones holds to its end.
            boundary: behind the last whole transaction of what ends inside another.
        """
        covers = self._source.covers
        at = {name: catching_up.at for name, catching_up in self._behind.items()}
        if position is not None:
            return [name for name in at if covers(at[name], position)]
        passed = self.rejoin_point.at if boundary is None else boundary
        if not self._source.is_ordered(passed):
            return []
        return [name for name in at if not covers(passed, at[name])]

    @property
    def any(self) -> bool:
        """Return whether some sink is behind, or was given up."""
        return bool(self._behind or self._given_up or self._parting)

    def close(self) -> None:
        """End catching up; it goes on with the next lane."""
        for catching_up in self._behind.values():
            catching_up.end()
        deadline = time.monotonic() + _CLOSE_S
        for catching_up in self._behind.values():
            catching_up.join(max(0.1, deadline - time.monotonic()))

    def _leave(
        self,
        name: str,
        at: Position,
        pending: RenderedBatch | None,
        lacks_ms: int | None,
        *,
        waits: bool = False,
    ) -> None:
        self._skip_list.leave(name)
        self._shared.stats.set_status(name, "behind", lacks_ms)
        self._shared.stats.counts_behind(name)
        if name not in self._rewound:
            _log.warning(
                "sink %s is behind; the pipeline goes on without it, and it is caught up from %s",
                name,
                dict(at),
            )
        sink_thread = self._sinks.thread(name)
        sink, rewind = self._described[name], self._rewound.get(name)
        self._shared.stats.show_rewind(name, None if rewind is None else rewind.shown)
        self._behind[name] = CatchUp(
            self._shared,
            sink,
            sink_thread,
            at,
            pending,
            waits=waits,
            rewind=rewind,
        )
        self._shared.stats.policy = self.waited_for

    def _join(self, name: str, position: Position) -> None:
        self._shared.retry(self._checkpoints.load)  # It was moved meanwhile.
        if (rewind := self._rewound.pop(name, None)) is not None:
            self._shared.retry(lambda: self._store([self._rewinds.end(rewind)]))
            reach(CrashPoint.REWIND_ENDED)
        del self._behind[name]
        self._shared.stats.show_rewind(name, None)
        self._shared.stats.policy = self.waited_for
        self._skip_list.join(name, position, self.rejoin_point.at)
        self._shared.stats.set_status(name, "running")
        _log.info("sink %s has caught up, at %s", name, dict(position))
        reach(CrashPoint.SINK_JOINED)

    def _forget_wishes(self) -> None:
        """Remove commands that came too late: they must not give up a sink that lags later."""
        concerned = self._behind.keys() | self._given_up.keys()
        late = [
            command
            for command in self._gaps.wishes()
            if command.sink not in (self._described if command.wanted == "rewind" else concerned)
        ]
        if late:
            self._store([write for command in late for write in self._gaps.granted(command)])

    def _hear(self, resumed: list[str]) -> None:
        """Do what people want of sinks.

        Args:
            resumed: gets the sinks that go on, also if the store fails afterwards.
        """
        for wish in self._gaps.wishes():
            if wish.wanted == "rewind":
                continue  # Between two batches.
            if wish.wanted == "give_up" and wish.sink in self._behind:
                self._behind[wish.sink].unwanted = wish
                continue  # It stays until it is carried out, by the next lane if this one ends.
            if wish.sink in self._behind and wish.sink in self._gaps.open():
                continue  # It is just being given up; ``tend`` is about to learn that.
            if wish.wanted == "resume" and wish.sink in self._given_up:
                if self.rejoin_point.inside or not self._sinks.renew(wish.sink):
                    continue  # In a moment: between transactions, and with no writer of before.
                self._resume(wish)
                resumed.append(wish.sink)
                continue
            self._store(self._gaps.granted(wish))

    def _begin_rewinds(self) -> None:
        wishes = [wish for wish in self._gaps.wishes() if wish.wanted == "rewind"]
        if wishes:
            self._shared.settle()
        for name in self._possible.keys() - {wish.sink for wish in wishes}:
            self._take_back(name)
        for name in self._parting.keys() - {wish.sink for wish in wishes}:
            if self._sinks.renew(name):  # Nobody wants it any more.
                self._leave(name, self._parting.pop(name), None, None)
        for wish in wishes:
            known = wish.sink in self._described
            if known and self._is_possible(wish) and self._part(wish.sink):
                self._begin_rewind(wish)

    def _take_back(self, name: str) -> None:
        """Resume a sink that was asked to end for a rewind which is not wanted any more."""
        former = self._behind.get(name)
        if former is not None and former.is_ending:
            if not former.has_ended:
                self._rewind_at = 0.0
                return
            del self._behind[name]
            self._parting[name] = self._checkpoints.load()[name]
        del self._possible[name]

    def _is_possible(self, wish: SinkCommand) -> bool:
        """Return whether a rewind may begin now; the source is asked once. Store a refusal."""
        name, context = wish.sink, self._shared.context
        if self._possible.get(name) == wish:
            return True
        at = self.rejoin_point.at
        waits = self.rejoin_point.inside or not self._shared.seam_is_over(at)
        if waits and name not in self._parting:
            return False  # In a moment.
        self._checkpoints.load()
        try:
            reason = rewind_refusal(context, self._checkpoints, wish)
        except RetryableError as error:
            _log.warning("a rewind of sink %s waits for the source: %s", name, redacted(str(error)))
            return False
        if reason is not None:
            self._store(refuse_rewind(context, wish, reason))
            return False
        self._possible[name] = wish
        return True

    def _part(self, name: str) -> bool:
        """Go on without a sink that is to get the log again; return False if not yet."""
        if name in self._parting:
            return True
        if self.rejoin_point.inside:
            return False
        if (former := self._behind.get(name)) is not None:
            former.end()
            if not former.has_ended:
                self._rewind_at = 0.0
                return False
            del self._behind[name]
        self._skip_list.leave(name)
        self._parting[name] = self._checkpoints.load()[name]
        self._shared.stats.set_status(name, "behind")
        self._shared.stats.policy = self.waited_for
        return True

    def _begin_rewind(self, wish: SinkCommand) -> None:
        """Move a sink's checkpoint back, and catch the sink up from there."""
        name = wish.sink
        if not self._sinks.thread(name).has_ended():
            self._rewind_at = 0.0
            return
        self._checkpoints.load()
        rewind, writes = begin_rewind(self._shared.context, self._checkpoints, wish)
        self._shared.retry(lambda: self._store(writes))
        reach(CrashPoint.REWIND_STORED)
        del self._parting[name], self._possible[name]
        self._given_up.pop(name, None)
        self._rewound[name] = rewind
        self._shared.stats.caught_up(name, rewind.to, None)
        self._renew(name)
        self._leave(name, rewind.to, None, None)

    def _renew(self, name: str) -> None:
        """Give a sink a new connection, under the mark of its rewind."""
        mark = self._rewound[name].mark
        while not self._sinks.renew(name, mark) and not self._shared.over():
            time.sleep(_RENEW_S)

    def _resume(self, wish: SinkCommand) -> None:
        """Resume a sink that was given up at the position of the lane."""
        name, position = wish.sink, self.rejoin_point.at
        gap = self._given_up[name]
        self._checkpoints.load()
        put = self._checkpoints.put(name, position, begins=True)
        self._store([self._gaps.close(gap, position), put, *self._gaps.granted(wish)])
        reach(CrashPoint.SINK_RESUMED)
        del self._given_up[name]
        self._skip_list.join(name, position, self.rejoin_point.at)
        self._shared.stats.set_status(name, "running")
        self._shared.stats.caught_up(name, position, None)
        log_resumed(gap, position)

    def _store(self, writes: list[Write]) -> None:
        context = self._shared.context
        context.store.transact(writes, context.fence)
