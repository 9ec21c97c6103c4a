"""``deltaforge backup`` and ``restore``."""

import json
import signal
from pathlib import Path

from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import pipelines, starting, tokens
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.backup import read_backup
from tests.control.bench import job_of, wait_until
from tests.engine.frozen import freeze_between_writes, signal_all
from tests.servers.process import family


def invoked(*words):
    return CliRunner().invoke(app, [*map(str, words)])


def test_a_running_pipelines_store_is_backed_up_and_not_replaced(pipeline, dsn, backend, tmp_path):
    starting.start(pipeline, job_of(dsn), backend, "me")
    wait_until(lambda: status(pipeline, "orders", backend).status == "running")
    token = tokens.create(pipeline, "ci", "read")

    made = invoked("backup", tmp_path / "b", "--json")
    assert made.exit_code == 0, made.output
    assert (json.loads(made.stdout)["pipelines"], json.loads(made.stdout)["tokens"]) == (
        ["orders"],
        1,
    )
    assert token not in (tmp_path / "b").read_bytes().decode("latin-1")
    assert "write --overwrite" in str(invoked("backup", tmp_path / "b").exception)
    assert "orders, 1 hashed token" in invoked("backup", tmp_path / "b", "--overwrite").stdout

    refused = invoked("restore", tmp_path / "b")
    assert isinstance(refused.exception, SpecError)
    assert "is not empty" in str(refused.exception)
    refused = invoked("restore", tmp_path / "b", "--replace", "other.db")
    assert "the store is called 'state.db', not 'other.db'" in str(refused.exception)
    refused = invoked("restore", tmp_path / "b", "--replace", "state.db")
    assert "drivers of this store run (orders)" in str(refused.exception)

    record = pipelines.stop(pipeline, "orders", backend)
    done = invoked("restore", tmp_path / "b", "--replace", "state.db")
    assert done.exit_code == 0, done.output
    assert "never run pipelines with it and with the one" in done.stderr
    assert pipelines.existing(pipeline, "orders").read().generation == record.generation
    assert tokens.find(pipeline, token) is not None


def test_a_driver_that_slept_through_a_restore_writes_nothing(pipeline, dsn, backend, tmp_path):
    """It is frozen, so nobody hears it; when it wakes up it finds that it is not the driver."""
    starting.start(pipeline, job_of(dsn), backend, "me")
    wait_until(lambda: status(pipeline, "orders", backend).status == "running")
    assert invoked("backup", tmp_path / "b").exit_code == 0
    control = pipelines.existing(pipeline, "orders")
    handle = control.read().handle
    pids = family(handle["pid"])
    freeze_between_writes(pids, Path(dsn.removeprefix("sqlite:///")))
    # The command would listen until the driver counts as lost, and then do just this.
    read_backup(pipeline, tmp_path / "b", replace=True)
    restored = control.progress()
    signal_all(pids, signal.SIGCONT)
    wait_until(lambda: backend.status(handle).state is JobState.ENDED)
    assert control.progress() == restored


def test_a_backup_makes_a_second_store(pipeline, tmp_path):
    assert invoked("backup", tmp_path / "b").exit_code == 0
    second = f"sqlite:///{tmp_path}/second.db"
    done = invoked("restore", tmp_path / "b", "--store", second, "--new-identity", "--json")
    assert done.exit_code == 0, done.output
    assert (json.loads(done.stdout)["pipelines"], done.stderr) == (["orders"], "")
    assert json.loads(invoked("status", "--store", second, "--json").stdout)[0]["name"] == "orders"


def test_what_is_no_backup_makes_no_store(tmp_path):
    (tmp_path / "orders.yaml").write_text("a: b")
    refused = invoked("restore", tmp_path / "orders.yaml", "--store", f"sqlite:///{tmp_path}/s.db")
    assert "is no backup" in str(refused.exception)
    assert not (tmp_path / "s.db").exists()
