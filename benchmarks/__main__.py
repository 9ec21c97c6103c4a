"""``./dev.sh bench [WHAT|SINK]``; without a word ``drain``.

Starts a database and a Kafka of its own. ``drain`` delivers a backlog and measures every stage
alone in the same run, for PostgreSQL beside MySQL and ``pg_recvlogical``; ``latency`` keeps up with
a steady writer under default settings, ``rates`` with slow and quick ones; ``starts`` kills and
starts it; ``copies`` copies a table beside it; ``snapshot`` copies one beside the database's own
tools, ``snapshot_memory`` 100 million rows; ``transaction`` lets one transaction of millions of
rows pass and watches memory; ``processors`` weighs each processor against rendering alone, without
any server, ``sensing`` schema sensing, and ``parallelism`` parts of a batch at the same time;
``idle`` shows how soon a pipeline obeys and what it costs at rest, ``fleet`` what each of many in
one application costs; ``behind`` takes a best-effort sink away for a minute; ``verify`` verifies a
table in three sinks; ``peers`` measures other systems beside ours; ``page`` writes
``docs/performance.md`` from the results; the name of a sink measures its writer beside a bare
client. ``--continue`` adds a round to a result, which then shows the medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control.launching import class_archive, spark_submit
from benchmarks import (
    behind,
    exactly_once,
    fleet,
    idle,
    page,
    parallelism,
    peers,
    postgres_workload,
    processors,
    sensing,
    sinks,
    snapshot,
    stages,
    starts,
    transaction,
    verify,
    whole,
    workload,
)
from benchmarks.machine import machine
from tests.servers import kafka, mariadb, mysql, postgres
from tests.servers.process import Server

_ALONE = {
    "page": page,
    "parallelism": parallelism,
    "processors": processors,
    "sensing": sensing,
}
_EVENTS = {"transaction": 5_000_000, "snapshot_memory": 100_000_000}
_OTHERS = (
    "render",
    "fleet",
    "idle",
    "behind",
    "exactly_once",
    "snapshot",
    "snapshot_memory",
    "verify",
    "peers",
)
_WHOLE = ("drain", "latency", "rates", "starts", "transaction", "copies")
RESULTS = Path(__file__).parent / "results"
_SOURCES: dict[str, tuple[Callable[[Path], Server], ModuleType]] = {
    "mysql": (mysql.start_for_load, workload),
    "mariadb": (mariadb.start, workload),
    "postgres": (postgres.start, postgres_workload),
    "postgres18": (partial(postgres.start, version=18), postgres_workload),
}
_out = Console()


def main() -> None:
    """Measure what was asked for and write it down."""
    if not sys.stdout.isatty():
        os.environ.setdefault("COLUMNS", "200")  # Into a file a table goes whole.
    asked = _parser().parse_args()
    asked.events = asked.events or _EVENTS.get(asked.what, 1_000_000)
    asked.sources = [asked.source] if asked.source else ["mysql", "postgres"]
    asked.source = asked.source or "mysql"
    if asked.what == "render":
        sys.exit(subprocess.call([sys.executable, str(Path(__file__).parent / "render.py")]))
    result = {"what": asked.what, "date": time.strftime("%Y-%m-%d"), "commit": _commit()}
    if asked.what in _ALONE:
        _ALONE[asked.what].main(RESULTS, result | {"machine": machine()})
        return
    if asked.what in sinks.CASES:
        sinks.main(asked.what, RESULTS, result | {"machine": machine()})
        return
    if asked.what == "exactly_once":
        master = None if asked.local else "local[2]"
        result |= {"machine": machine(), "engine": f"spark {master}" if master else "process"}
        exactly_once.main(RESULTS, result, asked.events, master)
        return
    tables = _tables(asked)
    if asked.what in tables:
        tables[asked.what](RESULTS, result | {"machine": machine(), "engine": "process"})
        return
    if asked.what == "behind":
        result |= {"machine": machine(), "engine": "process"}
        behind.main(RESULTS, result, max(asked.seconds, 60), min(asked.rate, 1_500))
        return
    if asked.what == "idle":
        idle.main(RESULTS, result | {"machine": machine(), "engine": "spark local[2]"})
        return
    result |= {"machine": machine(), "engine": "process" if asked.local else "spark local[2]"}
    result["spark_classes_kept"] = None if asked.local else _keeps_classes()
    with tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place:
        result |= _measured(asked, Path(place))
    RESULTS.mkdir(exist_ok=True)
    if "rates" in result:
        _keep_threads(asked, result)
    _show(_write(asked, _name(asked), result))


def _keeps_classes() -> bool:
    """Return whether Spark's JVM finds kept classes; without, a start takes half as long again."""
    if class_archive.options(spark_submit.spark_home()):
        return True
    _out.print(
        "[yellow]Spark's classes are not kept for this Python: run `deltaforge precompile` with "
        "the same one[/]"
    )
    return False


