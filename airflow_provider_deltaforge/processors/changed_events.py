"""New change events from old ones: rows taken by origin, with some of their columns replaced."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ROUTING
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed

OPS = frozenset({"c", "u", "d", "r", "t", "ddl"})

ROUTED = {
    "topic": "topic",
    "routing_key": "key",
    "headers": "headers",
    "raw_payload": "raw_payload",
}
"""The fields of ``routing`` under the names they have as columns of their own."""


def repeated(origins: Any) -> pa.BooleanArray | None:
    """Return which rows stand for an input row that an earlier one stands for; None: none does.

    Args:
        origins: int array, the input row behind each row.
    """
    _, first = np.unique(origins, return_index=True)
    if len(first) == len(origins):
        return None
    made = np.ones(len(origins), np.bool_)
    made[first] = False
    return pa.array(made)


def outcome(
    batch: pa.RecordBatch,
    rows: pa.RecordBatch,
    origins: Any,
    made: pa.BooleanArray | None,
    rejections: Sequence[Rejection],
) -> Processed:
    """Return what became of a batch; an input row that no row stands for was dropped.

    Args:
        batch: the batch.
        rows: what was made of it.
        origins: int array, the input row behind each row.
        made: which rows are new events.
        rejections: the input rows that could not be processed.
    """
    dropped = batch.num_rows - len(np.unique(origins)) - len(rejections)
    counts = {"dropped": dropped} if dropped else {}
    return Processed(rows, pa.array(origins, pa.int32()), made, rejections, counts)


def taken(rows: pa.RecordBatch, origins: Any) -> pa.RecordBatch:
    """Return the rows at ``origins``, without copying when that is all of them in order."""
    count = rows.num_rows
    if len(origins) == count and np.array_equal(origins, np.arange(count)):
        return rows
    return rows.take(pa.array(origins, pa.int32()))


def replaced(rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """Return the rows with whole columns replaced.

    Args:
        rows: change events.
        columns: by name in CHANGE_SCHEMA, or by the names of ``ROUTED``; any type that can be cast.
    """
    columns = {**columns}
    routed = {ROUTED[name]: columns.pop(name) for name in ROUTED if name in columns}
    if routed:
        columns["routing"] = _routing(rows.column("routing"), routed)
    arrays = [
        cast_to(columns[field.name], field.type) if field.name in columns else rows.column(index)
        for index, field in enumerate(CHANGE_SCHEMA)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def cast_to(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in another type, dictionaries and maps included.

    Libraries without maps, such as Polars, return them as lists of keys and values.

    Raises:
        ArrowInvalid, ArrowNotImplementedError: it cannot be.
    """
    if column.type == kind:
        return column
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type).dictionary_encode().cast(kind)
    if kind == ROUTING and pa.types.is_struct(column.type):
        # Through its fields: no cast of a struct turns a list within it into a map.
        names = [field.name for field in column.type]
        fields = {
            field.name: pc.struct_field(column, field.name)
            for field in ROUTING
            if field.name in names
        }
        return _routing(pa.nulls(len(column), ROUTING), fields)
    if pa.types.is_map(kind) and not pa.types.is_map(column.type):
        return _map_of(column, kind)
    return column.cast(kind)


def _map_of(column: pa.Array, kind: pa.MapType) -> pa.MapArray:
    entries = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
    lists = column.cast(pa.list_(entries))
    offsets = lists.offsets.to_numpy()
    absent = np.append(lists.is_null().to_numpy(zero_copy_only=False), False)
    values = lists.values
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32(), mask=absent), values.field("key"), values.field("value")
    )


def _routing(former: pa.StructArray, fields: Mapping[str, pa.Array]) -> pa.StructArray:
    """Return routing with some fields replaced; an event without any of them has none."""
    children = [
        cast_to(fields[field.name], field.type)
        if field.name in fields
        else pc.struct_field(former, field.name)
        for field in ROUTING
    ]
    absent = children[0].is_null()
    for child in children[1:]:
        absent = pc.and_(absent, child.is_null())
    return pa.StructArray.from_arrays(children, fields=list(ROUTING), mask=absent)
