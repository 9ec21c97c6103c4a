"""``deltaforge snapshot`` takes its driver along when it is told to end."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.cli.test_cli import FAKE_CLI, ROOT
from tests.control.bench import DOCUMENT
from tests.waiting import PATIENCE_S, wait_until

LIMIT_S = 25.0
OWN = DOCUMENT.replace("rows: 3}", "rows: 3, snapshot: {mode: initial}}")


@pytest.fixture
def volume(tmp_path):
    (tmp_path / "volume").mkdir()
    return tmp_path / "volume"


@pytest.fixture
def begun(tmp_path, volume):
    """Start the command; return it with the pid of its driver's session."""
    pids = []

    def begin(*words, behaviour="run"):
        (tmp_path / "orders.yaml").write_text(OWN)
        dsn = f"sqlite:///{volume}/state.db"
        store = StoreLocation.from_dsn(dsn).create()
        told = [sys.executable, "-c", FAKE_CLI, "snapshot", str(tmp_path / "orders.yaml")]
        process = subprocess.Popen(
            [*told, "--store", dsn, *words],
            env={**os.environ, "FAKE_DRIVER": behaviour, "OUTPUT": "/o", "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: Control(store, "orders").read() is not None)
        wait_until(lambda: status(store, "orders").status == "running")
        handle = Control(store, "orders").read().handle
        pids.append(handle["pid"])
        return process, handle["pid"], store

    yield begin
    for pid in pids:
        for process in living(pid):
            process.kill()


def living(session):
    found = []
    for process in psutil.process_iter():
        try:
            same = os.getsid(process.pid) == session
            if same and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            pass
    return found


def ended(process, number):
    at = time.monotonic()
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - at < LIMIT_S
    return said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_driver_of_the_pipelines_own_snapshot_ends(begun, number):
    process, session, store = begun()
    said = ended(process, number)

    assert process.returncode == 3, said
    assert "run it again" in said
    assert living(session) == []
    assert status(store, "orders").status == "stopped"
    store.close()


def test_the_driver_of_a_copy_ends_and_its_request_is_withdrawn(begun):
    process, session, store = begun("--again")
    said = ended(process, signal.SIGTERM)

    assert process.returncode == 3, said
    assert living(session) == []
    assert [one.state for one in snapshots.requests(store, "orders")] == ["cancelled"]
    store.close()


@pytest.mark.parametrize("words", [(), ("--again",)])
def test_a_driver_that_somebody_else_supervises_by_now_goes_on(begun, words):
    process, session, store = begun(*words)
    Control(store, "orders").update(lambda old: old.model_copy(update={"owner": "another"}))
    said = ended(process, signal.SIGTERM)

    assert process.returncode == 3, said
    assert "somebody else" in said
    assert living(session)
    assert Control(store, "orders").read().desired == "running"
    store.close()


def test_a_driver_that_hears_nothing_ends_while_the_store_is_away(begun, volume):
    """The store, and the place of the driver's lock, are on a volume that is not there."""
    process, session, store = begun(behaviour="deaf")
    store.close()
    volume.rename(volume.with_name("away"))
    said = ended(process, signal.SIGTERM)

    assert process.returncode == 3, said
    assert living(session) == []
    assert not volume.exists()
