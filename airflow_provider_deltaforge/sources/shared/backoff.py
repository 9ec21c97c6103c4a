"""How long to leave a server alone that cannot be reached."""

import random
import time

_FIRST_S = 0.2
_DOUBLED_MAX = 10
_NAP_S = 0.5


class Backoff:
    """Paces attempts: each that fails makes the next one wait longer, with jitter.

    Args:
        most_s: but no longer than this, in seconds.
    """

    def __init__(self, most_s: float = 30.0) -> None:
        self._most_s = most_s
        self._failures = 0
        self._not_before = 0.0

    def worked(self) -> None:
        """Begin anew: the next failure is the first."""
        self._failures = 0

    def failed(self) -> None:
        """Put the next attempt off."""
        wait = min(self._most_s, _FIRST_S * 2 ** min(self._failures, _DOUBLED_MAX))
        self._failures += 1
        self._not_before = time.monotonic() + wait * random.uniform(0.5, 1.0)  # noqa: S311

    def naps(self, most_s: float) -> bool:
        """Sleep up to ``most_s`` if it is too early for the next attempt; return whether it was."""
        wait = self._not_before - time.monotonic()
        if wait <= 0:
            return False
        time.sleep(min(wait, max(most_s, 0.0), _NAP_S))
        return True
