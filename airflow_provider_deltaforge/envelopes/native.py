"""The native envelope: the change event itself, keys always in the same order."""

from typing import ClassVar

import orjson
import pyarrow as pa

from airflow_provider_deltaforge.columns.json_strings import quoted
from airflow_provider_deltaforge.columns.row_texts import (
    Piece,
    RowTexts,
    chosen_from,
    digits_of,
    join,
    json_text,
    per_combination,
    strings_of,
    texts_of,
    uuids_of,
    where_present,
    where_true,
)
from airflow_provider_deltaforge.columns.value_codes import only_value
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
    # Looked up once: each time makes an object, which takes as long as writing a few rows of it.
    op, order, ts_ms = rows["op"], rows["row"], digits_of(rows["ts_ms"])
    return [
        b'{"before":',
        texts_of(rows["before"]),
        b',"after":',
        texts_of(rows["after"]),
        *_source(rows, origin, ts_ms, op, order),
        per_combination([op], lambda op: b',"op":' + json_text(op)),
        b',"ts_ms":',
        ts_ms,
        *_transaction(rows["tx_id"], order),
        b',"event_id":"',
        uuids_of(rows["event_id"]),
        b'","tenant_id":' + json_text(origin.tenant),
        per_combination([rows["schema_version"]], _schema_version),
        *_optional(b',"schema_sequence":', rows["schema_sequence"]),
        *optional_details(rows),
        *where_true(rows["tx_end"], [b',"tx_end":true']),
        b"}",
    ]


def optional_details(rows: pa.RecordBatch) -> list[Piece]:
    """Return ``ddl``, ``tags``, ``synthetic``, ``unchanged``, each where a row has it."""
    tags: list[Piece] = []
    tag_lists = rows["tags"]
    if tag_lists.null_count < rows.num_rows:
        # Only scripts set tags, and they have already paid for an object per event.
        texts = [None if each is None else orjson.dumps(each) for each in tag_lists.to_pylist()]
        column = pa.array(texts, pa.binary())
        tags = where_present(column, [b',"tags":', texts_of(column)])
    ddl, producers, unchanged = rows["ddl"], rows["synthetic"], rows["unchanged"]
    synthetic: list[Piece] = []
    if producers.null_count < rows.num_rows:
        synthetic = [b',"synthetic":', strings_of(producers)]
    return [
        *where_present(ddl, [b',"ddl":', texts_of(ddl)]),
        *tags,
        *where_present(producers, synthetic),
        *where_present(unchanged, [b',"unchanged":', texts_of(unchanged)]),
    ]


def _source(
    rows: pa.RecordBatch, origin: Origin, ts_ms: RowTexts, op: pa.DictionaryArray, order: pa.Array
) -> list[Piece]:
    version, connector, name = map(
        json_text, (origin.source_version, origin.connector, origin.pipeline)
    )
    head = b',"source":{"version":%b,"connector":%b,"name":%b,"ts_ms":'
    position = rows["source_position"]
    positions = chosen_from(position.dictionary, position)
    return [
        head % (version, connector, name),
        ts_ms,
        per_combination([rows["db"], rows["schema"], rows["table"]], _place),
        per_combination([op], lambda op: b',"snapshot":"true"' if op == "r" else b""),
        *where_present(position, [b",", positions, b',"row":', digits_of(order)]),
        b"}",
    ]


def _place(db: str, schema: str | None, table: str) -> bytes:
    text = b',"db":' + json_text(db)
    if schema is not None:
        text += b',"schema":' + json_text(schema)
    return text + b',"table":' + json_text(table)


def _transaction(tx_id: pa.DictionaryArray, order: pa.Array) -> list[Piece]:
    only = only_value(tx_id)  # As in most small batches.
    names = (
        json_text(only) if isinstance(only, str) else chosen_from(quoted(tx_id.dictionary), tx_id)
    )
    total_order = digits_of(order, plus=1)
    pieces: list[Piece] = [b',"transaction":{"id":', names, b',"total_order":', total_order, b"}"]
    return where_present(tx_id, pieces)


def _schema_version(version: str | None) -> bytes:
    return b"" if version is None else b',"schema_version":' + json_text(version)


def _optional(label: bytes, numbers: pa.Array) -> list[Piece]:
    return where_present(numbers, [label, digits_of(numbers)])
