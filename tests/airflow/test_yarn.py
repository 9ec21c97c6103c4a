"""A stream on a YARN cluster that shares no file, environment or process with Airflow.

The package travels as an archive. Airflow's worker is killed and its directory removed; another one
adopts the stream, sees its container die, starts it again and stops it.
"""

import os
import re
import signal
import tarfile
import urllib.request

import pytest

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from tests.airflow import clusters
from tests.airflow.clusters import SECRET, content
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.servers import spark, yarn
from tests.servers.cluster_python import cluster_python
from tests.servers.process import family
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

HOLDERS = {"deltaforge/bin/python -m pyspark.daemon": "executor"}
"""Of the store's password as a variable: processes by what their command lines hold."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """An environment with the wheel, packed: what hosts of Airflow hand to YARN's nodes."""
    place = tmp_path_factory.mktemp("packed")
    python = cluster_python(place)
    packed = place / "deltaforge.tar.gz"
    with tarfile.open(packed, "w:gz") as file:
        file.add(python.parent.parent, ".")
    return f"file://{packed}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    place = tmp_path_factory.mktemp("cluster")
    running = yarn.start(place)
    yarn.start_node(running, place / "node")
    yield running
    running.stop()


@pytest.fixture
def connection(cluster, state_server, database, archive, tmp_path):
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
    return clusters.connection_of(state_server, database, extra)


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
    start = run.begin()
    first = tmp_path / "first"
    clusters.launched_and_gone(
        first, "yarn", connection, run, printed=lambda: driver_output(cluster)
    )

    task, attempt, trigger = clusters.adopted_elsewhere(
        run, "yarn", connection, tmp_path, monkeypatch
    )

    adopted = run.control.read()
    assert attempt["pushed"]["driver"]["application_id"].startswith("application_")
    log = log_tail(run.store, NAME, DeltaForgeHook().backend(), 50)
    assert any("the pipeline is running" in line for line in log["lines"])
    assert log["at_ms"] is not None
    holders, leaks = places_of_the_secret(cluster, tmp_path, adopted.handle)
    assert leaks == []
    assert holders == {"nmPrivate", "container_tokens"}
    started_with = clusters.holders_of_the_secret(family(cluster.nodes[0].pid), HOLDERS)
    assert started_with <= {"executor"}

    restarted = clusters.killed_and_restarted(
        lambda: kill_driver(cluster), "application_id", run, task, trigger, attempt
    )

    clusters.stopped_in_order(run, start, restarted.handle)
    wait_for(
        "the node to forget",
        lambda: places_of_the_secret(cluster, tmp_path, restarted.handle) == (set(), []),
        60,
    )


def test_a_snapshot_is_taken_on_the_cluster(cluster, connection, tmp_path, monkeypatch):
    clusters.copied("yarn", connection, tmp_path, monkeypatch)


def test_a_package_that_is_missing_is_explained_by_the_log_of_its_container(
    cluster, connection, tmp_path, monkeypatch
):
    words, handle = clusters.failed_without_the_package("yarn", connection, tmp_path, monkeypatch)

    assert "YARN says FAILED; application_" in words
    assert "No module named 'airflow_provider_deltaforge'" in words
    assert "LogType" not in words
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


def places_of_the_secret(cluster, tmp_path, handle):
    """Return where the store's password can be read: the files that may hold it, and all else.

    All else: command lines, other files, and pages and answers of YARN.
    """
    leaks = clusters.command_lines_with_the_secret()
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
