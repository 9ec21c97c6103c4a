import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from airflow_provider_deltaforge.cli import run
from airflow_provider_deltaforge.cli.exit_codes import driver_exit_code, exit_code
from airflow_provider_deltaforge.control import pipelines, starting, tokens
from airflow_provider_deltaforge.control.attend import Attendance
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import (
    AccessError,
    PositionLostError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT, job_of, wait_until
from tests.servers.process import free_port
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
MODULE = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]

FAKE_CLI = """
import sys
from airflow_provider_deltaforge.cli import run, snapshot
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from tests.control.bench import fake_driver
def backend_of(store):
    return LaunchBackends(LocalBackend(jobs_directory(store), compose=fake_driver))
run.backend_of = snapshot.backend_of = backend_of
from airflow_provider_deltaforge.cli.app import main
sys.argv[0] = "deltaforge"
main()
"""


def deltaforge(*words, **environment):
    return subprocess.run(
        [*MODULE, *words],
        env={
            **os.environ,
            "COLUMNS": "200",
            "OUTPUT": "/tmp/out",
            **environment,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture
def document(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(DOCUMENT)
    return file


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param(SpecError("x"), 2, id="document"),
        pytest.param(RetryableError("x"), 3, id="retryable"),
        pytest.param(AccessError("x"), 1, id="access"),
        pytest.param(PositionLostError("x"), 1, id="position lost"),
    ],
)
def test_every_error_has_its_exit_code(error, code):
    assert exit_code(error) == code


def test_a_drivers_exit_code_becomes_ours():
    assert [driver_exit_code(code) for code in (0, 2, 3, 4, None, 137)] == [0, 2, 3, 1, 1, 1]


def test_help_shows_every_command_with_a_sentence():
    text = deltaforge("--help").stdout

    for command in [
        "run",
        "status",
        "pause",
        "resume",
        "stop",
        "validate",
        "schema",
        "preflight",
        "snapshot",
    ]:
        assert re.search(rf"\b{command}\s+[A-Z]", text), command
    assert "Exit codes" in text


def test_validate_names_the_wrong_key_and_its_line(document):
    document.write_text(DOCUMENT.replace("rows:", "rwos:"))
    outcome = deltaforge("validate", str(document))

    assert outcome.returncode == 2
    assert "spec.source.config.rwos" in outcome.stderr
    assert "line 8" in outcome.stderr
    assert "'rows'" in outcome.stderr


def test_validate_accepts_a_good_document(document):
    outcome = deltaforge("validate", str(document))

    assert outcome.returncode == 0, outcome.stderr
    assert "orders is valid" in outcome.stdout


def test_validate_reads_a_directory_to_its_bottom(tmp_path):
    below = tmp_path / "b"
    below.mkdir()
    (tmp_path / "a.yaml").write_text(DOCUMENT)
    (below / "c.yml").write_text(DOCUMENT.replace("orders", "users"))
    (below / "notes.txt").write_text("not a document")
    outcome = deltaforge("validate", str(tmp_path))

    assert outcome.returncode == 0, outcome.stderr
    assert re.findall(r"pipeline (\w+) is valid", outcome.stdout) == ["orders", "users"]


def test_validate_names_every_bad_file_of_a_directory(tmp_path):
    (tmp_path / "a.yaml").write_text("a: {")
    (tmp_path / "b.yaml").write_text(DOCUMENT)
    (tmp_path / "c.yaml").write_text(DOCUMENT)
    outcome = deltaforge("validate", str(tmp_path))

    assert outcome.returncode == 2
    told = " ".join(outcome.stderr.split())
    assert "a.yaml: line 1, column 5: not YAML" in told
    assert re.search(r"c\.yaml: the pipeline 'orders' is already in \S*b\.yaml", told)


def test_schema_is_json():
    assert json.loads(deltaforge("schema").stdout)["$schema"].startswith("https://json-schema.org")


def test_status_of_nothing_says_how_to_begin(dsn):
    outcome = deltaforge("status", "--store", dsn)

    assert outcome.returncode == 3
    assert "`deltaforge run`" in outcome.stderr
    assert not Path(dsn.removeprefix("sqlite:///")).exists()

    StoreLocation.from_dsn(dsn).create().close()
    outcome = deltaforge("status", "--store", dsn)

    assert outcome.returncode == 0
    assert "deltaforge run FILE" in outcome.stdout


def test_status_of_an_unknown_pipeline_is_an_error_without_a_traceback(dsn):
    StoreLocation.from_dsn(dsn).create().close()
    outcome = deltaforge("status", "nothing", "--store", dsn)

    assert outcome.returncode == 2
    assert "no pipeline 'nothing'" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_status_pause_resume_stop_of_a_running_pipeline(store, dsn, backend):
    pipelines.apply(store, DOCUMENT)
    starting.start(store, job_of(dsn), backend, "me")
    wait_until(lambda: status(store, "orders", backend).status == "running")

    shown = json.loads(deltaforge("status", "orders", "--json", "--store", dsn).stdout)
    assert (shown[0]["status"], shown[0]["generation"]) == ("running", 1)
    assert "shop.orders" in deltaforge("status", "orders", "--store", dsn).stdout
    assert deltaforge("pause", "orders", "--store", dsn).returncode == 0
    wait_until(lambda: status(store, "orders", backend).status == "paused")
    assert deltaforge("resume", "orders", "--store", dsn).returncode == 0
    wait_until(lambda: status(store, "orders", backend).status == "running")
    assert deltaforge("stop", "orders", "--store", dsn).returncode == 0
    assert status(store, "orders", backend).status == "stopped"


def test_status_exits_with_1_over_a_dead_driver(store, dsn, backend):
    pipelines.apply(store, DOCUMENT)
    started = starting.start(store, job_of(dsn), backend, "me")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    os.killpg(started.handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).status == "lost")

    assert deltaforge("status", "--store", dsn).returncode == 1


