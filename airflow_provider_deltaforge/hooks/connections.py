"""Looking up an Airflow connection: seldom, and again when it does not work."""

import time
from collections.abc import Callable
from typing import Any

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

LOOKUP_ERRORS = (AirflowNotFoundException, AirflowRuntimeError)
"""What a lookup raises that may work later. Airflow says *not defined* of every trouble of a
secrets backend or of its own API; only a denial is told apart, and is none of these."""

KEPT_S = 60.0
"""For how long a connection that was looked up is used, in seconds."""


class KeptConnection:
    """A connection that is looked up once a minute, so that triggers do not ask with every look.

    Args:
        look_up: returns the connection.
    """

    def __init__(self, look_up: Callable[[], Any]) -> None:
        self._look_up = look_up
        self._kept: tuple[Any, float] | None = None

    def get(self) -> Any:
        """Return the connection; what the lookup raises is passed on."""
        kept, now_s = self._kept, time.monotonic()
        if kept is None or now_s - kept[1] >= KEPT_S:
            kept = self._kept = (self._look_up(), now_s)
        return kept[0]

    def forget(self) -> None:
        """Have it looked up again: it may have been changed."""
        self._kept = None
