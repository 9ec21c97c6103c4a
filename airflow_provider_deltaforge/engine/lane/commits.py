"""Moves the checkpoints of a lane's sinks, together with what is stored with them.

While all goes well, several batches share a checkpoint: killed, the lane delivers again what came
behind the last one.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.data_drift import DataDriftCounter
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.engine.read.source_identity import SourceIdentity
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.storage.contract import Write


@dataclass(frozen=True, slots=True)
class StoredWithCheckpoint:
    """What has something to store where a checkpoint moves."""

    dead_letters: DeadLetterQueue
    source_identity: SourceIdentity
    tables: TableWatch
    data_drift: DataDriftCounter


class Commits:
    """Moves checkpoints for one opening of the log. Used by the delivery thread.

    Args:
        shared: the lane's.
        delivery: makes the writes of the sinks, and acknowledges to the source.
        reader: of the lane.
        skip_list: which sinks stand further on.
        parts: what is stored together with checkpoints.
        store: stores writes, with dead letters, under the lane's fence.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        delivery: Delivery,
        reader: LogReader,
        skip_list: SkipList,
        parts: StoredWithCheckpoint,
        store: Callable[[Sequence[Write]], None],
    ) -> None:
        self._shared, self._delivery, self._reader = shared, delivery, reader
        self._skip_list, self._parts, self._store = skip_list, parts, store
        self._tuning = shared.context.job.tuning
        # A sink that holds the position itself is looked up there by what is stored of the batch.
        sinks = shared.context.pipeline.spec.sinks
        self._is_exact = any(sink.holds_position for sink in sinks)
        self._pending: Position | None = None
        self._holds_rows = False
        """Behind what is stored, sinks were given something."""
        self._is_counting = False
        self._due_s = 0.0
        self._trigger = ""

    def passed_empty(self, position: Position) -> None:
        """Note that nothing is for the sinks up to a position."""
        if self._is_counting:  # It ends a transaction of which they were given parts.
            self.delivered(position, self._trigger)
            return
        self._wait(position, self._tuning.idle_checkpoint_s)
        self.tend()

    def counts(self) -> None:
        """Note that a batch is being counted: until it is ``delivered``, nothing is stored.

        What it sets aside and counts would be stored with the checkpoint in front of it, and once
        more when it is read again.
        """
        self._is_counting = True

    def delivered(self, position: Position, trigger: str) -> None:
        """Note that the sinks hold everything up to a position.

        Args:
            position: the end of a batch.
            trigger: why that was cut there.

        Raises:
            DeltaForgeError: what ends the lane here.
        """
        self._trigger, self._holds_rows = trigger, True
        if self._goes_well():
            self._is_counting = False
            self._wait(position, self._tuning.checkpoint_s)
            self.tend()
        else:
            self._commit(position)

    def wait_s(self, longest_s: float) -> float:
        """Return how long nothing is due, but not more than ``longest_s``."""
        if self._pending is None:
            return longest_s
        return min(longest_s, max(0.0, self._due_s - time.monotonic()))

    def tend(self) -> None:
        """Store what is due."""
        if self._pending is not None and time.monotonic() >= self._due_s:
            self._commit(self._pending)
        elif not self._is_counting and (late := self._parts.data_drift.late_writes()):
            self._store(late)
            self._parts.data_drift.checkpointed(late)

    def settle(self) -> None:
        """Store now what the sinks hold: somebody reads it, or what follows is stored apart.

        Where nothing was for them, that waits until it comes again.
        """
        if self._pending is not None and self._holds_rows and not self._is_counting:
            self._commit(self._pending)
        self._pending = None

    def _goes_well(self) -> bool:
        """Return whether nobody needs to know at once how far the sinks are."""
        if self._is_exact or not self._delivery.takes_rows():
            return False
        return not (self._parts.dead_letters.has_news or self._parts.source_identity.is_reading)

    def _wait(self, position: Position, longest_s: float) -> None:
        due_s = time.monotonic() + longest_s
        self._due_s = due_s if self._pending is None else min(due_s, self._due_s)
        self._pending = position

    def _commit(self, position: Position) -> None:
        shared, delivery, parts = self._shared, self._delivery, self._parts
        if not shared.retry(parts.dead_letters.awaits_room):
            return
        begun_s = time.perf_counter()
        self._pending, self._holds_rows, self._is_counting = None, False, False
        searching = delivery.searching
        names = [name for name in self._skip_list.behind(position) if name not in searching]
        writes, ends_by = parts.source_identity.passed(position)
        arrivals = shared.retry(lambda: parts.tables.passed(position, self._reader))
        writes = [*writes, *arrivals]
        writes += delivery.passed_alone(position)
        drift = parts.data_drift.writes()
        self._store([*(delivery.put(name, position) for name in names), *writes, *drift])
        reach(CrashPoint.CHECKPOINT_STORED)
        parts.data_drift.checkpointed(drift)
        shared.retry(parts.tables.stored)
        shared.stats.checkpointed(position, names)
        delivery.acknowledge(self._reader, position)
        shared.stats.measured.stage("commit", self._trigger, time.perf_counter() - begun_s)
        if ends_by is not None:
            raise ends_by
