"""Airflow connections: looked up seldom, again when they do not work, and as addresses."""

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

LOOKUP_ERRORS = (AirflowNotFoundException, AirflowRuntimeError)
"""What a lookup raises that may work later. Airflow says *not defined* of every trouble of a
secrets backend or of its own API; a denial has a class of its own, which is not among these."""

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


def address_of(connection: Any) -> str:
    """Return a connection's URI, with texts and numbers of its extra as parameters.

    Airflow itself puts the whole extra into one parameter, ``__extra__``, which no server knows, as
    soon as it holds a number.
    """
    uri, extra = str(connection.get_uri()), connection.extra_dejson
    if extra and all(type(value) in (str, int, float) for value in extra.values()):
        return f"{uri.partition('?')[0]}?{urlencode(extra)}"
    return uri
