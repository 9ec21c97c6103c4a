"""One cell of the kill matrix: a pipeline on Spark, killed at one point, judged by the oracle."""

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.crash_points import HOLD_VARIABLE, CrashPoint
from tests.engine.lagging_crash_points import (
    OF_ARCHIVES,
    OF_LAGGING,
    OF_PARTS,
    OF_REPLAYS,
    OF_REWINDS,
)
from tests.engine.scripted_run import NAME, PATIENCE_S, Driver, ScriptedRun, kill
from tests.oracle.verdict import judge
from tests.servers import postgres, spark
from tests.servers.process import HOST, Server, family
from tests.servers.spark import Cluster, command_line
from tests.waiting import wait_for

SNAPSHOT_BORDERS = {
    CrashPoint.SNAPSHOT_STARTED,
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.CHUNK_STORED,
    CrashPoint.SNAPSHOT_FINISHED,
}
REQUEST_BORDERS = {CrashPoint.REQUEST_RECORDED, CrashPoint.REQUEST_REMOVED}
IN_APPLICATION = {CrashPoint.SNAPSHOT_STARTED, CrashPoint.SNAPSHOT_FINISHED, *REQUEST_BORDERS}
"""Borders that the driver itself crosses: no worker of ours lives then."""
AT_START = {CrashPoint.START_POSITION_STORED}
"""Borders that a stream crosses once."""
STREAM_BORDERS = set(CrashPoint) - SNAPSHOT_BORDERS - REQUEST_BORDERS - AT_START - OF_LAGGING
STREAM_BORDERS -= OF_REPLAYS | OF_REWINDS | OF_ARCHIVES | OF_PARTS
BEGUN = STREAM_BORDERS | REQUEST_BORDERS
"""Borders of a pipeline that streamed before: its log is delivered from the first transaction."""

_CROSSINGS = range(2, 9)
_FIRST_ONLY = {CrashPoint.SCHEMA_REGISTERED}
"""Borders of a stream that are not crossed again and again."""


class Victim(Enum):
    """Who dies."""

    PROCESS = "process"
    """All there is without Spark."""
    WORKER = "worker"
    JVM = "jvm"
    APPLICATION = "application"
    EXECUTOR = "executor"


