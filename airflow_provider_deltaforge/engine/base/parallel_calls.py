"""Calls that are made at the same time, and waited for."""

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from airflow_provider_deltaforge.errors import RetryableError

Result = TypeVar("Result")


def call_in_parallel(calls: Sequence[Callable[[], Result]], name: str) -> list[Result]:
    """Make every call at the same time, the first in this thread; return what they returned.

    All have ended when this returns or raises.

    Args:
        calls: at least one.
        name: of the threads.

    Raises:
        Exception: of the first call that failed; rather one that needs a person than one that may
            pass.
    """
    results: dict[int, Result] = {}
    errors: dict[int, Exception] = {}

    def make(number: int) -> None:
        try:
            results[number] = calls[number]()
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            errors[number] = error

    # Daemons: a call that hangs must not keep a process that ends.
    threads = [
        threading.Thread(target=make, args=(number,), name=name, daemon=True)
        for number in range(1, len(calls))
    ]
    for thread in threads:
        thread.start()
    make(0)
    for thread in threads:
        thread.join()
    if errors:
        raise min(
            (errors[number] for number in sorted(errors)),
            key=lambda error: isinstance(error, RetryableError),
        )
    return [results[number] for number in range(len(calls))]
