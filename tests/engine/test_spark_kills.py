"""The engine on Spark when something dies, or when two drivers run at once.

``python -m tests.prove kills`` runs every crash point against every victim; here each victim dies
at one of them, so that the mechanism cannot rot. An executor dies in ``spark/test_cluster.py``.
"""

import os
import signal
import subprocess

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.engine.base.outcome import EXIT_FATAL
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.frozen import freeze_between_writes
from tests.engine.scripted_run import NAME, PATIENCE_S, ScriptedRun
from tests.engine.spark_kills import Victim, end_family, judged, run_cell, started
from tests.servers.process import family
from tests.waiting import wait_for

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("victim", "crash_point"),
    [
        pytest.param(Victim.WORKER, CrashPoint.CHUNK_WRITTEN, marks=pytest.mark.long),
        pytest.param(Victim.JVM, CrashPoint.SINK_WRITTEN, marks=pytest.mark.long),
    ],
    ids=lambda value: value.value,
)
def test_a_victim_on_spark_loses_nothing(victim, crash_point, tmp_path):
    assert run_cell(crash_point, victim, tmp_path / "cell", None).wrong == ()


@pytest.fixture
def run(tmp_path):
    prepared = ScriptedRun(tmp_path, master="local[2]", transactions=1500, rate=100)
    prepared.begin_at(0)
    yield prepared
    prepared.store.close()


@pytest.fixture
def drivers():
    begun: list[subprocess.Popen[bytes]] = []
    yield begun
    for driver in begun:
        signal_family(driver, signal.SIGCONT)
        end_family(driver)


def signal_family(driver: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if driver.poll() is None:
        for pid in family(driver.pid):
            os.kill(pid, number)


def tx_of(run: ScriptedRun) -> int:
    return int((Checkpoints(run.store, NAME, f"{NAME}-source").load().get("out") or {})["tx"])


def status_of(run: ScriptedRun) -> str:
    progress = run.control.progress()
    return progress.status if progress else "none"


@pytest.mark.long
def test_of_two_drivers_only_the_newer_one_counts(run, drivers):
    drivers.append(started(run, None))
    wait_for("the first driver's deliveries", lambda: tx_of(run) > 0)
    freeze_between_writes(family(drivers[0].pid), run.directory / "state.db")
    older = run.control.epoch()

    drivers.append(started(run, None))
    wait_for("the second driver's lane", lambda: run.control.epoch() >= older + 2)
    newer = run.control.epoch()
    wait_for(
        "progress of the newer epoch",
        lambda: run.control.progress().epoch >= newer and status_of(run) == "running",
    )
    signal_family(drivers[0], signal.SIGCONT)
    code = drivers[0].wait(PATIENCE_S)
    at = tx_of(run)

    assert code == EXIT_FATAL
    assert "ended: fenced" in run.log.read_text()
    assert run.control.progress().epoch >= newer
    run.wait_delivered(drivers[1])
    assert tx_of(run) >= at
    assert run.stop(drivers[1]) == 0
    assert judged(run, {"tx": 0}) == []
