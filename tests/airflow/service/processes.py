"""The drivers of one pipeline as the operating system sees them."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path


class Processes:
    """The sessions of a pipeline's drivers, watched a few times a second."""

    def __init__(self, name: str) -> None:
        self._word = f"--pipeline\0{name}\0".encode()
        self.seen: set[int] = set()
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Forget what was seen so far."""
        self.seen, self.most = set(), 0

    def living(self) -> set[int]:
        """Return the sessions in which something of a driver lives."""
        return {session for session, _ in self._members()}

    def kill(self, session: int) -> None:
        """Kill every process of a driver's session, its Python workers included."""
        while members := [pid for pid in _pids() if _session(pid) == session and _lives(pid)]:
            for pid in members:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def end(self) -> None:
        """Stop watching, and kill what is left."""
        self._over.set()
        self._thread.join()
        for session in self.living():
            self.kill(session)

    def _look(self) -> None:
        while not self._over.wait(0.5):
            living = self.living()
            self.seen |= living
            self.most = max(self.most, len(living))

    def _members(self) -> Iterator[tuple[int, int]]:
        for pid in _pids():
            with contextlib.suppress(OSError):
                if self._word in Path(f"/proc/{pid}/cmdline").read_bytes() and _lives(pid):
                    yield _session(pid), pid


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
