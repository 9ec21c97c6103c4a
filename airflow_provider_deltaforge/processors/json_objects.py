"""JSON texts to Python objects and back, with every digit of their integers."""

import json
import math
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields

_WIDE = r"\d{19}"
_ESCAPE = r"\u"


class DepthError(ValueError):
    """A value is nested deeper than Python can read or write."""

    def __init__(self) -> None:
        super().__init__("nested too deep")


def wide_integers(texts: pa.BinaryArray) -> list[bool]:
    """Return for each JSON text whether it may hold an integer beyond 64 bits."""
    found = pc.match_substring_regex(texts, _WIDE)
    return pc.fill_null(found, False).to_pylist()  # type: ignore[no-any-return]  # noqa: FBT003


def parsed(text: bytes, *, wide: bool) -> Any:
    """Return what a JSON text holds.

    Args:
        text: the text.
        wide: from ``wide_integers``; orjson would read such integers as floats.

    Raises:
        DepthError: it is nested deeper than can be read.
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text) if wide else orjson.loads(text)
    except RecursionError:
        raise DepthError from None
    except orjson.JSONDecodeError as error:
        if "depth" in error.msg:
            raise DepthError from None
        raise


def are_json(texts: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether all texts but the null ones are JSON."""
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    present = whole.drop_null()
    if (json_fields.locate(present.cast(pa.binary()), []).starts < 0).any():
        return False
    try:
        # The kernel takes half a surrogate pair, which is no text.
        for text in present.filter(pc.match_substring(present, _ESCAPE)).to_pylist():
            orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def written(value: Any) -> bytes:
    """Return a value as JSON text without spaces, in the shapes that row images have.

    Decimals become strings, as do the numbers that JSON has no form for: ``"NaN"``,
    ``"Infinity"`` and ``"-Infinity"``.

    Raises:
        DepthError: it is nested deeper than can be written.
        TypeError: it cannot be written as JSON.
        ValueError: it holds itself, or text that is no UTF-8.
    """
    try:
        try:
            text = orjson.dumps(value, default=_plain)
        except TypeError:
            return _written_slowly(value)
        # orjson writes null for the numbers that JSON has no form for.
        return _written_slowly(value) if b"null" in text and _has_no_form(value) else text
    except RecursionError:
        raise DepthError from None


def _written_slowly(value: Any) -> bytes:
    """Return what orjson does not write, or not as it should: long integers, deep values, NaN."""
    try:
        text = _dumped(value)
    except ValueError:
        if not _has_no_form(value):
            raise
        text = _dumped(_with_forms(value))
    return text.encode()


def _dumped(value: Any) -> str:
    return json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain
    )


def _has_no_form(value: Any) -> bool:
    """Return whether a number is in it that JSON has no form for."""
    if isinstance(value, dict):
        return any(map(_has_no_form, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_no_form, value))
    return isinstance(value, float) and not math.isfinite(value)


def _with_forms(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_forms(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_forms(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")  # As sources write them, with no exponent.
    raise TypeError(f"a {type(value).__name__} is no JSON value")
