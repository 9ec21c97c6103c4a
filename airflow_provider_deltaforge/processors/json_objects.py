"""JSON texts to Python objects and back, with every digit of their integers."""

import json
import re
from decimal import Decimal
from typing import Any

import orjson

# Beyond 64 bits orjson reads floats.
_WIDE = re.compile(rb"\d{19}")


def parsed(text: bytes | None) -> Any:
    """Return the object in a JSON text; of None, None."""
    if text is None:
        return None
    return json.loads(text) if _WIDE.search(text) else orjson.loads(text)


def written(value: Any) -> bytes:
    """Return a value as JSON text without spaces; decimals become strings, as in row images.

    Raises:
        TypeError: it cannot be written as JSON.
    """
    try:
        return orjson.dumps(value, default=_plain)
    except TypeError:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_plain)
        return text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")
