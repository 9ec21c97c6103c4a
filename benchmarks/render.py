"""Events per second through the renderer on one core: ``python benchmarks/render.py [EVENTS]``.

Batches have the default size, rows of 220 bytes, ten rows per transaction, a templated topic.
"""

import os
import sys
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.envelopes.contract import Envelope, Origin
from airflow_provider_deltaforge.envelopes.debezium import DebeziumEnvelope
from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.sinks.memory import MemorySink

BATCH_ROWS = 2000
ROWS_PER_TRANSACTION = 10


@dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    envelope: Envelope
    key: str | None = None
    rows_per_transaction: int = ROWS_PER_TRANSACTION


CASES = [
    Case("native", NativeEnvelope()),
    Case("native, one row per transaction", NativeEnvelope(), rows_per_transaction=1),
    Case("native, key ${after.id}", NativeEnvelope(), key="${after.id}"),
    Case("debezium", DebeziumEnvelope()),
    Case("cloudevents", CloudEventsEnvelope(type_prefix="com.acme.cdc")),
]


def batch(rows_per_transaction: int) -> pa.RecordBatch:
    """Return inserts whose images are 220 bytes of JSON."""
    gtid = "3E11FA47-71CA-11E1-9E33-C80AA9429562:%d"
    changes = []
    for n in range(BATCH_ROWS):
        tx = n // rows_per_transaction
        after = b'{"id":%d,"note":"%s"}' % (n, b"")
        after = after[:-2] + b"x" * (220 - len(after)) + b'"}'
        position = b'"server_id":7,"gtid":"%b","file":"binlog.000002","pos":%d'
        changes.append(
            {
                "op": "c",
                "db": "shop",
                "table": f"orders_{n % 3}",
                "after": after,
                "key": b'{"id":%d}' % n,
                "ts_ms": 1_700_000_000_000 + tx,
                "tx": tx,
                "row": n % rows_per_transaction,
                "tx_id": gtid % tx,
                "tx_end": n % rows_per_transaction == rows_per_transaction - 1,
                "event_id": os.urandom(16),
                "source_position": position % ((gtid % tx).encode(), tx * 4096),
                "schema_version": "sha256:" + "ab" * 32,
                "schema_sequence": 3,
            }
        )
    return pa.RecordBatch.from_pylist(changes, CHANGE_SCHEMA)


def measure(case: Case, event_count: int) -> tuple[float, float]:
    """Return million events per second of processor time, and bytes per message."""
    sink = MemorySink(envelope=case.envelope, key=case.key)
    renderer = Renderer(sink, Origin("orders-cdc", "acme", "mysql"))
    rows = batch(case.rows_per_transaction)
    messages, _ = renderer.render(rows)
    rounds = max(1, event_count // BATCH_ROWS)
    best = np.inf
    for _ in range(3):
        started = time.process_time()
        for _ in range(rounds):
            renderer.render(rows)
        best = min(best, time.process_time() - started)
    return rounds * BATCH_ROWS / best / 1e6, messages.values.nbytes / len(messages)


def main() -> None:
    """Print one line per case."""
    event_count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    pa.set_cpu_count(1)
    for case in CASES:
        speed, size = measure(case, event_count)
        print(f"{case.name:34} {speed:6.2f} M events/s  {size:5.0f} bytes per message")


if __name__ == "__main__":
    main()
