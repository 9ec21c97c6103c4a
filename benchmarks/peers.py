"""``./dev.sh bench peers``: other systems beside ours, on the same servers, rows and broker.

For each source and system, in an order that rotates by round: a backlog in transactions of 64 rows,
a writer of 2,000 and of 20,000 rows a second in transactions of 20, and a kill with a start after
it. Throughput is by the broker's append times from the first message to the last, so a start is not
in it; latency is from ``NOW()`` in the row's statement to the append; CPU and memory are of the
system's own processes. JVMs begin cold in each run; the rate of the second half stands beside.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from airflow_provider_deltaforge.control.launching import class_archive, spark_submit
from benchmarks import postgres_workload, workload
from benchmarks.peer_systems import DEBEZIUM, System, systems
from benchmarks.processes import Sampler, wait_until
from benchmarks.starts import REST_S
from benchmarks.whole import written_steadily
from tests.servers import kafka, mysql, postgres
from tests.servers.process import Server

RATES = (2_000, 20_000)
_START_RATE, _STARTS = 200, 3
_WARM_S, _POLL_S = 15.0, 0.1
_SAVED_S = 6.0
"""By then a position is saved: Connect does so every five seconds."""
_IN_ALL = ("rows_per_s", "rows_per_s_second_half", "written_per_s", "p50_ms", "p99_ms", "max_ms")
_FIGURES = (*_IN_ALL, "after_kill_s", "cpu_s", "cpu_s_per_million", "pss_mib_peak")
_out = Console()


def main(
    results: Path,
    about: dict[str, Any],
    *,
    sources: list[str],
    rows: int,
    seconds: int,
    rounds: int,
    is_continued: bool,
) -> None:
    """Measure and write ``peers.json``, after each run anew.

    Args:
        results: the directory for it.
        about: what the result says first.
        sources: mysql, postgres.
        rows: of a backlog.
        seconds: how long a steady load is measured.
        rounds: how often each is measured.
        is_continued: rounds that the result has already stay in it, and count.
    """
    about |= {
        "engine": "each",
        "spark_classes_kept": bool(class_archive.options(spark_submit.spark_home())),
        "versions": {"debezium": DEBEZIUM},
        "rows": rows,
        "seconds": seconds,
        "settings": {
            system.name: {"steady": system.steady, "backlog": system.backlog}
            for system in systems()
        },
    }
    runs = _kept_runs(results / "peers.json", about) if is_continued else []
    first = 1 + max((run["round"] for run in runs), default=-1)
    with (
        tempfile.TemporaryDirectory(prefix="deltaforge-bench-") as place,
        _bench(Path(place), sources) as bench,
    ):
        for found in bench.measured(range(first, first + rounds), rows, seconds):
            runs.append(found | {"commit": about["commit"], "date": about["date"]})
            _out.print_json(json.dumps(found))
            result = {**about, "medians": medians(runs), "runs": runs}
            (results / "peers.json").write_text(json.dumps(result, indent=2) + "\n")
    _show(medians(runs))


def _kept_runs(file: Path, about: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs that a result has; none where there is no result.

    Raises:
        SystemExit: they were measured with something else, so that no median can be of both.
    """
    if not file.exists():
        return []
    kept = json.loads(file.read_text())
    differing = [
        key
        for key in ("commit", "versions", "rows", "seconds", "settings")
        if kept[key] != about[key]
    ]
    if differing:
        names = ", ".join(differing)
        raise SystemExit(
            f"{file} has rounds with other {names}: set them alike, or leave out --continue"
        )
    return list(kept["runs"])


class _Source:
    def __init__(self, work: ModuleType, server: Server) -> None:
        self.work, self.server = work, server
        work.prepare(server)

    def write(self) -> None:
        with self.work.writer(self.server) as connection:
            self.work.write_some(connection, 20)

    def newest(self) -> int:
        """Return the newest row's number."""
        return self._number(f"SELECT max(id) FROM {self.work.TABLE}")

    def newer(self, than: int) -> int:
        """Return how many rows there are behind one; numbers have gaps."""
        return self._number(f"SELECT count(*) FROM {self.work.TABLE} WHERE id > {than}")

    def _number(self, query: str) -> int:
        with self.work.writer(self.server) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return int(cursor.fetchone()[0] or 0)


