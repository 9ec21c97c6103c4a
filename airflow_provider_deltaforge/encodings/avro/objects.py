"""Writers of what has parts: built as Python objects and written by fastavro, value by value."""

import base64
import io
import json
import re
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from airflow_provider_deltaforge.encodings.avro.scalars import Writer
from airflow_provider_deltaforge.encodings.avro.values import Values

Convert = Callable[[Any], Any]
"""From a parsed JSON value, which is not null, to what fastavro writes.

Raises:
    ValueError, TypeError, KeyError: the type cannot hold the value.
"""

_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_UNFIT = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


def written(schema: Any, convert: Convert, parse: Callable[[bytes], Any] = orjson.loads) -> Writer:
    """Write each value by itself.

    Args:
        schema: of the type, as JSON.
        convert: makes of a value what the schema describes.
        parse: reads the value's JSON.
    """
    from fastavro import parse_schema, schemaless_writer

    parsed = parse_schema(schema)

    def write_value(text: bytes) -> bytes | None:
        out = io.BytesIO()
        try:
            schemaless_writer(out, parsed, convert(parse(text)))
        except _UNFIT:
            return None
        return out.getvalue()

    def write(values: Values) -> pa.BinaryArray:
        there = values.there.tolist()
        texts = zip(values.json.to_pylist(), there, strict=True)
        return pa.array(
            [write_value(text) if is_there else None for text, is_there in texts], pa.binary()
        )

    return write


def with_number_texts(text: bytes) -> Any:
    """Return what JSON says, its numbers as the texts that they are there."""
    return json.loads(text, parse_float=str, parse_int=str)


def from_base64(value: Any) -> bytes:
    """Return the bytes of ``{"_base64": …}``."""
    return base64.b64decode(value["_base64"] if len(value) == 1 else _refuse(value), validate=True)


def geometry(value: Any) -> dict[str, Any]:
    """Return a geometry's reference system and its well-known binary."""
    return {"srid": value["srid"], "wkb": base64.b64decode(value["_base64"], validate=True)}


def bits(length: int) -> Convert:
    """Return the bits of a number, the highest first, in as few bytes as hold them all."""

    def convert(value: Any) -> bytes:
        number: int = _exactly(value, int)
        return number.to_bytes((length + 7) // 8, "big")

    return convert


def texts_by_text(value: Any) -> dict[str, str | None]:
    """Return an object of texts."""
    return {key: None if item is None else _exactly(item, str) for key, item in value.items()}


def listed(convert: Convert) -> Convert:
    """Return a list of converted elements; a list inside the list is none of them."""

    def convert_all(value: Any) -> list[Any]:
        elements = _exactly(value, list)
        return [None if element is None else convert(element) for element in elements]

    return convert_all


def exactly(kind: type) -> Convert:
    """Return the value if it is of one type, booleans being no numbers."""
    return lambda value: _exactly(value, kind)


def as_uuid(value: Any) -> Any:
    """Return the text of a UUID, as readers take it."""
    return value if _UUID.fullmatch(_exactly(value, str)) else _refuse(value)


def as_float(value: Any) -> float:
    """Return a number; NaN and the infinities come as texts."""
    return float(value) if not isinstance(value, (bool, list, dict)) else _refuse(value)


def _exactly(value: Any, kind: type) -> Any:
    return value if type(value) is kind else _refuse(value)


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} does not fit")
