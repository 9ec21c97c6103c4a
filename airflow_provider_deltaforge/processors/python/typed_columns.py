"""Columns of row images as typed Arrow columns, and typed columns as JSON."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.processors.json_objects import are_json
from airflow_provider_deltaforge.processors.python.arrow_types import arrow_type


def typed(column: str, raw: pa.BinaryArray, kind: str) -> pa.Array:
    """Return one column's JSON values in a type; absent, null and untouched TOAST values are null.

    Raises:
        RowsError: a value does not fit.
    """
    raw = pc.if_else(pc.equal(raw, UNCHANGED), pa.scalar(None, pa.binary()), raw)
    if kind == "json":
        return pc.if_else(pc.equal(raw, b"null"), pa.scalar(None, pa.binary()), raw).cast(pa.utf8())
    target = arrow_type(column, kind)
    try:
        return json_fields.as_text(raw).cast(target)
    except pa.ArrowInvalid:
        raise RowsError(f"column {column!r} holds a value that is no {kind}") from None


def as_json(column: str, values: pa.Array, kind: str | None) -> pa.BinaryArray:
    """Return typed values as JSON texts, in the shapes that sources write; null stays null.

    Args:
        column: its name.
        values: what was computed.
        kind: the type the document names for it; None for a column that was added.

    Raises:
        RowsError: a value cannot be written.
        TypeError: there is no JSON for that type.
    """
    if kind == "json":
        if not are_json(values):
            raise RowsError(f"returned {column!r} that is not JSON")
        return values.cast(pa.binary())
    if pa.types.is_floating(values.type):
        return _number_texts(values)
    written = _text_of(values.type)(values)
    plain = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return written.cast(pa.binary()) if plain else quoted(written)


def _text_of(kind: pa.DataType) -> Callable[[pa.Array], pa.StringArray]:
    if pa.types.is_timestamp(kind):
        return lambda values: pc.replace_substring(values.cast(pa.utf8()), " ", "T")
    known = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
    )
    if not known:
        raise TypeError(f"there is no JSON for Arrow's {kind}; cast it, for example to string")
    return lambda values: values.cast(pa.utf8())


def _number_texts(values: pa.Array) -> pa.BinaryArray:
    """Return floats as numbers; what JSON has no number for as a string, as sources do."""
    names = pc.if_else(
        pc.is_nan(values), '"NaN"', pc.if_else(pc.greater(values, 0), '"Infinity"', '"-Infinity"')
    )
    return pc.if_else(pc.is_finite(values), values.cast(pa.utf8()), names).cast(pa.binary())


def with_member(texts: pa.BinaryArray, name: str, values: pa.BinaryArray) -> pa.BinaryArray:
    """Return JSON objects with a member put at their end, where there is a value for it."""
    whole = json_fields.locate(texts, [])
    open_ended = json_fields.values(
        texts, json_fields.Spans(whole.starts, np.where(whole.starts < 0, -1, whole.stops - 1))
    )
    is_empty = pc.equal(pc.binary_length(pc.ascii_trim_whitespace(open_ended.cast(pa.utf8()))), 1)
    comma: Any = pc.if_else(is_empty, b"", b",")
    label = orjson.dumps(name) + b":"
    longer = pc.binary_join_element_wise(open_ended, comma, label, values, b"}", b"")
    return pc.if_else(values.is_valid(), longer, texts)
