"""Where the work of a pipeline runs: what a driver asks of Spark, or of this process."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.processor_stats import SinkCounts
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.sensing.data_drift.findings import TableFindings
from airflow_provider_deltaforge.sensing.row_samples import RowSample
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.snapshot_settings import SnapshotSettings


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What became of one chunk; ``outcome`` None: every sink holds it."""

    chunk_id: str
    table: str
    rows: int
    outcome: Outcome | None = None
    taken: Mapping[str, SinkCounts] = field(default_factory=dict)
    """What each sink was given."""
    processors: Mapping[str, Any] = field(default_factory=dict)
    """What processors did since the last chunk; also told by a chunk that failed."""
    dead_letters: Mapping[str, Any] = field(default_factory=dict)
    """What was set aside since the last chunk."""
    findings: Sequence[TableFindings] = ()
    """Where the chunk's rows differ from what the catalog says."""
    samples: Sequence[RowSample] = ()
    """Some of the chunk's rows, for schema sensing."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What was measured since the last chunk."""


@dataclass(frozen=True, slots=True)
class ReadRate:
    """How fast one worker may read; None: as fast as it can.

    Attributes:
        rows_per_s: rows of a table in a second.
        bytes_per_s: bytes of these rows, as JSON, in a second.
    """

    rows_per_s: float | None = None
    bytes_per_s: float | None = None

    def seconds(self, rows: int, row_bytes: int) -> float:
        """Return how long reading so much must take."""
        by_rows = rows / self.rows_per_s if self.rows_per_s else 0.0
        by_bytes = row_bytes / self.bytes_per_s if self.bytes_per_s else 0.0
        return max(by_rows, by_bytes)


UNLIMITED = ReadRate()


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What is copied at the same time.

    Attributes:
        tables: per table, the chunks of as many workers as may work on it at the same time.
        at_once: tables that may be worked on at the same time.
        workers: that read at the same time, of all tables.
        rate: of each of them.
    """

    tables: list[list[list[TableChunk]]]
    at_once: int
    workers: int
    rate: ReadRate = UNLIMITED

    @classmethod
    def of(cls, settings: SnapshotSettings, chunks: Iterable[Sequence[TableChunk]]) -> "CopyPlan":
        """Deal the chunks of each table to workers, and divide the rate among these.

        Whoever reads a table that is the last one left does not take over the others' share: the
        workers are processes apart.
        """
        most = settings.max_parallel_chunks if settings.intra_table_parallel else 1
        tables = [
            [list(table[worker::most]) for worker in range(min(most, len(table)))]
            for table in chunks
        ]
        largest = sorted((len(table) for table in tables), reverse=True)
        workers = sum(largest[: settings.max_parallel_tables])
        workers = max(1, min(workers, settings.max_connections or workers))
        rows, row_bytes = settings.max_rows_per_s, settings.max_bytes_per_s
        rate = ReadRate(
            rows / workers if rows is not None else None,
            row_bytes / workers if row_bytes is not None else None,
        )
        return cls(tables, settings.max_parallel_tables, workers, rate)


class Runner(Protocol):
    """Where the work of a pipeline runs."""

    def copy(self, job: DriverAssignment, run_id: str, plan: CopyPlan) -> Iterable[ChunkResult]:
        """Copy chunks in parallel and yield what becomes of each, in any order.

        Args:
            job: what they belong to.
            run_id: the snapshot run.
            plan: the chunks, and how many are copied at the same time.
        """

    def stream(self, job: DriverAssignment, window_s: float) -> Outcome:
        """Run lanes, window after window, until one ends for another reason than its window.

        Raises:
            RetryableError: a lane died without an outcome; it may be started again.
        """
