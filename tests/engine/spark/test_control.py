"""Pause, resume, stop and windows on Spark; how soon, ``./dev.sh bench idle`` measures."""

import subprocess
import time

import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.engine.scripted_run import NAME, PATIENCE_S, ScriptedRun
from tests.engine.spark_kills import Cell, end_family, judged, started
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.fixture
def drivers():
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for driver in begun:
        end_family(driver)


def test_status_tells_the_truth_through_pause_resume_windows_and_stop(tmp_path, drivers):
    run = ScriptedRun(tmp_path, master="local[2]", transactions=0, rate=100, window_s=3)
    run.begin_at(0)
    drivers.append(started(run, None))
    wait_for("the stream", lambda: events(run) > 0 and status(run) == "running", PATIENCE_S)

    pipelines.pause(run.store, NAME)
    wait_for("the pause", lambda: status(run) == "paused", PATIENCE_S)
    held = events(run)
    position = run.control.progress().position
    time.sleep(2)  # The log grows by 200 transactions, which a stream would read.
    still = (status(run), events(run), run.control.progress().position)
    alive = run.control.alive(pipelines.now_ms())
    lines = run.output.read_bytes().count(b"\n")

    pipelines.resume(run.store, NAME)
    wait_for("the stream again", lambda: status(run) == "running", PATIENCE_S)
    epoch = run.control.epoch()
    wait_for("two windows", lambda: run.control.epoch() >= epoch + 2)
    more = events(run)

    pipelines.ask_to_stop(run.store, NAME)
    wait_for("the stop", lambda: status(run) == "stopped", PATIENCE_S)
    code = drivers[0].wait(PATIENCE_S)
    run.close_log()
    run.store.close()

    assert still == ("paused", held, position)
    assert alive
    assert lines == held
    assert code == 0
    cell = Cell("", "", 0)
    assert judged(run, {"tx": 0}, cell) == []
    assert (cell.redelivered, cell.events) == (0, 3 * run.transactions)
    assert cell.events >= more > held > 0


def status(run: ScriptedRun) -> str:
    progress = run.control.progress()
    return progress.status if progress else "none"


def events(run: ScriptedRun) -> int:
    progress = run.control.progress()
    return progress.events if progress else 0
