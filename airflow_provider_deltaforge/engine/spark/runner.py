"""The engine on Spark: lanes in a streaming query, snapshot chunks in batch jobs."""

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from queue import SimpleQueue

from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_deltaforge.engine.base.crash_points import arm_again
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.engine.base.runner import (
    UNLIMITED,
    ChunkResult,
    CopyPlan,
    ReadRate,
)
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import (
    await_workers,
    copy_chunks,
    until_done,
)
from airflow_provider_deltaforge.engine.spark.lanes import WindowGate, on_executor, run_lane
from airflow_provider_deltaforge.engine.spark.session import jvm_may_die
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.telemetry import logs
from airflow_provider_deltaforge.telemetry.pipeline_scope import (
    PipelineScope,
    present_scope,
    working_for,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

_POLL_S = 0.2
_CANCEL_S = 10.0
_EVERY_BATCH = "rate-micro-batch"
"""Spark's own source that has something new whenever it is asked: micro-batches are windows.

A Python data source has partitions for tasks as well, but Spark starts four processes more for it,
one behind the other.
"""

_log = logging.getLogger(__name__)


class SparkRunner:
    """Runs the work of one driver in a Spark application, which may hold other drivers as well.

    Args:
        spark: the application's session.
        place: yields while another task of this driver may run.
    """

    def __init__(
        self,
        spark: SparkSession,
        place: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._spark = spark
        self._place = place

    def stream(self, job: DriverAssignment, window_s: float) -> Outcome:
        """Run lanes in a streaming query until one ends for another reason than its window."""
        with jvm_may_die():
            return self._stream(job, window_s)

    def _stream(self, job: DriverAssignment, window_s: float) -> Outcome:
        outcomes: SimpleQueue[Outcome] = SimpleQueue()
        over = threading.Event()
        gate = WindowGate(job.location, over)
        scope = present_scope()

        def window(_rows: DataFrame, _batch_id: int) -> None:
            if not gate.passes():
                return
            with working_for(scope):  # Spark calls from threads that serve every query.
                outcome = self._run_lane(job, window_s)
            outcomes.put(outcome)
            if outcome.why != "window":
                # Begin none behind the last: its lane would shut out the driver, which goes on by
                # now. What a lane has stored of its end does not say enough: the store may have
                # been away.
                over.wait()

        # Spark's checkpoint directory is scratch, new for every run: the state store is the truth.
        scratch = tempfile.mkdtemp(prefix="deltaforge-query-")
        query = (
            self._spark.readStream.format(_EVERY_BATCH)
            .option("rowsPerBatch", 1)
            .load()
            .writeStream.foreachBatch(window)
            .option("checkpointLocation", scratch)
            .queryName(f"deltaforge-{job.driver}")
            .start()
        )
        try:
            while True:
                outcome = _next(outcomes)
                if outcome is not None and outcome.why != "window":
                    return outcome
                if outcome is None and query.awaitTermination(job.tuning.query_s):
                    raise RetryableError("the streaming query ended without an outcome")
        except StreamingQueryException as error:
            raise RetryableError(f"a lane died: {_first_line(error)}") from None
        finally:
            over.set()
            query.stop()
            gate.close()
            shutil.rmtree(scratch, ignore_errors=True)

    def _run_lane(self, job: DriverAssignment, window_s: float) -> Outcome:
        """Run a lane as a task of the query's present micro-batch, which ends together with it."""
        self._share_fairly(job)
        job = replace(job, leaving=None)  # An event of this process; see ``SharedApplication``.
        scope = self._scope_of_tasks()
        tasks = self._spark.sparkContext.parallelize([window_s], 1)
        outcomes: list[Outcome] = tasks.map(lambda seconds: run_lane(job, seconds, scope)).collect()
        return outcomes[0]

    def _share_fairly(self, job: DriverAssignment) -> None:
        """Give this thread's jobs the pool of their driver: a free core goes to who has fewest."""
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", job.driver)

    def _scope_of_tasks(self) -> PipelineScope | None:
        """Return for whom tasks work: on this host they log to the file of their driver."""
        scope = present_scope()
        if scope is None:
            return None
        is_here = str(self._spark.sparkContext.master).startswith("local")
        return PipelineScope(scope.fields, scope.directory if is_here else None)

    def copy(self, job: DriverAssignment, run_id: str, plan: CopyPlan) -> Iterable[ChunkResult]:
        """Copy every worker's share in a Spark job of its own."""
        with jvm_may_die():
            yield from self._copy(job, run_id, plan)

    def _copy(self, job: DriverAssignment, run_id: str, plan: CopyPlan) -> Iterator[ChunkResult]:
        places, rate = threading.Semaphore(plan.workers), plan.rate
        results: SimpleQueue[ChunkResult | None] = SimpleQueue()
        spark_context = self._spark.sparkContext
        over = threading.Event()
        group = f"deltaforge-copy-{job.driver}-{run_id}"
        task_job = replace(job, leaving=None)
        scope = self._scope_of_tasks()

        def copy_share(chunks: list[TableChunk]) -> None:
            try:
                with places, self._place():
                    if over.is_set():
                        return
                    self._share_fairly(job)
                    spark_context.setJobGroup(group, f"copy of {run_id}")
                    # Partitions of one job would be fetched, and run, two at a time at most.
                    rdd = spark_context.parallelize([chunks], 1)
                    for copied in rdd.mapPartitions(
                        lambda part: copy_on_executor(task_job, run_id, part, rate, scope)
                    ).toLocalIterator():
                        results.put(copied)
            except Exception as error:  # noqa: BLE001 - outcomes are data
                text = f"a snapshot task died: {_first_line(error)}"
                results.put(ChunkResult("", "", 0, Outcome.of(RetryableError(text))))

        def copy_table(workers: list[list[TableChunk]]) -> None:
            try:
                with ThreadPoolExecutor(len(workers), thread_name_prefix="hand") as worker_pool:
                    list(worker_pool.map(copy_share, workers))
            finally:
                results.put(None)

        pool = ThreadPoolExecutor(plan.at_once, thread_name_prefix="table")
        try:
            working = [pool.submit(copy_table, workers) for workers in plan.tables]
            yield from until_done(results, len(plan.tables))
        finally:
            over.set()
            _cancel(spark_context, group)
            pool.shutdown(wait=False, cancel_futures=True)
            await_workers(working)


def copy_on_executor(
    job: DriverAssignment,
    run_id: str,
    workers: Iterable[list[TableChunk]],
    rate: ReadRate = UNLIMITED,
    scope: PipelineScope | None = None,
) -> Iterator[ChunkResult]:
    """Copy chunks in a Spark task, one after another.

    Args:
        job: of the snapshot's driver.
        run_id: of the snapshot.
        workers: the task's share, as lists of chunks.
        rate: how fast the task may read.
        scope: the pipeline, in an application that runs several.
    """
    stay_lean()
    arm_again()  # As for a lane.
    logs.configure({"snapshot": run_id})
    with working_for(scope):
        for chunks in workers:
            for copied in copy_chunks(job, run_id, chunks, rate=rate):
                outcome = copied.outcome
                if outcome is not None and not copied.chunk_id:
                    outcome = on_executor(job, outcome)
                yield replace(copied, outcome=outcome)


def _cancel(spark_context: SparkContext, group: str) -> None:
    """Cancel a copy's jobs, and wait for their tasks: a cancelled one goes on for a moment."""
    tracker = spark_context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [stage for job in jobs if job is not None for stage in job.stageIds]
    spark_context.cancelJobGroup(group)
    deadline = time.monotonic() + _CANCEL_S
    while time.monotonic() < deadline:
        infos = [tracker.getStageInfo(stage) for stage in stages]
        if not any(stage.numActiveTasks for stage in infos if stage is not None):
            return
        time.sleep(_POLL_S)
    _log.warning("cancelled snapshot tasks have not ended; what they still write is refused")


def _next(outcomes: "SimpleQueue[Outcome]") -> Outcome | None:
    return None if outcomes.empty() else outcomes.get()


def _first_line(error: Exception) -> str:
    """Return the part of a Spark error that says something."""
    lines = [line.strip() for line in redacted(str(error)).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
