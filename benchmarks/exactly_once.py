"""What exactly once costs: the same backlog drained with and without it, in one run.

The two take turns, so that a machine that becomes slower is slower for both.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import whole, workload
from tests.servers import kafka, mysql

ROUNDS = 5
_BATCHES: dict[str, dict[str, int]] = {"tuned": whole.TUNED, "defaults": {}}
_out = Console()


def main(results: Path, result: dict[str, Any], events: int, master: str | None) -> None:
    """Measure, write it down and show it."""
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        result |= _measured(Path(place), events, master)
    results.mkdir(exist_ok=True)
    path = results / "exactly_once.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    _show(result["batches"])
    _out.print(f"written to benchmarks/results/{path.name}")


def _measured(place: Path, events: int, master: str | None) -> dict[str, Any]:
    broker = kafka.start(place / "kafka", heap_mib=512)
    source = mysql.start_for_load(place / "mysql")
    try:
        workload.prepare(source)
        servers = {"mysql": source.pid, "kafka": broker.pid}
        brokers = f"{broker.host}:{broker.port}"
        begin: Any = None
        figures: dict[str, Any] = {}
        for batches, batch in _BATCHES.items():
            rates: dict[bool, list[int]] = {False: [], True: []}
            cpu: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(ROUNDS):
                for exact in (False, True):
                    name = f"bench-{batches}-{turn}-{'once' if exact else 'least'}"
                    sink = {"exactly_once": True} if exact else {}
                    pipeline = whole.Pipeline(name, place, source, brokers, batch, sink=sink)
                    if begin is None:
                        begin = pipeline.source.head()
                        _out.print(f"writing {events:,} events")
                        written = workload.load(source, events, "inserts")
                    pipeline.begin_at(begin)
                    found = whole.drain(
                        pipeline, written.events, written.log_bytes, master, servers
                    )
                    rates[exact].append(found["rows_per_s"])
                    cpu[exact].append(found["cpu_s_per_million"])
                    _out.print(f"{name}: {found['rows_per_s']:,} rows/s")
            figures[batches] = _compared(batch, rates, cpu)
        return {"events": events, "rounds": ROUNDS, "batches": figures}
    finally:
        source.stop()
        broker.stop()


def _compared(
    batch: dict[str, int], rates: dict[bool, list[int]], cpu: dict[bool, list[float]]
) -> dict[str, Any]:
    least, once = (statistics.median(rates[exact]) for exact in (False, True))
    return {
        "settings": batch or "defaults",
        "at_least_once": {"rows_per_s": rates[False], "cpu_s_per_million": cpu[False]},
        "exactly_once": {"rows_per_s": rates[True], "cpu_s_per_million": cpu[True]},
        "median_rows_per_s": [round(least), round(once)],
        "slower_by": round(1 - once / least, 3),
    }


def _show(figures: dict[str, Any]) -> None:
    table = Table(title="rows/s, medians")
    for column in ("batches", "at least once", "exactly once", "slower by"):
        table.add_column(column, justify="right")
    for name, batch_size in figures.items():
        least, once = batch_size["median_rows_per_s"]
        table.add_row(name, f"{least:,}", f"{once:,}", f"{batch_size['slower_by']:.1%}")
    _out.print(table)
