"""Lanes as a Structured Streaming source: a micro-batch is a window of work.

One partition is one lane; its task carries events for the whole window and yields a single row,
the outcome. Events never cross the JVM. Spark's own offsets only count windows: where the log is
read from is decided by the checkpoints in the state store.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_deltaforge.engine.base.log_shipper import (
    LogOrigin,
    driver_log,
    shipped_log,
)
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.telemetry import logs

FORMAT = "deltaforge_lanes"
SCHEMA = "outcome string"
_AWAY_S = 0.2  # Spark asks for new offsets every 10 ms.


def lane_source(job: DriverAssignment, window_s: float) -> type[DataSource]:
    """Return a data source that runs one job.

    The job is part of the class, not an option: options are shown in query plans.
    """

    class LaneSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return SCHEMA

        def streamReader(self, schema: Any) -> "LaneReader":  # noqa: N802 - Spark's name
            stay_lean()
            return LaneReader(job, window_s)

    return LaneSource


class LaneReader(DataSourceStreamReader):
    """Plans windows. Spark pickles it, and makes one in several processes: it opens nothing."""

    def __init__(self, job: DriverAssignment, window_s: float) -> None:
        self._job = job
        self._window_s = window_s
        self._context: TaskContext | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return the offset before the first window."""
        return {"window": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """Return the next window, or none while the store is away: no lane could begin.

        What is wanted of the pipeline does not count. Asked to stop between two windows, it needs
        a lane that says so; behind a lane that has ended for good the driver asks for none.
        """
        try:
            if self._context is None:
                self._context = TaskContext.open(self._job, renew=False)
            self._context.control.read()
        except RetryableError:
            time.sleep(_AWAY_S)
            return start
        return {"window": start["window"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one partition: one lane."""
        return [InputPartition(end["window"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Run a lane for a window and yield its outcome."""
        yield (json.dumps(run_lane(self._job, self._window_s).as_dict()),)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: checkpoints follow each delivered batch."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_context": None}


def run_lane(job: DriverAssignment, window_s: float) -> Outcome:
    """Run a lane in this process; every error becomes an outcome."""
    stay_lean()
    # The lane, its drivers and kernels are only needed where a task runs.
    from airflow_provider_deltaforge.engine.lane.lane import Lane

    try:
        context = TaskContext.open(job, renew=True)
    except Exception as error:  # noqa: BLE001 - outcomes travel as rows
        return on_executor(job, Outcome.of(error))
    metadata = context.pipeline.metadata
    try:
        logs.configure({"pipeline": metadata.name, "tenant": metadata.tenant})
        with _shipped_log(job, metadata.name):
            return Lane(context, window_s).run()
    except Exception as error:  # noqa: BLE001 - outcomes travel as rows
        return Outcome.of(error)
    finally:
        context.store.close()


def _shipped_log(job: DriverAssignment, pipeline: str) -> AbstractContextManager[None]:
    """Ship what the lane logs, unless it prints to the driver's log, as in ``local[*]``."""
    if driver_log() is not None:
        return nullcontext()
    return shipped_log(LogOrigin(job.location, pipeline, job.driver, job.generation, "lane"))


def on_executor(job: DriverAssignment, outcome: Outcome) -> Outcome:
    """Return how a task ended that could not begin, with what helps if it could not be read here.

    The driver has read the same document: what is missing is missing in the executor's environment.
    """
    if outcome.error_class != SpecError.error_class:
        return outcome
    try:
        load(job.document)
    except SpecError:
        reason = (
            f"on the Spark executor at {socket.gethostname()}, which has the environment of its "
            "Spark worker and not the driver's: write ${NAME} in place of inline secrets, and set "
            f"the document's variables where Spark's workers are started. {outcome.reason}"
        )
        return replace(outcome, reason=reason)
    return outcome
