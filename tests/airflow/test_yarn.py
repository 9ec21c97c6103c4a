"""A stream on a YARN cluster that shares no file, environment or process with Airflow.

The package travels as an archive. Airflow's worker is killed and its directory removed; another one
adopts the stream, sees its container die, starts it again and stops it.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
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
    parameterised,
)
from tests.control.bench import DOCUMENT as BENCH_DOCUMENT
from tests.engine.scripted_run import DOCUMENT, NAME, ScriptedRun
from tests.servers import postgres, spark, yarn
from tests.servers.process import HOST, family
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An environment with the wheel, packed: what hosts of Airflow hand to YARN's nodes."""
    place = tmp_path_factory.mktemp("packed")
    python = clusters.cluster_python(place)
    packed = place / "deltaforge.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        file.add(python.parent.parent, ".")
    return f"file://{packed}"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("cluster")
    running = yarn.start(place)
    yarn.start_node(running, place / "node")
    yield running
    running.stop()


@pytest.fixture
def database(store):
    return clusters.database(store)


@pytest.fixture
def connection(cluster, store, database, archive, tmp_path):
    """The connection as every host of Airflow has it."""
    (tmp_path / "events").mkdir()
    extra = {
        "launch_backend": "yarn",
        "yarn_rest_url": cluster.url,
        "hadoop_conf_dir": str(cluster.conf),
        "spark_archive": archive,
        "spark_conf": {
            # Else the whole of Spark is uploaded, and kept in /root.
            "spark.yarn.jars": f"local:{spark.spark_home()}/jars/*",
            "spark.yarn.stagingDir": f"file://{tmp_path}/staging",
            "spark.executor.cores": "1",
            "spark.eventLog.enabled": True,
            "spark.eventLog.compress": False,
            "spark.eventLog.dir": f"file://{tmp_path}/events",
        },
    }
    login = {"login": "postgres", "password": SECRET, "host": HOST, "port": store.port}
    schema = database.rpartition("/")[2]
    return json.dumps({"conn_type": "deltaforge", "schema": schema, **login, "extra": extra})


@pytest.fixture
def run(database, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    made = ScriptedRun(output, master="yarn", transactions=0, rate=100, dsn=database)
    yield made
    made.close()


def test_a_stream_outlives_the_worker_that_launched_it(
    cluster, connection, run, tmp_path, monkeypatch
):
    start, first = run.begin(), tmp_path / "first"
    launched_and_gone(first, "yarn", connection, run, printed=lambda: driver_output(cluster))
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
        task_id="stream", document=str(tmp_path / "second.yaml"), master="yarn"
    )
    attempt = context(2)
    trigger = deferred(lambda: task.execute(attempt))
    adopted = run.control.read()
    hook = DeltaForgeHook()
    assert adopted.generation == record.generation
    assert adopted.handle == record.handle
    assert adopted.owner != record.owner
    assert attempt["pushed"]["driver"]["application_id"].startswith("application_")
    assert trigger.look()[0] is None
    assert hook.get_status(NAME).status == "running"
    log = log_tail(run.store, NAME, hook.backend(), 50)
    assert any("the pipeline is running" in line for line in log["lines"])
    assert log["at_ms"] is not None

    holders, leaks = places_of_the_secret(cluster, tmp_path, adopted.handle)
    assert leaks == []
    assert holders == {"nmPrivate", "container_tokens"}
    assert holders_of_the_secret(cluster) <= {"executor"}

    restarted = killed_and_restarted(
        lambda: kill_driver(cluster), "application_id", run, task, trigger, attempt
    )

    hook.stop(NAME)

    backend = hook.backend()
    wait_for("its end", lambda: backend.status(restarted.handle).state is JobState.ENDED, 60)
    assert backend.status(restarted.handle).exit_code == 0
    assert hook.get_status(NAME).status == "stopped"
    run.close_log()
    assert run.judge(start) == []
    wait_for(
        "the node to forget",
        lambda: places_of_the_secret(cluster, tmp_path, restarted.handle) == (set(), []),
        60,
    )


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
        task_id="copy", document=str(tmp_path / "copied.yaml"), master="yarn", deferrable=False
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


