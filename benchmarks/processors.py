"""What each processor costs on one core, against rendering the same events without it.

``./dev.sh bench processors``. Batches have the default size, rows about 220 bytes. Processor time
counts, of this process and of those it started (the script's); ``ratio`` is how many times as long
processing and rendering take as rendering alone.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import yaml
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.events.change import OUTBOX
from airflow_provider_deltaforge.plugins import PROCESSORS
from airflow_provider_deltaforge.sinks.memory import MemorySink
from benchmarks.render import BATCH_ROWS, ROWS_PER_TRANSACTION, batch

_DOCUMENTS = Path(__file__).parents[1] / "dags" / "examples"
ROUNDS = 5
BATCHES_PER_ROUND = 20

_SCRIPT = """
function processBatch(events) {
  for (const event of events) {
    if (event.after && event.after.total > 400) event.tags = ["large"];
    delete event.after.note;
    event.route({topic: "orders." + event.after.status});
  }
  return events;
}
"""
_PER_EVENT = """
(event) => { event.after.total = event.after.total * 2; return event; }
"""


@dataclass(frozen=True)
class Case:
    """One line of the result."""

    name: str
    type: str
    rows: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def _seed(example: str) -> str:
    """Return the script of an example document."""
    path = _DOCUMENTS / f"seed_example_{example}.yaml"
    script: str = yaml.safe_load(path.read_text())["spec"]["processors"][0]["inline"]
    return script


CASES = [
    Case(
        "filter, all pass",
        "filter",
        "orders",
        {
            "ops": ["create", "update"],
            "tables": {"include": ["shop.orders*"]},
            "fields": [
                {"path": "status", "op": "in", "value": ["paid", "open"]},
                {"path": "customer.id", "op": "gte", "value": 0},
            ],
        },
    ),
    Case(
        "filter, half dropped",
        "filter",
        "orders",
        {"fields": [{"path": "status", "op": "eq", "value": "paid"}]},
    ),
    Case("flatten", "flatten", "orders", {"lists": "index"}),
    Case("flatten, nothing nested", "flatten", "notes"),
    Case("outbox", "outbox", "outbox", {"topic": "${aggregate_type}.${event_type}"}),
    Case(
        "mask, redact",
        "mask",
        "orders",
        {"rules": [{"columns": ["*.*.customer.email"], "action": "redact"}]},
    ),
    Case(
        "mask, hash",
        "mask",
        "orders",
        {
            "rules": [{"columns": ["*.*.customer.email"], "action": "hash"}],
            "secret": "0123456789abcdef0123456789abcdef",
        },
    ),
    Case(
        "contract, columns",
        "contract",
        "orders",
        {
            "tables": [
                {
                    "table": "shop.*",
                    "columns": {
                        "id": {"type": "integer", "min": 0},
                        "status": {"type": "string", "nullable": False},
                    },
                }
            ]
        },
    ),
    Case(
        "contract, schema",
        "contract",
        "orders",
        {
            "tables": [
                {
                    "table": "shop.*",
                    "schema": {
                        "required": ["id", "status"],
                        "properties": {"id": {"type": "integer"}, "status": {"minLength": 1}},
                    },
                }
            ]
        },
    ),
    Case(
        "sql",
        "sql",
        "orders",
        {"query": "select * from events where after->>'status' <> 'void'"},
    ),
    Case("python, arrow", "python", "orders", {"function": f"{__name__}:on_batch"}),
    Case(
        "python, rows",
        "python",
        "orders",
        {
            "function": f"{__name__}:on_rows",
            "mode": "rows",
            "columns": {"id": "int64", "total": "float64"},
        },
    ),
    Case(
        "python, events", "python", "orders", {"function": f"{__name__}:on_event", "mode": "events"}
    ),
    *(
        Case(f"javascript, {name}, {rows}", "javascript", rows, {"id": "script", "inline": script})
        for rows in ("columns", "orders")
        for name, script in {
            "tags": _seed("fan_out"),
            "redact": _seed("mysql_redis"),
            "route": _SCRIPT,
            "per event": _PER_EVENT,
        }.items()
    ),
]


def on_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pass every event: what calling a user's function costs."""
    return rows


def on_rows(table: pa.Table) -> pa.Table:
    """Change one column of every row, as a user's function does."""
    doubled = pc.multiply(table["total"], 2.0)
    return table.set_column(table.schema.get_field_index("total"), "total", doubled)


def on_event(event: dict[str, Any]) -> dict[str, Any]:
    """Change one field of an event, as a user's function does."""
    event["after"]["status"] = "seen"
    return event


