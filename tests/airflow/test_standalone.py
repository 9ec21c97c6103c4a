"""A stream on a Spark cluster that shares no file, environment or process with Airflow.

The cluster's Python is an environment of its own, with the wheel in it. Airflow's worker is killed
and its directory removed; another one adopts the stream, sees its driver die, starts it again and
stops it.
"""

import os
import re
import signal
import time
import urllib.request

import pytest

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow import clusters
from tests.airflow.bench import context, deferred
from tests.airflow.clusters import PATIENCE_S, SECRET, content, lines_of
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.servers import spark
from tests.servers.cluster_python import cluster_python
from tests.servers.process import family, free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

HOLDERS = {"DriverWrapper": "jvm", "deltaforge_stream_job": "driver", "pyspark.daemon": "executor"}
"""Of the store's password as a variable: processes by what their command lines hold."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return cluster_python(tmp_path_factory.mktemp("opt"))


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
def connection(cluster, state_server, database, python, tmp_path):
    """The connection as every host of Airflow has it."""
    events = tmp_path / "events"
    events.mkdir()
    extra = {
        "launch_backend": "standalone",
        "spark_python": str(python),
        "spark_rest_url": cluster.rest_url,
        "spark_conf": {
            "spark.cores.max": "1",
            "spark.executor.memory": "512m",
            "spark.eventLog.enabled": True,
            "spark.eventLog.compress": False,
            "spark.eventLog.dir": f"file://{events}",
        },
    }
    return clusters.connection_of(state_server, database, extra)


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
    start = run.begin()
    first = tmp_path / "first"
    clusters.launched_and_gone(
        first, cluster.url, connection, run, printed=lambda: driver_output(cluster)
    )

    task, attempt, trigger = clusters.adopted_elsewhere(
        run, cluster.url, connection, tmp_path, monkeypatch
    )

    adopted = run.control.read()
    assert attempt["pushed"]["driver"]["submission_id"].startswith("driver-")
    log = log_tail(run.store, NAME, DeltaForgeHook().backend(), 50)
    assert log["lines"]
    assert log["host"]
    assert leaked(cluster, tmp_path / "events", adopted.handle) == []
    holders = clusters.holders_of_the_secret(family(cluster.worker.pid), HOLDERS)
    assert holders == {"jvm", "driver", "executor"}

    restarted = clusters.killed_and_restarted(
        lambda: kill_driver(cluster), "submission_id", run, task, trigger, attempt
    )

    clusters.stopped_in_order(run, start, restarted.handle)
    assert leaked(cluster, tmp_path / "events", restarted.handle) == []


def test_a_snapshot_is_taken_on_the_cluster(cluster, connection, tmp_path, monkeypatch):
    clusters.copied(cluster.url, connection, tmp_path, monkeypatch)


def test_a_package_that_is_missing_is_found_on_the_worker_that_the_error_names(
    cluster, connection, tmp_path, monkeypatch
):
    words, handle = clusters.failed_without_the_package(
        cluster.url, connection, tmp_path, monkeypatch
    )

    assert re.search(r"Spark says FAILED; driver-\S+ on worker-", words)
    printed = cluster.worker.directory / "work" / driver_id(handle) / "stderr"
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


def leaked(cluster, events, handle):
    """Return where the store's password can be read: command lines, files, pages and answers."""
    found = clusters.command_lines_with_the_secret()
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
