"""Trying again what a server that is away, or busy, may do later."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from airflow_provider_deltaforge.errors import RetryableError

Result = TypeVar("Result")

_POLL_S = 0.1


def retry_until(
    call: Callable[[], Result],
    tell: Callable[[BaseException | None], None],
    over: Callable[[], bool],
    rest: Callable[[float], object],
    longest_wait_s: float = 10.0,
) -> Result:
    """Repeat a call until it works, or it is over.

    Args:
        call: raises ``RetryableError`` where trying again may help.
        tell: called with the error of each failed attempt that is followed by another, and with
            None once one works.
        over: asked after a failed attempt; True raises what it failed with.
        rest: waits for so many seconds, or until it is over.
        longest_wait_s: between two attempts.
    """
    try:
        return call()  # Nearly always that is all: what follows costs as much as a small batch.
    except RetryableError as error:
        failures = [error]

    def again() -> Result:
        if failures:
            raise failures.pop()
        return call()

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is not None:
            tell(error)

    def sleep(seconds: float) -> None:
        rest(seconds)

    attempts = Retrying(
        retry=retry_if_exception_type(RetryableError),
        wait=wait_random_exponential(multiplier=0.2, max=longest_wait_s),
        sleep=sleep,
        stop=lambda _: over(),
        before_sleep=report,
        reraise=True,
    )
    result = attempts(again)
    tell(None)
    return result


class StopRetrying:
    """Decides when to stop retrying: after ``close``, or when the owner ends.

    Args:
        ending: asked whether what it belongs to ends.
    """

    def __init__(self, ending: Callable[[], bool]) -> None:
        self._ending = ending
        self._closed = threading.Event()

    def close(self) -> None:
        """Wake every thread that waits in ``rest``. Called from any thread."""
        self._closed.set()

    @property
    def is_closed(self) -> bool:
        """Return whether it was closed, whatever else ends."""
        return self._closed.is_set()

    def over(self) -> bool:
        """Return whether to give up."""
        return self.is_closed or self._ending()

    def rest(self, seconds: float) -> None:
        """Wait for so long, or until it is over."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.over():
            self._closed.wait(min(left, _POLL_S))
