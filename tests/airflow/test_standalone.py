"""A stream on a Spark cluster that shares no file, environment or process with Airflow.

The cluster's Python is an environment of its own, with the wheel in it. Airflow's worker is killed
and its directory removed; another one adopts the stream, sees its driver die, starts it again and
stops it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow import clusters
from tests.airflow.bench import context, deferred
from tests.airflow.clusters import (
    PATIENCE_S,
    SECRET,
    content,
    cwd_below,
    events_of,
    killed_and_restarted,
    launched_and_gone,
    lines_of,
    parameterised,
)
from tests.control.bench import DOCUMENT as BENCH_DOCUMENT
from tests.engine.scripted_run import DOCUMENT, NAME, ScriptedRun
from tests.servers import postgres, spark
from tests.servers.process import HOST, family, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster_python(tmp_path_factory):
    return clusters.cluster_python(tmp_path_factory.mktemp("opt"))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("cluster")
    running = spark.start(place, **host(place / "worker"), rest_port=free_port())
    yield running
    running.stop()


def host(directory):
    """Return what a host of the cluster offers, and what its processes find there."""
    environment = {"PYTHONPATH": "", "SPARK_LOCAL_DIRS": str(directory / "local")}
    return {"cores": 4, "memory": "4g", "worker_environment": environment}


@pytest.fixture
def database(store):
    return clusters.database(store)


@pytest.fixture
def connection(cluster, store, database, cluster_python, tmp_path):
    """The connection as every host of Airflow has it."""
    events = tmp_path / "events"
    events.mkdir()
    extra = {
        "launch_backend": "standalone",
        "spark_python": str(cluster_python),
        "spark_rest_url": cluster.rest_url,
        "spark_conf": {
            "spark.cores.max": "1",
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": True,
            "spark.eventLog.compress": False,
            "spark.eventLog.dir": f"file://{events}",
        },
    }
    login = {"login": "postgres", "password": SECRET, "host": HOST, "port": store.port}
    schema = database.rpartition("/")[2]
    return json.dumps({"conn_type": "deltaforge", "schema": schema, **login, "extra": extra})


@pytest.fixture
def run(database, cluster, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    made = ScriptedRun(output, master=cluster.url, transactions=0, rate=100, dsn=database)
    yield made
    made.close()


def test_a_stream_outlives_the_worker_that_launched_it(
    cluster, connection, run, tmp_path, monkeypatch
):
    start, first = run.begin(), tmp_path / "first"
    launched_and_gone(first, cluster.url, connection, run, printed=lambda: driver_output(cluster))
    events = events_of(run)
    record = run.control.read()
    wait_for("the stream without its launcher", lambda: events_of(run) > events + 300, PATIENCE_S)
    assert not first.exists()
    assert cwd_below(first) == []

    # Another host of Airflow: it has the connection and the document, and nothing else.
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    (tmp_path / "second.yaml").write_text(parameterised(run))
    monkeypatch.setenv("OUTPUT", str(run.directory))
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(tmp_path / "second.yaml"), master=cluster.url
    )
    attempt = context(2)
    trigger = deferred(lambda: task.execute(attempt))
    adopted = run.control.read()
    hook = DeltaForgeHook()
    assert adopted.generation == record.generation
    assert adopted.handle == record.handle
    assert adopted.owner != record.owner
    assert attempt["pushed"]["driver"]["submission_id"].startswith("driver-")
    assert trigger.look()[0] is None
    assert hook.get_status(NAME).status == "running"
    log = log_tail(run.store, NAME, hook.backend(), 50)
    assert log["lines"]
    assert log["host"]

    leaks = leaked(cluster, tmp_path / "events", adopted.handle)
    assert leaks == []
    assert holders_of_the_secret(cluster) == {"jvm", "driver", "executor"}

    restarted = killed_and_restarted(
        lambda: kill_driver(cluster), "submission_id", run, task, trigger, attempt
    )

    hook.stop(NAME)

    backend = hook.backend()
    wait_for("its end", lambda: backend.status(restarted.handle).state is JobState.ENDED, 60)
    assert backend.status(restarted.handle).exit_code == 0
    assert hook.get_status(NAME).status == "stopped"
    run.close_log()
    assert run.judge(start) == []
    assert leaked(cluster, tmp_path / "events", restarted.handle) == []


def test_a_snapshot_is_taken_on_the_cluster(cluster, connection, tmp_path, monkeypatch):
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
        directory=tmp_path,
    )
    (tmp_path / "copied.yaml").write_text(document)
    task = DeltaForgeSnapshotOperator(
        task_id="copy",
        document=str(tmp_path / "copied.yaml"),
        master=cluster.url,
        deferrable=False,
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
    assert (tmp_path / "out.jsonl").read_bytes().count(b"\n") > 0


def test_a_package_that_is_missing_is_found_on_the_worker_that_the_error_names(
    cluster, connection, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    settings = json.loads(connection)
    settings["extra"]["spark_python"] = str(other / "bin" / "python")
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(settings))
    (tmp_path / "lacking.yaml").write_text(BENCH_DOCUMENT)
    task = DeltaForgeStreamOperator(
        task_id="stream",
        document=str(tmp_path / "lacking.yaml"),
        master=cluster.url,
        restarts_max=0,
    )
    attempt = context()
    trigger = deferred(lambda: task.execute(attempt))
    wait_for("its end", lambda: trigger.look()[0] is not None, PATIENCE_S)

    with pytest.raises(AirflowFailException, match=r"Spark says FAILED; driver-\S+ on worker-"):
        task.execute_complete(attempt, trigger.look()[0].payload)

    submission = attempt["pushed"]["driver"]["submission_id"]
    printed = cluster.worker.directory / "work" / submission / "stderr"
    assert "deltaforge_stream_job.py" in printed.read_text()


def test_a_stream_goes_on_when_its_host_is_lost(
    cluster, connection, database, tmp_path, monkeypatch
):
    run = ScriptedRun(tmp_path, master=cluster.url, transactions=0, rate=100, dsn=database)
    start = run.begin()
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    (tmp_path / "orders.yaml").write_text(run.document)
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(tmp_path / "orders.yaml"), master=cluster.url
    )
    attempt = context()
    trigger = deferred(lambda: task.execute(attempt))
    wait_for("the stream", lambda: lines_of(run) > 300, PATIENCE_S)
    offer = host(tmp_path / "spare")
    environment = offer.pop("worker_environment")
    spare = spark.start_worker(tmp_path / "spare", cluster.master, environment=environment, **offer)
    try:
        for pid in family(cluster.worker.pid):
            os.kill(pid, signal.SIGKILL)
        lost = lines_of(run)
        until = time.monotonic() + PATIENCE_S
        while lines_of(run) < lost + 300:
            assert time.monotonic() < until, DeltaForgeHook().get_status(NAME)
            # As the triggerer does: what the trigger fires is the task's next word.
            event, _ = trigger.look()
            if event is not None:
                trigger = deferred(lambda told=event: task.execute_complete(attempt, told.payload))
                while trigger.resubmit_at_ms is not None:
                    event = {**trigger.watch, "event": "resubmit"}
                    trigger = deferred(lambda told=event: task.execute_complete(attempt, told))
            time.sleep(1)

        DeltaForgeHook().stop(NAME)

        run.close_log()
        assert run.judge(start) == []
        assert len(run.control.read().restarts) <= 3
    finally:
        run.close()
        spare.stop(10)


def driver_output(cluster):
    outputs = sorted(cluster.worker.directory.glob("work/driver-*/std*"))
    return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in outputs)


def kill_driver(cluster):
    """Kill the JVM of the driver, as a host that runs out of memory does."""
    [jvm] = [
        pid for pid in family(cluster.worker.pid) if "DriverWrapper" in spark.command_line(pid)
    ]
    os.kill(jvm, signal.SIGKILL)


def holders_of_the_secret(cluster):
    """Return the kinds of processes that have the password of the store in their environment."""
    kinds = {
        "DriverWrapper": "jvm",
        "deltaforge_stream_job": "driver",
        "python_streaming_source_runner": "driver",
        "pyspark.daemon": "executor",
    }
    found = set()
    for pid in family(cluster.worker.pid):
        try:
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except OSError:
            continue
        if SECRET in environment:
            line = spark.command_line(pid)
            found.add(next((kind for mark, kind in kinds.items() if mark in line), line))
    return found


def leaked(cluster, events, handle):
    """Return where the store's password can be read: command lines, files, pages and answers."""
    lines = [spark.command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    found = [f"process {line}" for line in lines if SECRET in line]
    files = [
        path
        for place in (cluster.master.directory, cluster.worker.directory, events)
        for path in place.rglob("*")
        if path.is_file()
    ]
    assert any(path.name == "stderr" for path in files)
    found += [f"file {path}" for path in files if SECRET.encode() in content(path)]
    for url in (*pages(cluster), f"{cluster.rest_url}/v1/submissions/status/{driver_id(handle)}"):
        with urllib.request.urlopen(url, timeout=30) as answer:
            if SECRET in answer.read().decode():
                found.append(f"page {url}")
    return found


def driver_id(handle):
    return handle["submission_id"]


def pages(cluster):
    """Return the pages of master and worker, and what they answer as JSON."""
    [master] = re.findall(r"MasterWebUI.*started at (\S+)", cluster.master.log_tail(10_000))
    [worker] = re.findall(r"WorkerWebUI.*started at (\S+)", cluster.worker.log_tail(10_000))
    return [f"{base}/{page}" for base in (master, worker) for page in ("", "json/")]
