"""Drivers on a real Kubernetes API server, with its scheduler and garbage collector.

Long, and only where DELTAFORGE_KUBERNETES names the programs of a Kubernetes release; without
them it fails, it is not skipped. There is no kubelet: pods stay as the scheduler leaves them, or
as the test says, or ``tests.servers.played_kubelet`` runs them as processes of this machine.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import yaml
from airflow.models import Connection

from airflow_provider_deltaforge.control.driver_log import log_tail
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.kubernetes.backend import KubernetesBackend
from airflow_provider_deltaforge.control.launching.kubernetes.settings import (
    JobNames,
    KubernetesSettings,
)
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.errors import AccessError, SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.bench import context, deferred
from tests.airflow.kubernetes_cluster import (
    NAMESPACE,
    SECRET,
    SECRETS,
    delete,
    holders_of_the_secret,
    image_of_this_machine,
    is_driver_jvm,
    leaked,
    left_behind,
    own_secrets,
    play,
    pod_named,
    processes,
)
from tests.architecture.probe import CHECKOUT
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.servers import kubernetes, postgres
from tests.servers.played_kubelet import PlayedKubelet
from tests.servers.process import HOST
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

STORE = f"postgresql://df:{SECRET}@{HOST}:9/deltaforge"
IMAGE = "registry.example.com/deltaforge-spark:1"
OPERATOR_CRD = "DELTAFORGE_SPARK_OPERATOR_CRD"
PATIENCE_S = 240.0
MERGE = "application/merge-patch+json"


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
def plane(tmp_path_factory):
    """A cluster with our manifests, and the namespace and accounts of Airflow's chart."""
    running = kubernetes.start(tmp_path_factory.mktemp("kubernetes") / "plane")
    try:
        airflow = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "airflow"}}
        running.apply(airflow)
        for account in ("worker", "triggerer", "api-server"):
            metadata = {"name": f"airflow-{account}", "namespace": "airflow"}
            running.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        for name in ("drivers.yaml", "launchers.yaml"):
            text = (CHECKOUT / "docs" / "kubernetes" / name).read_text()
            for document in yaml.safe_load_all(text):
                running.apply(document)
        yield running
    finally:
        running.stop()


@pytest.fixture
def worker(plane, tmp_path, monkeypatch):
    """This process as a pod of Airflow's workers, to the API server."""
    place = plane.kubeconfig(tmp_path / "kubeconfig", "airflow", "airflow-worker")
    monkeypatch.setenv("KUBECONFIG", str(place))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return place


@pytest.fixture
def backend(worker):
    extra = {"kubernetes_image": IMAGE, "kubernetes_namespace": NAMESPACE}
    return KubernetesBackend(KubernetesSettings.from_extra(extra), kill_grace_s=1)


def job_of(plane, pipeline="orders", generation=3):
    variables = {"MYSQL_DSN": f"mysql://u:{SECRET}@h/db"}
    master = f"k8s://{plane.url}"
    return LaunchSpec(pipeline, generation, "stream_job.py", STORE, master, environment=variables)


