import json

import psutil
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.control.bench import DOCUMENT, fake_driver, job_of, wait_until


@pytest.fixture
def dsn(tmp_path):
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def store(dsn):
    store = StoreLocation.from_dsn(dsn).create()
    yield store
    store.close()


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(tmp_path / "jobs", compose=fake_driver)
    yield backend
    for handle in tmp_path.glob("jobs/*/handle.json"):
        backend.stop(json.loads(handle.read_text()), 0)
    mine = [child for child in psutil.Process().children(recursive=True) if is_driver(child)]
    assert not mine, "a fake driver was left behind"


@pytest.fixture
def running(store, backend, dsn):
    """The store of a pipeline whose driver runs."""
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn), backend, "test")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    return store


def is_driver(process):
    try:
        return "driver.py" in process.cmdline()
    except psutil.Error:  # It has ended, or only waits to be collected.
        return False
