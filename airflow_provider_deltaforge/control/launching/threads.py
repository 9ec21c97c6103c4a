"""Drivers as threads of one process, which runs many pipelines: ``deltaforge fleet``.

Each has a directory of its own, with its lock, its log and how it ended, as a driver that is a
process has. A process cannot end one of its threads, and another process must not end it for one
pipeline's sake. So a driver that hangs is asked to leave, then given up: the epoch of its successor
fences whatever it may still write.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exc

from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    happens,
)
from airflow_provider_deltaforge.control.launching.job_directory import (
    is_ours,
    lock_status,
    read_handle,
    remove_former,
    take,
    write_handle,
)
from airflow_provider_deltaforge.control.supervise import RETRYABLE
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage import distress
from airflow_provider_deltaforge.telemetry.log_file import last_lines
from airflow_provider_deltaforge.telemetry.pipeline_scope import (
    LOG_FILE,
    PipelineScope,
    working_for,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

NAME = "thread"
SCRIPT = "fleet"
"""In the handle of a driver of a fleet, in the place of a script."""

LOCAL = "DELTAFORGE_LOCAL"
"""The variable that stands for ``--local``: it decides where a command line does not."""

_LEAVE = "leave"
_POLL_S = 0.1
_LEAVE_POLL_S = 1.0

_log = logging.getLogger(__name__)

Drive = Callable[[LaunchSpec, threading.Event], int]
"""Runs a driver until the event is set, or until it is asked to end; returns its exit code."""


@dataclass(slots=True)
class _Driver:
    place: Path
    lock: int
    leaving: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False


class ThreadBackend:
    """Runs drivers in this process; finds those of others on this machine.

    Args:
        directory: of the jobs, one sub-directory per job name.
        drive: what a thread does; None in a process that runs no driver itself.
        term_grace_s: so long a driver may take to end after it was asked to leave.
    """

    def __init__(
        self, directory: Path, drive: Drive | None = None, term_grace_s: float = 5.0
    ) -> None:
        self._directory = directory
        self._drive = drive
        self._term_grace_s = term_grace_s
        self._drivers: dict[str, _Driver] = {}
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None

    def check(self, master: str, store: str) -> None:
        """Refuse to start anything in a process that runs no drivers.

        Raises:
            SpecError: it is none.
        """
        del master, store
        if self._drive is None:
            raise SpecError("only `deltaforge fleet` runs drivers as threads of its own process")

    def submit(self, job: LaunchSpec) -> Handle:
        """Start the driver in a thread, or adopt the one that runs.

        Raises:
            SpecError: this process runs no drivers.
        """
        self.check(job.master, job.store)
        drive = self._drive
        assert drive is not None, "refused above"  # noqa: S101
        place = self._directory / job.name
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = take(place)
        if lock is None:
            return read_handle(place, NAME)
        remove_former(place)
        for stale in ("exit", "pid", "handle.json", _LEAVE):
            (place / stale).unlink(missing_ok=True)
        distress.prepare(place)
        handle = write_handle(place, os.getpid(), NAME)
        driver = _Driver(place, lock)
        with self._lock:
            self._drivers[str(handle["directory"])] = driver
        threading.Thread(
            target=self._run, args=(drive, job, driver), name=job.name, daemon=True
        ).start()
        self._listen()
        return handle

    def status(self, handle: Handle) -> JobStatus:
        """Ask the lock, then the exit file; without its directory nothing is known."""
        place = Path(handle["directory"])
        if not is_ours(handle, place) or not place.is_dir():
            return JobStatus(JobState.UNKNOWN)
        return lock_status(place)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Wait for the driver to drain; then ask it to leave, whatever is away, or give it up.

        Raises:
            RetryableError: it is a thread of another process, and goes on.
        """
        if self.status(handle).state is JobState.UNKNOWN:
            raise RetryableError(
                f"{handle.get('name')} runs on {handle.get('host')}; stop it from there"
            )
        if self._ended(handle, grace_s):
            return
        driver = self._own(handle)
        if driver is None:
            with suppress(OSError):
                (Path(handle["directory"]) / _LEAVE).touch()
        else:
            driver.leaving.set()
        if self._ended(handle, self._term_grace_s):
            return
        if driver is None:
            raise RetryableError(
                f"{handle.get('name')} is one of several drivers in the process {handle.get('pid')}"
                f" on {handle.get('host')}; it was asked to leave and does not, and the process is "
                "not ended for it, because the other pipelines would end with it"
            )
        self._give_up(handle, driver)

    def leave(self, grace_s: float) -> None:
        """Ask every driver of this process to leave, and wait for as long for all of them."""
        with self._lock:
            drivers = list(self._drivers.values())
        for driver in drivers:
            driver.leaving.set()
        until = time.monotonic() + grace_s
        for driver in drivers:
            driver.ended.wait(max(0.0, until - time.monotonic()))

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the end of the driver's own log."""
        lines = last_lines(Path(handle["directory"]) / LOG_FILE, line_count)
        return "".join(f"{line}\n" for line in lines)

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return where the driver's log lies."""
        return {"driver log": str(Path(handle["directory"]) / LOG_FILE)}

    def _own(self, handle: Handle) -> _Driver | None:
        if (handle.get("host"), handle.get("pid")) != (socket.gethostname(), os.getpid()):
            return None
        with self._lock:
            return self._drivers.get(str(handle["directory"]))

    def _run(self, drive: Drive, job: LaunchSpec, driver: _Driver) -> None:
        with working_for(PipelineScope({"pipeline": job.pipeline}, driver.place)):
            try:
                code = drive(job, driver.leaving)
            except BaseException:  # noqa: BLE001 - other pipelines go on
                _log.error("the driver ended: %s", redacted(format_exc()))
                code = RETRYABLE
        with self._lock:
            if driver.is_given_up:
                return
            if self._drivers.get(str(driver.place.absolute())) is driver:
                del self._drivers[str(driver.place.absolute())]
            with suppress(OSError):
                part = driver.place / "exit.part"
                part.write_text(f"{code}\n")
                part.replace(driver.place / "exit")
            os.close(driver.lock)
            driver.ended.set()

    def _give_up(self, handle: Handle, driver: _Driver) -> None:
        with self._lock:
            if driver.ended.is_set():
                return
            driver.is_given_up = True
            self._drivers.pop(str(handle["directory"]), None)
            os.close(driver.lock)
        _log.warning(
            "%s hangs and is given up; nothing that it may still write counts once its successor "
            "has begun",
            handle.get("name"),
        )

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        return happens(lambda: self.status(handle).state is not JobState.RUNNING, wait_s, _POLL_S)

    def _listen(self) -> None:
        """Hear what other processes ask for: only files reach from one to the other."""
        with self._lock:
            if self._listener is None:
                self._listener = threading.Thread(target=self._hear, name="leave", daemon=True)
                self._listener.start()

    def _hear(self) -> None:
        while True:
            with self._lock:
                drivers = list(self._drivers.values())
            for driver in drivers:
                if not driver.leaving.is_set() and (driver.place / _LEAVE).exists():
                    driver.leaving.set()
            time.sleep(_LEAVE_POLL_S)
