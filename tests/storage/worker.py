"""Processes that use a store side by side, and that tests kill: ``python -m tests.storage.worker``.

Each line on standard output says what was done, after it was durable.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.storage.contract import Append, Fence, Push, Put, Store, Write
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.storage.computed import ComputedPut

KEYS = 10
"""How many values one transaction of ``transactions`` writes."""


def spawn(mode: str, dsn: str, *args: object) -> "subprocess.Popen[str]":
    """Start a worker; its standard output is a pipe."""
    command = [sys.executable, "-m", "tests.storage.worker", mode, dsn, *map(str, args)]
    checkout = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=checkout)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a worker and wait for it."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def count(store: Store, times: str) -> None:
    """Add one to the slot cas/k, ``times`` times, whoever else does."""
    for _ in range(int(times)):
        while True:
            slot = store.slot("cas", "k")
            version, total = (slot.version, int(slot.state)) if slot else (0, 0)
            if store.swap("cas", "k", version, b"%d" % (total + 1)) is not None:
                break


def append(store: Store, times: str) -> None:
    """Append to the log and tell the numbers."""
    for _ in range(int(times)):
        _tell(store.append("log", str(os.getpid()), b""))


def fenced(store: Store, version: str) -> None:
    """Write under an epoch until it is over; tell how many writes were acknowledged."""
    fence, written = Fence("epochs", "p", int(version)), 0
    _tell("ready")
    while True:
        writes = [Append("epochs", "p", version.encode()), Put("last", "epoch", version.encode())]
        try:
            store.transact(writes, fence)
        except FencedError:
            _tell(written)
            return
        written += 1


def transactions(store: Store, first: str, version: str) -> None:
    """Write the same number everywhere in one transaction after the other; tell each."""
    number, fence = int(first), Fence("epochs", "p", int(version))
    while True:
        store.transact(same(number), fence)
        _tell(number)
        number += 1


def die(store: Store, after: str) -> None:
    """Kill this process in a transaction, after so many of its writes."""

    def kill() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    writes = same(1)
    writes.insert(int(after), ComputedPut("same", "never", kill))
    store.transact(writes)


def freeze(store: Store) -> None:
    """Stand still inside a transaction that passed its fence, until frozen and woken, once."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCONT})
    calls = 0

    def wait() -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            _tell("inside")
            signal.sigwait({signal.SIGCONT})
        return b""

    try:
        store.transact([ComputedPut("freeze", "k", wait)], Fence("epochs", "p", 1))
    except FencedError:
        _tell("fenced")
    except RetryableError as error:
        _tell(error)


def same(number: int) -> list[Write]:
    """Return one transaction's writes: all of them say ``number``."""
    text = b"%d" % number
    values: list[Write] = [Put("same", f"k{i}", text) for i in range(KEYS)]
    return [*values, Append("same", "k", text), Push("same", "k", text)]


def _tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


_MODES: dict[str, Callable[..., None]] = {
    mode.__name__: mode for mode in (count, append, fenced, transactions, die, freeze)
}

if __name__ == "__main__":
    _MODES[sys.argv[1]](StoreLocation.from_dsn(sys.argv[2]).create(), *sys.argv[3:])
