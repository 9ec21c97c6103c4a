"""Waiting in tests: look often and be patient. A deadline ends a hang; it judges nothing."""

import time
from collections.abc import Callable

PATIENCE_S = 180.0
"""Far more than the slowest machine of continuous integration needs."""


def wait_until(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Return when the condition holds; the traceback says what was waited for."""
    wait_for("the condition of the caller", condition, patience_s)


def wait_for(what: str, found: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until ``found`` returns something true.

    Raises:
        AssertionError: it did not in ``patience_s`` seconds; the text says what was waited for.
    """
    began = time.monotonic()
    while not found():
        waited = time.monotonic() - began
        if waited > patience_s:
            raise AssertionError(f"waited {patience_s:.0f} s for {what}")
        time.sleep(min(0.01 + waited / 10, 0.1))
