"""What the journeys on clusters share: an environment that travels, a launcher that goes, kills."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context, deferred
from tests.architecture.probe import CHECKOUT
from tests.control.bench import DOCUMENT as BENCH_DOCUMENT
from tests.engine.scripted_run import DOCUMENT, NAME
from tests.servers import postgres, spark
from tests.servers.process import HOST
from tests.waiting import wait_for

SECRET = "planted-5e2d7b"
PATIENCE_S = 240.0

WORKER = """
import sys, time
from airflow.sdk.exceptions import TaskDeferred
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context

task = DeltaForgeStreamOperator(task_id="stream", document="orders.yaml", master=sys.argv[1])
try:
    task.execute(context())
except TaskDeferred:
    print("deferred", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def state_server(tmp_path_factory):
    """A PostgreSQL for the state of pipelines."""
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.discard()


@pytest.fixture
def database(state_server):
    """The address of an empty database for one test's state."""
    name = postgres.new_database(state_server)
    return f"postgresql://postgres:{SECRET}@{HOST}:{state_server.port}/{name}"


def connection_of(server, database, extra):
    """Return Airflow's connection to a state store, as JSON."""
    login = {"login": "postgres", "password": SECRET, "host": HOST, "port": server.port}
    schema = database.rpartition("/")[2]
    return json.dumps({"conn_type": "deltaforge", "schema": schema, **login, "extra": extra})


def launched_and_gone(directory, master, connection, run, printed, variables=None):
    """Launch from a worker of Airflow that dies, and whose directory goes, once it streams.

    Args:
        directory: its own, and all that it has.
        master: of Spark.
        connection: of Airflow, as JSON.
        run: the scripted pipeline.
        printed: returns what drivers printed, for the error when nothing streams.
        variables: further ones of the worker.
    """
    directory.mkdir()
    (directory / "orders.yaml").write_text(parameterised(run))
    names = ("PATH", "LANG", "JAVA_HOME")
    environment = {
        **{name: os.environ[name] for name in names if name in os.environ},
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "AIRFLOW_HOME": str(directory / "airflow"),
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": connection,
        "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
        "PYTHONPATH": str(CHECKOUT),
        "OUTPUT": str(run.directory),  # Named by the document, and known to nobody on the cluster.
        **(variables or {}),
    }
    with (directory / "log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, master],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        output = directory / "log"
        wait_for(
            "the launch",
            lambda: "deferred" in output.read_text() or worker.poll() is not None,
            PATIENCE_S,
        )
        assert worker.poll() is None, output.read_text()[-3000:]
        wait_for("the stream", lambda: events_of(run) > 300, PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{printed()}") from error
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        shutil.rmtree(directory)
    events = events_of(run)
    wait_for("the stream without its launcher", lambda: events_of(run) > events + 300, PATIENCE_S)
    assert not directory.exists()
    assert cwd_below(directory) == []


def adopted_elsewhere(run, master, connection, directory, monkeypatch):
    """Go on as another host of Airflow: it has the connection and the document, and nothing else.

    Returns:
        (the operator, the context of its task, the trigger it defers to).
    """
    record = run.control.read()
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    (directory / "second.yaml").write_text(parameterised(run))
    monkeypatch.setenv("OUTPUT", str(run.directory))
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(directory / "second.yaml"), master=master
    )
    attempt = context(2)
    trigger = deferred(lambda: task.execute(attempt))
    adopted = run.control.read()
    assert (adopted.generation, adopted.handle) == (record.generation, record.handle)
    assert adopted.owner != record.owner
    assert trigger.look()[0] is None
    assert DeltaForgeHook().get_status(NAME).status == "running"
    return task, attempt, trigger


def killed_and_restarted(kill, identity, run, task, trigger, attempt):
    """Kill the driver; the trigger sees it, and the task starts another one.

    Args:
        kill: ends it as a host that runs out of memory does.
        identity: what tells handles of two submissions apart.
        run: the scripted pipeline.
        task: the operator that adopted it.
        trigger: which it defers to.
        attempt: the task's context.
    """
    record = run.control.read()
    kill()
    wait_for("the death", lambda: trigger.look()[0] is not None, PATIENCE_S)
    event = trigger.look()[0].payload
    assert (event["event"], event["exit_code"]) == ("ended", None)
    waiting = deferred(lambda: task.execute_complete(attempt, event))
    assert waiting.resubmit_at_ms is not None
    again = {**waiting.watch, "event": "resubmit"}
    deferred(lambda: task.execute_complete(attempt, again))
    restarted = run.control.read()
    assert restarted.generation == record.generation
    assert restarted.handle[identity] != record.handle[identity]
    wait_for("the stream again", lambda: DeltaForgeHook().get_status(NAME).is_ready, PATIENCE_S)
    at = lines_of(run)
    wait_for("more events", lambda: lines_of(run) > at + 300, PATIENCE_S)
    return restarted


def stopped_in_order(run, start, handle):
    """Stop the stream from Airflow; nothing of it is missing then."""
    hook = DeltaForgeHook()
    hook.stop(NAME)
    backend = hook.backend()
    wait_for("its end", lambda: backend.status(handle).state is JobState.ENDED, 60)
    assert backend.status(handle).exit_code == 0
    assert hook.get_status(NAME).status == "stopped"
    run.close_log()
    assert run.judge(start) == []


def copied(master, connection, directory, monkeypatch):
    """Take a snapshot on the cluster by a task that waits for it."""
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    document = DOCUMENT.format(
        name="copied",
        transactions=40,
        rate=400,
        snapshot="initial",
        processors="",
        journal="",
        policy="",
        more="",
        window=600,
        batch="max_events: 30, max_ms: 20",
        started_ms=int(time.time() * 1000) - 300,
        directory=directory,
    )
    (directory / "copied.yaml").write_text(document)
    task = DeltaForgeSnapshotOperator(
        task_id="copy", document=str(directory / "copied.yaml"), master=master, deferrable=False
    )
    attempt = context()
    for place in ("operators.snapshot", "triggers.snapshot"):  # Airflow keeps Variables: not here.
        monkeypatch.setattr(f"airflow_provider_deltaforge.{place}.publish", {}.__setitem__)
    counts = task.execute(attempt)
    assert counts["finished"], counts
    handle = attempt["pushed"]["driver"]
    backend = DeltaForgeHook().backend()
    wait_for("its end", lambda: backend.status(handle).state is JobState.ENDED, PATIENCE_S)
    assert backend.status(handle).exit_code == 0
    assert (directory / "out.jsonl").read_bytes().count(b"\n") > 0


def failed_without_the_package(master, connection, directory, monkeypatch):
    """Start a stream with an interpreter that lacks the package.

    Returns:
        (what the task fails with, the handle of the driver).
    """
    other = directory / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    settings = json.loads(connection)
    settings["extra"].pop("spark_archive", None)
    settings["extra"]["spark_python"] = str(other / "bin" / "python")
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(settings))
    (directory / "lacking.yaml").write_text(BENCH_DOCUMENT)
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(directory / "lacking.yaml"), master=master, restarts_max=0
    )
    attempt = context()
    trigger = deferred(lambda: task.execute(attempt))
    wait_for("its end", lambda: trigger.look()[0] is not None, PATIENCE_S)
    with pytest.raises(AirflowFailException) as failed:
        task.execute_complete(attempt, trigger.look()[0].payload)
    return str(failed.value), attempt["pushed"]["driver"]


def holders_of_the_secret(pids, kinds):
    """Return the kinds of processes that have the password of the store in their environment.

    Args:
        pids: the processes.
        kinds: by what a command line holds.
    """
    found = set()
    for pid in pids:
        try:
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except OSError:
            continue
        if SECRET in environment:
            line = spark.command_line(pid)
            found.add(next((kind for mark, kind in kinds.items() if mark in line), line))
    return found


def command_lines_with_the_secret():
    lines = [spark.command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    return [f"process {line}" for line in lines if SECRET in line]


def parameterised(run):
    return run.document.replace(f'"{run.directory}/out.jsonl"', '"${OUTPUT}/out.jsonl"')


def events_of(run):
    progress = run.control.progress()
    return progress.events if progress else 0


def lines_of(run):
    return run.output.read_bytes().count(b"\n") if run.output.exists() else 0


def cwd_below(directory):
    """Return the processes that work in a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            place = process.cwd()
        except psutil.Error:
            continue
        if place.startswith(str(directory)):
            found.append(process.pid)
    return found


def content(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, PermissionError):
        return b""
