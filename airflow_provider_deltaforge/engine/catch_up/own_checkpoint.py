"""The checkpoint of a sink that is caught up."""

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkThread
from airflow_provider_deltaforge.engine.read.empty_progress import EmptyProgress
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints, StoredPosition


class CatchUpEnded(Exception):  # noqa: N818 - not an error: the lane ends
    """Nothing more is to be done for this sink."""


class OwnCheckpoint:
    """Moves under the lane's fence. Used by the thread that catches the sink up.

    Args:
        shared: the lane's.
        sink_id: whose.
        sink_thread: own the sink's connection.
        dead_letters: what is set aside for it.
        at: where it stands.
        retry: repeats a call to the store while it is away.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        sink_id: str,
        sink_thread: SinkThread,
        dead_letters: DeadLetterQueue,
        at: Position,
        retry: Callable[[Callable[[], Any]], Any],
    ) -> None:
        context = shared.context
        self._shared, self._id, self._sink_thread = shared, sink_id, sink_thread
        self._dead_letters, self._retry = dead_letters, retry
        source_id = context.pipeline.spec.source.id
        self._checkpoints = Checkpoints(context.store, context.pipeline.name, source_id)
        self.empty_progress = EmptyProgress(context.job.tuning.idle_checkpoint_s)
        """Up to where nothing is for the sink, stored or not."""
        self.at = at
        """What is stored of the sink's position."""

    def load(self) -> None:
        """Read what is stored."""
        self._retry(self._checkpoints.load)
        self._retry(self._dead_letters.begin)

    @property
    def stand(self) -> StoredPosition | None:
        """Return what is stored, with what the sink is to tell of itself."""
        return self._checkpoints.stand(self._id)

    @property
    def reached(self) -> Position:
        """Return up to where the sink lacks nothing, stored or not."""
        idle_upto = self.empty_progress.position
        return self.at if idle_upto is None else idle_upto

    def begin(self, held: tuple[str, ...]) -> None:
        """Store what the sink tells where a rewind begins."""
        self.store([self._checkpoints.put(self._id, self.at, held)])

    def keep(self) -> None:
        """Move over transactions that hold nothing for the sink, but not too often."""
        if (position := self.empty_progress.due) is not None:
            self.commit(position)

    def commit(self, position: Position) -> None:
        """Move, with what is set aside."""
        self._await_room()
        self.empty_progress.ends()
        held = self._sink_thread.holds(self.stand)
        self.store([self._checkpoints.put(self._id, position, held)])
        self.at = position
        reach(CrashPoint.CAUGHT_UP_STORED)
        self._shared.stats.caught_up(self._id, position, None)

    def store_early(self) -> None:
        """Store what is set aside before the sink holds the rest of its batch."""
        self._await_room()
        self.store([])

    def store(self, writes: Sequence[Write]) -> None:
        """Store, with what is set aside; the lane waits for that."""
        with self._shared.storing:
            self._retry(lambda: self._dead_letters.transact(writes))
            self._retry(self._dead_letters.stored)

    def _await_room(self) -> None:
        if not self._retry(self._dead_letters.awaits_room):
            raise CatchUpEnded
