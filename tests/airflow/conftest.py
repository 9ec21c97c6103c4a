"""Airflow configuration for a test process: its own home, decided before Airflow is imported."""

import atexit
import os
import shutil
import tempfile

import pytest

_HOME = tempfile.mkdtemp(prefix="deltaforge-airflow-")
os.environ["AIRFLOW_HOME"] = _HOME
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)

from tests.airflow.bench import connection, document, store_away  # noqa: E402, F401 - fixtures
from tests.airflow.clusters import database, state_server  # noqa: E402, F401 - fixtures
from tests.airflow.copies import published, real  # noqa: E402, F401 - fixtures
from tests.airflow.page_bench import ask, client, orders, token  # noqa: E402, F401 - fixtures
from tests.airflow.pods import plane, worker  # noqa: E402, F401 - fixtures
from tests.control.conftest import backend, dsn, running, store  # noqa: E402, F401 - fixtures


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Let triggers fire at once: without a scheduler nobody has to hear of a deferral first."""
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__TRIGGER_SETTLE_SECONDS", "0")
