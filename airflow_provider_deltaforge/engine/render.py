"""From change events to messages, once per sink, before the sink: route, wrap, encode."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.routing import Fields, Filling
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink


class Renderer:
    """Renders for one sink of one pipeline. Used by one thread."""

    def __init__(self, sink: Sink, origin: Origin) -> None:
        self._sink = sink
        self._origin = origin
        self._destination = Filling(
            sink.destination,
            f"{sink.id}.{sink.destination_field}",
            quoted=bool(getattr(sink, "quotes_fields", False)),
        )
        key = getattr(sink, "key", None)
        self._key = None if key is None else Filling(key, f"{sink.id}.key")
        self._tombstones = bool(getattr(sink, "tombstones", False))

    def render(self, rows: pa.RecordBatch) -> tuple[Messages, list[Rejection]]:
        """Return the messages in the order of the events, and the events that have no place.

        Args:
            rows: Change events in CHANGE_SCHEMA.

        Returns:
            One message per event that the sink's filter lets through, and a tombstone after each
            delete where the sink wants them; rejections of kind ``routing``, whose ``event_row``
            counts in ``rows``.
        """
        wanted = self._wanted(rows)
        event_rows = pa.array(np.arange(rows.num_rows, dtype=np.int32))
        if wanted is not None:
            rows, event_rows = rows.filter(wanted), event_rows.filter(wanted)
        routing = _Routing(rows["routing"])
        fields = Fields(rows, self._origin)
        topics = routing.topics(self._destination.choices(fields))
        keys = routing.keys(rows["key"] if self._key is None else self._key.texts(fields))
        values = routing.bodies(self._sink.envelope.wrap(rows, self._origin), rows["after"])
        messages = Messages(
            topics=topics,
            keys=keys,
            values=self._sink.encoding.encode(values),
            headers=routing.headers(),
            event_ids=rows["event_id"],
            event_rows=event_rows,
        )
        placed = _placed(topics)
        rejections = self._refuse(messages, placed)
        is_delete = pc.equal(rows["op"].cast(pa.utf8()), "d") if self._tombstones else None
        if placed is not None:
            messages = take(messages, pc.indices_nonzero(placed))
            is_delete = None if is_delete is None else is_delete.filter(placed)
        if is_delete is not None:
            messages = self._with_tombstones(messages, is_delete)
        return messages, rejections

    def _wanted(self, rows: pa.RecordBatch) -> pa.BooleanArray | None:
        keep = self._sink.filter
        if keep is None:
            return None
        synthetic = rows["synthetic"]
        wanted = pa.repeat(pa.scalar(value=True), rows.num_rows)
        if keep.exclude_synthetic:
            wanted = pc.and_(wanted, synthetic.is_null())
        if keep.synthetic_only:
            wanted = pc.and_(wanted, synthetic.is_valid())
        if keep.producers:
            wanted = pc.and_(wanted, pc.is_in(synthetic, pa.array(keep.producers, pa.utf8())))
        return wanted

    def _refuse(self, messages: Messages, placed: pa.BooleanArray | None) -> list[Rejection]:
        if placed is None:
            return []
        reason = (
            f"sink {self._sink.id}: {self._sink.destination_field} {self._sink.destination!r} "
            "comes out empty for this event; name fields that every event has"
        )
        refused = messages.event_rows.filter(pc.invert(placed)).to_pylist()
        return [Rejection(row, "routing", reason) for row in refused]

    def _with_tombstones(self, messages: Messages, is_delete: pa.BooleanArray) -> Messages:
        # A null key cannot be compacted away, and compacted topics refuse it.
        marked = np.asarray(pc.and_(is_delete, messages.keys.is_valid()))
        if not marked.any():
            return messages
        copies = np.repeat(np.arange(len(messages)), 1 + marked)
        is_tombstone = np.concatenate([[False], copies[1:] == copies[:-1]])
        doubled = take(messages, pa.array(copies))
        nothing = pa.scalar(None, pa.binary())
        return replace(doubled, values=pc.if_else(pa.array(is_tombstone), nothing, doubled.values))


def _placed(topics: pa.DictionaryArray) -> pa.BooleanArray | None:
    """Say which messages have a topic; None when all do."""
    if "" not in topics.dictionary.to_pylist():
        return None
    return pc.not_equal(topics.cast(pa.utf8()), "")


class _Routing:
    """What processors said about where events go; nothing, most of the time."""

    def __init__(self, routing: pa.StructArray) -> None:
        self._said = routing.null_count < len(routing)
        if self._said:
            # flatten, unlike field, carries the struct's own nulls into its children.
            self._topic, self._key, self._headers, self._raw = routing.flatten()

    def topics(self, configured: pa.DictionaryArray) -> pa.DictionaryArray:
        if not self._said or self._topic.null_count == len(self._topic):
            return configured
        given = pc.fill_null(pc.not_equal(self._topic, ""), fill_value=False)
        chosen = pc.if_else(given, self._topic, configured.cast(pa.utf8()))
        return chosen.dictionary_encode()

    def keys(self, configured: pa.BinaryArray) -> pa.BinaryArray:
        if not self._said or self._key.null_count == len(self._key):
            return configured
        return pc.coalesce(self._key.cast(pa.binary()), configured)

    def bodies(self, wrapped: pa.BinaryArray, after: pa.BinaryArray) -> pa.BinaryArray:
        if not self._said or not self._raw.true_count:
            return wrapped
        raw = pc.fill_null(self._raw, fill_value=False)
        return pc.if_else(raw, pc.fill_null(after, b"null"), wrapped)

    def headers(self) -> pa.MapArray | None:
        if not self._said or self._headers.null_count == len(self._headers):
            return None
        return self._headers


def take(messages: Messages, indices: pa.Array) -> Messages:
    """Return the messages at ``indices``, in that order."""
    columns: dict[str, Any] = {
        name: getattr(messages, name)
        for name in ("topics", "keys", "values", "headers", "event_ids", "event_rows")
    }
    return Messages(
        **{
            name: None if column is None else column.take(indices)
            for name, column in columns.items()
        }
    )