def test_a_driver_is_submitted_found_restarted_and_ended(plane, backend, tmp_path):
    job = job_of(plane)
    handle = json.loads(json.dumps(backend.submit(job)))

    assert SECRET not in str(handle)
    pod = pod_named(plane, handle["name"])
    assert pod["metadata"]["uid"] == handle["uid"]
    container = pod["spec"]["containers"][0]
    assert pod["spec"]["serviceAccountName"] == "deltaforge-driver"
    assert container["image"] == IMAGE
    references = {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]
        for variable in container["env"]
        if "secretKeyRef" in (variable.get("valueFrom") or {})
    }
    assert set(references) == {"MYSQL_DSN", "DELTAFORGE_STORE"}
    [secret] = own_secrets(plane, handle)
    assert {reference["name"] for reference in references.values()} == {secret["metadata"]["name"]}
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Pod", handle["uid"])
    assert leaked(plane) == []

    # Nothing of the first submitter is needed: the name alone finds the driver.
    assert backend.submit(job) == handle
    finder = LaunchBackends(LocalBackend(tmp_path), kubernetes=KubernetesBackend())
    wait_for("the scheduler", lambda: "Unschedulable" in str(finder.status(handle).detail))
    assert finder.status(handle).state is JobState.RUNNING

    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    play(plane, pod, "Failed", killed)
    ended = finder.status(handle)
    assert (ended.state, ended.exit_code) == (JobState.ENDED, None)
    assert "OOMKilled" in str(ended.detail)

    again = backend.submit(job)
    assert again["name"] == handle["name"]
    assert again["uid"] != handle["uid"]
    assert finder.status(handle).state is JobState.ENDED
    assert finder.status(again).state is JobState.RUNNING
    wait_for("the garbage collector", lambda: len(own_secrets(plane, again)) == 1)

    finder.stop(handle, 0)  # A later driver of its name is not its.
    assert finder.status(again).state is JobState.RUNNING
    finder.stop(again, 0)
    assert finder.status(again).state is JobState.ENDED
    assert "pod is gone" in str(finder.status(again).detail)
    wait_for("the garbage collector", lambda: left_behind(plane) == [], 120)


@pytest.mark.parametrize(
    ("phase", "state", "ends", "code", "said"),
    [
        ("Pending", {"waiting": {"reason": "ImagePullBackOff"}}, False, None, "cannot be pulled"),
        ("Running", {"running": {}}, False, None, "pod df-"),
        ("Succeeded", {"terminated": {"exitCode": 0, "reason": "Completed"}}, True, 0, "code 0"),
        ("Failed", {"terminated": {"exitCode": 4, "reason": "Error"}}, True, 4, "code 4"),
    ],
)
def test_what_the_api_server_keeps_of_a_pod_is_its_status(
    plane, backend, phase, state, ends, code, said
):
    """A played kubelet: the states are written into the status subresource."""
    handle = backend.submit(job_of(plane, f"phase-{phase.lower()}"))
    play(plane, pod_named(plane, handle["name"]), phase, state)
    status = backend.status(handle)
    assert (status.state is JobState.ENDED, status.exit_code) == (ends, code)
    assert said in str(status.detail)
    backend.stop(handle, 0) if not ends else delete(plane, handle["name"])


def test_a_secret_whose_submission_died_is_swept(plane, backend):
    first = job_of(plane, "swept", 1)
    cluster = backend.access.cluster()
    names = JobNames.of(first)
    orphan = cluster.create_secret(NAMESPACE, names.job, names.labels(), {"A": SECRET})
    handle = backend.submit(replace(first, generation=2))
    assert plane.ask("GET", f"{SECRETS}/{orphan}") is None
    backend.stop(handle, 0)


def test_an_account_that_may_not_is_named(plane, backend, tmp_path, monkeypatch):
    place = plane.kubeconfig(tmp_path / "other", "airflow", "default")
    monkeypatch.setenv("KUBECONFIG", str(place))
    with pytest.raises(AccessError, match=r"HTTP 403.*docs/kubernetes"):
        backend.submit(job_of(plane, "denied"))


def test_a_namespace_that_is_not_there_is_refused(plane, backend):
    elsewhere = replace(backend, settings=replace(backend.settings, namespace="nowhere"))
    with pytest.raises((AccessError, SpecError), match="nowhere"):
        elsewhere.submit(job_of(plane, "lost"))


