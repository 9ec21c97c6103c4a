"""The drivers of one pipeline as the operating system sees them."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.servers.keeper import every_pid, lives

_PATIENCE_S = 30.0

Driver = str
"""What all processes of one driver have in common, and no other process has."""


def session_of(pid: int) -> Driver:
    """Return the session of a process: a driver beside Airflow leads one."""
    return f"session {os.getsid(pid)}"


def work_directory_of(pid: int) -> Driver:
    """Return where a process works: a Spark worker gives each driver a directory."""
    return str(Path(f"/proc/{pid}/cwd").readlink())


class Processes:
    """The drivers of a pipeline, watched a few times a second.

    Args:
        name: the pipeline's.
        driver_of: returns the driver that a process belongs to.
    """

    def __init__(self, name: str, driver_of: Callable[[int], Driver]) -> None:
        self._word = f"--pipeline\0{name}\0".encode()
        self._driver_of = driver_of
        self.seen: set[Driver] = set()
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def begin_anew(self) -> None:
        """Forget what was seen so far."""
        self.seen, self.most = set(), 0

    def living(self) -> set[Driver]:
        """Return the drivers of which something lives."""
        found = set()
        for pid in every_pid():
            with contextlib.suppress(OSError):
                if self._word in Path(f"/proc/{pid}/cmdline").read_bytes() and lives(pid):
                    # Asked last: before its command line is its own, its starter's session is too.
                    found.add(self._driver_of(pid))
        return found

    def members(self, driver: Driver) -> list[int]:
        """Return the living processes of a driver, its Python workers included."""
        found = []
        for pid in every_pid():
            with contextlib.suppress(OSError):
                if lives(pid) and self._driver_of(pid) == driver:
                    found.append(pid)
        return found

    def kill(self, driver: Driver) -> None:
        """Kill every process of a driver; one may fork while it is being killed."""
        deadline = time.monotonic() + _PATIENCE_S
        while (found := self.members(driver)) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def end(self) -> None:
        """Stop watching, and kill what is left."""
        self._over.set()
        self._thread.join()
        for driver in self.living():
            self.kill(driver)

    def _look(self) -> None:
        while not self._over.wait(0.5):
            living = self.living()
            self.seen |= living
            self.most = max(self.most, len(living))


def here(process: str) -> int:
    """Return the id that a process has here.

    Args:
        process: as it knows itself: its namespace of process ids, and its id there.
    """
    namespace, own = process.split()
    for pid in every_pid():
        with contextlib.suppress(OSError):
            if str(Path(f"/proc/{pid}/ns/pid").readlink()) == namespace:
                status = Path(f"/proc/{pid}/status").read_text()
                if status.partition("NSpid:")[2].splitlines()[0].split()[-1] == own:
                    return pid
    raise AssertionError(f"no process {process} lives")
