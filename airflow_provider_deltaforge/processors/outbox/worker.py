"""Turns outbox rows into domain events, column by column."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, OUTBOX, TEXT
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed, rejected
from airflow_provider_deltaforge.processors.event_tables import Table, belonging
from airflow_provider_deltaforge.processors.outbox.messages import (
    LACKING,
    NON_INSERT,
    NON_OBJECT,
    NULL_PAYLOAD,
    TAKEN,
    OutboxLayout,
    OutboxMessagesBatch,
)
from airflow_provider_deltaforge.processors.outbox.settings import Outbox
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

_AFTER = CHANGE_SCHEMA.get_field_index("after")
_BEFORE = CHANGE_SCHEMA.get_field_index("before")
_SCHEMA = CHANGE_SCHEMA.get_field_index("schema")
_ROUTING = CHANGE_SCHEMA.get_field_index("routing")
_DROPPED = {
    NON_INSERT: ("non_insert", "it is no insert"),
    NULL_PAYLOAD: ("null_payload", "its row is null"),
    NON_OBJECT: ("non_object", "its row is no JSON object"),
}


class OutboxWorker:
    """Implements ``processors.contract.Worker``."""

    def __init__(self, settings: Outbox) -> None:
        self._settings = settings
        self._form = OutboxLayout(settings)
        self._warned: set[tuple[str, str]] = set()
        tables = settings.tables
        # A pattern's dots part database and table, or belong to a message's prefix.
        whole = tuple(f"*.{pattern}" for pattern in tables)
        self._matchers = (TableMatcher(tables), TableMatcher(whole))
        json_fields.precompile()

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Replace outbox rows by their messages; everything else passes untouched."""
        chosen = self._chosen(rows)
        if not len(chosen):
            return Processed(rows)
        found = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
        messages = OutboxMessagesBatch(self._form, found)
        taken = np.flatnonzero(messages.fates == TAKEN)
        counts = {"transformed": len(taken)}
        rejections: list[Rejection] = []
        if len(taken) < len(chosen):
            rejections = self._refused(messages, chosen)
            counts |= {"strict_missing_fields": len(rejections)} | self._dropped(messages, found)
        nonzero = {name: count for name, count in counts.items() if count}
        return _merged(rows, chosen, taken, messages, rejections, nonzero)

    def close(self) -> None:
        """Nothing is open."""

    def _chosen(self, rows: pa.RecordBatch) -> Any:
        """Return which rows are outbox messages for this processor."""
        schema = rows["schema"]
        marks = np.array([*(name == OUTBOX for name in schema.dictionary.to_pylist()), False])
        if not marks.any():
            return np.zeros(0, np.int64)
        # Null is counted from the end, where no mark stands.
        chosen = np.flatnonzero(marks[schema.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
        return chosen if not self._settings.tables else chosen[belonging(rows, self._takes)[chosen]]

    def _takes(self, table: Table) -> bool:
        db, _, name = table
        return any(matcher.matches(db, name) for matcher in self._matchers)

    def _refused(self, messages: OutboxMessagesBatch, chosen: Any) -> list[Rejection]:
        """Return the messages that are refused, by their place in the batch."""
        if not self._settings.strict:
            return []
        refused = np.flatnonzero(messages.fates > NON_INSERT)
        return [
            rejected(int(chosen[row]), f"strict: {_why(messages, row)}") for row in refused.tolist()
        ]

    def _dropped(self, messages: OutboxMessagesBatch, found: pa.RecordBatch) -> dict[str, int]:
        """Count what is dropped, and warn once for each table and reason."""
        counts = {}
        for fate, (word, reason) in _DROPPED.items():
            if self._settings.strict and fate != NON_INSERT:
                continue
            rows = np.flatnonzero(messages.fates == fate)
            counts[f"dropped:{word}"] = len(rows)
            for table in found["table"].take(pa.array(rows)).unique().to_pylist():
                self._warn(table, reason)
        return counts

    def _warn(self, table: str, reason: str) -> None:
        if (table, reason) not in self._warned:
            self._warned.add((table, reason))
            log.warning(
                "processor %s dropped a message of %s: %s; logged once, counted each time",
                self._settings.id, table, reason,
            )  # fmt: skip


def _why(messages: OutboxMessagesBatch, row: int) -> str:
    fate = int(messages.fates[row])
    return f"it lacks {messages.lacks(row)}" if fate == LACKING else _DROPPED[fate][1]


def _merged(
    rows: pa.RecordBatch,
    chosen: Any,
    taken: Any,
    messages: OutboxMessagesBatch,
    rejections: list[Rejection],
    counts: Mapping[str, int],
) -> Processed:
    """Return the batch with what messages became in their places.

    Args:
        rows: the batch.
        chosen: which of its rows are messages.
        taken: which of the messages go on.
        messages: what the rows hold.
        rejections: for the result.
        counts: for the result.
    """
    payloads, routing = messages.payloads(), messages.routing()
    if len(taken) == rows.num_rows:
        columns = list(rows.columns)
        columns[_AFTER], columns[_ROUTING] = payloads, routing
        columns[_BEFORE] = pa.nulls(len(taken), pa.binary())
        columns[_SCHEMA] = pa.nulls(len(taken), TEXT)
        return Processed(pa.RecordBatch.from_arrays(columns, schema=CHANGE_SCHEMA), counts=counts)
    if len(taken) < len(chosen):
        payloads, routing = payloads.take(pa.array(taken)), routing.take(pa.array(taken))
    stays = np.ones(rows.num_rows, np.bool_)
    stays[chosen] = False
    stays[chosen[taken]] = True
    origins = None
    if len(taken) < len(chosen):
        left = pa.array(np.flatnonzero(stays).astype(np.int32))
        rows, origins = rows.take(left), left
    # The place of each message that goes on, among the rows that stay.
    places = np.cumsum(stays)[chosen[taken]] - 1
    columns = list(rows.columns)
    count = rows.num_rows
    columns[_AFTER] = _placed(columns[_AFTER], payloads, places)
    columns[_BEFORE] = _placed(columns[_BEFORE], pa.nulls(len(places), pa.binary()), places)
    columns[_ROUTING] = _placed(columns[_ROUTING], routing, places)
    marked = np.zeros(count, np.bool_)
    marked[places] = True
    schema = columns[_SCHEMA]
    codes = schema.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    plain = pa.array(codes, pa.int32(), mask=marked | (codes < 0))
    columns[_SCHEMA] = pa.DictionaryArray.from_arrays(plain, schema.dictionary)
    batch = pa.RecordBatch.from_arrays(columns, schema=CHANGE_SCHEMA)
    return Processed(batch, origins, rejections=rejections, counts=counts)


def _placed(column: pa.Array, values: pa.Array, places: Any) -> pa.Array:
    """Return a column with values put at some places."""
    if len(places) == len(column):
        return values
    if column.null_count == len(column) and values.null_count == len(values):
        return column
    order = np.arange(len(column))
    order[places] = len(column) + np.arange(len(places))
    return pa.concat_arrays([column, values]).take(pa.array(order))
