"""``deltaforge run --local`` again, after its process was killed, frozen or asked to leave."""

import os
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest

from airflow_provider_deltaforge.cli import shutdown
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.launching.job_directory import is_held
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage import moments
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT
from tests.waiting import PATIENCE_S, wait_until

RUN = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", "run"]


class LocalRuns:
    """Processes of `run --local` over one store."""

    def __init__(self, directory):
        self.document = directory / "orders.yaml"
        self.document.write_text(DOCUMENT)
        self.dsn = f"sqlite:///{directory}/state.db"
        self.environment = {
            **os.environ,
            "OUTPUT": str(directory / "out"),
            "DELTAFORGE_JOBS": str(directory / "jobs"),
        }
        self.backend = LocalBackend(directory / "jobs")
        StoreLocation.from_dsn(self.dsn).create().close()
        self.processes = []

    def start(self, *words):
        process = subprocess.Popen(
            [*RUN, str(self.document), "--store", self.dsn, "--api-addr", "off", "--local", *words],
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def status(self):
        store = StoreLocation.from_dsn(self.dsn).open()
        try:
            return status(store, "orders", self.backend)
        finally:
            store.close()

    def runs(self, generation):
        def running():
            store = StoreLocation.from_dsn(self.dsn).open()
            try:
                if Control(store, "orders").read() is None:
                    return False
            finally:
                store.close()
            shown = self.status()
            return (shown.status, shown.generation) == ("running", generation)

        wait_until(running)

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def runs(tmp_path):
    runs = LocalRuns(tmp_path)
    yield runs
    runs.end()


def test_after_a_kill_the_next_one_takes_over_at_once(runs):
    killed = runs.start()
    runs.runs(1)
    killed.kill()
    killed.wait()
    assert runs.status().status == "lost"
    # A child that was just forked may outlive the killed process, with its lock, by a moment.
    former = next(runs.backend.directory.glob("df-orders-local-*"))
    wait_until(lambda: not is_held(former))
    again = runs.start()
    runs.runs(2)
    again.send_signal(signal.SIGTERM)
    _, said = again.communicate(timeout=PATIENCE_S)

    assert again.returncode == 0, said
    assert "waiting" not in said
    assert runs.status().status == "stopped"
    assert len(list(runs.backend.directory.glob("df-orders-local-*"))) == 1


def test_a_frozen_one_holds_its_lock(runs):
    frozen = runs.start()
    runs.runs(1)
    handle = runs.status().handle
    frozen.send_signal(signal.SIGSTOP)
    assert runs.backend.status(handle).state is JobState.RUNNING
    frozen.kill()
    wait_until(lambda: runs.backend.status(handle).state is JobState.ENDED)


def test_a_standby_takes_over_at_once_when_the_holder_is_killed(runs):
    first = runs.start()
    runs.runs(1)
    standby = runs.start("--standby")
    assert "standby: orders is running" in standby.stderr.readline()
    first.kill()
    runs.runs(2)
    standby.send_signal(signal.SIGTERM)
    standby.communicate(timeout=PATIENCE_S)
    assert standby.returncode == 0


@pytest.mark.long
def test_of_two_standbys_one_takes_over_and_the_other_goes_on_waiting(runs):
    first = runs.start()
    runs.runs(1)
    standbys = [runs.start("--standby"), runs.start("--standby")]
    for standby in standbys:
        assert "standby: orders is running" in standby.stderr.readline()
    first.kill()
    wait_until(lambda: runs.status().status == "running" and runs.status().generation >= 2)
    assert runs.status().handle["pid"] in [standby.pid for standby in standbys]


def test_a_handle_of_another_machine_with_our_name_is_not_judged_by_our_locks(runs, monkeypatch):
    with runs.backend.occupied("orders") as handle:
        monkeypatch.setattr(moments, "boot", lambda: "another boot")
        held = {**handle, "directory": "/nowhere"}
        assert runs.backend.status(held).state is JobState.UNKNOWN
        # After a boot of this machine its directory is still there, and the lock is free.
        assert runs.backend.status(handle).state is JobState.RUNNING
    assert runs.backend.status(handle).state is JobState.ENDED


def test_the_limit_is_within_what_supervisors_wait():
    assert shutdown.LIMIT_S < 25


def test_a_store_without_room_is_the_reason_that_is_shown(runs):
    process = runs.start()
    runs.runs(1)
    limits = psutil.Process(process.pid)
    # As on a full disk, nothing can be written beyond what is there.
    limits.rlimit(psutil.RLIMIT_FSIZE, (4096, psutil.RLIM_INFINITY))
    wait_until(lambda: runs.status().status == "blocked")
    shown = runs.status()
    assert "its driver lives, and cannot write to the state store" in shown.reason
    assert "state.db" in shown.reason
    limits.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
    wait_until(lambda: runs.status().status == "running")
    limits.rlimit(psutil.RLIMIT_FSIZE, (4096, psutil.RLIM_INFINITY))
    wait_until(lambda: runs.status().status == "blocked")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 3), said
    assert "heartbeat not written" in said or "state store" in said


def test_sigterm_ends_a_run_whose_store_another_process_holds(runs):
    process = runs.start()
    runs.runs(1)
    holding = sqlite3.connect(runs.dsn.removeprefix("sqlite:///"), isolation_level=None)
    holding.execute("BEGIN IMMEDIATE")
    try:
        asked_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
        # The promise itself is measured: it holds on a slow machine, too.
        assert time.monotonic() - asked_s < 25, said
    finally:
        holding.close()
    assert process.returncode in (0, 3), said
    runs.start()
    runs.runs(2)


HANGING = """
import sys, time
from airflow_provider_deltaforge.cli import shutdown
from airflow_provider_deltaforge.cli.app import main
from airflow_provider_deltaforge.engine.driver import local
shutdown.LIMIT_S = 1.0
def hangs(*_):
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(600)
local.run_local = hangs
sys.argv = ["deltaforge", *sys.argv[1:]]
main()
"""


def test_what_hangs_does_not_keep_a_process_that_was_asked_to_leave(runs):
    words = [str(runs.document), "--store", runs.dsn, "--api-addr", "off", "--local"]
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, "run", *words],
        env=runs.environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    runs.processes.append(process)
    wait_until(lambda: "hanging" in process.stderr.readline())
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 3
    assert "ended as if killed" in said
