"""Hours at a steady rate, from MySQL to Kafka exactly once, while what surrounds it changes.

In every quarter of an hour (of a shorter soak, in every eighth) a column comes or goes, one of the
servers is restarted or killed, and the sink is away for a minute. A reader judges each event as it
comes; memory, waits and lag are kept as they went. Latencies are recorded, not judged: they belong
to the machine.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from tests.e2e.pipeline_run import Driver, PipelineRun, end_drivers
from tests.prove.soak_load import TABLE, Reader, Writers
from tests.prove.unit import Task, Unit
from tests.servers import kafka, mysql, sql
from tests.servers.process import Server, family

HOURS = "DELTAFORGE_PROVE_HOURS"
"""Environment variable, which ``--hours`` sets: how long it goes on; the file says how long."""
SEEDS = 1
WHOLE_HOURS = 2.0
_SHORT_HOURS = 0.25
RATE = 5_000
"""Rows a second."""
_MASTERS = {"local": None, "spark": "local[2]"}
_QUARTER_S, _PARTS = 900.0, 8
_AWAY_S = 60.0
_SAMPLE_S, _LOOK_S = 10.0, 0.5
_CATCH_UP_S = 600.0
_SLOPE_MIB = 10.0
"""An hour; what grows faster has a leak. Shorter soaks say nothing of it."""
_NAME = "soak"
_MIB = 1 << 20


def units(seeds: int) -> list[Unit]:
    """Return one unit for each engine; with more jobs than one they measure each other."""
    seconds = hours() * 3600
    return [
        Unit(
            area="soak",
            name=f"{engine}/{seed}",
            run=f"{__name__}:run",
            cases=[{"engine": engine, "seed": seed}],
            kind=engine,
            seconds=seconds + 60,
            limit_s=seconds + 2 * _CATCH_UP_S,
        )
        for seed in range(seeds)
        for engine in _MASTERS
    ]


def hours() -> float:
    """Return how long a soak is to go on."""
    return float(os.environ.get(HOURS, str(_SHORT_HOURS)))


def lacking(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return which soaks were shorter than the page says."""
    return [
        f"{case['engine']}: {case['of_hours']:g} hours instead of {WHOLE_HOURS:g}"
        for case in cases
        if case["of_hours"] < WHOLE_HOURS
    ]


def run(task: Task) -> None:
    """Soak one engine."""
    [case] = task.cases
    began = time.monotonic()
    try:
        shown = _soaked(task.home, _MASTERS[case["engine"]], hours())
    except Exception as error:  # noqa: BLE001 - one case's end is a result
        shown = {"wrong": [f"{type(error).__name__}: {error}"[:2000]]}
    finally:
        end_drivers()
    result = "wrong" if shown["wrong"] else "ok"
    seconds = round(time.monotonic() - began, 1)
    task.add({**case, "of_hours": hours(), "seconds": seconds, "result": result, **shown})


@dataclass
class _Curve:
    """How it went, sample by sample."""

    s: list[int] = field(default_factory=list)
    mib: list[float] = field(default_factory=list)
    lag_ms: list[int | None] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    p50_ms: list[float | None] = field(default_factory=list)
    p99_ms: list[float | None] = field(default_factory=list)

    def add(self, seconds: float, pid: int, run: PipelineRun, reader: Reader) -> None:
        waits = reader.waits()
        cuts = statistics.quantiles(waits, n=100) if len(waits) > 1 else [None] * 99
        self.s.append(round(seconds))
        self.mib.append(_memory_mib(pid))
        self.lag_ms.append(run.progress().lag_ms)
        self.events.append(len(waits))
        self.p50_ms.append(cuts[49])
        self.p99_ms.append(cuts[98])

    def slope_mib(self) -> float:
        """Return how much memory grows in an hour, once the first quarter of the time is over."""
        first = len(self.s) // 4
        fit = statistics.linear_regression(self.s[first:], self.mib[first:])
        return round(fit.slope * 3600, 2)


