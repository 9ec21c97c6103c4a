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


class Runner(Protocol):
    """Where the work of a pipeline runs."""

    def copy(
        self, job: DriverAssignment, run_id: str, tables: list[list[list[TableChunk]]], at_once: int
    ) -> Iterable[ChunkResult]:
        """Copy chunks in parallel and yield what becomes of each, in any order.

        Args:
            job: what they belong to.
            run_id: the snapshot run.
            tables: per table, the chunks of as many workers as may work on it at the same time.
            at_once: tables that may be worked on at the same time.
        """

    def stream(self, job: DriverAssignment, window_s: float) -> Outcome:
        """Run lanes, window after window, until one ends for another reason than its window.

        Raises:
            RetryableError: a lane died without an outcome; it may be started again.
        """
