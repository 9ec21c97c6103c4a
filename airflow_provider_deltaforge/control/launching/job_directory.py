"""The directory of a job on this machine: its lock, its handle, how it ended.

Whoever holds the lock lives: the kernel lets go of it when the last process that has it open ends,
however that ends.
"""

import fcntl
import json
import os
import re
import shutil
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_deltaforge.control.launching.contract import Handle, JobState, JobStatus
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage import distress, moments

_HANDLE_WAIT_S = 5.0
_POLL_S = 0.1
_TAKE_ATTEMPTS = 10
_TAKE_WAIT_S = 0.03


def lock_status(place: Path) -> JobStatus:
    """Return what the lock and the exit file say of a job whose directory is here.

    A lock that is free says that nothing of the driver lives: one that is only frozen holds it.
    """
    if is_held(place):
        return JobStatus(JobState.RUNNING, distress=distress.read(place))
    code = text_of(place / "exit")
    return JobStatus(JobState.ENDED, int(code) if code else None)


def write_handle(place: Path, pid: int, backend: str = "local") -> Handle:
    """Write down where a job is, and return it."""
    started_at = None
    with suppress(psutil.NoSuchProcess):
        started_at = psutil.Process(pid).create_time()
    handle: dict[str, Any] = {
        "backend": backend,
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


def read_handle(place: Path, backend: str = "local") -> Handle:
    """Return the running job's handle, rebuilt from its pid when the submitter was killed."""
    deadline = time.monotonic() + _HANDLE_WAIT_S
    while time.monotonic() < deadline:
        with suppress(FileNotFoundError):
            handle: Handle = json.loads((place / "handle.json").read_text())
            return handle
        time.sleep(_POLL_S)
    pid = text_of(place / "pid")
    if not pid:
        raise RetryableError(f"{place.name} is being submitted by another process; try again")
    return write_handle(place, int(pid), backend)


def remove_former(place: Path) -> None:
    """Remove the directories of a pipeline's former drivers, but for the latest of them.

    Args:
        place: of the driver that starts, whose lock is held.
    """
    prefix, _, number = place.name.rpartition("-g")
    if not number.isdecimal():
        return
    former = [
        (int(found[1]), each)
        for each in place.parent.iterdir()
        if (found := re.fullmatch(rf"{re.escape(prefix)}-g(\d+)", each.name))
        and int(found[1]) < int(number)
    ]
    for _, each in sorted(former)[:-1]:
        if not is_held(each):
            shutil.rmtree(each, ignore_errors=True)


def is_ours(handle: Handle, place: Path) -> bool:
    """Return whether the lock of a handle can be asked here.

    Two machines may share a name. What was started before this machine's last boot is gone if its
    directory is here, and may live elsewhere if not.
    """
    if handle.get("host") != socket.gethostname():
        return False
    boot = handle.get("boot")
    return boot is None or boot == moments.boot() or place.is_dir()


def take(place: Path) -> int | None:
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


def is_held(place: Path) -> bool:
    """Return whether something holds the lock of a job.

    Nothing is made: a directory that another process removes meanwhile stays removed.
    """
    try:
        lock = os.open(place / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def text_of(path: Path) -> str:
    """Return a small file's text; empty when it is not there."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
