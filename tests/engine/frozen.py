"""Freezes drivers as a machine does that sleeps, but never within a write to the store."""

import os
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from tests.servers.process import stands_still
from tests.waiting import wait_for


def freeze_between_writes(pids: Sequence[int], store: Path) -> None:
    """Stop processes while none of them holds a SQLite file, which they would keep locked.

    A signal stops each thread when it next runs, so what is locked is asked only then.
    """
    while True:
        signal_all(pids, signal.SIGSTOP)
        for pid in pids:
            wait_for(f"process {pid} to stand still", lambda pid=pid: stands_still(pid))
        if not is_locked(store):
            return
        signal_all(pids, signal.SIGCONT)
        wait_for("the store", lambda: not is_locked(store))


def is_locked(store: Path) -> bool:
    """Return whether some process is writing to a SQLite file."""
    with closing(sqlite3.connect(store, timeout=0.2)) as state:
        try:
            state.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


def signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
