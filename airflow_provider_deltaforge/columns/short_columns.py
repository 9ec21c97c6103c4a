"""Columns that small batches have again and again.

An Arrow object takes as long to make as some hundred values to write, and a batch has dozens.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import pyarrow as pa

_SHORT = 256
_KEPT = 1024
"""Of each function: some megabytes at most."""


def kept_if_short(make: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Return the function with its short columns kept; its last argument says how many rows."""
    kept = lru_cache(maxsize=_KEPT)(make)

    @wraps(make)
    def column(*arguments: Any) -> pa.Array:
        return (kept if arguments[-1] <= _SHORT else make)(*arguments)

    return column