@dataclass
class Cell:
    """What came of one kill."""

    crash_point: str
    victim: str
    seed: int
    result: str = "ok"
    wrong: tuple[str, ...] = ()
    events: int = 0
    redelivered: int = 0
    streamed: int = 0
    """Events that had to come through the stream; the rest of the state is the snapshot's."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass
class Stage:
    """The cluster and the store that cells with an executor share."""

    cluster: Cluster
    store: Server

    def database(self, name: str) -> str:
        """Make an empty database and return its DSN."""
        import psycopg

        with psycopg.connect(self.store.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return self.store.dsn(name)


@contextlib.contextmanager
def stage(directory: Path) -> Iterator[Stage]:
    """Start a standalone cluster and PostgreSQL."""
    store = postgres.start(directory / "postgres")
    try:
        cluster = spark.start(directory / "cluster")
        try:
            yield Stage(cluster, store)
        finally:
            cluster.stop()
    finally:
        store.stop()


def possible(crash_point: CrashPoint, victim: Victim) -> bool:
    """Say whether the victim exists while the crash point is reached."""
    return not (victim is Victim.WORKER and crash_point in IN_APPLICATION)


def run_cell(
    crash_point: CrashPoint,
    victim: Victim,
    directory: Path,
    shared: Stage | None,
    seed: int = 0,
    make: Callable[..., ScriptedRun] = ScriptedRun,
) -> Cell:
    """Kill ``victim`` at ``crash_point`` and let the pipeline finish.

    Args:
        crash_point: where.
        victim: whom; an executor needs ``shared``.
        directory: an own, empty directory.
        shared: the cluster.
        seed: chooses at which crossing.
        make: makes the pipeline's run; takes what ``ScriptedRun`` takes.
    """
    clock = time.monotonic()
    cell = Cell(crash_point.value, victim.value, seed)
    directory.mkdir(parents=True, exist_ok=True)
    run = _prepared(crash_point, victim, directory, shared, make)
    drivers: list[Driver] = []
    try:
        cell.wrong = tuple(_played(crash_point, victim, run, shared, drivers, cell))
    except (AssertionError, subprocess.TimeoutExpired) as error:
        cell.wrong = (str(error),)
    finally:
        for driver in drivers:
            end_family(driver)
        run.close()
    cell.result = "wrong" if cell.wrong else "ok"
    cell.seconds = round(time.monotonic() - clock, 1)
    return cell


def _played(
    crash_point: CrashPoint,
    victim: Victim,
    run: ScriptedRun,
    shared: Stage | None,
    drivers: list[Driver],
    cell: Cell,
) -> list[str]:
    begun = run.begin() if crash_point in BEGUN else None
    once = crash_point not in STREAM_BORDERS - _FIRST_ONLY
    crossing = 1 if once else random.Random(cell.seed).choice(_CROSSINGS)
    drivers.append(started(run, shared, (crash_point, crossing)))
    held = run.wait_held(drivers[0])
    start = begun or run.first_position()
    kill_victim(victim, held, drivers[0], shared)
    if victim in (Victim.PROCESS, Victim.JVM, Victim.APPLICATION):
        drivers[0].wait(PATIENCE_S)
        drivers.append(started(run, shared))
    # A held process that outlived the kill goes on now, beside the new one: the fence must hold.
    run.let_go()
    run.wait_enough(drivers[-1], start)
    code = run.stop(drivers[-1])
    if start is None:
        start = run.first_position()
    run.close_log()
    wrong = judged(run, start, cell)
    if not cell.streamed:
        wrong.append("nothing had to be streamed: this proves nothing")
    progress = run.control.progress()
    if code != 0:
        wrong.append(f"the driver ended with {code}")
    asked = snapshots.requests(run.store, NAME)
    if [request.state for request in asked] != ["done"] * (crash_point in REQUEST_BORDERS):
        wrong.append(f"requests {asked}")
    if progress is None or progress.status != "stopped":
        wrong.append(f"status {progress and progress.status} after stop")
    return wrong


def _prepared(
    crash_point: CrashPoint,
    victim: Victim,
    directory: Path,
    shared: Stage | None,
    make: Callable[..., ScriptedRun],
) -> ScriptedRun:
    cluster = victim is Victim.EXECUTOR
    if cluster and shared is None:
        raise ValueError("an executor needs a cluster")
    dsn = None
    master = None if victim is Victim.PROCESS else "local[2]"
    if cluster and shared is not None:
        dsn = shared.database(f"cell_{time.time_ns()}")
        master = shared.cluster.url
    growing = crash_point not in STREAM_BORDERS
    run = make(
        directory,
        master=master,
        snapshot="initial" if crash_point in SNAPSHOT_BORDERS else "never",
        # An endless log, so that the stream has something to do after a snapshot or a start at
        # the head, however long Spark takes to start.
        transactions=0 if growing else 800,
        rate=100 if growing else 400,
        dsn=dsn,
    )
    if crash_point in REQUEST_BORDERS:
        snapshots.request(run.store, NAME, CopySelection(), "copy", "the matrix")
    return run


def started(
    run: ScriptedRun,
    shared: Stage | None,
    hold: tuple[CrashPoint, int] | None = None,
    settings: dict[str, str] | None = None,
) -> Driver:
    """Start the run's driver with a Spark configuration of its own."""
    told = {"spark.executor.memory": "512m", **(settings or {})}
    on_cluster = shared is not None and run.master == shared.cluster.url
    if on_cluster and run.dsn is not None:
        told["spark.executorEnv.DELTAFORGE_STORE"] = run.dsn
        if hold is not None:
            asked = f"{hold[0].value}:{hold[1]}:{run.held}"
            told[f"spark.executorEnv.{HOLD_VARIABLE}"] = asked
    conf = run.directory / f"conf{time.time_ns()}"
    conf.mkdir()
    lines = [f"{key} {value}\n" for key, value in told.items()]
    (conf / "spark-defaults.conf").write_text("".join(lines))
    run.extra_environment = {
        **run.extra_environment,
        "SPARK_CONF_DIR": str(conf),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(run.directory / "spark"),
    }
    return run.start(hold)


def kill_victim(victim: Victim, held: int, driver: Driver, shared: Stage | None) -> None:
    """Kill it as a machine does."""
    if victim in (Victim.PROCESS, Victim.WORKER):
        kill(held)
    elif victim is Victim.JVM:
        assert "java" in command_line(driver.pid)
        kill(driver.pid)
    elif victim is Victim.APPLICATION:
        kill(application_of(driver))
    else:
        assert shared is not None
        executors = shared.cluster.executors()
        assert executors, "there is no executor to kill"
        # With its Python workers, as with a machine: an orphan would store its checkpoint first.
        for pid in [one for executor in executors for one in family(executor)]:
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
        wait_for("the executors' end", lambda: not set(executors) & set(shared.cluster.executors()))


def application_of(driver: Driver) -> int:
    """Return the process id of the Python application under a driver's JVM."""
    for pid in family(driver.pid):
        line = command_line(pid)
        if "_job.py" in line and "java" not in line.split(" ", 1)[0]:
            return pid
    raise AssertionError(f"driver {driver.pid} has no Python application")


def end_family(driver: Driver) -> None:
    """End a driver and what it started."""
    for pid in family(driver.pid):
        with contextlib.suppress(ProcessLookupError):
            kill(pid)
    driver.wait()


def judged(run: ScriptedRun, start: dict[str, Any] | None, cell: Cell | None = None) -> list[str]:
    """Ask the oracle, which also compares the last delivered state with the source's table."""
    if start is None:
        return ["the stream never began"]
    history, seen = run.history(start), run.seen()
    if cell is not None:
        cell.events = len(seen)
        cell.redelivered = len(seen) - len({event.event_id for event in seen})
        cell.streamed = len(history)
    return judge(history, seen, run.rows(start))
