"""The sinks that a lane goes on without: who leaves, who is caught up, who joins again."""

import logging
import time

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.catch_up.catch_up import CatchUp
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext, RenderedBatch
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.start_positions import StartPositions
from airflow_provider_deltaforge.engine.deliver.sink_group import SinkGroup
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gap, Gaps, SinkCommand

_CLOSE_S = 3.0
_WISHES_S = 2.0

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
        self._look_at = 0.0

    def begin(self, start_positions: StartPositions) -> None:
        """Begin to catch up who stands behind the lane already."""
        self._given_up = dict(start_positions.given_up)
        for name, gap in self._given_up.items():
            self._skip_list.leave(name)
            self._shared.stats.given_up(name, gap.since_ms, gap.why)
        for name in start_positions.known:
            if name not in start_positions.behind:
                self._shared.stats.set_status(name, "running")
        for name in start_positions.behind:
            self._leave(name, start_positions.known[name], None, None)
        self._shared.retry(self._forget_wishes)

    def leave(self, name: str, pending: RenderedBatch | None, error: Exception | None) -> None:
        """Go on without a sink that did not take a batch.

        Args:
            name: the sink.
            pending: the batch that it is still trying; None if it has given up on it.
            error: why it did.
        """
        at = self._shared.retry(self._checkpoints.load)[name]
        if error is not None:
            self._shared.stats.report_sink_error(name, error)
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
                self._look_at = time.monotonic() + _WISHES_S
                self._shared.retry(lambda: self._hear(joined))
            for name in [
                name for name, catching_up in self._behind.items() if catching_up.given_up
            ]:
                del self._behind[name]
                self._given_up = self._shared.retry(self._gaps.open)
        for name, position in self.rejoin_point.taken().items() if self._behind else ():
            self._join(name, position)
            joined.append(name)
        if joined:
            self._shared.retry(self._forget_wishes)
        return joined

    def wait(self) -> None:
        """Stand for a moment for one that is about to arrive."""
        self.rejoin_point.wait(self._shared.over)

    def earliest(self, position: Position) -> Position:
        """Return up to where the source may forget the log: a position, or where the last stands.

        Whoever is given up does not count.
        """
        behind = [catching_up.at for catching_up in self._behind.values()]
        found: Position | None = self._source.earliest([position, *behind])
        return position if found is None else found

    def holders(self, position: Position | None) -> list[str]:
        """Return who holds a batch up to a position, although it has not joined.

        A sink that is given nothing twice joins only where the lane stands, which may wait for it.
        """
        if position is None:
            return []
        covers = self._source.covers
        return [
            name for name, catching_up in self._behind.items() if covers(catching_up.at, position)
        ]

    @property
    def any(self) -> bool:
        """Return whether some sink is behind, or was given up."""
        return bool(self._behind or self._given_up)

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
        _log.warning(
            "sink %s is behind; the pipeline goes on without it, and it is caught up from %s",
            name,
            dict(at),
        )
        sink_thread = self._sinks.thread(name)
        sink = self._described[name]
        self._behind[name] = CatchUp(self._shared, sink, sink_thread, at, pending, waits=waits)

    def _join(self, name: str, position: Position) -> None:
        self._shared.retry(self._checkpoints.load)  # It was moved meanwhile.
        del self._behind[name]
        self._skip_list.join(name, position)
        self._shared.stats.set_status(name, "running")
        _log.info("sink %s has caught up, at %s", name, dict(position))
        reach(CrashPoint.SINK_JOINED)

    def _forget_wishes(self) -> None:
        """Remove commands that came too late: they must not give up a sink that lags later."""
        concerned = self._behind.keys() | self._given_up.keys()
        late = [command for command in self._gaps.wishes() if command.sink not in concerned]
        if late:
            self._store([self._gaps.granted(command) for command in late])

    def _hear(self, resumed: list[str]) -> None:
        """Do what people want of sinks.

        Args:
            resumed: gets the sinks that go on, also if the store fails afterwards.
        """
        for wish in self._gaps.wishes():
            if wish.wanted == "give_up" and wish.sink in self._behind:
                self._behind[wish.sink].unwanted = f"{wish.by} gave it up"
            elif wish.wanted == "resume" and wish.sink in self._given_up:
                if self.rejoin_point.inside or not self._sinks.renew(wish.sink):
                    continue  # In a moment: between transactions, and with no writer of before.
                self._resume(wish)
                resumed.append(wish.sink)
                continue
            self._store([self._gaps.granted(wish)])

    def _resume(self, wish: SinkCommand) -> None:
        """Resume a sink that was given up at the position of the lane."""
        name, position = wish.sink, self.rejoin_point.at
        gap = self._given_up[name]
        self._checkpoints.load()
        put = self._checkpoints.put(name, position, begins=True)
        self._store([self._gaps.close(gap, position), put, self._gaps.granted(wish)])
        reach(CrashPoint.SINK_RESUMED)
        del self._given_up[name]
        self._skip_list.join(name, position)
        self._shared.stats.set_status(name, "running")
        self._shared.stats.caught_up(name, position, None)
        _log.warning(
            "sink %s goes on at %s; it lacks what lies between %s and there",
            name,
            dict(position),
            gap.start,
        )

    def _store(self, writes: list[Write]) -> None:
        context = self._shared.context
        context.store.transact(writes, context.fence)
