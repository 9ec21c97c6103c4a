"""Tasks that copy tables: their pipelines, drivers and operators, and what a task keeps."""

import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control import pipelines, starting
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.hooks import deltaforge
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults, result_of
from tests.airflow.bench import context
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import wait_until

ROWS = "script.rows"
REQUEST = "airflow:d/t/r/-1"

REAL_DRIVER = (
    "import sys; from airflow_provider_deltaforge.engine.driver import driver, local; "
    "from airflow_provider_deltaforge.storage.location import StoreLocation; "
    "run, name, generation, own = sys.argv[1:]; "
    "task = driver.DriverArguments(name, StoreLocation.from_environment(), int(generation)); "
    "runner = local.LocalRunner(); "
    "ended = driver.drive_stream(task, runner) if run == 'stream_job.py' "
    "else driver.drive_snapshot(task, runner, own=own == 'own'); "
    "sys.exit(ended.exit_code)"
)


def real_driver(job):
    """Compose the command line of a real driver, without Spark around it."""
    own = "requests" if "--requests" in job.arguments else "own"
    words = [job.script, job.pipeline, str(job.generation), own]
    return [sys.executable, "-c", REAL_DRIVER, *words]


@pytest.fixture
def real(monkeypatch, tmp_path):
    backend = LocalBackend(tmp_path / "jobs", compose=real_driver)
    monkeypatch.setattr(deltaforge.DeltaForgeHook, "backend", lambda *_: backend)
    yield backend
    for handle in tmp_path.glob("jobs/*/handle.json"):
        backend.stop(json.loads(handle.read_text()), 0)


@pytest.fixture
def published(monkeypatch):
    told = {}
    for place in ("operators.snapshot", "triggers.snapshot"):
        monkeypatch.setattr(f"airflow_provider_deltaforge.{place}.publish", told.__setitem__)
    return told


def snapshot(document, **more):
    more = {"poll_interval": timedelta(seconds=0.1), **more}
    return DeltaForgeSnapshotOperator(task_id="snapshot", document=document, **more)


def streaming(store, dsn, backend):
    """Start a stream that belongs to somebody else."""
    pipelines.apply(store, DOCUMENT)
    started = starting.start(store, job_of(dsn), backend, "the stream's task")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    return started


def with_snapshot(document, mode="initial"):
    """Give a document a snapshot of its own."""
    text = DOCUMENT.replace("rows: 3}", f'rows: 3, snapshot: {{mode: "{mode}"}}}}')
    Path(document).write_text(text)
    return document


def settle(store, state="done", **details):
    """Do what the driver does at the end of the first request."""
    request = Control(store, "orders").read().requests[0]
    store.transact(SnapshotResults(store, "orders").put(result_of(request, state, **details)))


def completed(operator, event, told=None):
    return operator.execute_complete(told or context(), event)


class Kept(dict):
    def set(self, key, value, **_):
        self[key] = value
