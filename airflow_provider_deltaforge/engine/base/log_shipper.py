"""Copies the end of a driver's log into its state store, for people on other machines."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.engine.base.task_context import place
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.storage.distress import job_directory
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.driver_logs import (
    DriverLogs,
    LogTail,
    Process,
    shortened,
)
from airflow_provider_deltaforge.storage.records.record import now_ms
from airflow_provider_deltaforge.telemetry import logs
from airflow_provider_deltaforge.telemetry.log_file import last_lines
from airflow_provider_deltaforge.telemetry.pipeline_scope import LOG_FILE

EVERY_S = 2.0
_LAST_S = 3.0


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """Whose log is shipped, and where to."""

    location: StoreLocation
    pipeline: str
    driver: str
    generation: int
    process: Process = "driver"


@contextmanager
def shipped_log(origin: LogOrigin, every_s: float = EVERY_S) -> Iterator[None]:
    """Ship what this process logs while the block runs, and a last time at its end.

    Nothing is written while nothing is logged. What the store cannot take now it takes later; a
    driver that was fenced writes nothing.
    """
    done = threading.Event()
    shipper = _Shipper(origin)
    thread = threading.Thread(target=shipper.run, args=(done, every_s), name="log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(_LAST_S)


def driver_log() -> Path | None:
    """Return the file that everything the driver prints goes to, if there is one."""
    directory = job_directory()
    file = directory / LOG_FILE if directory is not None else None
    return file if file is not None and file.is_file() else None


class _Shipper:
    def __init__(self, origin: LogOrigin) -> None:
        self._origin = origin
        self._shipped: object = None
        self._former: list[str] | None = None

    def run(self, done: threading.Event, every_s: float) -> None:
        is_over = False
        while not is_over:
            is_over = done.wait(every_s)
            try:
                self._ship()
            except (DeltaForgeError, OSError):
                continue  # The store or the disk is away, or it is another driver's now.

    def _ship(self) -> None:
        file = driver_log()
        mark: object = logs.recent_lines().count if file is None else file.stat().st_size
        if mark == self._shipped:
            return
        lines = last_lines(file) if file is not None else logs.recent_lines().lines()
        origin = self._origin
        store = origin.location.open()
        try:
            fence = Control(store, origin.pipeline).held_epoch(origin.driver)
            known = DriverLogs(store, origin.pipeline)
            if self._former is None:
                self._former = self._of_former(known.tail(origin.process), is_file=file is not None)
            tail = LogTail(
                driver=origin.driver,
                generation=origin.generation,
                host=place()[0],
                at_ms=now_ms(),
                lines=shortened([*self._former, *lines]),
            )
            store.transact([known.put(origin.process, tail)], fence)
        finally:
            store.close()
        self._shipped = mark

    def _of_former(self, tail: LogTail | None, *, is_file: bool) -> list[str]:
        """Return what the last driver logged; one of our generation wrote to our file."""
        if tail is None or tail.driver == self._origin.driver:
            return []
        return [] if is_file and tail.generation == self._origin.generation else tail.lines
