"""``./dev.sh bench verify``: what it takes to verify a table of a million rows in three sinks.

A pipeline copies the table into Kafka, Redis and a file, and goes on streaming. ``deltaforge
verify`` runs beside it as people run it: over equal data, in each sink alone and in all of them,
and then in the file when many of its rows were changed, deleted and added by another program.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import environment
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from benchmarks.processes import Sampler, wait_until
from benchmarks.snapshot import SERVERS
from benchmarks.whole import RUN_LOCAL
from tests.servers import kafka, redis
from tests.servers.process import Server

NAME = "verified"
SINKS = ("kafka", "redis", "file")
_DAMAGED = 10_000
_PATIENCE_S = 1800.0
_VERIFY_S = 1800
_out = Console()


def main(results: Path, result: dict[str, Any], rows: int) -> None:
    """Measure every server, write down and show."""
    result |= {"rows": rows, "damaged": _DAMAGED}
    for name in SERVERS:
        with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
            result[name] = _measure(name, Path(place), rows)
        _show(name, result[name])
    (results / "verify.json").write_text(json.dumps(result, indent=2) + "\n")
    _out.print("written to benchmarks/results/verify.json")


def _measure(name: str, place: Path, rows: int) -> dict[str, Any]:
    start, work = SERVERS[name]
    with contextlib.ExitStack() as stack:
        server = start(place / name)
        stack.callback(server.stop)
        broker = kafka.start(place / "kafka", heap_mib=512)
        stack.callback(broker.stop)
        cache = redis.start_forgetful(place / "redis", {"maxmemory": "4gb"})
        stack.callback(cache.stop)
        work.prepare(server)
        _out.print(f"{name}: writing {rows:,} rows")
        rows = work.load(server, rows, "inserts").events
        settings = work.source_settings(server)
        pipeline = _Pipeline(place, settings, work.SOURCE_TYPE, broker, cache)
        with pipeline.running():
            measured = {sink: pipeline.verify(sink) for sink in SINKS}
            measured["all three"] = pipeline.verify(*SINKS)
            pipeline.damage()
            measured[f"file, {_DAMAGED:,} rows differ"] = pipeline.verify("file")
        return {"rows": rows, "verifications": measured}


class _Pipeline:
    """A pipeline that copies the table."""

    def __init__(
        self, place: Path, settings: dict[str, Any], source: str, broker: Server, cache: Server
    ) -> None:
        self._place, self._file = place, place / "rows.jsonl"
        self._dsn = f"sqlite:///{place}/state.db"
        self._source = settings["dsn"]
        uri = f"redis://{cache.host}:{cache.port}/0"
        sinks = [
            {"type": "kafka", "config": {"id": "kafka", "brokers": broker.dsn(), "topic": NAME}},
            {"type": "redis", "config": {"id": "redis", "uri": uri, "stream": NAME}},
            {"type": "file", "config": {"id": "file", "path": str(self._file)}},
        ]
        config = settings | {"dsn": "${BENCH_DSN}", "snapshot": {"mode": "initial"}}
        document = {
            "metadata": {"name": NAME, "tenant": "bench"},
            "spec": {"source": {"type": source, "config": config}, "sinks": sinks},
        }
        self._store = StoreLocation.from_dsn(self._dsn).create()
        pipelines.apply(self._store, json.dumps(document))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the pipeline, its snapshot finished, while the block lasts."""
        Control(self._store, NAME).update(
            lambda old: old.model_copy(update={"desired": "running", "generation": 1})
        )
        job = LaunchSpec(NAME, 1, "stream_job.py", self._dsn, "")
        with (self._place / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, "-c", RUN_LOCAL, NAME],
                env=environment(job) | {"BENCH_DSN": self._source},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(Snapshots(self._store, NAME).finished, _PATIENCE_S)
            yield
        finally:
            pipelines.ask_to_stop(self._store, NAME)
            driver.wait(60)
            self._store.close()

    def verify(self, *sinks: str) -> dict[str, Any]:
        """Return what the command found, and took."""
        line = [str(Path(sys.executable).with_name("deltaforge")), "verify", NAME, "--json"]
        line += ["--store", self._dsn, "--sinks", ",".join(sinks), "--wait", str(_VERIFY_S)]
        began = time.perf_counter()
        with subprocess.Popen(
            line, env=os.environ | {"BENCH_DSN": self._source}, stdout=subprocess.PIPE
        ) as command:
            sampler = Sampler({"verify": command.pid})
            assert command.stdout is not None
            answer = json.loads(command.stdout.read())
            took = sampler.stop()["verify"]
            command.wait()
        seconds = time.perf_counter() - began
        assert answer["state"] == "finished", answer["reason"]
        assert all(sink["reason"] is None for sink in answer["sinks"]), answer["sinks"]
        return {
            "seconds": round(seconds, 1),
            "rows_per_s": round(answer["rows"] / seconds),
            "cpu_s": took["cpu_s"],
            "rss_mib_peak": took["rss_mib_peak"],
            "verdict": answer["verdict"],
            "differences": answer["differences"],
        }

    def damage(self) -> None:
        """Write into the file as another program: a third deleted, changed and new each."""
        with self._file.open("rb") as file:
            lines = [file.readline() for _ in range(_DAMAGED)]
        with self._file.open("ab") as file:
            # Without the lock the sink's next batch would be written over the lines.
            fcntl.flock(file, fcntl.LOCK_EX)
            for number, line in enumerate(lines):
                event = json.loads(line)
                row = event["after"]
                if number % 3 == 0:
                    event |= {"op": "d", "before": row, "after": None}
                elif number % 3 == 1:
                    event |= {"op": "u", "after": row | {"note": "changed"}}
                else:
                    event |= {"op": "c", "after": row | {"id": 10**9 + number}}
                file.write(json.dumps(event, separators=(",", ":")).encode() + b"\n")


def _show(name: str, measured: dict[str, Any]) -> None:
    table = Table(title=f"{name}, {measured['rows']:,} rows")
    for column in ("sinks", "seconds", "rows/s", "CPU s", "peak MiB", "verdict", "differences"):
        table.add_column(column, justify="right")
    for sinks, figures in measured["verifications"].items():
        cells = (value if isinstance(value, str) else f"{value:,}" for value in figures.values())
        table.add_row(sinks, *cells)
    _out.print(table)
