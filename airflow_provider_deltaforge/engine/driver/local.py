"""Runs a pipeline without Spark: lanes in this process, chunks in threads."""

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.engine.base.runner import ChunkResult, CopyPlan
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import (
    await_workers,
    copy_chunks,
    until_done,
)
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage.location import StoreLocation


class LocalRunner:
    """The engine in one process."""

    def copy(self, job: DriverAssignment, run_id: str, plan: CopyPlan) -> Iterable[ChunkResult]:
        """Copy in threads, one for each worker of the tables that are copied at the same time."""
        places = threading.Semaphore(plan.workers)
        results: SimpleQueue[ChunkResult | None] = SimpleQueue()
        over = threading.Event()

        def copy_share(chunks: list[TableChunk]) -> None:
            with places:
                if over.is_set():
                    return
                for copied in copy_chunks(job, run_id, chunks, over.is_set, plan.rate):
                    results.put(copied)
                    if over.is_set():
                        return

        def copy_table(workers: list[list[TableChunk]]) -> None:
            try:
                with ThreadPoolExecutor(len(workers)) as pool:
                    list(pool.map(copy_share, workers))
            except Exception as error:  # noqa: BLE001 - outcomes are data
                results.put(ChunkResult("", "", 0, Outcome.of(error)))
            finally:
                results.put(None)

        pool = ThreadPoolExecutor(plan.at_once)
        try:
            working = [pool.submit(copy_table, workers) for workers in plan.tables]
            yield from until_done(results, len(plan.tables))
        finally:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            await_workers(working)

    def stream(self, job: DriverAssignment, window_s: float) -> Outcome:
        """Run lanes one after the other in this thread."""
        while True:
            context = TaskContext.open(job, renew=True)
            try:
                outcome = Lane(context, window_s).run()
            finally:
                context.store.close()
            if outcome.why != "window":
                return outcome


def run_local(
    pipeline: str,
    location: StoreLocation,
    generation: int,
    leaving: threading.Event | None = None,
    *,
    pushes_metrics: bool = False,
) -> int:
    """Run a pipeline in this process until it is asked to end; return an exit code.

    Args:
        pipeline: its name.
        location: of the state store.
        generation: of the control record.
        leaving: ends it as well, also while the store is away.
        pushes_metrics: see ``DriverArguments``.
    """
    stay_lean()
    assignment = DriverArguments(
        pipeline, location, generation, leaving=leaving, pushes_metrics=pushes_metrics
    )
    return drive_stream(assignment, LocalRunner()).exit_code
