"""What the chain makes sure of after each processor: ids, marks, ends of transactions."""

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import id_bytes
from airflow_provider_deltaforge.columns.marks import UNCHANGED
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.ids import made_ids
from airflow_provider_deltaforge.processors.contract import Processed

_TX_END = CHANGE_SCHEMA.get_field_index("tx_end")
_EVENT_ID = CHANGE_SCHEMA.get_field_index("event_id")
_UNCHANGED = CHANGE_SCHEMA.get_field_index("unchanged")
_SYNTHETIC = CHANGE_SCHEMA.get_field_index("synthetic")


def checked(processor_id: str, before: pa.RecordBatch, done: Processed) -> Processed:
    """Return what a processor made; refuse what would mark, count or deliver wrong events.

    Raises:
        FatalError: a processor broke its contract.
    """
    rows = done.rows
    wrong = None
    if rows.schema.names != CHANGE_SCHEMA.names or rows.schema.types != CHANGE_SCHEMA.types:
        wrong = "other columns than those of change events"
    elif done.origins is None and rows.num_rows != before.num_rows:
        wrong = "another number of events, and no origins"
    elif done.made is not None and (len(done.made) != rows.num_rows or done.made.null_count):
        wrong = "marks of made events that do not fit its events"
    elif done.origins is not None and not _fits(done.origins, rows.num_rows, before.num_rows):
        wrong = "origins that are not rows of its input"
    elif done.origins is not None and _repeats(numbers(done.origins), done.made):
        wrong = "two events with one id, of which none is marked as made"
    elif any(not 0 <= rejection.event_row < before.num_rows for rejection in done.rejections):
        wrong = "rejections of events it was not given"
    if wrong is not None:
        raise FatalError(f"processor {processor_id} returned {wrong}: report this to its author")
    if rows.schema.equals(CHANGE_SCHEMA):
        return done
    # A column that was set by its name alone has lost that it is never null.
    return replace(done, rows=pa.RecordBatch.from_arrays(rows.columns, schema=CHANGE_SCHEMA))


def _fits(origins: pa.Int32Array, count: int, below: int) -> bool:
    if len(origins) != count or origins.null_count or origins.type != pa.int32():
        return False
    found = numbers(origins)
    return not count or (int(found.min()) >= 0 and int(found.max()) < below)


def _repeats(origins: np.ndarray, made: pa.BooleanArray | None) -> bool:
    """Return whether two rows that nobody made stand for one row of the input."""
    own = origins if made is None else origins[~flags(made)]
    return len(own) > 1 and int(np.bincount(own).max()) > 1


def marked(processor_id: str, key: Any, before: pa.RecordBatch, done: Processed) -> pa.RecordBatch:
    """Return the rows, with ids and the mark of those that the processor made.

    Args:
        processor_id: the mark, which one of an earlier processor is not replaced by.
        key: of the processor, from ``id_key``.
        before: what the processor was given.
        done: what it returned.
    """
    rows = done.rows
    if done.made is None or not rows.num_rows or not done.made.true_count:
        return rows
    made = flags(done.made)
    origins = (
        np.arange(len(made), dtype=np.int32) if done.origins is None else numbers(done.origins)
    )
    ids = id_bytes(rows.column("event_id")).copy()
    made_ids(key, id_bytes(before.column("event_id")), origins, made, ids)
    column = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(ids), [None, pa.py_buffer(ids)]
    )
    rows = rows.set_column(_EVENT_ID, CHANGE_SCHEMA.field(_EVENT_ID), column)
    synthetic = rows.column("synthetic")
    mine = pc.and_(done.made, synthetic.is_null())
    name = pa.array([processor_id], pa.utf8())[0]
    field = CHANGE_SCHEMA.field(_SYNTHETIC)
    return rows.set_column(_SYNTHETIC, field, pc.if_else(mine, name, synthetic))


def with_ends(rows: pa.RecordBatch, transactions: np.ndarray, ended: int) -> pa.RecordBatch:
    """Mark the last row of every transaction that has ended, and no other.

    Args:
        rows: the events.
        transactions: per row, the ordinal of its transaction in the batch.
        ended: how many transactions have ended in the batch; one that comes after is open.
    """
    last = np.full(ended + 1, -1, np.int64)
    last[np.minimum(transactions, ended)] = np.arange(len(transactions))
    ends = np.zeros(rows.num_rows, np.bool_)
    ends[last[:-1][last[:-1] >= 0]] = True
    if np.array_equal(ends, flags(rows.column("tx_end"))):
        return rows
    return rows.set_column(_TX_END, CHANGE_SCHEMA.field(_TX_END), pa.array(ends))


def with_unchanged(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Name as unchanged only what still has the mark: processors set, rename and drop columns."""
    listed = rows.column("unchanged")
    if listed.null_count == len(listed):
        return rows
    kinds = listed.dictionary_encode()
    which = kinds.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    after = rows.column("after")
    found: dict[int, bytes | None] = {}
    for number, text in enumerate(kinds.dictionary.to_pylist()):
        names: list[str] = orjson.loads(text)
        places = np.flatnonzero(which == number)
        images = after.take(pa.array(places))
        spans = json_fields.locate_each(images, [[name] for name in names])
        marks = [pc.equal(json_fields.values(images, span), UNCHANGED) for span in spans]
        kept = np.stack([flags(pc.fill_null(mark, False)) for mark in marks])  # noqa: FBT003
        for at in np.flatnonzero(~kept.all(axis=0)).tolist():
            left = [name for name, still in zip(names, kept[:, at].tolist(), strict=True) if still]
            found[int(places[at])] = orjson.dumps(left) if left else None
    if not found:
        return rows
    texts = [found.get(row, text) for row, text in enumerate(listed.to_pylist())]
    column = pa.array(texts, pa.binary())
    return rows.set_column(_UNCHANGED, CHANGE_SCHEMA.field(_UNCHANGED), column)


def flags(column: pa.BooleanArray) -> np.ndarray:
    """Return a column of flags for numpy."""
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found


def numbers(column: pa.Int32Array) -> np.ndarray:
    """Return a column of numbers for numpy."""
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found
