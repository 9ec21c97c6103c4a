"""Two messages for an update that gives a row another key: its old key goes, then the row comes.

A sink that keeps the last message of each key would keep the row under its old key for ever. So it
is given a delete under the old key, as the row was, and behind it the row under the new key. Both
are one event: of the same transaction and place in the log, and refused together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import id_bytes
from airflow_provider_deltaforge.engine.render.route_templates import RouteTemplate, TemplateFields
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, TEXT
from airflow_provider_deltaforge.events.ids import id_key, made_ids
from airflow_provider_deltaforge.events.message import Messages

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers in which Debezium says what becomes of a row, and what it was."""

_ID = id_key("made", "deltaforge: key change")


@dataclass(frozen=True, slots=True)
class SplitUpdates:
    """Events, some of them twice.

    Attributes:
        rows: the events; a delete stands in front of each that changed its key.
        event_rows: per row, the event it belongs to.
        is_delete: bool per row: it is such a delete.
        images: the new images in the rows of these deletes, null elsewhere.
    """

    rows: pa.RecordBatch
    event_rows: pa.Int32Array
    is_delete: np.ndarray
    images: pa.BinaryArray

    def with_headers(self, messages: Messages) -> Messages:
        """Return messages, one per row, with the headers that Debezium gives both parts."""
        at = np.flatnonzero(self.is_delete)
        keys = messages.keys.cast(pa.utf8())
        other = np.full(len(messages), -1, np.int64)
        other[at], other[at + 1] = at + 1, at
        there = other >= 0
        texts = keys.take(pa.array(other[there]))
        names = pc.if_else(pa.array(self.is_delete[there]), NEW_KEY, OLD_KEY)
        if messages.headers is not None:
            return replace(messages, headers=_merged(messages.headers, there, names, texts))
        ends = np.concatenate([[0], np.cumsum(there)]).astype(np.int32)
        offsets = pa.array(ends, pa.int32(), mask=np.append(~there, False))
        return replace(messages, headers=pa.MapArray.from_arrays(offsets, names, texts))


def _merged(
    headers: pa.MapArray, there: np.ndarray, names: pa.Array, texts: pa.Array
) -> pa.MapArray:
    """Return headers that processors gave, with ours behind them: both are rare."""
    changed: list[Any] = headers.to_pylist()
    for row, *header in zip(
        np.flatnonzero(there).tolist(), names.to_pylist(), texts.to_pylist(), strict=True
    ):
        changed[row] = [*(changed[row] or ()), tuple(header)]
    return pa.array(changed, headers.type)


def split(
    rows: pa.RecordBatch,
    event_rows: pa.Int32Array,
    key: RouteTemplate | None,
    origin: Origin,
    *,
    creates: bool,
) -> SplitUpdates | None:
    """Put a delete in front of every event that changes its message's key; None: there is none.

    Args:
        rows: change events.
        event_rows: per row, the event it stands for.
        key: the sink's template of keys; None: keys are primary keys.
        origin: what the events share.
        creates: the row under its new key is an insert, as in Debezium's envelope; else it stays
            the update that it is.
    """
    former = rows["former_key"] if key is None else _former(rows, key, origin)
    undecided = TemplateFields(rows, origin).undecided("key")
    moved = former.is_valid() if undecided is None else pc.and_(former.is_valid(), undecided)
    if not moved.true_count:
        return None
    order = np.repeat(np.arange(rows.num_rows), 1 + np.asarray(moved))
    is_delete = np.append(order[1:] == order[:-1], [False])
    is_rest = np.append([False], is_delete[:-1])
    doubled = rows.take(pa.array(order))
    nothing = pa.scalar(None, pa.binary())
    deletes = pa.array(is_delete)
    ids = id_bytes(doubled["event_id"]).copy()
    made_ids(_ID, id_bytes(rows["event_id"]), order.astype(np.int32), is_delete, ids)
    op = pc.if_else(deletes, "d", doubled["op"].cast(pa.utf8()))
    before = doubled["before"]
    if creates:
        # A processor may have made a delete of the update: no row comes then.
        is_created = pc.and_(pa.array(is_rest), pc.not_equal(op, "d"))
        op = pc.if_else(is_created, "c", op)
        before = pc.if_else(is_created, nothing, before)
    columns = {
        "op": op.dictionary_encode().cast(TEXT),
        "before": before,
        "after": pc.if_else(deletes, nothing, doubled["after"]),
        "unchanged": pc.if_else(deletes, nothing, doubled["unchanged"]),
        "key": pc.if_else(
            pc.and_(deletes, doubled["former_key"].is_valid()),
            doubled["former_key"],
            doubled["key"],
        ),
        "tx_end": pc.and_(doubled["tx_end"], pc.invert(deletes)),
        "event_id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(ids), [None, pa.py_buffer(ids)]
        ),
    }
    arrays = [columns.get(name, doubled[name]) for name in CHANGE_SCHEMA.names]
    return SplitUpdates(
        pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA),
        event_rows.take(pa.array(order)),
        is_delete,
        pc.if_else(deletes, doubled["after"], nothing),
    )


def delete_ids(ids: pa.FixedSizeBinaryArray) -> pa.FixedSizeBinaryArray:
    """Return the id of the delete that stands in front of each event, if that changes its key."""
    made, every = np.empty((len(ids), 16), np.uint8), np.ones(len(ids), np.bool_)
    made_ids(_ID, id_bytes(ids), np.arange(len(ids), dtype=np.int32), every, made)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(ids), [None, pa.py_buffer(made)])


def _former(rows: pa.RecordBatch, key: RouteTemplate, origin: Origin) -> pa.BinaryArray:
    """Return what a template made of the old image of each update, where that is something else."""
    nothing = pa.nulls(rows.num_rows, pa.binary())
    if not key.reads_new_image:
        return nothing
    is_update = pc.equal(rows["op"].cast(pa.utf8()), "u")
    both = pc.and_(rows["before"].is_valid(), rows["after"].is_valid())
    updates = np.flatnonzero(np.asarray(pc.and_(is_update, both)))
    if not len(updates):
        return nothing
    mine = rows if len(updates) == rows.num_rows else rows.take(pa.array(updates))
    at = CHANGE_SCHEMA.get_field_index("after")
    old = mine.set_column(at, CHANGE_SCHEMA.field(at), mine["before"])
    was, now = key.known(TemplateFields(old, origin)), key.known(TemplateFields(mine, origin))
    moved = pc.fill_null(pc.not_equal(was, now), fill_value=False)
    found = pc.if_else(moved, was, pa.scalar(None, pa.binary()))
    order = np.full(rows.num_rows, -1, np.int64)
    order[updates] = np.arange(len(updates))
    return found.take(pa.array(order, mask=order < 0))


def together(event_rows: pa.Int32Array, lost: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return which messages belong to events that lose a message."""
    rows = event_rows.to_numpy()
    return np.isin(rows, rows[np.asarray(lost, np.int64)])