def test_a_package_that_is_missing_is_explained_by_the_log_of_its_container(
    cluster, connection, tmp_path, monkeypatch
):
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    settings = json.loads(connection)
    del settings["extra"]["spark_archive"]
    settings["extra"]["spark_python"] = str(other / "bin" / "python")
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(settings))
    (tmp_path / "lacking.yaml").write_text(BENCH_DOCUMENT)
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(tmp_path / "lacking.yaml"), master="yarn", restarts_max=0
    )
    attempt = context()
    trigger = deferred(lambda: task.execute(attempt))
    wait_for("its end", lambda: trigger.look()[0] is not None, PATIENCE_S)

    with pytest.raises(AirflowFailException) as failed:
        task.execute_complete(attempt, trigger.look()[0].payload)

    words = str(failed.value)
    assert "YARN says FAILED; application_" in words
    assert "No module named 'airflow_provider_deltaforge'" in words
    assert "LogType" not in words
    handle = attempt["pushed"]["driver"]
    assert DeltaForgeHook().backend().status(handle).state is JobState.ENDED


def driver_output(cluster):
    outputs = sorted(cluster.nodes[0].directory.glob("logs/*/*/std*"))
    return "\n".join(f"{path}:\n{path.read_text()[-3000:]}" for path in outputs)


def kill_driver(cluster):
    """Kill the JVM of the driver, as a host that runs out of memory does."""
    [jvm] = [
        pid
        for pid in family(cluster.nodes[0].pid)
        if re.match(r"\S*java ", line := spark.command_line(pid)) and "ApplicationMaster" in line
    ]
    os.kill(jvm, signal.SIGKILL)


def holders_of_the_secret(cluster):
    """Return the kinds of processes that were started with the store's password as a variable."""
    kinds = {
        "deltaforge/bin/python -m pyspark.daemon": "executor",
        "python_streaming_source_runner": "driver",
    }
    found = set()
    for pid in family(cluster.nodes[0].pid):
        try:
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except OSError:
            continue
        if SECRET in environment:
            line = spark.command_line(pid)
            found.add(next((kind for mark, kind in kinds.items() if mark in line), line))
    return found


def places_of_the_secret(cluster, tmp_path, handle):
    """Return where the store's password can be read: the files that may hold it, and all else.

    All else: command lines, other files, and pages and answers of YARN.
    """
    lines = [spark.command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    leaks = [f"process {line}" for line in lines if SECRET in line]
    places = (cluster.manager.directory, cluster.nodes[0].directory, cluster.conf)
    files = [
        path
        for place in (*places, tmp_path / "staging", tmp_path / "events")
        for path in place.rglob("*")
        if path.is_file()
    ]
    assert any(path.name == "stdout" for path in files)
    holders = set()
    for path in files:
        if SECRET.encode() not in content(path):
            continue
        if path.name != "container_tokens" and "nmPrivate" not in path.parts:
            leaks.append(f"file {path}")
        elif others_can_read(path, cluster.nodes[0].directory / "local"):
            leaks.append(f"file {path}, which others can read")
        else:
            holders.add(path.name if path.name == "container_tokens" else "nmPrivate")
    for url in pages(cluster, handle):
        with urllib.request.urlopen(url, timeout=30) as answer:
            if SECRET in answer.read().decode():
                leaks.append(f"page {url}")
    return holders, leaks


def others_can_read(path, local):
    """Return whether a file, and each directory between it and the node's own, is open to all."""
    between = [place for place in path.parents if local in place.parents]
    return bool(path.stat().st_mode & 0o004) and all(
        place.stat().st_mode & 0o001 for place in between
    )


def pages(cluster, handle):
    """Return what manager and node show of an application, to people and as JSON."""
    identity = handle["application_id"]
    manager = (
        "cluster/apps",
        f"cluster/app/{identity}",
        "conf",
        "ws/v1/cluster/apps",
        f"ws/v1/cluster/apps/{identity}",
        f"ws/v1/cluster/apps/{identity}/appattempts",
    )
    node = (
        "node/allApplications",
        "node/allContainers",
        "ws/v1/node/apps",
        "ws/v1/node/containers",
    )
    return [
        *(f"{cluster.url}/{page}" for page in manager),
        *(f"{cluster.nodes[0].url}/{page}" for page in (*node, "conf")),
    ]