def _soaked(home: Path, master: str | None, for_hours: float) -> dict[str, Any]:
    with contextlib.ExitStack() as ending:
        server = mysql.start_for_load(home / "mysql")
        ending.callback(server.stop)
        broker = kafka.start(home / "kafka")
        ending.callback(broker.stop)
        writers = Writers(server, _NAME, RATE)
        writers.create()
        pipeline = PipelineRun(
            home,
            _NAME,
            server,
            broker.dsn(),
            _NAME,
            [TABLE],
            snapshot="never",
            sink={"exactly_once": True},
            master=master,
            own_process=True,
        )
        _create_topic(broker.dsn(), f"{_NAME}.{TABLE}")
        driver = pipeline.start()
        pipeline.wait_status("running")
        with Reader(broker.dsn(), f"{_NAME}.{TABLE}") as reader:
            with writers:
                curve, done = _watched(pipeline, driver, server, broker, reader, for_hours)
            pipeline.wait(lambda: reader.held == writers.rows(), _CATCH_UP_S)
        code = pipeline.stop(driver)
        slope = curve.slope_mib()
        wrong = [*reader.wrong, *([f"the driver ended with {code}"] if code else [])]
        wrong += [f"{error!r} ended the load" for error in (*writers.failures, *reader.failures)]
        if for_hours >= 1 and slope > _SLOPE_MIB:
            wrong.append(f"memory grows by {slope} MiB an hour")
        return {
            "rows_written": sum(writers.written),
            "events": reader.events,
            "faults": reader.faults,
            "mib_slope_per_hour": slope,
            "mib_peak": max(curve.mib),
            "done": done,
            "curve": vars(curve),
            "wrong": wrong,
        }


def _watched(
    pipeline: PipelineRun,
    driver: Driver,
    server: Server,
    broker: Server,
    reader: Reader,
    for_hours: float,
) -> tuple[_Curve, list[str]]:
    """Do what is due, and take samples; return these, and what was done when."""
    began, curve = time.monotonic(), _Curve()
    quarter_s = min(_QUARTER_S, for_hours * 3600 / _PARTS)
    due = _Schedule(server, broker, quarter_s)
    while (seconds := time.monotonic() - began) < for_hours * 3600:
        due.do(seconds)
        if driver.poll() is not None:
            raise RuntimeError(f"the driver ended with {driver.poll()}")
        if seconds >= len(curve.s) * _SAMPLE_S:
            curve.add(seconds, driver.pid, pipeline, reader)
        time.sleep(_LOOK_S)
    due.end()
    return curve, due.done


class _Schedule:
    """What happens to the servers.

    Args:
        server: of the source.
        broker: of the sink.
        quarter_s: how long each round takes.
    """

    def __init__(self, server: Server, broker: Server, quarter_s: float) -> None:
        self._server, self._broker, self._quarter_s = server, broker, quarter_s
        self._away_s = min(_AWAY_S, quarter_s / 4)
        self._next = 0
        self._back_at: float | None = None
        self.done: list[str] = []

    def do(self, seconds: float) -> None:
        """Do what is due after so many seconds."""
        is_due = seconds >= (self._next + 0.5) * self._quarter_s / 3
        if self._back_at is not None and (is_due or seconds >= self._back_at):
            self.end()
        if not is_due:
            return
        quarter, part = divmod(self._next, 3)
        self._next += 1
        what = (self._change_table, self._restart, self._take_away)[part]
        self.done.append(f"{seconds:.0f} s: {what(quarter, seconds)}")

    def end(self) -> None:
        """Bring back what is away."""
        if self._back_at is not None:
            self._broker.start_again()
            self._back_at = None

    def _change_table(self, quarter: int, _: float) -> str:
        change = f"DROP COLUMN c{quarter - 1}" if quarter % 2 else f"ADD COLUMN c{quarter} INT"
        sql.execute(
            self._server,
            f"ALTER TABLE {_NAME}.{TABLE} {change}",
            # Nobody needs what is older; hours of it fill a disk.
            "PURGE BINARY LOGS BEFORE NOW() - INTERVAL 10 MINUTE",
        )
        return change

    def _restart(self, quarter: int, _: float) -> str:
        name, server = ("source", self._server) if quarter % 2 else ("sink", self._broker)
        is_gentle = name == "source" and quarter % 4 < 2
        (server.stop if is_gentle else server.kill)()
        server.start_again()
        return f"{name} {'restarted' if is_gentle else 'killed and started'}"

    def _take_away(self, _: int, seconds: float) -> str:
        # Not gently: the only broker of a cluster that stops in the middle of a commit may lose the
        # transaction's end, which nobody but an operator finds again (docs/sinks_kafka.md).
        self._broker.kill()
        self._back_at = seconds + self._away_s
        return f"sink away for {self._away_s:.0f} s"


def _create_topic(brokers: str, topic: str) -> None:
    """Create a topic that shows when a message came, and keeps what a reader needs."""
    settings = {
        "message.timestamp.type": "LogAppendTime",
        "segment.bytes": str(64 * _MIB),
        "retention.bytes": str(1024 * _MIB),
    }
    admin = AdminClient({"bootstrap.servers": brokers})
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
        made.result()


def _memory_mib(pid: int) -> float:
    """Return what a driver and its children have, shared pages by their shares."""
    found = 0
    for member in family(pid):
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(member).memory_full_info().pss
    return round(found / _MIB, 1)
