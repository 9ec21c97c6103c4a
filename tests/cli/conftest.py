import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.control.bench import DOCUMENT
from tests.control.conftest import backend, dsn, store  # noqa: F401 - fixtures


@pytest.fixture
def pipeline(store, dsn, tmp_path, monkeypatch):  # noqa: F811 - the fixtures
    """The store that commands find, with a pipeline; what they print is not folded."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    monkeypatch.setenv("DELTAFORGE_STORE", dsn)
    pipelines.apply(store, DOCUMENT)
    return store
