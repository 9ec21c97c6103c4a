import json

import psutil
import pytest

from airflow_provider_deltaforge.control.launch_local import LocalBackend
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.control.bench import fake_driver


@pytest.fixture
def dsn(tmp_path):
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def store(dsn):
    store = StoreLocation.from_dsn(dsn).open()
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


def is_driver(process):
    try:
        return "driver.py" in process.cmdline()
    except psutil.Error:  # It has ended, or only waits to be collected.
        return False
