"""``./dev.sh bench fleet [--local]``: what a pipeline costs among others in one application.

The source is a real MySQL, the sinks are files. Each pipeline has delivered rows before it is
measured, so that what it works with is loaded; then nothing changes, which is what most of many
small pipelines do most of the time. Pages that processes share count once (PSS).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.status import statuses
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from benchmarks.processes import MIB, Sampler, named, wait_until
from tests.servers import mysql
from tests.servers.process import Server, free_port
from tests.servers.sql import connect

_ON_SPARK = {"fleet --master local[64]": (1, 10)}
_WITHOUT = {"fleet --local": (1, 10, 50), "serve --local": (1, 10)}
"""What is started, and for how many pipelines."""
_ROWS = 200
_SETTLED_S = 10.0
_IDLE_S = 20.0
_out = Console()

_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: bench}}
spec:
  source:
    type: mysql
    config: {{id: {name}, dsn: '${{BENCH_DSN}}', tables: ['{name}.*']}}
  sinks: [{{type: file, config: {{id: out, path: '{output}'}}}}]
"""


def main(results: Path, about: dict[str, Any], *, is_local: bool) -> None:
    """Measure, show and write ``fleet.json``, of Spark ``fleet-spark.json``."""
    file = results / ("fleet.json" if is_local else "fleet-spark.json")
    figures: dict[str, list[dict[str, Any]]] = {}
    engine = "process" if is_local else "spark local[64]"
    result = about | {"engine": engine, "idle_s": _IDLE_S, "engines": figures}
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        server = mysql.start_for_load(Path(place) / "mysql")
        try:
            for name, counts in (_WITHOUT if is_local else _ON_SPARK).items():
                words = name.split()
                figures[name] = []
                for count in counts:
                    figures[name].append(_measured(server, Path(place), count, words))
                    result["each_more"] = _slopes(figures)
                    file.write_text(json.dumps(result, indent=2) + "\n")
        finally:
            server.stop()
    _show(result)
    _out.print(f"written to {file}")


def _measured(server: Server, place: Path, count: int, words: list[str]) -> dict[str, Any]:
    """Start so many pipelines; return their memory and what they cost while nothing changes."""
    directory = place / f"{words[0]}-{len(words)}-{count}"
    folder = directory / "documents"
    folder.mkdir(parents=True)
    names = [f"p{number:02d}" for number in range(count)]
    _create(server, names)
    for name in names:
        output = directory / f"{name}.jsonl"
        (folder / f"{name}.yaml").write_text(_DOCUMENT.format(name=name, output=output))
    dsn = f"sqlite:///{directory}/state.db"
    StoreLocation.from_dsn(dsn).create().close()
    with (directory / "log").open("wb") as log:
        command = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", *words, str(folder)]
        address = f"127.0.0.1:{free_port()}"
        served = ["off"] if words[0] == "fleet" else [address, "--no-auth"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--api-addr", *served],
            env={
                **os.environ,
                ENVIRONMENT: dsn,
                "BENCH_DSN": f"mysql://df:df-secret@{server.host}:{server.port}/",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _await_running(dsn, count, process)
        running_s = time.monotonic() - began
        _write(server, names)
        wait_until(lambda: all(_lines(directory / f"{name}.jsonl") >= _ROWS for name in names))
        time.sleep(_SETTLED_S)
        figures = _at_rest(process.pid, count) | {"all_running_s": round(running_s, 1)}
    finally:
        process.terminate()
        process.wait(60)
    _out.print(" ".join(words), figures)
    return {"pipelines": count, **figures}


def _at_rest(pid: int, count: int) -> dict[str, Any]:
    sampler = Sampler({"driver": pid})
    sampler.reset()
    time.sleep(_IDLE_S)
    cpu_s = sum(figures["cpu_s"] for figures in sampler.stop().values())
    memory: dict[str, float] = {}
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            kind, nbytes = named("driver", process), process.memory_full_info().pss
        except psutil.Error:
            continue
        memory[kind] = memory.get(kind, 0.0) + nbytes / MIB
    whole = sum(memory.values())
    cores = cpu_s / _IDLE_S
    return {
        "pss_mib": round(whole),
        "pss_mib_each": round(whole / count, 1),
        "pss_mib_by_process": {kind: round(mib) for kind, mib in sorted(memory.items())},
        "idle_cores": round(cores, 3),
        "idle_core_percent_each": round(100 * cores / count, 2),
        "threads": sum(found.num_threads() for found in (root, *root.children(recursive=True))),
    }


def _slopes(figures: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return what each further pipeline costs, from the smallest to the largest count."""
    slopes = {}
    for engine, measured in figures.items():
        first, last = measured[0], measured[-1]
        more = last["pipelines"] - first["pipelines"]
        if not more:
            continue
        slopes[engine] = {
            "pss_mib": round((last["pss_mib"] - first["pss_mib"]) / more, 1),
            "idle_core_percent": round(100 * (last["idle_cores"] - first["idle_cores"]) / more, 2),
        }
    return slopes


def _create(server: Server, names: list[str]) -> None:
    with connect(server) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")
            cursor.execute(f"CREATE DATABASE {name}")
            cursor.execute(
                f"CREATE TABLE {name}.orders (id INT PRIMARY KEY AUTO_INCREMENT, "
                "customer INT, note VARCHAR(100), created DATETIME(3))"
            )


def _write(server: Server, names: list[str]) -> None:
    with connect(server) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.executemany(
                f"INSERT INTO {name}.orders (customer, note, created) VALUES (%s, %s, NOW(3))",
                [(number, f"note of order {number}") for number in range(_ROWS)],
            )
        connection.commit()


def _await_running(dsn: str, count: int, process: "subprocess.Popen[bytes]") -> None:
    store = StoreLocation.from_dsn(dsn).open()
    backend = LaunchBackends.of_store(dsn)

    def all_run() -> bool:
        assert process.poll() is None, "the application ended"
        try:
            found = [present.status for present in statuses(store, backend)]
        except SpecError:
            return False  # A document is kept before its record is.
        return found == ["running"] * count

    try:
        wait_until(all_run)
    finally:
        store.close()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _show(result: dict[str, Any]) -> None:
    table = Table("engine", "pipelines", "PSS MiB", "each", "idle cores", "% of a core each")
    for engine, measured in result["engines"].items():
        for figures in measured:
            table.add_row(
                engine,
                *(
                    str(figures[name])
                    for name in (
                        *("pipelines", "pss_mib", "pss_mib_each", "idle_cores"),
                        "idle_core_percent_each",
                    )
                ),
            )
    _out.print(table)
    _out.print(result["each_more"])
