"""Drivers on a real Kubernetes API server, with its scheduler and garbage collector.

Long, and only where DELTAFORGE_KUBERNETES names the programs of a Kubernetes release; without
them it fails, it is not skipped. There is no kubelet: pods stay as the scheduler leaves them, or
as the test says.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from airflow.models import Connection

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
from tests.airflow.clusters import SECRET
from tests.airflow.pods import IMAGE, NAMESPACE, leaked
from tests.servers.process import HOST
from tests.waiting import wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(900)]

STORE = f"postgresql://df:{SECRET}@{HOST}:9/deltaforge"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
OPERATOR_CRD = "DELTAFORGE_SPARK_OPERATOR_CRD"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"


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


def pod_named(plane, name):
    return plane.ask("GET", f"{PODS}/{name}")


def own_secrets(plane, handle):
    path = f"{SECRETS}?labelSelector=deltaforge/job={handle['name']}"
    return plane.ask("GET", path)["items"]


def play(plane, pod, phase, state):
    """Write what a kubelet would write."""
    container = pod["spec"]["containers"][0]
    status = {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    body = {"status": {"phase": phase, "containerStatuses": [status]}}
    plane.ask("PATCH", f"{PODS}/{pod['metadata']['name']}/status", body, STRATEGIC)


def delete(plane, name):
    options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
    plane.ask("DELETE", f"{PODS}/{name}", options)


def left_behind(plane):
    """Return what is left in the namespace of what Spark and we made for drivers of `orders`."""
    found = []
    for kind in ("pods", "secrets", "configmaps", "services"):
        items = plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}")["items"]
        found += [f"{kind}/{item['metadata']['name']}" for item in items]
    return [name for name in found if "df-orders" in name or "spark-" in name]
