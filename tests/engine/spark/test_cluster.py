"""A standalone cluster: executors share neither files nor environment with the driver, and die.

One application runs, pauses, goes on and stops here; how soon, ``./dev.sh bench idle`` measures.
"""

import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.engine.base.outcome import EXIT_SPEC
from tests.engine.scripted_run import NAME, PATIENCE_S, ScriptedRun
from tests.engine.spark_kills import Cell, Stage, Victim, end_family, judged, run_cell, started
from tests.servers import postgres, spark
from tests.servers.process import HOST, free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

SECRET = "planted-7f3a9c"
VARIABLE_SECRET = "planted-1b8e2d"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.discard()


@pytest.fixture(scope="module")
def cluster(store, tmp_path_factory):
    # The DSN holds a password as it is, and another part of it comes from a variable.
    dsn = f"postgresql://postgres:{SECRET}${{STORE_PASSWORD}}@{HOST}:{store.port}/postgres"
    told = {"DELTAFORGE_STORE": dsn, "STORE_PASSWORD": VARIABLE_SECRET}
    running = spark.start(tmp_path_factory.mktemp("cluster"), worker_environment=told)
    yield running, told
    running.stop()


@pytest.fixture
def drivers():
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for driver in begun:
        end_family(driver)


def test_a_cluster_obeys_tells_the_truth_and_leaks_no_secret(
    cluster, drivers, tmp_path, monkeypatch
):
    running, told = cluster
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    run = ScriptedRun(
        tmp_path,
        master=running.url,
        snapshot="initial",
        transactions=0,
        rate=100,
        window_s=3,
        dsn=told["DELTAFORGE_STORE"],
    )
    events, scratch, port = tmp_path / "events", tmp_path / "scratch", free_port()
    events.mkdir()
    scratch.mkdir()
    run.extra_environment = {"DELTAFORGE_SPARK_UI": "true", "TMPDIR": str(scratch)}
    settings = {
        "spark.ui.port": str(port),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
    }

    drivers.append(started(run, None, settings=settings))
    wait_for(
        "the stream",
        lambda: drivers[0].poll() is not None or events_of(run) > 500,
        PATIENCE_S,
    )
    assert drivers[0].poll() is None, run.log.read_text()[-3000:]
    paused_and_resumed(run)
    executors = [Path(f"/proc/{pid}/environ").read_text() for pid in running.executors()]
    leaks = [f"process: {line}" for line in command_lines() if leaked(line)]
    leaks += [f"page {path}" for path in pages(port) if leaked(fetched(port, path))]
    leaks += leaked_files(scratch, events, run.directory / "out.jsonl", run.log)
    leaks += leaked_files(running.master.directory, running.worker.directory)
    checkpoints = list(scratch.glob("deltaforge-query-*"))
    start = run.first_position()
    pipelines.ask_to_stop(run.store, NAME)
    wait_for("the stop", lambda: status_of(run) == "stopped", PATIENCE_S)
    code = drivers[0].wait(PATIENCE_S)
    run.close_log()
    run.store.close()
    leaks += leaked_files(events, running.worker.directory)

    cell = Cell("", "", 0)
    assert judged(run, start, cell) == []
    assert code == 0
    assert cell.redelivered == 0
    assert leaks == []
    # What was searched did exist, and the secret was in use where it belongs.
    assert executors
    assert all(SECRET in told for told in executors)
    assert checkpoints
    assert any(path.is_file() for path in events.rglob("*"))
    assert any(running.worker.directory.rglob("stderr"))


def paused_and_resumed(run):
    """Pause the stream, resume it and let it begin two more windows."""
    pipelines.pause(run.store, NAME)
    wait_for("the pause", lambda: status_of(run) == "paused", PATIENCE_S)
    held = status_of(run), events_of(run), run.control.progress().position, lines_of(run)
    time.sleep(2)  # The log grows by 200 transactions, which a stream would read.
    still = status_of(run), events_of(run), run.control.progress().position, lines_of(run)
    alive = run.control.alive()

    pipelines.resume(run.store, NAME)
    wait_for("the stream again", lambda: status_of(run) == "running", PATIENCE_S)
    epoch = run.control.epoch()
    wait_for("two windows", lambda: run.control.epoch() >= epoch + 2, PATIENCE_S)
    # A window that begins on a busy machine may be over before it has carried anything.
    wait_for("more events", lambda: events_of(run) > held[1], PATIENCE_S)

    assert still == held
    assert alive
    assert held[1] > 0


@pytest.mark.long
def test_a_store_that_executors_cannot_open_is_refused(cluster, drivers, tmp_path):
    running, _ = cluster
    run = ScriptedRun(tmp_path, master=running.url)

    drivers.append(started(run, Stage(running, running.master)))
    code = drivers[0].wait(PATIENCE_S)
    run.store.close()

    assert code == EXIT_SPEC
    assert "use postgresql://" in run.log.read_text()
    assert "is a file of this host" in run.log.read_text()
    assert not run.output.exists()


@pytest.mark.long
def test_an_executor_dies_and_the_application_goes_on(cluster, store, tmp_path):
    running, _ = cluster
    stage = Stage(running, store)

    cell = run_cell(CrashPoint.SINK_WRITTEN, Victim.EXECUTOR, tmp_path / "cell", stage)

    assert cell.wrong == ()
    assert cell.streamed > 0
    assert cell.redelivered > 0


def status_of(run: ScriptedRun) -> str:
    progress = run.control.progress()
    return progress.status if progress else "none"


def events_of(run: ScriptedRun) -> int:
    progress = run.control.progress()
    return progress.events if progress else 0


def lines_of(run: ScriptedRun) -> int:
    return run.output.read_bytes().count(b"\n")


def leaked(text: str) -> bool:
    return SECRET in text or VARIABLE_SECRET in text


def command_lines() -> list[str]:
    """Return what ``ps`` shows to every user."""
    return [spark.command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]


def pages(port: int) -> list[str]:
    base = "/api/v1/applications"
    found = json.loads(fetched(port, base))
    number = found[0]["id"]
    pages = ["/environment/", "/jobs/", "/stages/", "/executors/", "/StreamingQuery/", "/SQL/"]
    answers = [f"{base}/{number}/environment", f"{base}/{number}/sql?details=true", *pages]
    assert "spark.master" in fetched(port, answers[0])
    return answers


def fetched(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def leaked_files(*places: Path) -> list[str]:
    return [f"file {path}" for place in places for path in files_in(place) if leaked_into(path)]


def files_in(place: Path) -> Iterator[Path]:
    """Return the files of a place that Spark works in: some go while one looks."""
    if place.is_file():
        yield place
    for directory, _, names in os.walk(place):
        yield from (Path(directory, name) for name in names)


def leaked_into(path: Path) -> bool:
    try:
        return leaked(path.read_bytes().decode(errors="replace"))
    except FileNotFoundError:
        return False
