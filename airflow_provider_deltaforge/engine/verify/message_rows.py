"""Messages that a sink holds, as states of the rows that they are about."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_compare_kernel, json_fields, row_hash_kernel
from airflow_provider_deltaforge.columns.binary_columns import parts_of
from airflow_provider_deltaforge.engine.render.former_keys import key_texts
from airflow_provider_deltaforge.engine.verify.row_states import (
    ABSENT,
    LATE,
    MARKED,
    STATES,
    Truncation,
    states,
)
from airflow_provider_deltaforge.envelopes.contract import EventPaths
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sinks.reader_contract import HeldMessages

_PRESENT = ("r", "c", "u")
_MIX_1, _MIX_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_NULL = b"null"


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """One table that is verified.

    Attributes:
        number: names it in states.
        schema: as the catalog describes it now; it has a key.
    """

    number: int
    schema: TableSchema

    @property
    def name(self) -> str:
        """Its full name."""
        return self.schema.full_name


def row_ids(tables: Any, keys: pa.BinaryArray) -> Any:
    """Return a uint64 per row, of its table's number and its key.

    Args:
        tables: int array, or one number.
        keys: binary.
    """
    found = row_hash_kernel.text_checksums(keys)
    # As an array, also for one number: its overflow is meant.
    found = found + (np.atleast_1d(tables).astype(np.uint64) + np.uint64(1)) * _MIX_1
    found ^= found >> np.uint64(33)
    found *= _MIX_2
    found ^= found >> np.uint64(29)
    return found


@dataclass
class MessageRows:
    """Reads one sink's messages. Used by one thread.

    Attributes:
        paths: where its envelope puts what.
        tables: those that are verified.
        by_message_key: a message's key names its row; else the row's image does.
        splits_keys: an update of a key is preceded by a delete of the old one.
        topics: which tables' rows each destination may hold.
        pipeline: whose messages count; what others say of a row leaves nothing of it there. None:
            everybody's.
        unreadable: messages that are none of ours and name no row.
    """

    paths: EventPaths
    tables: Sequence[VerifiedTable]
    by_message_key: bool
    splits_keys: bool
    topics: Mapping[str, Collection[int]]
    pipeline: str | None = None
    unreadable: int = 0
    messages: int = 0
    truncations: list[Truncation] = field(default_factory=list)
    _places: dict[tuple[str, int], int] = field(default_factory=dict)

    def read(self, held: HeldMessages, *, late: bool) -> pa.RecordBatch:
        """Return the states of rows that messages show, in their order.

        Args:
            held: messages of one place.
            late: they came behind the first reading.
        """
        count = len(held.values)
        place = self._places.setdefault((held.topic, held.partition), len(self._places))
        orders = np.arange(self.messages, self.messages + count, dtype=np.int64)
        self.messages += count
        times = np.zeros(count, np.int64) if held.times_ms is None else np.asarray(held.times_ms)
        batch = _Decoded(self, held, orders, times, place, LATE if late else 0)
        self.truncations += batch.truncations(is_late=late)
        parts = [*batch.images(), *batch.nameless()]
        if not parts:
            return states({}, 0)
        whole = pa.Table.from_batches(parts, STATES).combine_chunks()
        # A stable sort: what an event takes away stands in front of what it brings.
        return (
            whole.take(pa.array(np.argsort(whole["order"].to_numpy(), kind="stable"))).to_batches()[
                0
            ]
            if whole.num_rows
            else states({}, 0)
        )


class _Decoded:
    """One batch of messages, taken apart."""

    def __init__(
        self, rows: MessageRows, held: HeldMessages, orders: Any, times: Any, place: int, flags: int
    ) -> None:
        self._rows, self._held = rows, held
        self._orders, self._times, self._place, self._flags = orders, times, place, flags
        inside = rows.paths.event
        named = [(*inside, name) for name in ("op", "before", "after", "synthetic", "unchanged")]
        paths = [*named, rows.paths.pipeline, *rows.paths.table]
        spans = json_fields.locate_each(held.values, paths)
        self._op = json_fields.text_values(held.values, spans[0])
        self._before = _not_null(json_fields.values(held.values, spans[1]))
        self._after = _not_null(json_fields.values(held.values, spans[2]))
        self._made = np.asarray(_not_null(json_fields.values(held.values, spans[3])).is_valid())
        self._unchanged = json_fields.values(held.values, spans[4])
        self._is_event = np.asarray(self._op.is_valid())
        self._counts = np.ones(len(held.values), np.bool_)
        if rows.pipeline is not None:
            names = json_fields.text_values(held.values, spans[5])
            self._counts = np.asarray(rows.paths.are_of(rows.pipeline, names))
        self._tables = self._numbers([json_fields.text_values(held.values, s) for s in spans[6:]])

    def _numbers(self, texts: Sequence[pa.StringArray]) -> Any:
        """Return each message's table, -1 for one that is not verified."""
        if len(texts) == 1:
            names = texts[0]
            known = {
                f"{t.schema.schema or t.schema.db}.{t.schema.table}": t.number
                for t in self._rows.tables
            }
        else:
            db, schema, table = texts
            names = pc.binary_join_element_wise(pc.coalesce(schema, db), table, "\0")
            known = {
                f"{t.schema.schema or t.schema.db}\0{t.schema.table}": t.number
                for t in self._rows.tables
            }
        coded = names.dictionary_encode()
        numbers = np.array([known.get(name, -1) for name in coded.dictionary.to_pylist()] + [-1])
        codes = pc.fill_null(coded.indices, len(numbers) - 1).to_numpy(zero_copy_only=False)
        return numbers[codes]

    def truncations(self, *, is_late: bool) -> list[Truncation]:
        is_empty = np.asarray(pc.fill_null(pc.equal(self._op, "t"), fill_value=False))
        return [
            Truncation(
                int(self._tables[at]),
                int(self._orders[at]),
                int(self._times[at]),
                self._place,
                is_late,
            )
            for at in np.flatnonzero(is_empty & (self._tables >= 0)).tolist()
        ]

    def images(self) -> list[pa.RecordBatch]:
        """Return the states of rows that events show."""
        is_row = np.asarray(
            pc.fill_null(pc.is_in(self._op, pa.array([*_PRESENT, "d"])), fill_value=False)
        )
        found = []
        for table in self._rows.tables:
            rows = np.flatnonzero(is_row & (self._tables == table.number) & ~self._made)
            if len(rows):
                found += self._of_table(table, rows)
        return found

    def _of_table(self, table: VerifiedTable, rows: Any) -> list[pa.RecordBatch]:
        taken = pa.array(rows)
        after, before = self._after.take(taken), self._before.take(taken)
        op = self._op.take(taken)
        is_there = np.asarray(pc.and_(pc.not_equal(op, "d"), after.is_valid()))
        names = table.schema.primary_key
        paths = [[name] for name in names]
        found = []
        if self._rows.by_message_key:
            keys = self._held.keys.take(taken)
        else:
            image = pc.if_else(pa.array(is_there), after, before)
            keys = keys_of(image, names, json_fields.locate_each(image, paths))
        if not self._rows.splits_keys:
            gone, former = _former_keys(before, after, op, names, paths)
            found.append(
                self._states(table, rows[gone], former, np.zeros(len(gone), np.bool_), None)
            )
        known = np.asarray(pc.greater(pc.fill_null(pc.binary_length(keys), 0), 0))
        self._rows.unreadable += int(len(known) - known.sum())
        at = pa.array(np.flatnonzero(known))
        found.append(
            self._states(table, rows[known], keys.take(at), is_there[known], after.take(at))
        )
        return found

    def _states(
        self, table: VerifiedTable, rows: Any, keys: Any, is_there: Any, after: Any
    ) -> pa.RecordBatch:
        count = len(rows)
        is_there = is_there & self._counts[rows]
        flags = np.where(is_there, self._flags, self._flags | ABSENT).astype(np.uint8)
        content, unchanged = np.zeros(count, np.uint64), pa.nulls(count, pa.binary())
        if after is not None:
            content, marked, _ = row_hash_kernel.row_checksums(after)
            flags[marked & is_there] |= MARKED
            unchanged = self._unchanged.take(pa.array(rows))
        return states(
            {
                "id": row_ids(table.number, keys),
                "content": content,
                "order": self._orders[rows],
                "time_ms": self._times[rows],
                "place": np.full(count, self._place, np.int32),
                "table": np.full(count, table.number, np.int32),
                "flags": flags,
                "key": keys.cast(pa.binary()),
                "unchanged": unchanged,
            },
            count,
        )

    def nameless(self) -> list[pa.RecordBatch]:
        """Return the states that tombstones show, and bodies that are no events of ours."""
        values = self._held.values
        is_tombstone = np.asarray(values.is_null())
        is_foreign = ~is_tombstone & ~self._is_event
        numbers = sorted(self._rows.topics.get(self._held.topic, ()))
        if not self._rows.by_message_key:
            self._rows.unreadable += int(is_foreign.sum())
            return []
        has_key = np.asarray(pc.greater(pc.fill_null(pc.binary_length(self._held.keys), 0), 0))
        if len(numbers) != 1 or numbers[0] < 0:
            # Which table's row it is, is not known. Events of deletes are in the topic as well.
            self._rows.unreadable += int(is_foreign.sum())
            return []
        self._rows.unreadable += int((is_foreign & ~has_key).sum())
        [table] = [table for table in self._rows.tables if table.number == numbers[0]]
        bare_null = pc.fill_null(pc.equal(values, _NULL), fill_value=False)
        is_gone = is_tombstone | (is_foreign & np.asarray(bare_null))
        found = []
        for chosen, is_there in (
            (is_gone & has_key, False),
            (is_foreign & ~is_gone & has_key, True),
        ):
            rows = np.flatnonzero(chosen)
            if len(rows):
                at = pa.array(rows)
                bodies = values.take(at) if is_there else None
                present = np.full(len(rows), is_there)
                found.append(self._states(table, rows, self._held.keys.take(at), present, bodies))
        return found