class _Topic:
    """The one partition that a system writes to."""

    def __init__(self, brokers: str, name: str) -> None:
        new = NewTopic(name, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
        admin = AdminClient({"bootstrap.servers": brokers})
        for made in admin.create_topics([new]).values():
            made.result()
        self._settings = {"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex}
        self._consumer = Consumer(self._settings)
        self._name = name

    def end(self) -> int:
        """Return the offset of the next message."""
        with suppress(KafkaException):
            return int(self._consumer.get_watermark_offsets(TopicPartition(self._name, 0))[1])
        return -1

    def read(self, begin: int, end: int) -> list[tuple[int, dict[str, Any]]]:
        """Return append time in ms and row of the messages between two offsets."""
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(self._name, 0, begin)])
        found: list[tuple[int, dict[str, Any]]] = []
        try:
            while len(found) < end - begin:
                for message in consumer.consume(10_000, timeout=5):
                    value = message.value()
                    if value is not None:
                        row = json.loads(value)
                        row = row.get("payload", row)["after"]
                        found.append((message.timestamp()[1], row))
        finally:
            consumer.close()
        return found[: end - begin]

    def newest(self) -> int:
        """Return the number of the row that came last."""
        end = self.end()
        return int(self.read(end - 1, end)[0][1]["id"]) if end > 0 else 0


class _Bench:
    def __init__(self, place: Path, sources: list[_Source], broker: Server) -> None:
        self._sources, self._broker = sources, broker
        brokers = f"{broker.host}:{broker.port}"
        self._systems = {
            (source.work.SOURCE_TYPE, kind.name): kind(
                place / f"{kind.name}-{source.work.SOURCE_TYPE}",
                source.work,
                source.server,
                brokers,
            )
            for source in sources
            for kind in systems()
        }
        self._topics = {
            system.id: _Topic(brokers, system.topic) for system in self._systems.values()
        }

    def stop(self) -> None:
        for system in self._systems.values():
            system.kill()

    def measured(self, rounds: range, rows: int, seconds: int) -> Iterator[dict[str, Any]]:
        """Measure all; yield one result after the other."""
        for source in self._sources:
            for system in self._of(source, 0):
                self._prime(source, system)
        for number in rounds:
            for source in self._sources:
                source.work.load(source.server, rows, "inserts")
                for system in self._of(source, number):
                    about = {
                        "round": number,
                        "system": system.name,
                        "source": source.work.SOURCE_TYPE,
                        "load_before": round(os.getloadavg()[0], 2),
                    }
                    yield {**about, "what": "backlog", **self._backlog(source, system)}
                for rate in RATES:
                    for system in self._of(source, number):
                        figures = self._steady(source, system, rate, seconds)
                        yield {**about, "system": system.name, "what": f"steady {rate}", **figures}
                for system in self._of(source, number):
                    figures = self._start(source, system)
                    yield {**about, "system": system.name, "what": "start", **figures}

    def _servers(self, source: _Source) -> dict[str, int]:
        return {source.work.SOURCE_TYPE: source.server.pid, "kafka": self._broker.pid}

    def _of(self, source: _Source, number: int) -> list[System]:
        found = [
            system for (kind, _), system in self._systems.items() if kind == source.work.SOURCE_TYPE
        ]
        return found[number % len(found) :] + found[: number % len(found)]

    def _prime(self, source: _Source, system: System) -> None:
        """Let a system save a position, from which it reads the backlog."""
        system.start(system.backlog)
        self._deliver_some(source, system)
        self._await_newest(system, source.newest())
        time.sleep(_SAVED_S)
        system.stop()

    def _deliver_some(self, source: _Source, system: System) -> None:
        topic = self._topics[system.id]
        before, written = topic.end(), 0.0

        def has_come() -> bool:
            nonlocal written
            system.check()
            if time.monotonic() - written > 1:
                source.write()
                written = time.monotonic()
            return topic.end() > before

        wait_until(has_come)

    def _await_newest(self, system: System, newest: int) -> None:
        def has_come() -> bool:
            system.check()
            return self._topics[system.id].newest() >= newest

        wait_until(has_come)

    def _backlog(self, source: _Source, system: System) -> dict[str, Any]:
        topic = self._topics[system.id]
        first, newest = topic.end(), source.newest()
        rows = source.newer(topic.newest())
        began = time.monotonic()
        sampler = Sampler({"driver": system.start(system.backlog), **self._servers(source)})
        seen: list[tuple[float, int]] = []
        while not seen or seen[-1][1] < first + rows:
            system.check()
            end = topic.end()
            if end > first:
                if not seen:
                    sampler.reset()
                seen.append((time.monotonic(), end))
            time.sleep(_POLL_S)
        used = sampler.stop()
        self._await_newest(system, newest)
        end = topic.end()
        time.sleep(_SAVED_S)
        system.stop()
        appended = [topic.read(at, at + 1)[0][0] for at in (first, end - 1)]
        seconds = (appended[1] - appended[0]) / 1000
        half = next(each for each in seen if each[1] >= first + rows / 2)
        warm_s = seen[-1][0] - half[0]
        return {
            "rows": rows,
            "delivered_again": end - first - rows,
            "rows_per_s": round((end - first) / seconds),
            # Quick ones are done before there are enough looks at them.
            "rows_per_s_second_half": round((seen[-1][1] - half[1]) / warm_s)
            if warm_s > 1
            else None,
            "first_after_s": round(seen[0][0] - began, 1),
            **_usage(used, first + rows - seen[0][1]),
        }

    def _steady(self, source: _Source, system: System, rate: int, seconds: int) -> dict[str, Any]:
        topic = self._topics[system.id]
        sampler = Sampler({"driver": system.start(system.steady), **self._servers(source)})
        self._deliver_some(source, system)
        first = topic.end()
        with written_steadily(source.work, source.server, rate):
            time.sleep(_WARM_S)
            sampler.reset()
            from_ms = time.time() * 1000
            time.sleep(seconds)
            until_ms, used = time.time() * 1000, sampler.stop()
        self._await_newest(system, source.newest())
        time.sleep(_SAVED_S)
        system.stop()
        waits = [
            appended - created
            for appended, row in topic.read(first, topic.end())
            # By when they were written, so that a system that falls behind is not spared.
            if from_ms <= (created := _created_ms(row["created"])) < until_ms
        ]
        cuts = statistics.quantiles(waits, n=100)
        return {
            "written_per_s": round(len(waits) / seconds),
            "p50_ms": round(cuts[49], 1),
            "p99_ms": round(cuts[98], 1),
            "max_ms": round(max(waits), 1),
            **_usage(used, len(waits)),
        }

    def _start(self, source: _Source, system: System) -> dict[str, Any]:
        topic = self._topics[system.id]
        seconds: list[float] = []
        cpu: list[float] = []
        system.start(system.steady)
        self._deliver_some(source, system)
        with written_steadily(source.work, source.server, _START_RATE):
            for _ in range(_STARTS):
                system.kill()
                time.sleep(REST_S)
                before, began = topic.end(), time.monotonic()
                sampler = Sampler({"driver": system.start(system.steady)})
                wait_until(lambda: topic.end() > before)  # noqa: B023
                seconds.append(time.monotonic() - began)
                cpu.append(sum(used["cpu_s"] for used in sampler.stop().values()))
        self._await_newest(system, source.newest())
        time.sleep(_SAVED_S)
        system.stop()
        return {
            "after_kill_s": round(statistics.median(seconds), 2),
            "after_kill_s_all": [round(each, 2) for each in seconds],
            "cpu_s": round(statistics.median(cpu), 2),
        }


