"""What the command line says of a pipeline's archive."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.errors import SpecError
from tests.engine.test_archive import archived_run, run_to

COLUMNS = "300"


def deltaforge(*words):
    return CliRunner().invoke(app, ["archive", *words], env={"COLUMNS": COLUMNS})


@pytest.fixture
def run(tmp_path, monkeypatch):
    dsn = f"sqlite:///{tmp_path}/state.db"
    monkeypatch.setenv("DELTAFORGE_STORE", dsn)
    run = archived_run(tmp_path / "archive", transactions=20, dsn=dsn)
    run_to(run, 20)
    return run


def test_what_it_has_is_listed_and_checked(run, tmp_path):
    shown = deltaforge("list", run.name).stdout
    assert "1970-01-01 00:00:00.001+00:00 to 1970-01-01 00:00:00.020+00:00, 60 changes" in shown
    assert '{"tx": 20}' in shown
    assert "1970-01-01  script.rows  60" in shown
    found = json.loads(deltaforge("list", run.name, "--json").stdout)
    assert [(s["start"], s["end"]) for s in found["spans"]] == [({"tx": 0}, {"tx": 20})]
    assert found["holes"] == []

    paths = deltaforge("list", run.name, "--files").stdout.split()
    assert sorted(paths) == sorted(
        map(str, (tmp_path / "archive" / run.name).glob("day=*/table=script.rows/*.parquet"))
    )
    checked = deltaforge("check", run.name)
    assert (checked.exit_code, "nothing is missing" in checked.stdout) == (0, True)

    path = Path(paths[0])
    path.write_bytes(path.read_bytes() + b"x")
    checked = deltaforge("check", run.name)
    assert (checked.exit_code, "is damaged" in checked.stdout) == (1, True)
    damaged = json.loads(deltaforge("check", run.name, "--json").stdout)["damaged"]
    assert len(damaged) == 1


def test_a_pipeline_without_one_is_named(pipeline):
    refused = deltaforge("list", "orders").exception
    assert isinstance(refused, SpecError)
    assert "add spec.archive to its document" in str(refused)
