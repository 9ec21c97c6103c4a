"""Since when a server has not been heard that should have said something, if only a heartbeat."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GAP_S = 2.0


class ServerSilence:
    """Told by a reader what it receives; asked from any thread.

    A reader that is kept waiting by slow sinks does not listen, and learns nothing of its server.
    One that hangs inside a read does: it waits for an answer.

    Args:
        allowed_s: how long a server that is well may say nothing.
        clock: of this process.
    """

    def __init__(self, allowed_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed_s = allowed_s
        self._clock = clock
        self._from = self._left = clock()
        self._entered: float | None = None
        self._since: float | None = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Listen while the block runs."""
        now = self._clock()
        if now - self._left > _GAP_S and self._since is None:
            self._from = now
        self._entered = now
        try:
            yield
        finally:
            self._entered, self._left = None, self._clock()

    def heard(self) -> None:
        """Note that the server said something."""
        now = self._clock()
        self._from = now
        if self._entered is not None:
            self._entered = now
        self._since = None

    def nothing(self) -> None:
        """Note a look at a connection on which nothing had come."""
        if self._clock() - self._from > self._allowed_s:
            self._since = self._from

    def broke(self) -> None:
        """Note that the connection is lost: from here on there is nothing to hear."""
        if self._since is None:
            self._since = self._from

    @property
    def for_s(self) -> float | None:
        """For how long the server is silent that should not be; None while all is well."""
        now, since, entered = self._clock(), self._since, self._entered
        if since is None and entered is not None and now - entered > self._allowed_s:
            since = entered
        return None if since is None else now - since
