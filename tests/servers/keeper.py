"""Ends sessions of processes when the process that started them is gone, however that died."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

_PATIENCE_S = 30.0

# Reads session ids until its owner's end of the pipe closes, also by SIGKILL; an id that is told
# a second time has ended. It imports nothing of ours, so that it starts at once.
_KEEPER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sessions = set()
for line in sys.stdin:
    sessions ^= {int(line)}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.getsid(int(pid)) in sessions:
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


class Keeper:
    """A small process beside this one that outlives it just long enough."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _KEEPER],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def add(self, session: int) -> None:
        """End this session together with this process."""
        self._tell(session)

    def forget(self, session: int) -> None:
        """Leave this session alone: it has ended."""
        self._tell(session)

    def close(self) -> None:
        """End the keeper, and every session it was not told to forget."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _tell(self, session: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{session}\n")
        self._process.stdin.flush()


def members(sessions: set[int]) -> list[int]:
    """Return the living processes of some sessions."""
    return [pid for pid in every_pid() if _session(pid) in sessions and lives(pid)]


def kill_session(leader: int) -> None:
    """Kill a session until it is empty: a process may fork while it is being killed."""
    deadline = time.monotonic() + _PATIENCE_S
    while (found := members({leader})) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def every_pid() -> list[int]:
    """Return every process of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def lives(pid: int) -> bool:
    """Say whether there is such a process, and more of it than its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
