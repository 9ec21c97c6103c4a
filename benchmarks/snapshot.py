"""The copy of a table beside what the database's own tools take to read the same rows.

Every round takes all of them one after the other, so that what else the machine does falls on each.
``read`` is two workers that make events of chunks, and throws them away; ``whole`` is a pipeline of
its own that copies with two workers, renders JSON and writes it to ``/dev/null``.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import environment
from airflow_provider_deltaforge.plugins import SOURCES
from airflow_provider_deltaforge.sources.contract import Source, TableChunk
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from benchmarks import postgres_workload, workload
from benchmarks.processes import MIB, wait_until
from benchmarks.whole import RUN_LOCAL
from tests.servers import mariadb, mysql, postgres
from tests.servers.process import Server

_ROUNDS = 3
_WORKERS = 2
_CURVE_S = 1.0
_PATIENCE_S = 1800.0
SERVERS: dict[str, tuple[Callable[[Path], Server], ModuleType]] = {
    "postgres": (postgres.start, postgres_workload),
    "mysql": (mysql.start_for_load, workload),
    "mariadb": (mariadb.start, workload),
}
_out = Console()


def main(results: Path, result: dict[str, Any], rows: int) -> None:
    """Measure every server, write down and show."""
    result |= {"rows": rows, "workers": _WORKERS, "rounds": _ROUNDS}
    for name in SERVERS:
        with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
            result[name] = _measure(name, Path(place), rows)
        _show(name, result[name])
    _write(results / "snapshot.json", result)


def memory(results: Path, result: dict[str, Any], rows: int) -> None:
    """Copy many narrow rows of PostgreSQL once, and write down the driver's memory."""
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        result |= {"workers": _WORKERS, "narrow": _measure_narrow(Path(place), rows)}
    _write(results / "snapshot_memory.json", result)
    copied = result["narrow"]
    _out.print(
        f"{copied['rows']:,} rows, {copied['chunks']:,} chunks "
        f"planned in {copied['planning_s']} s, "
        f"{copied['rows_per_s']:,} rows/s, peak {copied['rss_mib_peak']} MiB"
    )


def _write(file: Path, result: dict[str, Any]) -> None:
    file.write_text(json.dumps(result, indent=2) + "\n")
    _out.print(f"written to benchmarks/results/{file.name}")


def _measure_narrow(place: Path, rows: int) -> dict[str, Any]:
    server = postgres.start(place / "postgres")
    try:
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute("CREATE TABLE narrow (id bigint, n int)")
            connection.execute(
                f"INSERT INTO narrow SELECT i, i % 1000 FROM generate_series(1, {rows}) i"
            )
            connection.execute("ALTER TABLE narrow ADD PRIMARY KEY (id)")
            connection.execute("VACUUM ANALYZE narrow")
        settings = {
            "id": "narrow",
            "dsn": server.dsn("postgres"),
            "tables": ["public.narrow"],
            "publication": "narrow",
            "slot": "narrow",
        }
        copy = _Copy("narrow", place, settings, "postgres", rows)
        chunks = copy.plan()
        seconds = copy.whole()
        return {
            "rows": rows,
            "chunks": len(chunks),
            "planning_s": round(copy.planned_s[0], 2),
            "rows_per_s": round(rows / seconds),
            "rss_mib_peak": max(copy.curve),
            "rss_mib_each_second": copy.curve,
        }
    finally:
        server.stop()


def _measure(name: str, place: Path, rows: int) -> dict[str, Any]:
    start, work = SERVERS[name]
    server = start(place / name)
    try:
        work.prepare(server)
        _out.print(f"{name}: writing {rows:,} rows")
        rows = work.load(server, rows, "inserts").events
        copy = _Copy(name, place, work.source_settings(server), work.SOURCE_TYPE, rows)
        ways: dict[str, Callable[[], float]] = {
            **{tool: _tool(line) for tool, line in _tools(name, server).items()},
            "read": copy.read,
            "whole": copy.whole,
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_ROUNDS):
            for way, run in ways.items():
                seconds[way].append(run())
        rates = {way: round(rows / statistics.median(took)) for way, took in seconds.items()}
        plain = next(iter(ways))
        return {
            "rows": rows,
            "planning_s": round(statistics.median(copy.planned_s), 2),
            "chunks": copy.chunks,
            "rows_per_s": rates,
            f"to {plain}": {way: round(rate / rates[plain], 2) for way, rate in rates.items()},
            "seconds": {way: [round(s, 2) for s in took] for way, took in seconds.items()},
            "rss_mib_peak": max(copy.curve),
            "rss_mib_each_second": copy.curve,
        }
    finally:
        server.stop()


