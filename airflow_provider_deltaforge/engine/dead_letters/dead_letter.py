"""Dead letters as they are stored: the event as native JSON, and who refused it and why.

And the events, read back from them.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic_core import from_json

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.engine.base.last_error import shown
from airflow_provider_deltaforge.engine.dead_letters.row_keys import RowKey, places_of
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetter,
    DeadLetterReason,
    EventRemainder,
    StoredDeadLetter,
    with_refusal,
)

_UNMASKED = "<left out: refused before it was masked>"
_UNREADABLE = "<left out: it cannot be read as JSON>"
_RAW = {"before": ("event", "before"), "after": ("event", "after"), "ddl": ("event", "ddl")}
"""Parts whose text is kept: parsed and written anew, numbers and spaces would change."""


@dataclass(slots=True)
class PreparedDeadLetter:
    """One dead letter, ready to be stored.

    Attributes:
        refusal: who refused it, and why.
        text: what is stored.
        place: the row that its event changed; None if it cannot be sent again.
        at: the row of the source's batch that it stands for; -1 in batches behind that one.
    """

    refusal: DeadLetterReason
    text: bytes
    place: RowKey | None = None
    at: int = -1

    def overtaken_by(self, sink_id: str) -> None:
        """Note that a sink was given a newer event of the row."""
        if sink_id not in self.refusal.overtaken:
            sink_ids = [*self.refusal.overtaken, sink_id]
            self.refusal = self.refusal.model_copy(update={"overtaken": sink_ids})
            self.text = with_refusal(self.text, self.refusal)


class DeadLetterWriter:
    """Writes the dead letters of one pipeline.

    Args:
        origin: what the pipeline's events share.
        max_event_bytes: of a longer event, the row images are left out.
    """

    def __init__(self, origin: Origin, max_event_bytes: int) -> None:
        self._origin = origin
        self._max_bytes = max_event_bytes
        self._envelope = NativeEnvelope()

    def of_processors(self, processed: ProcessedBatch) -> list[PreparedDeadLetter]:
        """Return the events that processors refused, as they came to them.

        What a mask has not seen yet, or could not read, is stored without its images.
        """
        dead_letters: list[PreparedDeadLetter] = []
        for refused in processed.refused:
            reasons = [
                DeadLetterReason(processor_id=refused.processor_id, **_why(rejection))
                for rejection in refused.rejections
            ]
            places = places_of(refused.rows, refused.places)
            dead_letters += self._dead_letters(
                refused.rows, reasons, refused.origins, places, masked=refused.masked
            )
        return dead_letters

    def of_sink(
        self, sink_id: str, rejections: Sequence[Rejection], processed: ProcessedBatch
    ) -> list[PreparedDeadLetter]:
        """Return the events that cannot be delivered to a sink, each once.

        Args:
            sink_id: the sink.
            rejections: why; the row of an event and of its tombstone is the same.
            processed: what was rendered.
        """
        first = {rejection.event_row: rejection for rejection in reversed(rejections)}
        at = sorted(first)
        reasons = [DeadLetterReason(sink_id=sink_id, **_why(first[row])) for row in at]
        origins = np.array([processed.origin(row) for row in at], np.int64)
        chosen = pa.array(at, pa.int32())
        rows = processed.rows.take(chosen)
        places = places_of(rows, [each.rows().take(chosen) for each in processed.inputs if at])
        return self._dead_letters(rows, reasons, origins, places)

    def _dead_letters(
        self,
        rows: pa.RecordBatch,
        reasons: Sequence[DeadLetterReason],
        origins: np.ndarray,
        places: Sequence[RowKey],
        *,
        masked: bool = True,
    ) -> list[PreparedDeadLetter]:
        rests = _rests(rows, places)
        if not masked:
            rows = _without_payload(rows, _UNMASKED)
        events, cut = self._readable(rows)
        columns = zip(
            reasons,
            events.to_pylist(),
            [is_cut or not masked for is_cut in cut],
            uuid_texts(rows["event_id"]).to_pylist(),
            rows["source_position"].to_pylist(),
            places,
            rests,
            origins.tolist(),
            strict=True,
        )
        head = b'{"v":1,"timestamp":%d,"pipeline":%b,"stream":"dlq","event_id":"%b"'
        now_s, pipeline = int(time.time()), orjson.dumps(self._origin.pipeline)
        return [
            PreparedDeadLetter(
                reason,
                head % (now_s, pipeline, event_id)
                + b',"source_cursor":%b' % (b"null" if at is None else b"{%b}" % at)
                + b',"event":%b,"payload_truncated":%b' % (event, orjson.dumps(truncated))
                # The key of a row that must not be shown is not shown either.
                + b',"rest":%b' % (b"null" if truncated else rest)
                + b',"meta":%b}' % reason.model_dump_json().encode(),
                None if truncated or rest == b"null" else place,
                origin,
            )
            for reason, event, truncated, event_id, at, place, rest, origin in columns
        ]

    def _readable(self, rows: pa.RecordBatch) -> tuple[pa.BinaryArray, list[bool]]:
        """Return the events, and which of them had to be cut.

        One entry that nobody can read would hide all that stand behind it.
        """
        events = self._envelope.wrap(rows, self._origin)
        long = pc.greater(pc.binary_length(events), self._max_bytes)
        why = f"<truncated: original payload exceeded {self._max_bytes} bytes>"
        events = self._cut(rows, events, long, why)
        broken = pa.array([not _is_readable(text) for text in events.to_pylist()], pa.bool_())
        events = self._cut(rows, events, broken, _UNREADABLE)
        return events, pc.or_(long, broken).to_pylist()

    def _cut(
        self, rows: pa.RecordBatch, events: pa.BinaryArray, chosen: pa.BooleanArray, why: str
    ) -> pa.BinaryArray:
        if not chosen.true_count:
            return events
        cut = self._envelope.wrap(_without_payload(rows, why), self._origin)
        return pc.if_else(chosen, cut, events)


def _is_readable(event: bytes) -> bool:
    """Return whether an event can be read from an entry: some texts of sources no parser takes."""
    try:
        from_json(b"[%b]" % event)  # As deep as in the entry.
    except ValueError:
        return False
    return True


def _rests(rows: pa.RecordBatch, places: Sequence[RowKey]) -> list[bytes]:
    """Return what the native form does not say, as JSON; ``null`` where no text can hold it."""
    columns = zip(
        places,
        rows["key"].to_pylist(),
        rows["former_key"].to_pylist(),
        rows["row"].to_pylist(),
        rows["routing"].to_pylist(),
        strict=True,
    )
    rests = []
    for place, key, former, row, routing in columns:
        if routing is not None and routing["headers"] is not None:
            routing["headers"] = dict(routing["headers"])
        try:
            texts = {"key": key, "former_key": former}
            known = {name: None if text is None else text.decode() for name, text in texts.items()}
            earlier = [each.as_earlier() for each in place.earlier] or None
            rest = EventRemainder(**known, row=row, routing=routing, earlier=earlier)
            # Without it, an earlier release can read the entry.
            left_out = {"earlier"} if earlier is None else None
            rests.append(rest.model_dump_json(exclude=left_out).encode())
        except UnicodeError:
            rests.append(b"null")
    return rests


def _why(rejection: Rejection) -> dict[str, str]:
    return {"error_kind": rejection.kind, "error_message": shown(rejection.reason)}


def _without_payload(rows: pa.RecordBatch, why: str) -> pa.RecordBatch:
    """Return events whose images, statements and tags say only why they were left out."""
    instead = pa.array([orjson.dumps(why)], pa.binary())[0]
    nothing = pa.nulls(1, pa.binary())[0]
    for name in ("before", "after", "ddl"):
        at = CHANGE_SCHEMA.get_field_index(name)
        column = pc.if_else(rows.column(name).is_valid(), instead, nothing)
        rows = rows.set_column(at, CHANGE_SCHEMA.field(at), column)
    at = CHANGE_SCHEMA.get_field_index("tags")
    return rows.set_column(
        at, CHANGE_SCHEMA.field(at), pa.nulls(rows.num_rows, pa.list_(pa.utf8()))
    )


def restored(stored: Sequence[StoredDeadLetter]) -> pa.RecordBatch:
    """Return the events of dead letters as they were when they were refused.

    Args:
        stored: entries that can be sent again; each is a transaction of its own.
    """
    texts = pa.array([entry.text for entry in stored], pa.binary())
    columns: dict[str, list[Any] | pa.Array] = {
        name: [] for name in CHANGE_SCHEMA.names if name not in _RAW
    }
    for number, entry in enumerate(stored):
        for name, value in _plain(entry.dead_letter, number).items():
            columns[name].append(value)
    spans = json_fields.locate_each(texts, [*_RAW.values(), ("source_cursor",)])
    for name, found in zip(_RAW, spans, strict=False):
        columns[name] = _without_nulls(json_fields.values(texts, found))
    cursors = _without_nulls(json_fields.values(texts, spans[-1]))
    columns["source_position"] = pc.binary_slice(cursors, 1, -1)
    arrays = [_column(columns[field.name], field.type) for field in CHANGE_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _plain(dead_letter: DeadLetter, number: int) -> dict[str, Any]:
    event, rest = dead_letter.event, dead_letter.rest
    if rest is None:
        raise ValueError(f"dead letter {dead_letter.seq} does not hold what sending it again takes")
    source = event["source"]
    routing = rest.routing
    if routing is not None and routing["headers"] is not None:
        routing = {**routing, "headers": list(routing["headers"].items())}
    return {
        "op": event["op"],
        "db": source["db"],
        "schema": source.get("schema"),
        "table": source["table"],
        "key": None if rest.key is None else rest.key.encode(),
        "former_key": None if rest.former_key is None else rest.former_key.encode(),
        "ts_ms": event["ts_ms"],
        "tx": number,
        "row": rest.row,
        "tx_id": (event.get("transaction") or {}).get("id"),
        "tx_end": bool(event.get("tx_end")),
        "event_id": uuid.UUID(dead_letter.event_id).bytes,
        "schema_version": event.get("schema_version"),
        "schema_sequence": event.get("schema_sequence"),
        "tags": event.get("tags"),
        "routing": routing,
        "synthetic": event.get("synthetic"),
        "unchanged": _json_of(event.get("unchanged")),
    }


def _json_of(value: Any) -> bytes | None:
    return None if value is None else orjson.dumps(value)


def _without_nulls(texts: pa.BinaryArray) -> pa.BinaryArray:
    return pc.if_else(pc.equal(texts, b"null"), pa.scalar(None, pa.binary()), texts)


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(kind):
        return values if isinstance(values, pa.Array) else pa.array(values, kind)
    plain = values if isinstance(values, pa.Array) else pa.array(values, kind.value_type)
    return plain.dictionary_encode().cast(kind)
