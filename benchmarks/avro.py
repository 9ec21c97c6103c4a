"""Avro on one core, beside fastavro alone: ``python benchmarks/avro.py [EVENTS] [BATCH_ROWS]``.

Updates of a table with ten columns, both images, native envelope. "fastavro" is handed dictionaries
that are ready to be written, with the schema that was registered: no JSON is read there.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable

import fastavro
import pyarrow as pa

from airflow_provider_deltaforge.encodings.avro.column_types import Modes
from airflow_provider_deltaforge.encodings.avro.encoder import AvroEncoder
from airflow_provider_deltaforge.encodings.contract import Bodies, EncoderRequest
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.envelopes.shapes import NATIVE
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sinks.memory import MemorySink

ORIGIN = Origin("orders-cdc", "acme", "mysql")
TABLE = TableSchema(
    "shop",
    None,
    "orders",
    (
        Column("id", "bigint", "bigint"),
        Column("customer", "int", "int"),
        Column("total", "decimal", "decimal(12,2)", numeric_precision=12, numeric_scale=2),
        Column("placed", "timestamp", "timestamp(6)", datetime_precision=6),
        Column("day", "date", "date"),
        Column("state", "enum", "enum('new','paid')", labels=("new", "paid")),
        Column("note", "varchar", "varchar(80)"),
        Column("weight", "double", "double"),
        Column("gift", "bit", "bit(1)"),
        Column("details", "json", "json"),
    ),
    ("id",),
)


class OneId:
    """Knows each schema already."""

    schema = ""

    def id_of(self, _subject: str, schema: str, *, asks: bool = True) -> int:
        """Return an id."""
        self.schema = schema
        return 1

    def close(self) -> None:
        """Nothing is held."""


def batch(row_count: int) -> pa.RecordBatch:
    """Return updates."""
    changes = []
    for n in range(row_count):
        after = (
            b'{"id":%d,"customer":%d,"total":"%d.25","placed":"2024-02-29T12:34:56.789012Z",'
            b'"day":"2024-02-29","state":"paid","note":"left at the door","weight":%d.5,'
            b'"gift":true,"details":{"lines":[1,2,3],"by":"web"}}' % (n, n % 999, n, n)
        )
        changes.append(
            {
                "op": "u",
                "db": "shop",
                "table": "orders",
                "before": after.replace(b"paid", b"new"),
                "after": after,
                "key": b'{"id":%d}' % n,
                "ts_ms": 1_700_000_000_000,
                "tx": 0,
                "row": n,
                "tx_id": "3E11FA47-71CA-11E1-9E33-C80AA9429562:5",
                "tx_end": n == row_count - 1,
                "event_id": os.urandom(16),
                "source_position": b'"server_id":7,"file":"binlog.000002","pos":4096',
                "schema_version": TABLE.fingerprint,
                "schema_sequence": 3,
            }
        )
    return pa.RecordBatch.from_pylist(changes, CHANGE_SCHEMA)


def best(work: Callable[[], object], rounds: int) -> float:
    """Return the seconds of processor time that the quickest of three runs took."""
    found = []
    for _ in range(3):
        started = time.process_time()
        for _ in range(rounds):
            work()
        found.append(time.process_time() - started)
    return min(found)


def main() -> None:
    """Print one line per case."""
    event_count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    row_count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    rounds = max(1, event_count // row_count)
    pa.set_cpu_count(1)
    rows, subjects = batch(row_count), OneId()
    renderer = Renderer(MemorySink(), ORIGIN)
    wanted = EncoderRequest("out", "mysql", NATIVE, lambda *_: TABLE)
    encoder = AvroEncoder(wanted, NATIVE, subjects, "topic_name", Modes())
    messages, _ = renderer.render(rows)
    bodies = Bodies(messages.values, messages.topics, rows)
    encoded = encoder.encode(bodies).values
    schema = fastavro.parse_schema(json.loads(subjects.schema))
    records = [
        fastavro.schemaless_reader(io.BytesIO(message[5:]), schema)
        for message in encoded.to_pylist()
    ]

    def by_fastavro() -> None:
        for record in records:
            fastavro.schemaless_writer(io.BytesIO(), schema, record)

    sizes = [column.nbytes / row_count for column in (messages.values, encoded)]
    for name, work in (
        ("render JSON", lambda: renderer.render(rows)),
        ("JSON to Avro", lambda: encoder.encode(bodies)),
        ("fastavro alone", by_fastavro),
    ):
        speed = rounds * row_count / best(work, rounds) / 1e3
        print(f"{name:16} {speed:7.0f} thousand events/s")
    print(f"bytes per message: JSON {sizes[0]:.0f}, Avro {sizes[1]:.0f}")


if __name__ == "__main__":
    main()
