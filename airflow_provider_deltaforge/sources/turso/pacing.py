"""When to look into the file again."""

import threading
import time


class Pace:
    """Waits between two looks; ``end`` wakes whoever waits.

    Args:
        interval_s: from one look to the next when nothing, or not much, was found.
        batch_size: changes taken at once; a look that found so many is followed by the next.
    """

    def __init__(self, interval_s: float, batch_size: int) -> None:
        self.batch_size = batch_size
        self._interval_s = interval_s
        self._next = 0.0
        self._ended = threading.Event()

    def wait(self, deadline: float) -> bool:
        """Wait until it is time to look; False if that is not before ``deadline``, or never."""
        until = min(self._next, deadline)
        if self._ended.wait(max(0.0, until - time.monotonic())):
            return False
        if self._next > deadline:
            return False
        self._next = time.monotonic() + self._interval_s
        return True

    def took(self, count: int) -> None:
        """Say how much was found."""
        if count >= self.batch_size:
            self._next = 0.0

    def end(self) -> None:
        """Wake up and wait no more."""
        self._ended.set()
