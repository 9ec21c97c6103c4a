"""A stream on Kubernetes that outlives its worker, and is adopted, restarted and stopped.

As ``test_kubernetes``; a played kubelet starts what the pods say as processes of this machine.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from tests.airflow import clusters
from tests.airflow.pods import IMAGE, NAMESPACE, leaked
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.servers import kubernetes, spark
from tests.servers.cluster_python import cluster_python
from tests.servers.played_kubelet import PlayedKubelet
from tests.servers.process import family

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

HOLDERS = {
    "KubernetesExecutorBackend": "jvm",
    "SparkSubmit": "jvm",
    "deltaforge_stream_job": "driver",
    "pyspark.daemon": "executor",
    "tini": "jvm",
}
"""Of the store's password as a variable: processes by what their command lines hold."""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """What an image for pods has at /opt/deltaforge, made of parts of this machine."""
    place = tmp_path_factory.mktemp("image")
    home = cluster_python(place).parent.parent
    ours = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (home / "spark").symlink_to(ours / "pyspark")
    written = place / "written"
    deltaforge = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]
    subprocess.run([*deltaforge, "image", str(written), "--host", "kubernetes"], check=True)
    shutil.copy(written / "entrypoint.sh", home / "entrypoint.sh")
    return home


@pytest.fixture(scope="module")
def node(plane, image, tmp_path_factory):
    assert kubernetes.unshares(), "the played kubelet needs mount namespaces: run as root"
    assert shutil.which("tini"), "apt-get install tini"
    kubelet = PlayedKubelet(plane, tmp_path_factory.mktemp("node"), {IMAGE: image}).start()
    yield kubelet
    kubelet.stop()


@pytest.fixture
def run(database, plane, tmp_path):
    output = tmp_path / "output"
    output.mkdir()
    made = ScriptedRun(output, master=f"k8s://{plane.url}", transactions=0, rate=100, dsn=database)
    yield made
    made.close()


@pytest.fixture
def connection(plane, state_server, database):
    """The connection as every host of Airflow has it."""
    local = "spark.kubernetes.{}.volumes.emptyDir.spark-local-dir-1.mount.path"
    extra = {
        "launch_backend": "kubernetes",
        "kubernetes_image": IMAGE,
        "kubernetes_namespace": NAMESPACE,
        "spark_conf": {
            # What a cluster's own name service would say, and a writable place of the pod.
            "spark.kubernetes.driver.master": plane.url,
            "spark.kubernetes.executor.useDriverPodIP": True,
            **{local.format(role): "/opt/local" for role in ("driver", "executor")},
        },
    }
    return clusters.connection_of(state_server, database, extra)


def test_a_stream_outlives_its_worker_and_is_adopted_restarted_stopped(
    plane, node, worker, connection, run, tmp_path, monkeypatch
):
    start = run.begin()
    clusters.launched_and_gone(
        tmp_path / "first",
        run.master,
        connection,
        run,
        printed=lambda: "\n".join(pod.log.read_text()[-3000:] for pod in node.runs.values()),
        variables={"KUBECONFIG": str(worker)},
    )

    task, attempt, trigger = clusters.adopted_elsewhere(
        run, run.master, connection, tmp_path, monkeypatch
    )

    log = log_tail(run.store, NAME, DeltaForgeHook().backend(), 50)
    assert log["lines"]
    assert log["host"] == run.control.read().handle["pod"]
    assert leaked(plane, node) == []
    holders = clusters.holders_of_the_secret(processes(node), HOLDERS)
    assert holders == {"jvm", "driver", "executor"}

    restarted = clusters.killed_and_restarted(
        lambda: kill_driver(node), "uid", run, task, trigger, attempt
    )

    clusters.stopped_in_order(run, start, restarted.handle)
    assert leaked(plane, node) == []


def processes(node):
    return [
        pid
        for run in node.runs.values()
        if run.process.poll() is None
        for pid in family(run.process.pid)
    ]


def kill_driver(node):
    """Kill the JVM of the driver, as a host that runs out of memory does."""
    lines = {pid: spark.command_line(pid) for pid in processes(node)}
    [jvm] = [
        pid
        for pid, line in lines.items()
        if "/java" in line.partition(" ")[0] and "deltaforge_stream_job.py" in line
    ]
    os.kill(jvm, signal.SIGKILL)
