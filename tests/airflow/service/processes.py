"""The drivers of one pipeline as the operating system sees them."""

import contextlib
import os
import threading
from pathlib import Path

from tests.servers.keeper import every_pid, kill_session, lives


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
        found = set()
        for pid in every_pid():
            with contextlib.suppress(OSError):
                if self._word in Path(f"/proc/{pid}/cmdline").read_bytes() and lives(pid):
                    # Asked last: before its command line is its own, its starter's session is too.
                    found.add(os.getsid(pid))
        return found

    def kill(self, session: int) -> None:
        """Kill every process of a driver's session, its Python workers included."""
        kill_session(session)

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