def running_cli(document, dsn, *words, behaviour="run"):
    return subprocess.Popen(
        [sys.executable, "-c", FAKE_CLI, "run", str(document), "--store", dsn, *words],
        env={
            **os.environ,
            "FAKE_DRIVER": behaviour,
            "OUTPUT": "/tmp/out",
            "PYTHONPATH": str(ROOT),
        },
        stderr=subprocess.PIPE,
        text=True,
    )


def test_run_serves_health_and_rest_and_drains_on_sigint(document, dsn, store, backend):
    port = free_port()
    token = {"Authorization": f"Bearer {tokens.create(store, 'ops', 'admin')}"}
    process = running_cli(document, dsn, "--api-addr", f"127.0.0.1:{port}")

    def healthy():
        try:
            shown = httpx.get(f"http://127.0.0.1:{port}/readyz").json()["pipelines"]
            return shown[0]["status"] == "running"
        except httpx.HTTPError:
            return False

    wait_until(healthy)
    assert httpx.get(f"http://127.0.0.1:{port}/healthz").text == "ok"
    assert "deltaforge_pipeline_status" in httpx.get(f"http://127.0.0.1:{port}/metrics").text
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as rest:
        assert rest.get("/pipelines/orders").status_code == 401
        rest.headers.update(token)
        assert rest.get("/pipelines/orders").json()["status"] == "running"
        assert rest.post("/pipelines/orders/pause").status_code == 200
        wait_until(lambda: status(store, "orders", backend).status == "paused")
        assert rest.post("/pipelines/orders/resume").status_code == 200
        refused = rest.patch("/pipelines/orders", json={"spec": {"batch": {"max_events": 7}}})
        assert (refused.status_code, refused.json()["code"]) == (409, "NOT_HERE")
        assert "change the file" in refused.json()["error"]
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0, told
    assert "delivering what is in flight" in told
    assert status(store, "orders", backend).status == "stopped"


def test_the_default_store_is_one_file_for_the_command_and_its_driver(document, tmp_path):
    told = {**os.environ, "OUTPUT": "/tmp/out", "PYTHONPATH": str(ROOT), "FAKE_DRIVER": "run"}
    told.pop("DELTAFORGE_STORE", None)
    process = subprocess.Popen(
        [sys.executable, "-c", FAKE_CLI, "run", str(document), "--api-addr", "off"],
        env=told,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    place = tmp_path / ".deltaforge"
    location = StoreLocation.from_dsn(f"sqlite:///{place}/state.db")
    wait_until((place / "state.db").exists)
    store = location.create()
    wait_until(lambda: Control(store, "orders").read() is not None)
    wait_until(lambda: status(store, "orders").status == "running")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE_S)
    store.close()

    assert process.returncode == 0, said
    assert list(place.rglob("state.db")) == [place / "state.db"]


