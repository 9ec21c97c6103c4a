"""Where the work of a pipeline runs: what a driver asks of Spark, or of this process."""

from collections.abc import Iterable
from typing import Protocol

from airflow_provider_deltaforge.engine.copying import Copied
from airflow_provider_deltaforge.engine.job import Job
from airflow_provider_deltaforge.engine.outcome import Outcome
from airflow_provider_deltaforge.sources.contract import TableChunk


class Runner(Protocol):
    """Where the work of a pipeline runs."""

    def copy(
        self, job: Job, run_id: str, tables: list[list[list[TableChunk]]], at_once: int
    ) -> Iterable[Copied]:
        """Copy chunks in parallel and yield what becomes of each, in any order.

        Args:
            job: what they belong to.
            run_id: the snapshot run.
            tables: per table, the chunks in as many hands as may work on it at the same time.
            at_once: tables that may be worked on at the same time.
        """

    def stream(self, job: Job, window_s: float) -> Outcome:
        """Run lanes, window after window, until one ends for another reason than its window.

        Raises:
            RetryableError: a lane died without an outcome; it may be started again.
        """
