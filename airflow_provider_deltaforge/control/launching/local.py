"""Drivers as detached ``spark-submit`` processes of this machine.

Each driver leads its own session, so it outlives the process that started it. A lock file that
the session inherits says, without any race, whether something of it still lives: a second submit
finds the lock taken and adopts, also when the first submitter was killed half-way.
"""

import fcntl
import glob
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage import distress, moments
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.log_file import last_lines

# The shell outlives a SIGTERM to its session (a trapped signal is reset in the child, an ignored
# one would be inherited by the JVM), so that the exit code is always written down.
_LEADER = """
trap : TERM INT HUP
echo $$ > pid
"$@"
code=$?
echo $code > exit.part && mv exit.part exit
"""

log = logging.getLogger(__name__)

_SUFFIX = re.compile(r"[0-9a-f]{8}")
_HANDLE_WAIT_S = 5.0
_POLL_S = 0.1
_TAKE_ATTEMPTS = 10
_TAKE_WAIT_S = 0.03


def jobs_directory(store: str) -> Path:
    """Return the directory of the jobs that belong to a state store.

    ``DELTAFORGE_JOBS`` wins; else it lies beside a SQLite store, so that every process that opens
    the store agrees, else in the user's home.

    Args:
        store: the store's DSN.

    Raises:
        SpecError: the DSN is wrong, or a variable in it is not set.
    """
    configured = os.environ.get("DELTAFORGE_JOBS")
    if configured:
        return Path(configured)
    file = StoreLocation.from_dsn(store).file()
    if file is not None:
        return file.parent / "jobs"
    return Path.home() / ".deltaforge" / "jobs"


def command_without_spark(job: LaunchSpec) -> list[str]:
    """Return the command line of a driver that works in one process; it never holds a secret."""
    module = "airflow_provider_deltaforge.cli.app"
    which = ("--pipeline", job.pipeline, "--generation", str(job.generation))
    return [sys.executable, "-m", module, "driver", *which]


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Runs jobs below ``directory``, one sub-directory per job name.

    Attributes:
        directory: made where it is missing.
        compose: returns the command of a job.
        term_grace_s: so long a driver may take to end after SIGTERM, and again after SIGKILL.
    """

    directory: Path
    compose: Callable[[LaunchSpec], Sequence[str]] = spark_submit.command
    term_grace_s: float = 5.0

    def check(self, master: str, store: str) -> None:
        """Refuse a Spark master or state store that drivers cannot work with.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        spark_submit.check_master(master, store)

    def submit(self, job: LaunchSpec) -> Handle:
        """Start the job in its own session, or adopt the one that runs."""
        place = self.directory / job.name
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _take(place)
        if lock is None:
            return _read_handle(place)
        try:
            return _spawn(place, lock, job, self.compose(job))
        finally:
            os.close(lock)

    def status(self, handle: Handle) -> JobStatus:
        """Ask the lock, then the exit file.

        A lock that is free says that nothing of the driver lives: one that is only frozen holds it.
        """
        place = Path(handle["directory"])
        if not _is_ours(handle, place):
            return JobStatus(JobState.UNKNOWN)
        if place.is_dir():
            lives = _is_held(place)
        else:  # Its volume is away, perhaps.
            lives = any(process.status() != psutil.STATUS_ZOMBIE for process in _session(handle))
        if lives:
            return JobStatus(JobState.RUNNING, distress=distress.read(place))
        code = _text(place / "exit")
        return JobStatus(JobState.ENDED, int(code) if code else None)

    @contextmanager
    def occupied(self, pipeline: str) -> Iterator[Handle | None]:
        """Hold the lock of a driver that runs inside this process; yield its handle.

        None where no directory can be had: then only heartbeats tell that it lives.
        """
        base = f"df-{pipeline}-local-"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for former in self.directory.glob(f"{glob.escape(base)}*"):
                if _SUFFIX.fullmatch(former.name[len(base) :]) and not _is_held(former):
                    shutil.rmtree(former, ignore_errors=True)
            place = self.directory / f"{base}{secrets.token_hex(4)}"
            place.mkdir(mode=0o700)
            lock = _take(place)
            distress.prepare(place)
            handle = {**_write_handle(place, os.getpid()), "in_process": True}
        except OSError as error:
            log.warning("%s: no lock can be held there: %s", self.directory, error)
            yield None
            return
        former_job = os.environ.get(distress.JOB_DIRECTORY)
        os.environ[distress.JOB_DIRECTORY] = str(place)
        try:
            yield handle
        finally:
            os.environ.pop(distress.JOB_DIRECTORY)
            if former_job is not None:
                os.environ[distress.JOB_DIRECTORY] = former_job
            if lock is not None:
                os.close(lock)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Wait for the driver to drain; then SIGTERM and SIGKILL to its session."""
        if self.status(handle).state is JobState.UNKNOWN:
            raise RetryableError(
                f"{handle.get('name')} runs on {handle.get('host')}; stop it from there"
            )
        if self._ended(handle, grace_s):
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in _session(handle):
                if process.pid == os.getpid():
                    continue  # A driver inside this process; its caller ends it.
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    process.send_signal(number)
            if self._ended(handle, self.term_grace_s):
                return
        raise RetryableError(f"{handle['name']}: its processes did not end after SIGKILL")

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the end of ``driver.log``; of its last mebibyte, however long it grew."""
        lines = last_lines(Path(handle["directory"]) / "driver.log", line_count)
        return "".join(f"{line}\n" for line in lines)

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return where the driver's log lies."""
        return {"driver log": str(Path(handle["directory"]) / "driver.log")}

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while self.status(handle).state is JobState.RUNNING:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def _spawn(place: Path, lock: int, job: LaunchSpec, command: Sequence[str]) -> Handle:
    """Start the session leader, which inherits the lock, and write the handle down."""
    for stale in ("exit", "pid", "handle.json"):
        (place / stale).unlink(missing_ok=True)
    distress.prepare(place)
    with (place / "driver.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - the words are ours; no shell reads the values
            ["/bin/sh", "-c", _LEADER, job.name, *command],
            cwd=place,
            env={**spark_submit.environment(job), distress.JOB_DIRECTORY: str(place.absolute())},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(lock,),
        )
    # Reaped here while we live; init reaps it when we do not.
    threading.Thread(target=process.wait, daemon=True, name=f"reap-{job.name}").start()
    return _write_handle(place, process.pid)


