"""Pause, resume, stop and windows on Spark, and what an idle pipeline costs."""

import subprocess
import time
from collections.abc import Callable

import psutil
import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.engine.scripted_run import NAME, PATIENCE_S, ScriptedRun
from tests.engine.spark_kills import Cell, close_log, end_family, judged, started
from tests.servers.process import family
from tests.waiting import wait_for

pytestmark = pytest.mark.spark

SEEN_S = 2.0
IDLE_S = 5.0
IDLE_CORES = 0.15
"""Of one core, in a test that shares the machine; alone it is a few percent."""


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
    paused_after = seconds_until(lambda: status(run) == "paused")
    held = events(run)
    position = run.control.progress().position
    time.sleep(2)
    still = (status(run), events(run), run.control.progress().position)
    idle = idle_cores(drivers[0].pid)
    alive = run.control.alive(pipelines.now_ms())
    lines = run.output.read_bytes().count(b"\n")

    pipelines.resume(run.store, NAME)
    resumed_after = seconds_until(lambda: status(run) == "running")
    epoch = run.control.epoch()
    wait_for("two windows", lambda: run.control.epoch() >= epoch + 2)
    more = events(run)

    pipelines.ask_to_stop(run.store, NAME)
    stopped_after = seconds_until(lambda: status(run) == "stopped")
    code = drivers[0].wait(PATIENCE_S)
    close_log(run)
    run.store.close()

    told = f"pause {paused_after:.2f} s, resume {resumed_after:.2f} s, stop {stopped_after:.2f} s"
    print(f"{told}; paused {idle:.3f} cores")
    assert still == ("paused", held, position)
    assert alive
    assert lines == held
    assert paused_after < SEEN_S
    assert stopped_after < SEEN_S
    assert resumed_after < 2 * SEEN_S
    assert code == 0
    cell = Cell("", "", 0)
    assert judged(run, {"tx": 0}, cell) == []
    assert (cell.redelivered, cell.events) == (0, 3 * run.transactions)
    assert cell.events >= more > held > 0
    assert idle < IDLE_CORES


def status(run: ScriptedRun) -> str:
    progress = run.control.progress()
    return progress.status if progress else "none"


def events(run: ScriptedRun) -> int:
    progress = run.control.progress()
    return progress.events if progress else 0


def seconds_until(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    wait_for("a change of status", condition, 20)
    return time.monotonic() - begun


def idle_cores(pid: int) -> float:
    """Return the cores that a process and its children use over a few seconds."""
    before = cpu_s(pid)
    time.sleep(IDLE_S)
    return (cpu_s(pid) - before) / IDLE_S


def cpu_s(pid: int) -> float:
    used = 0.0
    for one in family(pid):
        try:
            times = psutil.Process(one).cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += times.user + times.system
    return used
