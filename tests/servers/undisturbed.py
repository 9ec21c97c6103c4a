"""A step that no request to end may cut in two."""

import contextlib
import signal
import threading
from collections.abc import Iterator

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let requests to end wait until the block is over.

    A handler that raises between a child's start and the line that keeps its id would leave a
    child that nobody knows. A blocked signal would not do: the child would inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Handlers run in the main thread only.
        return
    heard: list[int] = []
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        signal.signal(number, lambda number, frame: heard.append(number))
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        for number in heard[:1]:
            signal.raise_signal(number)
