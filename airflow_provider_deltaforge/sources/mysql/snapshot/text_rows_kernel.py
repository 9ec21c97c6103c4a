"""Rows of the text protocol to row JSON, in compiled kernels.

A plain SELECT's result arrives as packets of length-encoded texts. ``frame_rows`` finds the rows in
a buffer of raw socket bytes, ``render_rows`` writes each row's JSON and key JSON, in the same shape
per column type as the stream. No Python object exists per row or value.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.bytes_kernel import pointer
from airflow_provider_deltaforge.columns.json_text_kernel import (
    kernel,
    put_bytes,
    put_null,
    put_words,
)
from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.catalog import quote
from airflow_provider_deltaforge.sources.mysql.column_types import BY_NAME
from airflow_provider_deltaforge.sources.mysql.snapshot.text_value_kernel import (
    BINARY,
    BIT,
    BIT1,
    DATETIME,
    DECIMAL,
    FLOAT32,
    FLOAT64,
    GEOMETRY,
    INTEGER,
    JSON,
    STRING,
    TIMESTAMP,
    UCS2,
    WIDE,
    put_value,
)

MORE, DONE, FAILED = 0, 1, 2
"""How ``frame_rows`` ended: bytes ran out, the result ended, the server reported an error."""

_PART_MAX = 0xFFFFFF
# Bytes that the kernels' words may touch behind the last row.
_SPILL = 64

_FORMS = {
    k.INT: INTEGER,
    k.YEAR: INTEGER,
    k.DECIMAL: DECIMAL,
    k.FLOAT: FLOAT32,
    k.DOUBLE: FLOAT64,
    k.DATETIME: DATETIME,
    k.TIMESTAMP: TIMESTAMP,
    k.BINARY: BINARY,
    k.JSON: JSON,
    k.GEOMETRY: GEOMETRY,
}
"""How the text of a kind's values becomes JSON; all other kinds are strings."""

# They can hold halves of surrogate pairs, which the servers would print as no valid UTF-8.
_AS_BYTES = {"ucs2": UCS2, "utf32": WIDE}


@dataclass(frozen=True)
class RowShape:
    """How the rows of one table are selected and rendered.

    Attributes:
        select: the column list of the SELECT, in table order.
        kinds: uint8 per column, which text form it has.
        names: uint8, ``,"name":`` of every column, and some bytes behind the last.
        name_ends: int64 per column and one, where each name ends in ``names``.
        key: int64, the key's columns in key order, as indexes into the columns.
    """

    select: str
    kinds: Any
    names: Any
    name_ends: Any
    key: Any


def shape_of(schema: TableSchema, *, decimal_numbers: bool = False) -> RowShape:
    """Return how a table's rows are read, its decimals as JSON numbers or as strings.

    Raises:
        SchemaError: a column has a type this release cannot print.
    """
    forms = [_form(schema, column) for column in schema.columns]
    names = [_json_name(column.name) for column in schema.columns]
    order = {column.name: index for index, column in enumerate(schema.columns)}
    return RowShape(
        select=", ".join(_expression(column) for column in schema.columns),
        kinds=np.array(
            [INTEGER if decimal_numbers and form == DECIMAL else form for form in forms],
            np.uint8,
        ),
        names=np.frombuffer(b"".join(names) + bytes(8), np.uint8),
        name_ends=np.cumsum([0, *map(len, names)], dtype=np.int64),
        key=np.array([order[name] for name in schema.primary_key], np.int64),
    )


def _json_name(name: str) -> bytes:
    import orjson

    return b"," + orjson.dumps(name) + b":"


def _form(schema: TableSchema, column: Column) -> int:
    row = BY_NAME.get(column.data_type)
    if row is None:
        raise SchemaError(
            f"{schema.full_name}: column {column.name!r} has type {column.data_type!r}, which this "
            "release cannot read; leave the table out of 'tables' or change the column"
        )
    if row.kind == k.BIT:
        return BIT1 if column.numeric_precision == 1 else BIT
    return _AS_BYTES.get(column.charset or "", _FORMS.get(row.kind, STRING))


def _expression(column: Column) -> str:
    """Return what to select for a column.

    The servers print FLOAT with six digits and DOUBLE(M,D) with D decimals; as the result of an
    expression both come as doubles with all their digits. Multiplying keeps the sign of zero.
    """
    name, kind = quote(column.name), BY_NAME[column.data_type].kind
    if column.charset in _AS_BYTES:
        return f"CAST({name} AS BINARY)"
    rounded = kind == k.DOUBLE and column.numeric_scale is not None
    return f"{name} * 1e0" if kind == k.FLOAT or rounded else name


@kernel
def frame_rows(data, begin, end, starts, stops, count):
    """Find the rows in ``data[begin:end]``, from ``begin``, a packet's first byte, on.

    Rows that span packets (16 MiB each) are pushed together in place.

    Args:
        data: uint8, writable.
        begin: offset of the first packet not framed yet.
        end: offset behind the last byte received.
        starts: int64, where each row's payload begins; filled from ``count``.
        stops: int64, where it ends.
        count: rows framed before.

    Returns:
        (rows framed in all, offset of the first byte not framed, MORE | DONE | FAILED). For FAILED
        the offset is that of the error packet's header.
    """
    while count < len(starts) and begin + 4 <= end:
        length = np.int64(data[begin]) | np.int64(data[begin + 1]) << 8
        length |= np.int64(data[begin + 2]) << 16
        start = begin + 4
        stop = start + length
        if stop > end:
            break
        if length < 9 and data[start] == 0xFE:
            return count, stop, DONE
        if data[start] == 0xFF:
            return count, begin, FAILED
        begin = stop
        if length == _PART_MAX:
            stop, begin = _join_parts(data, stop, end)
            if begin < 0:
                return count, start - 4, MORE
        starts[count] = start
        stops[count] = stop
        count += 1
    return count, begin, MORE


