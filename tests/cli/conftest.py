import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import app as command
from airflow_provider_deltaforge.cli.exit_codes import exit_code
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.errors import DeltaForgeError
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


@pytest.fixture
def run():
    """Run the command in this process, as its entry point does; return code and words."""

    def call(*words):
        outcome = CliRunner().invoke(command.app, [str(word) for word in words])
        error = outcome.exception
        if isinstance(error, DeltaForgeError):
            return exit_code(error), f"{outcome.output}{error}"
        assert error is None or isinstance(error, SystemExit), repr(error)
        return outcome.exit_code, outcome.output

    return call
