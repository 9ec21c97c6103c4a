"""Drivers as detached ``spark-submit`` processes of this machine.

Each driver leads its own session, so it outlives the process that started it. A lock file that
the session inherits says, without any race, whether something of it still lives: a second submit
finds the lock taken and adopts, also when the first submitter was killed half-way.
"""

import glob
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_provider_deltaforge.control.launching import spark_submit
from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    happens,
)
from airflow_provider_deltaforge.control.launching.job_directory import (
    is_held,
    is_ours,
    lock_status,
    read_handle,
    remove_former,
    take,
    write_handle,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage import distress
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.fleets import fleet_name
from airflow_provider_deltaforge.telemetry.log_file import last_lines
from airflow_provider_deltaforge.telemetry.pipeline_scope import LOG_FILE

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
_POLL_S = 0.1


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


def command(job: LaunchSpec) -> Sequence[str]:
    """Return the command line of a driver on Spark, or of a fleet; it never holds a secret."""
    fleet = fleet_name(job.pipeline)
    if fleet is None:
        return spark_submit.command(job)
    module = "airflow_provider_deltaforge.cli.app"
    which = ("--name", fleet, "--generation", str(job.generation))
    served = ("--api-addr", "off", "--metrics-addr", "off")
    return [sys.executable, "-m", module, job.script, *job.arguments, *which, *served]


@dataclass(frozen=True, slots=True)
class LocalBackend:
    """Runs jobs below ``directory``, one sub-directory per job name.

    Attributes:
        directory: made where it is missing.
        compose: returns the command of a job.
        term_grace_s: so long a driver may take to end after SIGTERM, and again after SIGKILL.
    """

    directory: Path
    compose: Callable[[LaunchSpec], Sequence[str]] = command
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
        lock = take(place)
        if lock is None:
            return read_handle(place)
        remove_former(place)
        try:
            return _spawn(place, lock, job, self.compose(job))
        finally:
            os.close(lock)

    def status(self, handle: Handle) -> JobStatus:
        """Ask the lock, then the exit file."""
        place = Path(handle["directory"])
        if not is_ours(handle, place):
            return JobStatus(JobState.UNKNOWN)
        if place.is_dir():
            return lock_status(place)
        # Its volume is away, perhaps.
        lives = next(_session(handle), None) is not None
        return JobStatus(JobState.RUNNING if lives else JobState.ENDED)

    @contextmanager
    def occupied(self, pipeline: str) -> Iterator[Handle | None]:
        """Hold the lock of a driver that runs inside this process; yield its handle.

        None where no directory can be had: then only heartbeats tell that it lives.
        """
        base = f"df-{pipeline}-local-"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for former in self.directory.glob(f"{glob.escape(base)}*"):
                if _SUFFIX.fullmatch(former.name[len(base) :]) and not is_held(former):
                    shutil.rmtree(former, ignore_errors=True)
            place = self.directory / f"{base}{secrets.token_hex(4)}"
            place.mkdir(mode=0o700)
            lock = take(place)
            distress.prepare(place)
            handle = {**write_handle(place, os.getpid()), "in_process": True}
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
        lines = last_lines(Path(handle["directory"]) / LOG_FILE, line_count)
        return "".join(f"{line}\n" for line in lines)

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return where the driver's log lies."""
        return {"driver log": str(Path(handle["directory"]) / LOG_FILE)}

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        return happens(lambda: self.status(handle).state is not JobState.RUNNING, wait_s, _POLL_S)


def _spawn(place: Path, lock: int, job: LaunchSpec, command: Sequence[str]) -> Handle:
    """Start the session leader, which inherits the lock, and write the handle down."""
    for stale in ("exit", "pid", "handle.json"):
        (place / stale).unlink(missing_ok=True)
    distress.prepare(place)
    with (place / LOG_FILE).open("ab") as log:
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
    return write_handle(place, process.pid)


def _session(handle: Handle) -> Iterator[psutil.Process]:
    """Yield what lives of the job's session, Spark's Python workers included."""
    leader = handle["pid"]
    if handle.get("in_process"):
        with suppress(psutil.Error):
            process = psutil.Process(leader)
            if process.create_time() == handle["started_at"] and _lives(process):
                yield process
        return
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) != leader:
                continue
            # A session id is free for reuse once its session is gone: never touch a later one.
            if process.pid == leader and process.create_time() != handle["started_at"]:
                return
            if _lives(process):
                yield process


def _lives(process: psutil.Process) -> bool:
    """Return whether there is more of a process than its exit code.

    Raises:
        psutil.NoSuchProcess: it has gone meanwhile.
    """
    return bool(process.status() != psutil.STATUS_ZOMBIE)
