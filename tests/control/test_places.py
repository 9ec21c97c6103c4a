"""Every process that opens a store finds its jobs at the same place."""

from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.places import jobs_directory
from airflow_provider_deltaforge.storage.location import StoreLocation


@pytest.fixture(autouse=True)
def _no_jobs_variable(monkeypatch):
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)


@pytest.mark.parametrize("dsn", ["sqlite:///~/df/state.db", "sqlite:///${WHERE}/df/state.db"])
def test_jobs_lie_beside_the_file_that_the_store_really_opens(dsn, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WHERE", str(tmp_path))
    StoreLocation.from_dsn(dsn).create().close()
    assert (tmp_path / "df" / "state.db").is_file()
    assert jobs_directory(dsn) == tmp_path / "df" / "jobs"


def test_jobs_of_a_store_elsewhere_lie_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jobs_directory("postgresql://u@h/d") == Path(tmp_path) / ".deltaforge" / "jobs"