def test_run_gives_up_on_a_fatal_driver_with_its_reason(document, dsn, backend):
    process = running_cli(document, dsn, "--api-addr", "off", behaviour="fail:position_lost")
    _, told = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 1
    assert "position_lost" in told
    assert "binlog.000002 is gone" in told


def test_standby_takes_over_when_the_first_driver_ends(document, dsn, store, backend):
    pipelines.apply(store, DOCUMENT)
    starting.start(store, job_of(dsn), backend, "first")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    process = running_cli(document, dsn, "--api-addr", "off", "--standby")
    assert "standby: orders is running" in process.stderr.readline()
    # It looks again every two seconds.
    time.sleep(4)
    assert process.poll() is None
    assert status(store, "orders", backend).generation == 1
    pipelines.stop(store, "orders", backend)
    wait_until(lambda: status(store, "orders", backend).generation == 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 0


def test_run_keeps_its_state_where_the_document_says(tmp_path):
    own = tmp_path / "own" / "state.db"
    text = DOCUMENT + f"  storage: {{backend: sqlite, path: {own}}}\n"
    (tmp_path / "orders.yaml").write_text(text)
    words = ["run", str(tmp_path / "orders.yaml"), "--local", "--api-addr", "off"]
    environment = {key: value for key, value in os.environ.items() if key != "DELTAFORGE_STORE"}
    told = {**environment, "OUTPUT": str(tmp_path)}
    process = subprocess.Popen(
        [*MODULE, *words], cwd=tmp_path, env=told, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(own.exists)
        # What it does is on the console, and so is where its state is.
        lines = [process.stderr.readline()]
        while "the pipeline is running" not in lines[-1] and lines[-1]:
            lines.append(process.stderr.readline())
    finally:
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert not (tmp_path / ".deltaforge").exists()
    assert "orders runs in this process, its state in" in "".join(lines)
    assert "INFO" in lines[-1]
    assert "the pipeline is stopped" in rest


def test_run_refuses_a_store_that_differs_from_the_documents(tmp_path):
    text = DOCUMENT + f"  storage: {{backend: sqlite, path: {tmp_path}/own.db}}\n"
    (tmp_path / "orders.yaml").write_text(text)
    other = f"sqlite:///{tmp_path}/other.db"
    done = deltaforge("run", str(tmp_path / "orders.yaml"), "--store", other)
    assert done.returncode == 2
    assert "own.db" in done.stderr
    assert "other.db" in done.stderr
    assert not list(tmp_path.glob("*.db"))


def test_a_snapshot_stopped_by_somebody_else_is_not_called_done(tmp_path, document):
    dsn = f"sqlite:///{tmp_path / 'state.db'}"
    document.write_text(DOCUMENT.replace("rows: 3", "rows: 3, snapshot: {mode: initial}"))
    told = {**os.environ, "DELTAFORGE_STORE": dsn, "OUTPUT": "/tmp/out", "FAKE_DRIVER": "run"}
    command = subprocess.Popen(
        [sys.executable, "-c", FAKE_CLI, "snapshot", str(document)],
        env=told,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    store = StoreLocation.from_dsn(dsn).create()
    try:
        wait_until(lambda: (Control(store, "orders").progress() or None) is not None)
        pipelines.ask_to_stop(store, "orders")
        said, _ = command.communicate(timeout=PATIENCE_S)
    finally:
        command.kill()
        store.close()
    assert command.returncode == 1
    assert "not finished" in said
    assert "done" not in said


def test_run_leaves_a_driver_alone_that_somebody_else_supervises_by_now(pipeline, backend, dsn):
    handle = starting.start(pipeline, job_of(dsn), backend, "somebody").handle
    wait_until(lambda: status(pipeline, "orders", backend).status == "running")

    run._end(Attendance(pipeline, backend, job_of(dsn), "me"), handle)

    assert backend.status(handle).state is JobState.RUNNING
    assert Control(pipeline, "orders").read().desired == "running"
