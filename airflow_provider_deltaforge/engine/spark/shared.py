"""One Spark application for many pipelines: a driver thread each, a task for each lane.

A lane is one long task, which keeps the core that it got. So there is a place for as many pipelines
as there are cores, and what copies need beyond that is taken from cores that no pipeline has.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial

from pyspark.sql import SparkSession

from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.spark.application import travelling
from airflow_provider_deltaforge.engine.spark.runner import SparkRunner
from airflow_provider_deltaforge.engine.spark.session import jvm_may_die, session, share_variables
from airflow_provider_deltaforge.engine.spark.worker_daemon import SOURCES
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.spec.variables import INLINE_PREFIX
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control

_AGAIN_S = 1.0
_DAEMON = "airflow_provider_deltaforge.engine.spark.worker_daemon"

_log = logging.getLogger(__name__)


class TaskPlaces:
    """The cores of an application, one kept for each pipeline that has been admitted.

    Args:
        total: returns how many there are now.
        master: of the application, for an error's text.
    """

    def __init__(self, total: Callable[[], int], master: str) -> None:
        self._total = total
        self._master = master
        self._changed = threading.Condition()
        self._admitted: dict[str, int] = {}
        """How many drivers of a pipeline there are: two for the moment in which one hangs."""
        self._tasks: dict[str, int] = {}

    def check(self, pipeline: str) -> None:
        """Refuse a pipeline for whose lane there is no core.

        Raises:
            SpecError: there is none; the text names the setting.
        """
        total = self._total()
        with self._changed:
            others = sum(1 for name in self._admitted if name != pipeline)
        if others >= total:
            raise SpecError(
                f"--master {self._master}: {total} lanes have a core each, and there is none for "
                f"that of {pipeline!r}: a lane is one long task. Write --master 'local[N]' with N "
                "of at least the number of pipelines (N may exceed the machine's cores), give the "
                "cluster more cores, or run without Spark: --local"
            )

    @contextmanager
    def admitted(self, pipeline: str) -> Iterator[None]:
        """Keep a core for a pipeline while the block runs."""
        self._count(self._admitted, pipeline, 1)
        try:
            yield
        finally:
            self._count(self._admitted, pipeline, -1)

    @contextmanager
    def task(self, pipeline: str) -> Iterator[None]:
        """Wait for a core for one task of a copy: the pipeline's own, or one that nobody has."""
        with self._changed:
            while not self._has_place(pipeline):
                self._changed.wait(_AGAIN_S)  # A cluster may have grown.
            self._tasks[pipeline] = self._tasks.get(pipeline, 0) + 1
        try:
            yield
        finally:
            self._count(self._tasks, pipeline, -1)

    def _has_place(self, pipeline: str) -> bool:
        if not self._tasks.get(pipeline):
            return True
        beyond = sum(max(0, tasks - 1) for tasks in self._tasks.values())
        return len(self._admitted) + beyond < self._total()

    def _count(self, counts: dict[str, int], pipeline: str, more: int) -> None:
        with self._changed:
            counts[pipeline] = counts.get(pipeline, 0) + more
            if not counts[pipeline]:
                del counts[pipeline]
            self._changed.notify_all()


class SharedApplication:
    """A Spark application in which drivers of many pipelines work.

    Args:
        master: Spark's.
        location: the state store.
        settings: of Spark, from ``spark_submit.configuration``.
        sources: packages of the sources whose decoders workers share.

    Raises:
        RetryableError: the JVM cannot be started.
    """

    def __init__(
        self,
        master: str,
        location: StoreLocation,
        settings: Mapping[str, str],
        sources: Iterable[str] = (),
    ) -> None:
        stay_lean()
        # For the JVM and Spark's Python workers, which inherit them where they run on this host.
        os.environ[ENVIRONMENT] = location.to_dsn()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        self._location = location
        os.environ[SOURCES] = ",".join(sorted(set(sources)))
        fair = {
            "spark.master": master,
            "spark.scheduler.mode": "FAIR",
            "spark.python.daemon.module": _DAEMON,
        }
        with jvm_may_die():
            self._spark: SparkSession = session("deltaforge-fleet", {**settings, **fair})
            self._application_id = self._spark.sparkContext.applicationId
        self.places = TaskPlaces(self._cores, master)

    def drive(self, pipeline: str, generation: int, leaving: threading.Event) -> int:
        """Run a pipeline's driver in the calling thread; return its exit code."""
        assignment = DriverArguments(
            pipeline, travelling(self._location), generation, self._application_id, leaving
        )
        done = threading.Event()
        threading.Thread(
            target=self._pass_on, args=(assignment, leaving, done), name="drain", daemon=True
        ).start()
        try:
            with self.places.admitted(pipeline):
                inline = [name for name in os.environ if name.startswith(INLINE_PREFIX)]
                share_variables(self._spark, inline)
                runner = SparkRunner(self._spark, partial(self.places.task, pipeline))
                return drive_stream(assignment, runner).exit_code
        finally:
            done.set()

    def is_alive(self) -> bool:
        """Return whether the JVM still runs the application."""
        try:
            with jvm_may_die():
                return not self._spark.sparkContext._jsc.sc().isStopped()  # noqa: SLF001
        except (RetryableError, AttributeError):
            return False

    def close(self) -> None:
        """Stop the application."""
        with suppress(RetryableError), jvm_may_die():
            self._spark.stop()

    def _cores(self) -> int:
        with jvm_may_die():
            return int(self._spark.sparkContext.defaultParallelism)

    def _pass_on(
        self, assignment: DriverArguments, leaving: threading.Event, done: threading.Event
    ) -> None:
        """Ask the lane to drain once the driver is to leave: events do not reach Spark's tasks."""
        while not leaving.wait(_AGAIN_S):
            if done.is_set():
                return
        while not done.is_set():
            try:
                store = self._location.open()
                try:
                    Control(store, assignment.pipeline).update(
                        lambda record: record.draining(assignment.generation)
                    )
                finally:
                    store.close()
            except DeltaForgeError as error:
                _log.warning("the lane is not asked to drain yet: %s", error)
                done.wait(_AGAIN_S)
            else:
                return