@kernel
def _join_parts(data, stop, end):
    """Append the packets that continue a row to it; return (its end, offset behind them or -1)."""
    at = stop
    while True:  # Look first: nothing may be moved before all of it is here.
        if at + 4 > end:
            return stop, np.int64(-1)
        length = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        at += 4 + length
        if at > end:
            return stop, np.int64(-1)
        if length < _PART_MAX:
            break
    behind = at
    at = stop
    while at < behind:
        length = np.int64(data[at]) | np.int64(data[at + 1]) << 8 | np.int64(data[at + 2]) << 16
        stop = put_bytes(data, stop, data, at + 4, at + 4 + length)
        at += 4 + length
    return stop, behind


@kernel
def _length_at(data, at):
    """Return (length or -1 for null, offset behind it) of a length-encoded text."""
    first = np.int64(data[at])
    if first < 0xFB:
        return first, at + 1
    if first == 0xFB:
        return np.int64(-1), at + 1
    width = 2 if first == 0xFC else (3 if first == 0xFD else 8)
    length = np.int64(0)
    for i in range(width):
        length |= np.int64(data[at + 1 + i]) << (8 * i)
    return length, at + 1 + width


@kernel
def _render_row(out, at, data, source, stop, kinds, names, name_ends, count, spans):
    """Write one row; return the offset behind it, or -1 if the row has not ``count`` values.

    ``spans`` (int64) receives where each value's text begins and ends in ``out``.
    """
    begin = at
    for column in range(count):
        if source >= stop:
            return np.int64(-1)
        length, source = _length_at(data, source)
        at = put_words(out, at, names, name_ends[column], name_ends[column + 1])
        spans[2 * column] = at
        if length < 0:
            at = put_null(out, at)
        else:
            if source + length > stop:
                return np.int64(-1)
            at = put_value(out, at, kinds[column], data, source, source + length)
            source += length
        spans[2 * column + 1] = at
    if source != stop:
        return np.int64(-1)
    # The first name's comma.
    out[begin] = 123
    out[at] = 125
    return at + 1


@kernel
def render_rows(data, starts, stops, kinds, names, name_ends, key, rows, row_ends, keys, key_ends):
    """Write the JSON of every row and of its key.

    Args:
        data: uint8, holds the payloads ``starts``/``stops`` (int64) point at.
        starts: int64 per row.
        stops: int64 per row.
        kinds: uint8 per column.
        names: see ``RowShape``.
        name_ends: see ``RowShape``.
        key: int64, columns of the key; may be empty.
        rows: uint8, where row JSON goes; of at least ``rows_bound`` bytes.
        row_ends: int64, rows + 1, filled with where each row ends.
        keys: uint8, where key JSON goes; as large as ``rows``, or empty without a key.
        key_ends: int64, rows + 1.

    Returns:
        Index of the first row that does not have as many values as there are columns, or -1.
    """
    count = len(kinds)
    values = np.empty(2 * count, np.int64)
    spans, out, out_keys, source = pointer(values), pointer(rows), pointer(keys), pointer(data)
    kind_of, names, ends = pointer(kinds), pointer(names), pointer(name_ends)
    at = key_at = np.int64(0)
    row_ends[0] = 0
    key_ends[0] = 0
    for row in range(len(starts)):
        start, stop = starts[row], stops[row]
        at = _render_row(out, at, source, start, stop, kind_of, names, ends, count, spans)
        if at < 0:
            return row
        row_ends[row + 1] = at
        begin = key_at
        for column in key:
            key_at = put_words(out_keys, key_at, names, ends[column], ends[column + 1])
            key_at = put_words(out_keys, key_at, out, values[2 * column], values[2 * column + 1])
        if len(key):
            keys[begin] = 123
            keys[key_at] = 125
            key_at += 1
        key_ends[row + 1] = key_at
    return -1


def rows_bound(shape: RowShape, count: int, payload_bytes: int) -> int:
    """Return how many bytes the JSON of ``count`` rows can take at most."""
    per_row = int(shape.name_ends[-1]) + 40 * len(shape.kinds) + 2
    return 6 * payload_bytes + count * per_row + _SPILL


def precompile() -> None:
    """Compile the kernels, or load them from the cache, before rows come."""
    shape = shape_of(TableSchema("db", None, "t", (Column("c", "int", "int"),)))
    data, marks = np.array([1, 0, 0, 0, 0xFB], np.uint8), np.zeros(1, np.int64)
    frame_rows(data, 0, len(data), marks, marks.copy(), 0)
    arrays = shape.kinds, shape.names, shape.name_ends, shape.key
    text, ends = np.empty(256, np.uint8), np.zeros(1, np.int64)
    render_rows(data, marks[:0], marks[:0], *arrays, text, ends, text.copy(), ends.copy())
