"""Batches that a user's function returned: checked, and matched with what it was given."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.processors.changed_events import OPS, cast_to, repeated, taken
from airflow_provider_deltaforge.processors.json_objects import are_json
from airflow_provider_deltaforge.processors.python.chosen_rows import one_batch

_OF_THE_SOURCE = (*("tx", "row", "tx_id", "tx_end", "event_id", "source_position", "unchanged"),)
"""What a function may look at, but not change: these stay those of the event it was made from."""
_FORMER = "former_key"
"""May be left out, and then stays: few functions know of it."""
_JSON = ("before", "after", "key", "ddl", _FORMER)


class Returned:
    """Events that were returned, and what they were made from.

    Attributes:
        rows: the events.
        origins: int32 per event, the row given that it stands for or was made from.
        made: bool per event, or None if all of them were given.
        placed: bool per event, the new ones; None without one.
    """

    def __init__(self, batch: pa.RecordBatch, result: Any, name: str) -> None:
        returned = _conforming(result, name)
        self.origins, self.made, self.placed = _matched(batch, returned.column("event_id"))
        former = taken(batch, self.origins)
        own: tuple[str, ...] = _OF_THE_SOURCE
        if isinstance(result, pa.Table | pa.RecordBatch) and _FORMER not in result.schema.names:
            own = (*own, _FORMER)
        columns = [
            former.column(field.name) if field.name in own else returned.column(index)
            for index, field in enumerate(CHANGE_SCHEMA)
        ]
        for column, field in zip(columns, CHANGE_SCHEMA, strict=True):
            if not field.nullable and column.null_count:
                raise RowsError(f"{name} returned null for {field.name}")
        self.rows = pa.RecordBatch.from_arrays(columns, schema=CHANGE_SCHEMA)
        _check(former, self.rows, name)


def _conforming(result: Any, name: str) -> pa.RecordBatch:
    """Return a function's result in CHANGE_SCHEMA.

    Raises:
        FatalError: it is something else.
    """
    if isinstance(result, pa.Table):
        result = one_batch(result)
    if not isinstance(result, pa.RecordBatch):
        raise FatalError(
            f"{name} returned {type(result).__name__}; in this mode it must return a "
            "pyarrow.RecordBatch (an empty one drops every event)"
        )
    wrong = [column for column in result.schema.names if column not in CHANGE_SCHEMA.names]
    if wrong:
        raise FatalError(f"{name} returned a column {wrong[0]!r}, which no change event has")
    columns = []
    for field in CHANGE_SCHEMA:
        if field.name == _FORMER and field.name not in result.schema.names:
            columns.append(pa.nulls(result.num_rows, field.type))
            continue
        if result.schema.names.count(field.name) != 1:
            raise FatalError(f"{name} must return one column {field.name!r}, as it was given")
        column = result.column(field.name)
        try:
            columns.append(cast_to(column, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise FatalError(
                f"{name} returned {field.name!r} as {column.type}; it must be {field.type}"
            ) from None
    nullable = [field.with_nullable(True) for field in CHANGE_SCHEMA]  # noqa: FBT003 - its name
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(nullable))


def _matched(
    batch: pa.RecordBatch, ids: pa.Array
) -> tuple[Any, pa.BooleanArray | None, pa.BooleanArray | None]:
    """Return which row given each event belongs to, which were made, and which of these are new.

    A new event belongs to the one that stands before it.
    """
    if ids.equals(batch.column("event_id")):
        return np.arange(len(ids), dtype=np.int32), None, None
    found = pc.index_in(ids, value_set=batch.column("event_id"))
    known = found.is_valid().to_numpy(zero_copy_only=False)
    origins = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    if known.all():
        return origins, repeated(origins), None
    before = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    made = np.ones(len(known), np.bool_)
    if known.any():
        again = repeated(origins[known])
        made[known] = False if again is None else again.to_numpy(zero_copy_only=False)
    belonging = np.where(before >= 0, origins[before], 0).astype(np.int32)
    return belonging, pa.array(made), pa.array(~known)


def _check(former: pa.RecordBatch, rows: pa.RecordBatch, name: str) -> None:
    """Refuse what sinks cannot write.

    Raises:
        RowsError: a changed image is no JSON, or an operation is unknown.
    """
    if not OPS.issuperset(rows.column("op").dictionary.to_pylist()) and not OPS.issuperset(
        pc.unique(rows.column("op").cast(pa.utf8())).to_pylist()
    ):
        raise RowsError(f"{name} returned an op that is none of c, u, d, r, t and ddl")
    for column in _JSON:
        old, new = former.column(column), rows.column(column)
        if old.equals(new):
            continue
        if not are_json(new.filter(pc.fill_null(pc.not_equal(old, new), True))):  # noqa: FBT003
            raise RowsError(f"{name} returned {column!r} that is not JSON")