def test_the_hook_of_airflows_provider_says_how_the_cluster_is_reached(plane, worker, monkeypatch):
    extra = {"kube_config": worker.read_text()}
    shop = Connection(conn_id="shop", conn_type="kubernetes", extra=json.dumps(extra))
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", shop.as_json())
    wanted = {
        "kubernetes_conn_id": "shop",
        "kubernetes_image": IMAGE,
        "kubernetes_namespace": NAMESPACE,
    }
    value = {
        "conn_type": "deltaforge",
        "host": HOST,
        "port": 9,
        "login": "df",
        "password": SECRET,
        "extra": {"launch_backend": "kubernetes", **wanted},
    }
    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", json.dumps(value))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    backends = DeltaForgeHook().backend()
    handle = backends.submit(job_of(plane, "by-hook"))
    assert backends.status(handle).state is JobState.RUNNING
    backends.stop(handle, 0)
    assert backends.status(handle).state is JobState.ENDED


def test_a_driver_by_the_spark_operator(plane, backend):
    """The definition is the operator's own, from a file that a variable names; none runs."""
    definition = os.environ.get(OPERATOR_CRD)
    assert definition, f"{OPERATOR_CRD} names no definition of SparkApplication"
    operated = replace(backend, settings=replace(backend.settings, launcher="spark-operator"))
    job = job_of(plane, "operated")
    with pytest.raises(SpecError, match="SparkApplication"):
        operated.submit(job)
    assert own_secrets(plane, {"name": JobNames.of(job).job}) == []
    crd = yaml.safe_load(Path(definition).read_text())
    plane.apply(crd, "Ignore")
    path = f"/apis/sparkoperator.k8s.io/v1beta2/namespaces/{NAMESPACE}/sparkapplications"
    wait_for("the definition", lambda: plane.ask("GET", path) is not None)

    handle = operated.submit(job)
    made = plane.ask("GET", f"{path}/{handle['name']}")
    assert made["metadata"]["uid"] == handle["application"]
    assert SECRET not in json.dumps(made)
    # What the server does not know it drops, or refuses when it is asked to.
    copy = {**made, "metadata": {"name": "strict", "namespace": NAMESPACE}}
    copy.pop("status", None)
    plane.apply(copy)
    [secret] = own_secrets(plane, handle)
    assert secret["metadata"]["ownerReferences"][0]["kind"] == "SparkApplication"
    assert "waits for the Spark Operator" in str(operated.status(handle).detail)
    assert operated.submit(job) == handle

    failed = {"state": "SUBMISSION_FAILED", "errorMessage": "no such image"}
    said = {"status": {"applicationState": failed, "driverInfo": {}}}
    plane.ask("PATCH", f"{path}/{handle['name']}/status", said, MERGE)
    ended = operated.status(handle)
    assert ended.state is JobState.ENDED
    assert "SUBMISSION_FAILED (no such image)" in str(ended.detail)
    again = operated.submit(job)
    assert again["application"] != handle["application"]
    operated.stop(again, 0)
    assert operated.status(again).state is JobState.ENDED
    wait_for("the garbage collector", lambda: own_secrets(plane, handle) == [], 120)


