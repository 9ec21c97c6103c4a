"""Change events as Arrow columns, built from whole columns without a step per row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.short_columns import kept_if_short
from airflow_provider_deltaforge.columns.value_codes import all_same, dictionary_column, repeated
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import TableSchema

_BYTES_MAX = 2**31 - 1
_TYPES = {field.name: field.type for field in CHANGE_SCHEMA}
_EVENT = pa.struct(list(CHANGE_SCHEMA))


def change_rows(count: int, columns: Mapping[str, pa.Array | None]) -> pa.RecordBatch:
    """Return a batch in CHANGE_SCHEMA.

    Args:
        count: of the events.
        columns: by name, in the types of CHANGE_SCHEMA; what is missing or None is null.

    Raises:
        TypeError: a column has another type or length; Arrow would read it as what it is not.
    """
    arrays = []
    for name, kind in _TYPES.items():
        column = columns.get(name)
        if column is None:
            column = _nulls(name, count)
        elif len(column) != count or column.type != kind:
            raise TypeError(f"{name}: {len(column)} of {column.type}, not {count} of {kind}")
        arrays.append(column)
    # RecordBatch.from_arrays takes twice as long, most of the time of making a small batch.
    return pa.RecordBatch.from_struct_array(
        pa.Array.from_buffers(_EVENT, count, [None], children=arrays)
    )


@kept_if_short
def _nulls(name: str, count: int) -> pa.Array:
    return pa.nulls(count, _TYPES[name])


def binary_column(data: Any, offsets: Any, count: int, valid: Any) -> pa.BinaryArray:
    """Return ``count`` binary values that share a kernel's buffer.

    Args:
        data: uint8.
        offsets: int64, at least ``count`` and one.
        count: of values.
        valid: bool per value; False is null.

    Raises:
        FatalError: together they are larger than an Arrow column can be.
    """
    size = int(offsets[count])
    if size > _BYTES_MAX:
        raise FatalError(
            f"{size} bytes of JSON in one batch: a row is too large to be delivered; leave its "
            "table out of 'tables'"
        )
    missing = count - int(np.count_nonzero(valid))
    if missing == count:
        return pa.nulls(count, pa.binary())
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if missing else None
    ends = pa.py_buffer(offsets[: count + 1].astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), count, [mask, ends, pa.py_buffer(data[:size])], missing
    )


def text_column(data: Any, offsets: Any, kind: pa.DataType) -> pa.Array:
    """Return texts of a kernel's buffer (uint8, int64 offsets), none of them null."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def id_column(ids: Any) -> pa.Array:
    """Return event ids, uint8 of shape (events, 16), as a column."""
    return pa.Array.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(ids)])


def transaction_ends(tx: Any) -> Any:
    """Return bool per row: the last one of its transaction, by the transactions' ordinals."""
    ends = np.empty(len(tx), np.bool_)
    ends[-1:] = True
    np.not_equal(tx[1:], tx[:-1], out=ends[:-1])
    return ends


def schemas_in_use(
    schemas: Sequence[TableSchema | None], numbers: Any
) -> tuple[tuple[TableSchema, ...], Any]:
    """Return the schemas that rows have, first use first, and for each row its place in them.

    Args:
        schemas: by number.
        numbers: int32 per row, the number of its schema; below zero for none.

    Returns:
        (schemas, int32 per row, below zero for none).
    """
    if all_same(numbers):  # As in most batches.
        only = schemas[numbers[0]] if numbers[0] >= 0 else None
        if only is not None:
            return (only,), np.zeros(len(numbers), np.int32)
        return (), np.full(len(numbers), -1, np.int32)
    first = np.full(len(schemas) + 1, len(numbers), np.int64)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # Of several, the last one stays.
    places = np.full(len(first), -1, np.int32)
    known: dict[TableSchema, int] = {}
    used = np.flatnonzero(first[:-1] < len(numbers))
    for number in used[np.argsort(first[used])].tolist():
        schema = schemas[number]
        if schema is not None:
            places[number] = known.setdefault(schema, len(known))
    return tuple(known), places[numbers]


def version_column(schemas: Sequence[TableSchema], places: Any) -> pa.DictionaryArray:
    """Return the column ``schema_version`` of rows whose schema's place is ``places``.

    The dictionary holds one fingerprint for each schema, also where two tables look the same.
    """
    if len(schemas) == 1 and not np.count_nonzero(places):
        return repeated(schemas[0].fingerprint, len(places))
    prints = pa.array([schema.fingerprint for schema in schemas], pa.utf8())
    return dictionary_column(places, prints, places < 0)


def with_other_events(
    columns: Mapping[str, Any],
    at: Any,
    others: Mapping[str, Sequence[Any]],
    before: Sequence[int],
) -> dict[str, Any]:
    """Put events that are no rows among the rows, each before a place of theirs.

    Args:
        columns: of the rows; int32 or binary Arrow arrays.
        at: per row its place.
        others: the same columns of the other events; a binary column that is missing is null.
        before: per other event the place of the row that it stands before.
    """
    places = np.concatenate([np.asarray(at, np.int64) * 2 + 1, np.array(before, np.int64) * 2])
    order = np.argsort(places, kind="stable")
    merged: dict[str, Any] = {}
    for name, values in columns.items():
        if isinstance(values, np.ndarray):
            whole = np.concatenate([values, np.array(others[name], np.int32)])
            merged[name] = whole[order].astype(np.int32)
        else:
            added = pa.array(others.get(name, [None] * len(before)), pa.binary())
            merged[name] = pa.concat_arrays([values, added]).take(pa.array(order))
    return merged