@contextmanager
def _bench(place: Path, kinds: list[str]) -> Iterator[_Bench]:
    broker = kafka.start(place / "kafka", heap_mib=512)
    servers: list[Server] = [broker]
    try:
        sources = []
        for kind in kinds:
            if kind == "mysql":
                source = _Source(workload, mysql.start_for_load(place / kind))
            else:
                source = _Source(postgres_workload, postgres.start(place / kind))
                _drop_slots(source.server)
            servers.append(source.server)
            sources.append(source)
        bench = _Bench(place, sources, broker)
        try:
            yield bench
        finally:
            bench.stop()
    finally:
        for server in servers:
            with suppress(subprocess.TimeoutExpired):
                server.stop()


def _drop_slots(server: Server) -> None:
    """Drop the slots of other benchmarks, which would keep the log for nobody."""
    with postgres_workload.writer(server) as connection:
        connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")


def _usage(used: dict[str, dict[str, float]], rows: int) -> dict[str, Any]:
    ours = [each for name, each in used.items() if name.startswith("driver")]
    million = 1e6 / max(rows, 1)
    return {
        "cpu_s_per_million": round(sum(each["cpu_s"] for each in ours) * million, 1),
        "pss_mib_peak": round(sum(each["pss_mib_peak"] for each in ours)),
        # One that is busy with itself takes a core from everybody.
        "servers_cpu_s_per_million": {
            name: round(each["cpu_s"] * million, 1)
            for name, each in used.items()
            if not name.startswith("driver")
        },
    }


def _created_ms(value: Any) -> float:
    """Return a row's ``created`` in ms since 1970, in whatever form a system writes it."""
    if isinstance(value, int | float):
        return value / 1000 if value > 1e14 else float(value)
    when = datetime.fromisoformat(value.replace("Z", "+00:00").replace(" ", "T", 1))
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp() * 1000


def medians(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the medians over the rounds, and how many there were."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for each in runs:
        groups.setdefault((each["what"], each["source"], each["system"]), []).append(each)
    found = []
    for (what, source, system), group in groups.items():
        row: dict[str, Any] = {"what": what, "source": source, "system": system}
        for figure in _FIGURES:
            values = [each[figure] for each in group if each.get(figure) is not None]
            if values:
                row[figure] = statistics.median(values)
        found.append({**row, "rounds": len(group)})
    return found


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table("what", "source", "system", *(name.replace("_", " ") for name in _FIGURES))
    for row in rows:
        cells = (f"{row[name]:,}" if name in row else "" for name in _FIGURES)
        table.add_row(row["what"], row["source"], row["system"], *cells)
    _out.print(table)