def main(results: Path, result: dict[str, Any]) -> None:
    """Measure every case, show them and write them down."""
    pa.set_cpu_count(1)
    batches = {name: example_rows(name) for name in ("notes", "columns", "orders", "outbox")}
    cases = {}
    for case in CASES:
        cases[case.name] = _measured(case, batches[case.rows])
    result |= {"batch": f"{BATCH_ROWS} rows", "cases": cases}
    results.mkdir(exist_ok=True)
    (results / "processors.json").write_text(json.dumps(result, indent=2) + "\n")
    _show(cases)


def example_rows(name: str) -> pa.RecordBatch:
    """Return a batch of one kind of rows."""
    notes = batch(ROWS_PER_TRANSACTION)
    if name == "outbox":
        return _with(notes, after=list(_messages()), schema=[OUTBOX] * BATCH_ROWS)
    images = {"columns": _columns, "orders": _orders}
    return _with(notes, after=list(images[name]())) if name in images else notes


def _measured(case: Case, rows: pa.RecordBatch) -> dict[str, float]:
    sink = MemorySink(envelope=NativeEnvelope())
    renderer = Renderer(sink, Origin("orders-cdc", "acme", "mysql"))
    worker = PROCESSORS.load(case.type)(**case.settings).open()
    try:
        made = worker.process(rows)
        if made.rejections:
            raise RuntimeError(f"{case.name}: {made.rejections[0]}")
        best = {"plain": 1e9, "processed": 1e9, "alone": 1e9}
        for _ in range(ROUNDS):
            timed = {
                "plain": _seconds(lambda: renderer.render(rows)),
                "alone": _seconds(lambda: worker.process(rows)),
                "processed": _seconds(lambda: renderer.render(worker.process(rows).rows)),
            }
            best = {name: min(best[name], timed[name]) for name in best}
    finally:
        worker.close()
    return {
        "pass_through_events_per_s": round(BATCH_ROWS / best["plain"]),
        "processor_alone_events_per_s": round(BATCH_ROWS / best["alone"]),
        "processor_and_rendering_events_per_s": round(BATCH_ROWS / best["processed"]),
        "ratio": round(best["processed"] / best["plain"], 2),
        "bytes_per_row": round(rows["after"].nbytes / rows.num_rows),
    }


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one batch."""
    before = _processor_time()
    for _ in range(BATCHES_PER_ROUND):
        work()
    return max(_processor_time() - before, 1e-9) / BATCHES_PER_ROUND


def _processor_time() -> float:
    spent = time.process_time()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        spent += times.user + times.system
    return spent


def _orders() -> Iterator[bytes]:
    """Yield the images of nested orders."""
    return (
        b'{"id":%d,"customer":{"id":%d,"email":"user%d@example.com","address":{"city":"Berlin",'
        b'"zip":"10115"}},"status":"%s","total":%d.5,"tags":["vip","eu"],"note":"%s"}'
        % (n, n % 500, n % 500, b"paid" if n % 2 else b"open", n % 900, b"x" * 40)
        for n in range(BATCH_ROWS)
    )


def _columns() -> Iterator[bytes]:
    """Yield the images of rows without nested objects, as most tables have them."""
    return (
        b'{"id":%d,"customer_id":%d,"email":"user%d@example.com","status":"%s","total":%d.5,'
        b'"currency":"EUR","created_at":"2026-01-01T00:00:00Z","note":"%s"}'
        % (n, n % 500, n % 500, b"paid" if n % 2 else b"open", n % 900, b"x" * 60)
        for n in range(BATCH_ROWS)
    )


def _messages() -> Iterator[bytes]:
    """Yield the images of an outbox table."""
    return (
        b'{"id":%d,"aggregate_type":"order","aggregate_id":"%d","event_type":"paid","payload":'
        b'{"order":%d,"total":"12.50","lines":[{"sku":"a-%d","count":2}],"note":"%s"}}'
        % (n, n % 500, n, n, b"x" * 70)
        for n in range(BATCH_ROWS)
    )


def _with(rows: pa.RecordBatch, **columns: Sequence[object]) -> pa.RecordBatch:
    """Return a batch with other columns."""
    for name, values in columns.items():
        index = rows.schema.get_field_index(name)
        field_of = rows.schema.field(index)
        rows = rows.set_column(index, field_of, pa.array(values, field_of.type))
    return rows


def _show(cases: Mapping[str, Mapping[str, float]]) -> None:
    table = Table(title="processors, one core")
    table.add_column("processor")
    for title in ("pass-through", "processor alone", "with rendering", "times as long"):
        table.add_column(title, justify="right")
    for name, case in cases.items():
        table.add_row(
            name,
            f"{case['pass_through_events_per_s']:,}",
            f"{case['processor_alone_events_per_s']:,}",
            f"{case['processor_and_rendering_events_per_s']:,}",
            f"{case['ratio']}",
        )
    Console().print(table)
