"""JSON texts to Python objects and back, with every digit of their integers."""

import json
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

_WIDE = r"\d{19}"


def wide_integers(texts: pa.BinaryArray) -> list[bool]:
    """Say for each JSON text whether it may hold an integer beyond 64 bits."""
    found = pc.match_substring_regex(texts, _WIDE)
    return pc.fill_null(found, False).to_pylist()  # type: ignore[no-any-return]  # noqa: FBT003


def parsed(text: bytes, *, wide: bool) -> Any:
    """Return what a JSON text holds.

    Args:
        text: the text.
        wide: from ``wide_integers``; orjson would read such integers as floats.

    Raises:
        ValueError: it is no JSON, or nested too deep.
    """
    try:
        return json.loads(text) if wide else orjson.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def are_json(texts: pa.Array) -> bool:
    """Say whether each text is JSON, but for those that are null."""
    try:
        for text in texts.drop_null().to_pylist():
            orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


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
