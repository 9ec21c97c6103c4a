"""``deltaforge snapshot --tables``: beside a stream a request, alone a job."""

import os
import signal
import threading

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli import run, snapshot
from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.cli.options import Pauses
from airflow_provider_deltaforge.control import pipelines, snapshots, starting
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults, result_of
from tests.control.bench import DOCUMENT, job_of
from tests.control.conftest import backend, dsn, store  # noqa: F401 - fixtures
from tests.waiting import wait_until


@pytest.fixture
def deltaforge(monkeypatch, tmp_path, request):
    monkeypatch.setattr(snapshot, "backend_of", lambda _: request.getfixturevalue("backend"))
    monkeypatch.setenv("OUTPUT", str(tmp_path))
    document = tmp_path / "orders.yaml"
    document.write_text(DOCUMENT)
    told = ["snapshot", str(document), "--store", request.getfixturevalue("dsn")]
    return lambda *words, pauses=None: CliRunner().invoke(app, [*told, *words], obj=pauses)


def settling(store, state, **details):  # noqa: F811 - the fixture
    """Do what a driver does with the first request, as soon as there is one."""

    def settle():
        wait_until(lambda: Control(store, "orders").read().requests)
        request = Control(store, "orders").read().requests[0]
        store.transact(SnapshotResults(store, "orders").put(result_of(request, state, **details)))

    threading.Thread(target=settle, daemon=True).start()


def streaming(store, dsn, backend):  # noqa: F811 - the fixtures
    pipelines.apply(store, DOCUMENT)
    starting.start(store, job_of(dsn), backend, "the stream's supervisor")
    wait_until(lambda: status(store, "orders", backend).status == "running")


def test_beside_a_stream_it_asks_and_waits(deltaforge, store, dsn, backend):  # noqa: F811
    streaming(store, dsn, backend)
    settling(store, "done", tables={"script.rows": {"chunks": 3, "rows": 60}})
    said = deltaforge("--tables", "script.rows")

    assert said.exit_code == 0, said.output
    assert "script.rows" in said.output
    assert "60 rows" in said.output
    record = Control(store, "orders").read()
    assert (record.generation, record.owner) == (1, "the stream's supervisor")


def test_a_request_that_failed_says_why(deltaforge, store, dsn, backend):  # noqa: F811
    streaming(store, dsn, backend)
    settling(store, "failed", reason="where: no column colour", error_class="spec")
    said = deltaforge("--tables", "script.rows", "--where", "colour = 1")

    assert said.exit_code == 2
    assert "no column colour" in said.output


def test_alone_it_starts_a_job_and_is_not_green_when_that_copies_nothing(
    deltaforge,
    store,  # noqa: F811
    monkeypatch,
):
    monkeypatch.setenv("FAKE_DRIVER", "exit:0")
    said = deltaforge("--again")

    assert said.exit_code == 1
    assert "not finished" in said.output
    assert Control(store, "orders").read().handle["arguments"] == ["--requests"]
    (request,) = snapshots.requests(store, "orders")
    assert request.state == "cancelled"


def test_a_snapshot_that_is_not_due_is_refused_and_starts_nothing(
    deltaforge,
    store,  # noqa: F811
):
    refused = deltaforge().exception

    assert "its snapshot mode is never" in str(refused)
    assert "--again" in str(refused)
    assert Control(store, "orders").read().generation == 0


def test_a_stream_that_nobody_revives_is_replaced_by_a_job(
    deltaforge,
    store,  # noqa: F811
    dsn,  # noqa: F811
    backend,  # noqa: F811
    monkeypatch,
):
    streaming(store, dsn, backend)
    os.killpg(Control(store, "orders").read().handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).status == "lost")
    monkeypatch.setenv("FAKE_DRIVER", "exit:0")
    said = deltaforge("--again", pauses=Pauses(gone_s=0.1))

    assert "which is lost, makes the copy" in said.output
    assert Control(store, "orders").read().handle["arguments"] == ["--requests"]


def test_the_end_of_a_drivers_log_is_shown_without_its_secrets(
    deltaforge,
    store,  # noqa: F811
    dsn,  # noqa: F811
    backend,  # noqa: F811
    monkeypatch,
    capsys,
):
    told = "login at mysql://df:planted-secret@db/shop was refused"
    monkeypatch.setattr(LocalBackend, "logs_tail", lambda *_: told)
    monkeypatch.setenv("FAKE_DRIVER", "fail:access")
    shown = deltaforge("--again").output
    run._run_driver(store, job_of(dsn, "fail:access"), backend, threading.Event())
    shown += capsys.readouterr().err

    assert shown.count("mysql://df:***@db/shop") == 2
    assert "planted-secret" not in shown


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--tables", "script.rows", "--where", ""), "where"),
        (("--tables", "script.rows", "--where", " "), "where"),
        (("--tables", ", "), "tables"),
        (("--tables", "", "--again"), "tables"),
    ],
)
def test_an_empty_option_does_not_copy_everything(deltaforge, words, key):
    assert f"{key}: --{key} is empty" in str(deltaforge(*words).exception)


def test_a_condition_without_a_table_is_refused_with_its_key(deltaforge):
    assert "where: " in str(deltaforge("--where", "1 = 1").exception)
