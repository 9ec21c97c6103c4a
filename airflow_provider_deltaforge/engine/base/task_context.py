"""What a worker needs to run part of a pipeline: names and a document, never a secret."""

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Fence, Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control

_LAST_WORD_S = 3.0


@dataclass(frozen=True, slots=True)
class DriverAssignment:
    """One pipeline under one driver. Picklable; travels to executors.

    Attributes:
        document: the pipeline document, unexpanded.
        location: the state store, its own secrets unexpanded.
        driver: the token of this driver start; a newer driver has another.
        generation: which intent of the control record this driver serves.
        application_id: Spark's, None without Spark.
        leaving: set once the process is to end that everything runs in; None with Spark.
        tuning: of its workers.
        pushes_metrics: the driver sends its metrics to OpenTelemetry by itself.
    """

    document: str
    location: StoreLocation
    driver: str
    generation: int
    application_id: str | None = None
    leaving: threading.Event | None = None
    tuning: Tuning = TUNING
    pushes_metrics: bool = False

    @property
    def leaves(self) -> bool:
        """Return whether the process is to end, whatever the control record says."""
        return self.leaving is not None and self.leaving.is_set()

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the process is to end."""
        if self.leaving is not None:
            self.leaving.wait(seconds)
        else:
            time.sleep(seconds)

    def in_time(self, call: Callable[[], object]) -> None:
        """Make a call to the store; a process that is to end waits a few seconds for it only."""
        if not self.leaves:
            call()
            return

        def attempt() -> None:
            with suppress(DeltaForgeError):  # Nobody is left to act on it.
                call()

        last = threading.Thread(target=attempt, daemon=True, name="last word")
        last.start()
        last.join(_LAST_WORD_S)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """A job opened in one process: the expanded document, the store, and the fence."""

    job: DriverAssignment
    pipeline: Pipeline
    store: Store
    control: Control
    fence: Fence

    @classmethod
    def open(cls, job: DriverAssignment, *, renew: bool) -> "TaskContext":
        """Load the document with this process's environment and open the store.

        Args:
            job: what to open.
            renew: raise the epoch for a lane; otherwise take the epoch as it is, for work that
                several tasks of one driver do together.

        Raises:
            SpecError: the document cannot be expanded here.
            FencedError: a newer driver has started.
        """
        pipeline = load(job.document)
        store = job.location.open()
        control = Control(store, pipeline.name)
        fence = control.renew_epoch(job.driver) if renew else control.held_epoch(job.driver)
        return cls(job, pipeline, store, control, fence)

    @property
    def origin(self) -> Origin:
        """Return what the pipeline's events share."""
        meta, source = self.pipeline.metadata, self.pipeline.spec.source
        return Origin(meta.name, meta.tenant, source.connector, __version__, source.type_system)


def place() -> tuple[str, int]:
    """Return this host's name and this process's id."""
    return socket.gethostname(), os.getpid()
