"""The native envelope: the change event itself, keys always in the same order."""

from typing import ClassVar

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.columns.value_codes import codes
from airflow_provider_deltaforge.envelopes.columns import (
    Piece,
    integer_texts,
    join,
    json_text,
    json_texts,
    per_combination,
    spread,
    where_present,
)
from airflow_provider_deltaforge.envelopes.contract import Envelope, EventPaths, Origin
from airflow_provider_deltaforge.envelopes.shapes import NATIVE
from airflow_provider_deltaforge.events.shapes import Shape


class NativeEnvelope(Envelope):
    """``{"before":…,"after":…,"source":{…},"op":…,"ts_ms":…, …}`` without spaces."""

    shape: ClassVar[Shape | None] = NATIVE
    paths: ClassVar[EventPaths | None] = EventPaths(
        (), (("source", "db"), ("source", "schema"), ("source", "table")), ("source", "name")
    )

    def wrap(self, rows: pa.RecordBatch, origin: Origin) -> pa.BinaryArray:
        """Return each change event as one JSON object."""
        return join(native_pieces(rows, origin), rows.num_rows)


def native_pieces(rows: pa.RecordBatch, origin: Origin) -> list[Piece]:
    """Return the native event in pieces, for envelopes that put something around it."""
    if not rows.num_rows:
        return []
    ts_ms = integer_texts(rows["ts_ms"])
    return [
        b'{"before":',
        rows["before"],
        b',"after":',
        rows["after"],
        *_source(rows, origin, ts_ms),
        per_combination([rows["op"]], lambda op: b',"op":' + json_text(op)),
        b',"ts_ms":',
        ts_ms,
        _transaction(rows),
        b',"event_id":"',
        uuid_texts(rows["event_id"]),
        b'","tenant_id":' + json_text(origin.tenant),
        per_combination([rows["schema_version"]], _schema_version),
        _optional(b',"schema_sequence":', rows["schema_sequence"]),
        *optional_details(rows),
        per_combination([rows["tx_end"]], lambda end: b',"tx_end":true' if end else b""),
        b"}",
    ]


def optional_details(rows: pa.RecordBatch) -> list[Piece]:
    """Return ``ddl``, ``tags``, ``synthetic``, ``unchanged``, each where a row has it."""
    pieces: list[Piece] = []
    if rows["ddl"].null_count < rows.num_rows:
        pieces.append(where_present(rows["ddl"].is_valid(), [b',"ddl":', rows["ddl"]]))
    if rows["tags"].null_count < rows.num_rows:
        # Only scripts set tags, and they have already paid for an object per event.
        texts = [None if tags is None else orjson.dumps(tags) for tags in rows["tags"].to_pylist()]
        tags = pa.array(texts, pa.binary())
        pieces.append(where_present(tags.is_valid(), [b',"tags":', tags]))
    if rows["synthetic"].null_count < rows.num_rows:
        names = json_texts(rows["synthetic"])
        pieces.append(where_present(rows["synthetic"].is_valid(), [b',"synthetic":', names]))
    if rows["unchanged"].null_count < rows.num_rows:
        listed = rows["unchanged"]
        pieces.append(where_present(listed.is_valid(), [b',"unchanged":', listed]))
    return pieces


def _source(rows: pa.RecordBatch, origin: Origin, ts_ms: pa.BinaryArray) -> list[Piece]:
    version, connector, name = map(
        json_text, (origin.source_version, origin.connector, origin.pipeline)
    )
    head = b',"source":{"version":%b,"connector":%b,"name":%b,"ts_ms":'
    snapshot = pc.equal(rows["op"].cast(pa.utf8()), "r") if _has_snapshot(rows) else None
    place = [rows["db"], rows["schema"], rows["table"]]
    position = rows["source_position"]
    positions = position.dictionary.cast(pa.binary())
    return [
        head % (version, connector, name),
        ts_ms,
        per_combination([*place, snapshot] if snapshot is not None else place, _place),
        where_present(
            position.is_valid(),
            [b",", _chosen(positions, position), b',"row":', integer_texts(rows["row"])],
        ),
        b"}",
    ]


def _has_snapshot(rows: pa.RecordBatch) -> bool:
    return "r" in rows["op"].dictionary.to_pylist()


def _place(db: str, schema: str | None, table: str, snapshot: bool = False) -> bytes:  # noqa: FBT001, FBT002 — one value of a column.
    text = b',"db":' + json_text(db)
    if schema is not None:
        text += b',"schema":' + json_text(schema)
    text += b',"table":' + json_text(table)
    return text + b',"snapshot":"true"' if snapshot else text


def _transaction(rows: pa.RecordBatch) -> Piece:
    tx_id = rows["tx_id"]
    if tx_id.null_count == len(tx_id):
        return b""
    order = integer_texts(pc.add(rows["row"], 1))
    names = _chosen(json_texts(tx_id.dictionary), tx_id)
    pieces = [b',"transaction":{"id":', names, b',"total_order":', order, b"}"]
    return where_present(tx_id.is_valid(), pieces)


def _chosen(texts: pa.BinaryArray, column: pa.DictionaryArray) -> Piece:
    if not column.null_count:
        return spread(texts, codes(column))
    return texts.take(column.indices)


def _schema_version(version: str | None) -> bytes:
    return b"" if version is None else b',"schema_version":' + json_text(version)


def _optional(label: bytes, numbers: pa.Array) -> Piece:
    if numbers.null_count == len(numbers):
        return b""
    return where_present(numbers.is_valid(), [label, integer_texts(numbers)])
