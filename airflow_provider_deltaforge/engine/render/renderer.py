"""From change events to messages, once per sink, before the sink: route, wrap, encode."""

import threading
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import row_text_kernel
from airflow_provider_deltaforge.columns.binary_columns import number_column
from airflow_provider_deltaforge.columns.murmur2_kernel import partitions_of
from airflow_provider_deltaforge.columns.short_columns import kept_if_short
from airflow_provider_deltaforge.encodings.contract import Bodies, Encoder, EncoderRequest, Schemas
from airflow_provider_deltaforge.engine.render.key_changes import split, together
from airflow_provider_deltaforge.engine.render.key_parts import order_groups
from airflow_provider_deltaforge.engine.render.processed_batch import BatchTransactions
from airflow_provider_deltaforge.engine.render.route_templates import RouteTemplate, TemplateFields
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.spec.policies import Sharding

_OPS = {"truncate": "t", "ddl": "ddl"}


def no_schemas(*_table: str | None) -> None:
    """Know no table."""


class Renderer:
    """Renders for one sink of one pipeline. Used by one thread at a time, which holds ``busy``.

    Args:
        sink: the description.
        origin: what the events share.
        schemas: finds the schema a row was read by, for encodings that need it.
        sharding: how messages are spread; None: by their keys, as destinations do.
    """

    def __init__(
        self,
        sink: Sink,
        origin: Origin,
        schemas: Schemas = no_schemas,
        sharding: Sharding | None = None,
    ) -> None:
        self._sink = sink
        self._origin = origin
        self._schemas = schemas
        self._encoder: Encoder | None = None
        self.encoding_counts: Counter[str] = Counter()
        """What its encoding counts; it only rises."""
        self._closed = False
        self.busy = threading.Lock()
        """Another may still render for an opening of the log that is over."""
        self._destination = RouteTemplate(
            sink.destination,
            f"{sink.id}.{sink.destination_field}",
            quoted=sink.quotes_fields,
        )
        key = sink.key_template
        self._key = None if key is None else RouteTemplate(key, f"{sink.id}.key")
        self._shards = sharding.count if sharding is not None else None
        if self._shards is not None:
            partitions_of(pa.array([], pa.binary()), self._shards)  # Compiled before events wait.
        text = sharding.key_template if sharding is not None else None
        self._sharding_key = (
            RouteTemplate(text, "sharding.key") if text is not None and text != key else None
        )
        self._tombstones = sink.writes_tombstones
        self._creates = sink.envelope.splits_key_changes
        self.splits = self._tombstones or (self._creates and sink.key_field is not None)
        """An update that changes the key is a delete and the row; see ``key_changes``."""
        self.links_keys = self.splits or sink.keeps_order_of != "all"
        """Both keys of such an update are to be known."""

    def open(self) -> Encoder:
        """Open the encoding, if it is not; see ``Encoding.open``.

        Raises:
            RetryableError: it was closed, and what is rendered now would be for nobody.
        """
        if self._closed:
            raise RetryableError(f"sink {self._sink.id}: the lane ended before this was rendered")
        if self._encoder is None:
            row_text_kernel.precompile()
            origin, envelope = self._origin, self._sink.envelope
            request = EncoderRequest(
                self._sink.id,
                origin.connector,
                envelope.shape,
                self._schemas,
                origin.type_system,
                self.encoding_counts,
            )
            self._encoder = self._sink.encoding.open(request)
        return self._encoder

    def close(self) -> None:
        """Close the encoding for good. Safe to call twice."""
        self._closed = True
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()

    def render(
        self, rows: pa.RecordBatch, *, asks: bool = True
    ) -> tuple[Messages, list[Rejection]]:
        """Return the messages in the order of the events, and the events that cannot be sent.

        Args:
            rows: Change events in CHANGE_SCHEMA.
            asks: the encoding may ask a server, however long that takes to answer.

        Returns:
            One message per event that the sink's filter lets through, two where it changes the key
            of a sink that splits such events, and a tombstone after each delete where the sink
            wants them; rejections of kind ``routing``, or of the encoding,
            whose ``event_row`` counts in ``rows``.

        Raises:
            UnaskedError: the encoding has to ask a server.
            RetryableError: something the encoding needs is away.
        """
        events = rows
        rows, event_rows = self._let_through(rows)
        parts = None
        if self.splits:
            parts = split(rows, event_rows, self._key, self._origin, creates=self._creates)
        if parts is not None:
            rows, event_rows = parts.rows, parts.event_rows
        routing = _Routing(rows["routing"])
        fields = TemplateFields(rows, self._origin, None if parts is None else parts.images)
        topics, keys = self._places(fields, routing)
        values = routing.bodies(self._sink.envelope.wrap(rows, self._origin), rows["after"])
        messages = Messages(
            topics=topics,
            keys=keys,
            values=values,
            headers=routing.headers(),
            event_ids=rows["event_id"],
            event_rows=event_rows,
            shards=fields.shards,
            bare=routing.bare(),
        )
        if parts is not None and self._creates:
            messages = parts.with_headers(messages)
        placed = _placed(topics)
        if placed is not None and parts is not None:
            lost = np.flatnonzero(~np.asarray(placed))
            placed = pa.array(~together(event_rows, lost))
        rejections = self._refuse(messages, placed)
        if placed is not None:
            kept = pc.indices_nonzero(placed)
            messages, rows = messages.take(kept), rows.take(kept)
        bodies = Bodies(messages.values, messages.topics, rows, messages.bare, asks)
        messages, rows, unwritten = self._encoded(messages, bodies)
        if self._tombstones:
            messages = self._with_tombstones(messages, pc.equal(rows["op"].cast(pa.utf8()), "d"))
        return self._grouped(messages, events), rejections + unwritten

    def _grouped(self, messages: Messages, events: pa.RecordBatch) -> Messages:
        """Return messages with their order groups, for a sink that keeps no more in order."""
        kept = self._sink.keeps_order_of
        if kept == "all":
            return messages
        groups = order_groups(messages, events, by_keys=kept == "keys")
        return replace(messages, order_groups=groups)

    def topics(self, rows: pa.RecordBatch) -> pa.DictionaryArray:
        """Return where each of a batch's events goes; empty for one that cannot be placed."""
        return self._places(TemplateFields(rows, self._origin), _Routing(rows["routing"]))[0]

    def _places(
        self, fields: TemplateFields, routing: "_Routing"
    ) -> tuple[pa.DictionaryArray, pa.BinaryArray]:
        """Return topics and keys; fill in the numbers of shards."""
        keys = routing.keys(fields.rows["key"] if self._key is None else self._key.texts(fields))
        if self._shards is not None:
            own = self._sharding_key
            by = keys if own is None else own.texts(fields)
            fields.shards = pa.array(partitions_of(by, self._shards))
        return routing.topics(self._destination.choices(fields)), keys

    def _encoded(
        self, messages: Messages, bodies: Bodies
    ) -> tuple[Messages, pa.RecordBatch, list[Rejection]]:
        """Encode; return what is left of messages and rows, and what is not."""
        rows = bodies.rows
        encoded = self.open().encode(bodies)
        if encoded.values is not messages.values:
            messages = replace(messages, values=encoded.values)
        if not encoded.rejections:
            return messages, rows, []
        lost = together(
            messages.event_rows, [rejection.event_row for rejection in encoded.rejections]
        )
        refused = {
            row: replace(rejection, event_row=row)
            for rejection in reversed(encoded.rejections)
            for row in (messages.event_rows[rejection.event_row].as_py(),)
        }
        kept = pa.array(np.flatnonzero(~lost))
        return messages.take(kept), rows.take(kept), [refused[row] for row in sorted(refused)]

    def _let_through(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Int32Array]:
        """Return the events that the sink's filter leaves, and their rows."""
        wanted = self._wanted(rows)
        event_rows = _row_numbers(rows.num_rows)
        if wanted is None or wanted.true_count == rows.num_rows:
            return rows, event_rows
        event_rows = event_rows.filter(wanted)
        # The event that ended its transaction may be one of those that are left out.
        transactions = BatchTransactions.of_batch(rows)
        return transactions.with_ends(rows.filter(wanted), event_rows.to_numpy()), event_rows

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
        if keep.exclude_ops:
            left_out = pa.array([_OPS[name] for name in keep.exclude_ops], pa.utf8())
            is_left_out = pc.is_in(rows["op"].cast(pa.utf8()), left_out)
            wanted = pc.and_(wanted, pc.invert(is_left_out))
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
        refused = messages.event_rows.filter(pc.invert(placed)).unique().to_pylist()
        return [Rejection(row, "routing", reason) for row in refused]

    def _with_tombstones(self, messages: Messages, is_delete: pa.BooleanArray) -> Messages:
        # A null key cannot be compacted away, and compacted topics refuse it.
        marked = np.asarray(pc.and_(is_delete, messages.keys.is_valid()))
        if not marked.any():
            return messages
        copies = np.repeat(np.arange(len(messages)), 1 + marked)
        is_tombstone = np.concatenate([[False], copies[1:] == copies[:-1]])
        doubled = messages.take(pa.array(copies))
        nothing = pa.scalar(None, pa.binary())
        return replace(doubled, values=pc.if_else(pa.array(is_tombstone), nothing, doubled.values))


