"""Lanes as Spark tasks: one task carries events for a window of work and returns its outcome.

Events never cross the JVM. Where the log is read from is decided by the checkpoints in the state
store.
"""

import socket
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from airflow_provider_deltaforge.engine.base.crash_points import arm_again
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
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry import logs
from airflow_provider_deltaforge.telemetry.pipeline_scope import PipelineScope, working_for

_AWAY_S = 0.2


class WindowGate:
    """Says when another window may begin. Used by the driver.

    Args:
        location: of the state store.
        over: set when no further window is wanted.
    """

    def __init__(self, location: StoreLocation, over: threading.Event) -> None:
        self._location = location
        self._over = over
        self._store: Store | None = None

    def passes(self) -> bool:
        """Return whether a window begins now; wait while the store is away: no lane could begin.

        What is wanted of the pipeline does not count. Asked to stop between two windows, it needs
        a lane that says so; behind a lane that has ended for good the driver asks for none.
        """
        while not self._over.is_set():
            try:
                if self._store is None:
                    self._store = self._location.open()
                self._store.get("", "")
            except RetryableError:
                self._over.wait(_AWAY_S)
            else:
                return True
        return False

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()


def run_lane(job: DriverAssignment, window_s: float, scope: PipelineScope | None = None) -> Outcome:
    """Run a lane in this process; every error becomes an outcome.

    Args:
        job: of the driver.
        window_s: how long.
        scope: the pipeline, in an application that runs several: its worker processes serve one
            after the other.
    """
    stay_lean()
    arm_again()  # Spark gives a worker process one task after the other.
    # The lane, its drivers and kernels are only needed where a task runs.
    from airflow_provider_deltaforge.engine.lane.lane import Lane

    try:
        context = TaskContext.open(job, renew=True)
    except Exception as error:  # noqa: BLE001 - outcomes travel as rows
        return on_executor(job, Outcome.of(error))
    metadata = context.pipeline.metadata
    fields = {"pipeline": metadata.name, "tenant": metadata.tenant}
    try:
        logs.configure(fields)
        with working_for(scope), _shipped_log(job, metadata.name):
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
