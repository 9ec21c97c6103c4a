"""Change events, read back from the dead letters that hold them."""

import uuid
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, StoredDeadLetter

_RAW = {"before": ("event", "before"), "after": ("event", "after"), "ddl": ("event", "ddl")}
"""Parts whose text is kept: parsed and written anew, numbers and spaces would change."""


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