def _not_null(texts: pa.BinaryArray) -> pa.BinaryArray:
    """Return JSON values, JSON's null as null."""
    is_null = pc.fill_null(pc.equal(texts, _NULL), fill_value=False)
    return pc.if_else(is_null, pa.scalar(None, pa.binary()), texts)


def keys_of(
    images: pa.BinaryArray, names: Sequence[str], places: Sequence[json_fields.Spans]
) -> pa.BinaryArray:
    """Return each image's key; null where the image lacks a part of it."""
    whole = np.ones(len(images), np.bool_)
    for spans in places:
        whole &= spans.starts >= 0
    rows = np.flatnonzero(whole)
    texts = key_texts(images, names, places, rows)
    order = np.full(len(images), -1, np.int64)
    order[rows] = np.arange(len(rows))
    return texts.take(pa.array(order, mask=order < 0))


def _former_keys(
    before: pa.BinaryArray,
    after: pa.BinaryArray,
    op: pa.StringArray,
    names: Sequence[str],
    paths: Sequence[Sequence[str]],
) -> tuple[Any, pa.BinaryArray]:
    """Return which updates gave their row another key, and the keys before."""
    is_update = pc.and_(pc.equal(op, "u"), pc.and_(before.is_valid(), after.is_valid()))
    if not is_update.true_count:
        return np.zeros(0, np.int64), pa.array([], pa.binary())
    old, new = json_fields.locate_each(before, paths), json_fields.locate_each(after, paths)
    differs, known = np.zeros(len(op), np.bool_), np.asarray(is_update).copy()
    order = np.empty(len(op), np.int8)
    for was, now in zip(old, new, strict=True):
        json_compare_kernel.compare_both(
            parts_of(before).data, *was, parts_of(after).data, *now, order
        )
        differs |= order != json_compare_kernel.EQUAL
        known &= (was.starts >= 0) & (now.starts >= 0)
    gone = np.flatnonzero(differs & known)
    return gone, key_texts(before, names, old, gone)
