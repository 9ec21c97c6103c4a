"""What the journeys on clusters share: an environment that travels, a launcher that goes, kills."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg

from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from tests.airflow.bench import deferred
from tests.architecture.probe import CHECKOUT
from tests.engine.scripted_run import NAME
from tests.servers.process import HOST
from tests.waiting import wait_for

SECRET = "planted-5e2d7b"
PATIENCE_S = 240.0

WORKER = """
import sys, time
from airflow.sdk.exceptions import TaskDeferred
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context

task = DeltaForgeStreamOperator(task_id="stream", document="orders.yaml", master=sys.argv[1])
try:
    task.execute(context())
except TaskDeferred:
    print("deferred", flush=True)
time.sleep(3600)
"""


def cluster_python(place):
    """Return the interpreter of an environment that has the wheel, and of ours what it needs."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, check=True, cwd=CHECKOUT, capture_output=True)
    [wheel] = place.glob("*.whl")
    home = place / "deltaforge"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True)
    [site] = home.glob("lib/python*/site-packages")
    # A line of a .pth file is a path, and the .pth files there are not read: nor is our checkout.
    ours = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{ours}\n")
    return python


def database(store):
    """Return the address of an empty database for one test's state."""
    name = f"state_{secrets.token_hex(4)}"
    with psycopg.connect(store.dsn("postgres"), autocommit=True) as administration:
        administration.execute(f"CREATE DATABASE {name}")
    return f"postgresql://postgres:{SECRET}@{HOST}:{store.port}/{name}"


def launched_and_gone(directory, master, connection, run, printed):
    """Launch from a worker of Airflow that dies, and whose directory goes, once it streams.

    Args:
        directory: its own, and all that it has.
        master: of Spark.
        connection: of Airflow, as JSON.
        run: the scripted pipeline.
        printed: returns what drivers printed, for the error when nothing streams.
    """
    directory.mkdir()
    (directory / "orders.yaml").write_text(parameterised(run))
    bare = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    environment = {
        **bare,
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "AIRFLOW_HOME": str(directory / "airflow"),
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": connection,
        "AIRFLOW__CORE__EXECUTOR": "KubernetesExecutor",
        "PYTHONPATH": str(CHECKOUT),
        "OUTPUT": str(run.directory),  # Named by the document, and known to nobody on the cluster.
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
        told = directory / "log"
        wait_for(
            "the launch",
            lambda: "deferred" in told.read_text() or worker.poll() is not None,
            PATIENCE_S,
        )
        assert worker.poll() is None, told.read_text()[-3000:]
        wait_for("the stream", lambda: events_of(run) > 300, PATIENCE_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{printed()}") from error
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        shutil.rmtree(directory)


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
    except FileNotFoundError:
        return b""
