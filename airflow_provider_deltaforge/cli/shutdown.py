"""Leaving when asked to by a signal, whatever is away: in order if that works, in time if not.

Store, source, sinks and registries are called by code that may hang for as long as a network lets
it. A process that is killed loses nothing, so after a while this one ends as if it were.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow_provider_deltaforge.cli.exit_codes import RETRY

LIMIT_S = 23.0
"""How long after the first signal the process is gone at the latest; supervisors wait 30 s."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class _Departure:
    """When the process was asked to leave; kept beyond the block, until it is gone."""

    def __init__(self) -> None:
        self.until: float | None = None

    def asked(self) -> float:
        """Note the first signal; return how long is left."""
        if self.until is None:
            self.until = time.monotonic() + LIMIT_S
        return max(0.0, self.until - time.monotonic())


_departure = _Departure()


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn SIGINT and SIGTERM into an event while the block runs; a second SIGINT interrupts.

    Heard by a thread of its own: a main thread that waits in a call for a server runs no handler.
    """
    stopping, over = threading.Event(), threading.Event()

    handled: list[int] = []

    def handle(number: int, _: object) -> None:
        if handled and number == signal.SIGINT:
            raise KeyboardInterrupt
        handled.append(number)
        stopping.set()

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def listen() -> None:
        while numbers := ours.recv(16):
            if not set(numbers) & {int(number) for number in _SIGNALS}:
                continue
            stopping.set()
            if not over.wait(_departure.asked()):
                leave_now()

    former_fd = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    former = {number: signal.signal(number, handle) for number in _SIGNALS}
    threading.Thread(target=listen, name="signals", daemon=True).start()
    try:
        yield stopping
    finally:
        over.set()
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(former_fd)
        with suppress(OSError):
            theirs.close()


def see_off(code: int) -> None:
    """Bound how long the interpreter takes to end: a thread may hang in a call."""
    if _departure.until is not None:
        left_s = _departure.asked()
        timer = threading.Timer(left_s, os._exit, (code,))
        timer.daemon = True  # It ends the others; nobody waits for it.
        timer.start()


def leave_now() -> None:
    """End the process at once; what was not finished is done again by the next start."""
    sys.stderr.write(
        f"\nretryable: not ended in order within {LIMIT_S:.0f} s: something that it waits for is "
        "away; ended as if killed, and the next start goes on from the last checkpoint\n"
    )
    sys.stderr.flush()
    os._exit(RETRY)
