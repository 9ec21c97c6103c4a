"""``delivery.parallelism`` of 1, 2 and 4: ``./dev.sh bench parallelism``, without any server.

Batches have the default size. Scripts run in processes of their own, and parts of a batch keep
several busy; a function or an endpoint that waits for something costs no processor time at all.

``expected`` is what as many cores as parts, and one more, would give, computed from times measured
in the same run: the processor time of this process is spent one part after the other, by the
interpreter's lock; the rest, and what is waited for, is divided by the parts.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.deliver.held_positions import PositionOwner
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkConnection
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessorChain
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.contract import Origin
from airflow_provider_deltaforge.plugins import PROCESSORS
from benchmarks import processors, webhooks
from benchmarks.render import BATCH_ROWS, ROWS_PER_TRANSACTION, batch

_PARTS = (1, 2, 4)
_ROUNDS = 3
_SECONDS = 1.5
_WAIT_S = 50e-6
_SCRIPTS = ("javascript, route, orders", "javascript, tags, columns")

Work = Callable[[], object]


class _Silent:
    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Nothing fails here."""


def wait_per_event(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Pass every event, after what a look-up in another service takes."""
    time.sleep(rows.num_rows * _WAIT_S)
    return rows


def main(results: Path, result: dict[str, Any]) -> None:
    """Measure every case, show them and write them down."""
    pa.set_cpu_count(1)
    notes = batch(ROWS_PER_TRANSACTION)
    cases: dict[str, Any] = {}
    for name in _SCRIPTS:
        case = next(each for each in processors.CASES if each.name == name)
        rows = processors.example_rows(case.rows)
        cases[name] = _measured_chain(case.type, dict(case.settings), rows)
    waiting = {"id": "waits", "function": f"{__name__}:wait_per_event"}
    cases["python, waits 50 µs per event"] = _measured_chain("python", waiting, notes)
    with TemporaryDirectory() as directory:
        server = webhooks.start(Path(directory))
        try:
            works = {parts: _sending(server, notes, parts) for parts in _PARTS}
            cases["http, a request per event"] = _measured(works, of_children=False)
        finally:
            server.stop()
    result |= {"batch": f"{BATCH_ROWS} rows", "load": os.getloadavg()[0], "cases": cases}
    results.mkdir(exist_ok=True)
    (results / "parallelism.json").write_text(json.dumps(result, indent=2) + "\n")
    _show(cases)


def _measured_chain(kind: str, settings: dict[str, Any], rows: pa.RecordBatch) -> Any:
    chains: list[ProcessorChain] = []
    works: dict[int, tuple[Work, Work]] = {}
    for parts in _PARTS:
        described = PROCESSORS.load(kind)(**settings)
        chain = ProcessorChain([described], ProcessorStats(), _Silent(), lambda: False)
        chain.open(parts)
        chains.append(chain)
        works[parts] = (lambda chain=chain: chain.process(rows)), chain.close  # type: ignore[misc]
    try:
        return _measured(works, of_children=True)
    finally:
        for chain in chains:
            chain.close()


def _sending(server: Any, rows: pa.RecordBatch, parts: int) -> tuple[Work, Work]:
    sink = webhooks.sink(server)
    messages, _ = Renderer(sink, Origin("bench", "acme", "mysql")).render(rows)
    connection = SinkConnection(sink, "bench", None, PositionOwner(), threading.Event(), parts)
    return (lambda: connection.write(SinkBatch(messages, rows=rows))), connection.close


def _measured(works: dict[int, tuple[Work, Work]], *, of_children: bool) -> dict[str, Any]:
    """Return the best of rounds in which the numbers of parts take turns."""
    taken: dict[int, list[tuple[float, float, float]]] = {parts: [] for parts in works}
    for _ in range(_ROUNDS):
        for parts, (work, _close) in works.items():
            taken[parts].append(_timed(work, of_children=of_children))
    for _work, close in works.values():
        close()
    best = {parts: min(rounds) for parts, rounds in taken.items()}
    waited_s = best[1][0]
    return {
        str(parts): {
            "events_per_s": round(1 / wall_s),
            "cpu_s_per_million": round((own_s + child_s) * 1e6, 2),
            "own_cpu_s_per_million": round(own_s * 1e6, 2),
            "expected_events_per_s": round(1 / max(own_s, max(waited_s, own_s + child_s) / parts)),
        }
        for parts, (wall_s, own_s, child_s) in best.items()
    }


def _timed(work: Work, *, of_children: bool) -> tuple[float, float, float]:
    """Return seconds per event: by the clock, of this process, and of those it started."""
    for _ in range(5):
        work()
    children = _children_s() if of_children else 0.0
    own, begun, events = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - begun < _SECONDS:
        work()
        events += BATCH_ROWS
    seconds = time.perf_counter() - begun, time.process_time() - own
    spent = _children_s() - children if of_children else 0.0
    return seconds[0] / events, seconds[1] / events, spent / events


def _children_s() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(each.user + each.system for each in times)


def _show(cases: dict[str, Any]) -> None:
    table = Table(title="parallelism: events/s measured (expected with cores enough), CPU s/M")
    table.add_column("case")
    for parts in _PARTS:
        table.add_column(str(parts), justify="right")
    for name, found in cases.items():
        table.add_row(
            name,
            *(
                f"{each['events_per_s']:,} ({each['expected_events_per_s']:,}), "
                f"{each['cpu_s_per_million']}"
                for each in found.values()
            ),
        )
    Console().print(table)
