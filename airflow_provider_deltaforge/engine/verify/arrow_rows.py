"""Typed Arrow columns as row images and keys, in the JSON that events have."""

import base64
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.errors import FatalError


def row_images(
    batch: pa.RecordBatch, key: Sequence[str], where: str
) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Return keys and images, each binary JSON texts.

    A column of texts whose Arrow field has the metadata ``{"json": "true"}`` holds JSON as events
    show it, digits and spaces included: floats, for example, and columns of type JSON.

    Args:
        batch: rows; each column has the table's name for it.
        key: the columns of the key.
        where: begins errors.

    Raises:
        FatalError: a column of the key is missing, or a type has no JSON.
    """
    lacking = [name for name in key if name not in batch.schema.names]
    if lacking:
        raise FatalError(f"{where}: the rows have no column {', '.join(lacking)}, of the key")
    texts = {
        field.name: pc.fill_null(_json(column, field, where), b"null")
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    return _object(key, texts, batch.num_rows), _object(list(texts), texts, batch.num_rows)


def _object(names: Sequence[str], texts: dict[str, pa.BinaryArray], count: int) -> pa.BinaryArray:
    if not count:
        return pa.array([], pa.binary())
    pieces: list[Any] = []
    for at, name in enumerate(names):
        pieces += [(b"{" if at == 0 else b",") + orjson.dumps(name) + b":", texts[name]]
    return pc.binary_join_element_wise(*pieces, b"}", b"")


def _json(column: pa.Array, field: pa.Field, where: str) -> pa.BinaryArray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    for fits, write in _FORMS:
        if fits(column.type):
            is_json = field.metadata is not None and field.metadata.get(b"json") == b"true"
            return column.cast(pa.binary()) if is_json else write(column)
    raise FatalError(
        f"{where}: column {field.name} has Arrow's type {column.type}, for which events have no "
        "one form; cast it to a string as events show it"
    )


def _texts(column: pa.Array) -> pa.BinaryArray:
    return quoted(column.cast(pa.utf8()))


def _plain(column: pa.Array) -> pa.BinaryArray:
    return column.cast(pa.utf8()).cast(pa.binary())


def _timestamps(column: pa.TimestampArray) -> pa.BinaryArray:
    """Return ``"2024-05-01T12:00:00.250"``, all digits of the unit; ``Z`` for a type in UTC."""
    zoned, unit = column.type.tz is not None, column.type.unit
    plain = column.cast(pa.timestamp(unit, "UTC")).cast(pa.timestamp(unit)) if zoned else column
    texts = pc.replace_substring(plain.cast(pa.utf8()), " ", "T")
    return quoted(pc.binary_join_element_wise(texts, "Z", "") if zoned else texts)


def _base64(column: pa.Array) -> pa.BinaryArray:
    texts = [
        None if value is None else b'{"_base64":"' + base64.b64encode(value) + b'"}'
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.binary())


_FORMS: Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.BinaryArray]]] = (
    (pa.types.is_null, lambda column: pa.nulls(len(column), pa.binary())),
    (pa.types.is_string, _texts),
    (pa.types.is_large_string, _texts),
    (pa.types.is_decimal, _texts),
    (pa.types.is_date32, _texts),
    (pa.types.is_integer, _plain),
    (pa.types.is_boolean, _plain),
    (pa.types.is_timestamp, _timestamps),
    (pa.types.is_binary, _base64),
    (pa.types.is_large_binary, _base64),
)
"""How values are written as JSON, by type. Floats are not among them: events have the digits that
the source prints; they are a column of texts with the metadata ``{"json": "true"}``."""