def _tools(name: str, server: Server) -> dict[str, list[str]]:
    """Return the database's own ways to read the table, the plainest first."""
    if name == "postgres":
        dsn = server.dsn(postgres_workload.DATABASE)
        copy = f"COPY {postgres_workload.TABLE} TO STDOUT"
        dump = ["pg_dump", dsn, "--data-only", "-t", postgres_workload.TABLE]
        return {"COPY": ["psql", dsn, "-qc", copy], "pg_dump": dump}
    where = ["-h", server.host, "-P", str(server.port), "-u", "root"]
    select = ["-e", f"SELECT * FROM {workload.TABLE}", workload.DATABASE]
    dump = ["--single-transaction", "--quick", "--no-create-info", "--skip-lock-tables"]
    return {
        "SELECT": ["mysql", *where, "--quick", "--batch", "-N", *select],
        "mysqldump": ["mysqldump", *where, *dump, workload.DATABASE, workload.TABLE],
    }


def _tool(line: list[str]) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        subprocess.run(line, stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began

    return run


class _Copy:
    """Our ways to copy the table."""

    def __init__(
        self, name: str, place: Path, settings: dict[str, Any], source: str, rows: int
    ) -> None:
        self._name = name
        self.rows = rows
        self._place = place
        self._settings = settings | {"dsn": "${BENCH_DSN}"}
        self._dsn = settings["dsn"]
        self._type = source
        self._source: Source = SOURCES.load(source)(**settings)
        self._source.precompile()
        self._runs = 0
        self.planned_s: list[float] = []
        self.chunks = 0
        self.curve: list[float] = []

    def read(self) -> float:
        """Read all chunks with two workers; return the seconds, planning included."""
        began = time.perf_counter()
        chunks = self.plan()
        with ThreadPoolExecutor(_WORKERS) as pool:
            list(pool.map(self._read_share, [chunks[at::_WORKERS] for at in range(_WORKERS)]))
        return time.perf_counter() - began

    def plan(self) -> list[TableChunk]:
        """Return the chunks that a pipeline would copy."""
        began = time.perf_counter()
        snapshotter = self._source.open_snapshot()
        snapshotter.begin()
        chunks = list(snapshotter.plan(self._source.snapshot.chunk_size))
        snapshotter.close()
        self.planned_s.append(time.perf_counter() - began)
        self.chunks = len(chunks)
        return chunks

    def _read_share(self, chunks: list[TableChunk]) -> None:
        snapshotter = self._source.open_snapshot()
        for chunk in chunks:
            for _ in snapshotter.read(chunk, "run"):
                pass
        snapshotter.close()

    def whole(self) -> float:
        """Run a pipeline until its snapshot is finished; return what that took, its start apart."""
        self._runs += 1
        name = f"bench-{self._name}-{self._runs}"
        dsn = f"sqlite:///{self._place}/{name}.db"
        snapshot = {
            "mode": "initial",
            "intra_table_parallel": True,
            "max_parallel_chunks": _WORKERS,
        }
        document = {
            "metadata": {"name": name, "tenant": "bench"},
            "spec": {
                "source": {"type": self._type, "config": {**self._settings, "snapshot": snapshot}},
                "sinks": [{"type": "stdout", "config": {"id": "out"}}],
            },
        }
        store = StoreLocation.from_dsn(dsn).create()
        pipelines.apply(store, json.dumps(document))
        control = Control(store, name)
        control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 1}))
        records = Snapshots(store, name)
        job = LaunchSpec(name, 1, "stream_job.py", dsn, "")
        with (self._place / f"{name}.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", RUN_LOCAL, name],
                env=environment(job) | {"BENCH_DSN": self._dsn},
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        try:
            self.curve = _watched(driver.pid, records.finished)
            run = records.current()
            assert run is not None
            assert run.finished_at_ms is not None
            progress = records.progress()
            if progress is None or progress["rows"] != self.rows:
                raise RuntimeError(f"copied {progress and progress['rows']} of {self.rows} rows")
            return (run.finished_at_ms - run.started_at_ms) / 1000
        finally:
            pipelines.ask_to_stop(store, name)
            driver.wait(60)
            store.close()


def _watched(pid: int, is_over: Callable[[], bool]) -> list[float]:
    """Return a process's memory each second, in MiB, until it is over."""
    process = psutil.Process(pid)
    curve: list[float] = []
    due = time.monotonic()

    def look() -> bool:
        nonlocal due
        if time.monotonic() >= due:
            curve.append(round(process.memory_info().rss / MIB, 1))
            due += _CURVE_S
        return is_over()

    wait_until(look, _PATIENCE_S)
    return curve


def _show(name: str, measured: dict[str, Any]) -> None:
    table = Table(title=f"{name}, {measured['rows']:,} rows in {measured['chunks']:,} chunks")
    plain = next(key for key in measured if key.startswith("to "))
    for column in ("way", "rows/s", plain):
        table.add_column(column, justify="right")
    for way, rate in measured["rows_per_s"].items():
        table.add_row(way, f"{rate:,}", f"{measured[plain][way]:.0%}")
    _out.print(table)
    _out.print(f"planned in {measured['planning_s']} s; peak {measured['rss_mib_peak']} MiB")