def _write_handle(place: Path, pid: int) -> Handle:
    started_at = None
    with suppress(psutil.NoSuchProcess):
        started_at = psutil.Process(pid).create_time()
    handle: dict[str, Any] = {
        "backend": "local",
        "name": place.name,
        "directory": str(place.absolute()),
        "host": socket.gethostname(),
        "boot": moments.boot(),
        "pid": pid,
        "started_at": started_at,
    }
    part = place / "handle.part"
    part.write_text(json.dumps(handle))
    part.replace(place / "handle.json")
    return handle


def _read_handle(place: Path) -> Handle:
    """Return the running job's handle, rebuilt from its pid when the submitter was killed."""
    deadline = time.monotonic() + _HANDLE_WAIT_S
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            handle: Handle = json.loads((place / "handle.json").read_text())
            return handle
        time.sleep(_POLL_S)
    pid = _text(place / "pid")
    if not pid:
        raise RetryableError(f"{place.name} is being submitted by another process; try again")
    return _write_handle(place, int(pid))


def _session(handle: Handle) -> Iterator[psutil.Process]:
    """Yield what lives of the job's session, Spark's Python workers included."""
    leader = handle["pid"]
    if handle.get("in_process"):
        with suppress(psutil.Error):
            process = psutil.Process(leader)
            if process.create_time() == handle["started_at"]:
                yield process
        return
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) != leader:
                continue
            # A session id is free for reuse once its session is gone: never touch a later one.
            if process.pid == leader and process.create_time() != handle["started_at"]:
                return
            yield process


def _is_ours(handle: Handle, place: Path) -> bool:
    """Return whether the lock of a handle can be asked here.

    Two machines may share a name. What was started before this machine's last boot is gone if its
    directory is here, and may live elsewhere if not.
    """
    if handle.get("host") != socket.gethostname():
        return False
    boot = handle.get("boot")
    return boot is None or boot == moments.boot() or place.is_dir()


def _take(place: Path) -> int | None:
    """Return the job's lock, or None while its session holds it."""
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    # A status check holds the lock, shared, for microseconds: it must not look like a driver.
    for _ in range(_TAKE_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        time.sleep(_TAKE_WAIT_S)
    os.close(lock)
    return None


def _is_held(place: Path) -> bool:
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