def _keep_threads(asked: argparse.Namespace, result: dict[str, Any]) -> None:
    """Move what each thread cost into a file of its own; with Spark they are those of a worker."""
    spent = [
        {
            "asked_per_s": row["asked_per_s"],
            "events_per_s": row["events_per_s"],
            "cpu_s_per_million": row.pop("threads_cpu_s_per_million"),
        }
        for row in result["rates"]
    ]
    if asked.what == "rates" and asked.local:
        about = {key: result[key] for key in ("date", "commit", "machine")}
        _write(asked, _name(asked).replace("rates", "threads"), about | {"rates": spent})


def _write(asked: argparse.Namespace, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Write a result, the medians first if it has several rounds; return it."""
    rounds = [*(_kept_rounds(name, result["commit"]) if asked.is_continued else []), result]
    if len(rounds) > 1:
        result = _median(rounds) | {"rounds": rounds}
    (RESULTS / name).write_text(json.dumps(result, indent=2) + "\n")
    _out.print(f"written to benchmarks/results/{name}")
    return result


def _kept_rounds(name: str, commit: str) -> list[dict[str, Any]]:
    """Return the rounds that a result has; none where there is no result.

    Raises:
        SystemExit: they are of another commit, so that no median can be of both.
    """
    if not (RESULTS / name).exists():
        return []
    kept = json.loads((RESULTS / name).read_text())
    if kept["commit"] != commit:
        raise SystemExit(f"{name} is of commit {kept['commit']}: leave out --continue")
    return list(kept.get("rounds", [kept]))


def _median(values: list[Any]) -> Any:
    """Return the median of numbers, those of what dicts and lists hold, and the last of others."""
    last = values[-1]
    if isinstance(last, dict):
        names = {name: None for value in values for name in value}
        return {name: _median([value[name] for value in values if name in value]) for name in names}
    if isinstance(last, list):
        return [_median([*group]) for group in zip(*values, strict=True)]
    if isinstance(last, bool) or not isinstance(last, int | float):
        return last
    middle = statistics.median(values)
    return round(middle) if isinstance(last, int) else round(middle, 3)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev.sh bench", description=__doc__)
    parser.add_argument(
        "what",
        choices=[*_WHOLE, *_ALONE, *_OTHERS, *sinks.CASES],
        nargs="?",
        default="drain",
    )
    parser.add_argument(
        "--events",
        type=int,
        help="rows of drain, snapshot and verify (1,000,000), of transaction (5,000,000) and "
        "snapshot_memory (100,000,000)",
    )
    parser.add_argument("--kind", choices=["inserts", "mixed"], default="inserts")
    parser.add_argument(
        "--source",
        choices=sorted(_SOURCES),
        help="mysql; peers: both it and postgres",
    )
    parser.add_argument("--rate", type=int, default=20_000, help="events/s of latency")
    parser.add_argument("--seconds", type=int, default=20, help="measured time of latency")
    parser.add_argument("--local", action="store_true", help="without Spark")
    parser.add_argument("--rounds", type=int, default=3, help="of peers")
    parser.add_argument(
        "--continue",
        dest="is_continued",
        action="store_true",
        help="keep the rounds that the result has, and measure more",
    )
    parser.add_argument("--archive", action="store_true", help="drain: archive the log as well")
    return parser


def _tables(asked: argparse.Namespace) -> dict[str, Callable[[Path, dict[str, Any]], None]]:
    """Return what measures several things and writes them down itself."""
    return {
        "fleet": partial(fleet.main, is_local=asked.local),
        "snapshot": partial(snapshot.main, rows=asked.events),
        "snapshot_memory": partial(snapshot.memory, rows=asked.events),
        "verify": partial(verify.main, rows=asked.events),
        "peers": partial(
            peers.main,
            sources=asked.sources,
            rows=asked.events,
            seconds=asked.seconds,
            rounds=asked.rounds,
            is_continued=asked.is_continued,
        ),
    }


def _measured(asked: argparse.Namespace, place: Path) -> dict[str, Any]:
    broker = kafka.start(place / "kafka", heap_mib=512)
    try:
        figures = _measured_source(asked, asked.source, place, broker)
        if asked.what == "drain" and asked.source.startswith("postgres"):
            beside = _measured_source(asked, "mysql", place, broker)["whole"]
            figures["mysql in the same run"] = beside
            for figure in ("rows_per_s", "cpu_s_per_million"):
                figures["whole"][f"{figure}_to_mysql"] = round(
                    figures["whole"][figure] / beside[figure], 3
                )
        return figures
    finally:
        broker.stop()


def _measured_source(
    asked: argparse.Namespace, name: str, place: Path, broker: Server
) -> dict[str, Any]:
    start, work = _SOURCES[name]
    source: Server = start(place / name)
    try:
        _out.print(f"{name} and Kafka are up")
        work.prepare(source)
        servers = {name: source.pid, "kafka": broker.pid}
        brokers = f"{broker.host}:{broker.port}"
        batch = whole.TUNED if asked.what == "drain" else {}
        pipeline = whole.Pipeline(
            f"bench-{name}", place, source, brokers, batch, work, archives=asked.archive
        )
        master = None if asked.local else "local[2]"
        if asked.what in ("latency", "rates"):
            rates = whole.RATES if asked.what == "rates" else [asked.rate]
            figures = whole.latencies(pipeline, source, rates, asked.seconds, master, servers)
            return {"settings": "defaults", "whole": figures[-1], "rates": figures}
        if asked.what == "starts":
            return {"settings": "defaults", "whole": starts.measure(pipeline, source, master)}
        if asked.what == "copies":
            work.load(source, asked.events, "inserts")
            rate = min(asked.rate, 2_000)
            figures = whole.copy_beside(pipeline, source, rate, master, servers)
            return {"settings": "defaults", "whole": figures}
        if asked.what == "transaction":
            figures = transaction.measure(pipeline, source, asked.events, master, servers)
            return {"settings": "defaults", "whole": figures}
        if asked.kind == "mixed":
            work.load(source, asked.events // 4, "inserts")
        begin = pipeline.source.head()
        _out.print(f"writing {asked.events:,} events")
        written = work.load(source, asked.events, asked.kind)
        pipeline.begin_at(begin)
        _out.print("draining through the pipeline")
        figures = whole.drain(pipeline, written.events, written.log_bytes, master, servers)
        _out.print("draining through each stage alone")
        alone = stages.measure(work.source_alone(source), begin, brokers)
        alone |= work.bare_reader(source, written.events)
        return {"settings": batch, "whole": figures, "stages": alone}
    finally:
        source.stop()


def _show(result: dict[str, Any]) -> None:
    figures = result["whole"]
    table = Table(title=f"{result['what']}, {result['engine']}")
    table.add_column("what")
    table.add_column("value", justify="right")
    for key, value in figures.items():
        if key != "processes":
            table.add_row(key, str(value) if isinstance(value, list) else f"{value:,}")
    for name, process in figures["processes"].items():
        words = ", ".join(f"{key} {value:,}" for key, value in process.items())
        table.add_row(name, words)
    for name, stage in result.get("stages", {}).items():
        table.add_row(f"{name} alone", f"{stage['rows_per_s']:,} rows/s")
    _out.print(table)


def _name(asked: argparse.Namespace) -> str:
    kind = "" if asked.what in ("starts", "transaction", "copies") else f"-{asked.kind}"
    ending = ("-archive" if asked.archive else "") + ("-local" if asked.local else "")
    return f"{asked.what}-{asked.source}{kind}{ending}.json"


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    main()