@kept_if_short
def _row_numbers(count: int) -> pa.Int32Array:
    return number_column(np.arange(count, dtype=np.int32), pa.int32())


def _placed(topics: pa.DictionaryArray) -> pa.BooleanArray | None:
    """Return which messages have a topic; None when all do."""
    if "" not in topics.dictionary.to_pylist():
        return None
    return pc.not_equal(topics.cast(pa.utf8()), "")


class _Routing:
    """What processors said about where events go; nothing, most of the time."""

    def __init__(self, routing: pa.StructArray) -> None:
        self._is_routed = routing.null_count < len(routing)
        if self._is_routed:
            # flatten, unlike field, carries the struct's own nulls into its children.
            self._topic, self._key, self._headers, self._raw = routing.flatten()

    def topics(self, configured: pa.DictionaryArray) -> pa.DictionaryArray:
        if not self._is_routed or self._topic.null_count == len(self._topic):
            return configured
        is_named = pc.fill_null(pc.not_equal(self._topic, ""), fill_value=False)
        chosen = pc.if_else(is_named, self._topic, configured.cast(pa.utf8()))
        return chosen.dictionary_encode()

    def keys(self, configured: pa.BinaryArray) -> pa.BinaryArray:
        if not self._is_routed or self._key.null_count == len(self._key):
            return configured
        return pc.coalesce(self._key.cast(pa.binary()), configured)

    def bodies(self, wrapped: pa.BinaryArray, after: pa.BinaryArray) -> pa.BinaryArray:
        bare = self.bare()
        return wrapped if bare is None else pc.if_else(bare, pc.fill_null(after, b"null"), wrapped)

    def bare(self) -> pa.BooleanArray | None:
        """Return which messages are ``after`` alone; None when none is."""
        if not self._is_routed or not self._raw.true_count:
            return None
        return pc.fill_null(self._raw, fill_value=False)

    def headers(self) -> pa.MapArray | None:
        if not self._is_routed or self._headers.null_count == len(self._headers):
            return None
        return self._headers