# A stream that really runs: the played kubelet starts what the pods say as processes.


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    return image_of_this_machine(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def node(plane, image, tmp_path_factory):
    assert kubernetes.unshares(), "the played kubelet needs mount namespaces: run as root"
    assert shutil.which("tini"), "apt-get install tini"
    kubelet = PlayedKubelet(plane, tmp_path_factory.mktemp("node"), {IMAGE: image}).start()
    yield kubelet
    kubelet.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = postgres.start(tmp_path_factory.mktemp("store"))
    yield server
    server.stop()


@pytest.fixture
def run(store, plane, tmp_path):
    name = f"state_{secrets.token_hex(4)}"
    with psycopg.connect(store.dsn("postgres"), autocommit=True) as administration:
        administration.execute(f"CREATE DATABASE {name}")
    output = tmp_path / "output"
    output.mkdir()
    dsn = f"postgresql://postgres:{SECRET}@{HOST}:{store.port}/{name}"
    made = ScriptedRun(output, master=f"k8s://{plane.url}", transactions=0, rate=100, dsn=dsn)
    yield made
    made.close()


@pytest.fixture
def connection(plane, store, run):
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
    login = {"login": "postgres", "password": SECRET, "host": HOST, "port": store.port}
    schema = run.dsn.rpartition("/")[2]
    return json.dumps({"conn_type": "deltaforge", "schema": schema, **login, "extra": extra})


def test_a_stream_outlives_its_worker_and_is_adopted_restarted_stopped(
    plane, node, worker, connection, run, tmp_path, monkeypatch
):
    start, first = run.begin(), tmp_path / "first"
    launched_and_gone(first, plane, node, worker, connection, run)
    record, at = run.control.read(), lines_of(run)
    wait_for("the stream without its launcher", lambda: lines_of(run) > at + 300, PATIENCE_S)
    assert not first.exists()

    monkeypatch.setenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT", connection)
    monkeypatch.delenv("DELTAFORGE_JOBS", raising=False)
    (tmp_path / "second.yaml").write_text(parameterised(run))
    monkeypatch.setenv("OUTPUT", str(run.directory))
    task = DeltaForgeStreamOperator(
        task_id="stream", document=str(tmp_path / "second.yaml"), master=run.master
    )
    attempt = context(2)
    trigger = deferred(lambda: task.execute(attempt))
    adopted = run.control.read()
    assert (adopted.generation, adopted.handle) == (record.generation, record.handle)
    assert trigger.look()[0] is None
    hook = DeltaForgeHook()
    assert hook.get_status(NAME).status == "running"
    log = log_tail(run.store, NAME, hook.backend(), 50)
    assert log["lines"]
    assert log["host"] == adopted.handle["pod"]
    assert leaked(plane, node) == []
    assert holders_of_the_secret(node) == {"jvm", "driver", "executor"}

    [jvm] = [pid for pid in processes(node) if is_driver_jvm(pid)]
    os.kill(jvm, signal.SIGKILL)
    wait_for("the death", lambda: trigger.look()[0] is not None, PATIENCE_S)
    event = trigger.look()[0].payload
    assert event["event"] == "ended"
    waiting = deferred(lambda: task.execute_complete(attempt, event))
    again = {**waiting.watch, "event": "resubmit"}
    deferred(lambda: task.execute_complete(attempt, again))
    restarted = run.control.read()
    assert restarted.generation == record.generation
    assert restarted.handle["uid"] != record.handle["uid"]
    wait_for("the stream again", lambda: hook.get_status(NAME).is_ready, PATIENCE_S)
    at = lines_of(run)
    wait_for("more events", lambda: lines_of(run) > at + 300, PATIENCE_S)

    hook.stop(NAME)

    backends = hook.backend()
    wait_for("its end", lambda: backends.status(restarted.handle).state is JobState.ENDED, 60)
    assert backends.status(restarted.handle).exit_code == 0
    run.close_log()
    assert run.judge(start) == []
    assert leaked(plane, node) == []


def launched_and_gone(directory, plane, node, kubeconfig, connection, run):
    """Launch from a worker of Airflow that dies, and whose directory goes, once it streams."""
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
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": str(CHECKOUT),
        "OUTPUT": str(run.directory),
    }
    log = directory / "log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, run.master],
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(
            "the launch",
            lambda: "deferred" in log.read_text() or worker.poll() is not None,
            PATIENCE_S,
        )
        assert worker.poll() is None, log.read_text()[-3000:]
        wait_for("the stream", lambda: events_of(run) > 300, PATIENCE_S)
    except AssertionError as error:
        outputs = [pod.log.read_text()[-3000:] for pod in node.runs.values()]
        raise AssertionError("\n".join([str(error), *outputs])) from error
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        shutil.rmtree(directory)


def parameterised(run):
    return run.document.replace(f'"{run.directory}/out.jsonl"', '"${OUTPUT}/out.jsonl"')


def events_of(run):
    progress = run.control.progress()
    return progress.events if progress else 0


def lines_of(run):
    return run.output.read_bytes().count(b"\n") if run.output.exists() else 0
