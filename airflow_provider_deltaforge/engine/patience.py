"""Trying again what a server that is away, or busy, may do later."""

from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

from airflow_provider_deltaforge.errors import RetryableError

Result = TypeVar("Result")


def patiently(
    call: Callable[[], Result],
    tell: Callable[[BaseException | None], None],
    over: Callable[[], bool],
    rest: Callable[[float], object],
    longest_wait_s: float = 10.0,
) -> Result:
    """Repeat a call until it works, or it is over.

    Args:
        call: raises ``RetryableError`` where trying again may help.
        tell: told of every failed attempt that is followed by another, and None once one works.
        over: asked after a failed attempt; True raises what it failed with.
        rest: waits for so many seconds, or until it is over.
        longest_wait_s: between two attempts.
    """

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
    result = attempts(call)
    if attempts.statistics["attempt_number"] > 1:
        tell(None)
    return result
