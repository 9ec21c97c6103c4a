"""What is sent to Kubernetes, and what its pods say; no cluster is needed.

``tests/airflow/test_kubernetes.py`` has the same with a real API server.
"""

import itertools
import json
import re
from dataclasses import replace
from datetime import datetime, timezone

import kubernetes_validate
import pytest
import yaml
from kubernetes import client

from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.kubernetes import submission
from airflow_provider_deltaforge.control.launching.kubernetes.backend import KubernetesBackend
from airflow_provider_deltaforge.control.launching.kubernetes.cluster import (
    ClusterAccess,
    KubernetesCluster,
)
from airflow_provider_deltaforge.control.launching.kubernetes.pod_status import driver_status
from airflow_provider_deltaforge.control.launching.kubernetes.settings import (
    JobNames,
    KubernetesSettings,
)
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.spark_submit import check_master
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from tests.architecture.probe import CHECKOUT
from tests.servers.process import HOST

SECRET = "planted-4a8f"
STORE = f"postgresql://df:{SECRET}@db/deltaforge"
MASTER = "k8s://https://kubernetes.default.svc"
NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
RELEASES = ("1.31", "1.34", "1.37")
MANIFESTS = CHECKOUT / "docs" / "kubernetes"


def job_of(**changes) -> LaunchSpec:
    job = LaunchSpec(
        "orders",
        3,
        "stream_job.py",
        STORE,
        MASTER,
        environment={"MYSQL_DSN": f"mysql://u:{SECRET}@h/db"},
    )
    return replace(job, **changes)


def settings_of(**extra) -> KubernetesSettings:
    return KubernetesSettings.from_extra({"kubernetes_image": "registry/df:1", **extra})


def confs(command):
    return dict(
        word.split("=", 1) for flag, word in itertools.pairwise(command) if flag == "--conf"
    )


def test_a_submission_names_keys_of_a_secret_and_no_value():
    job = job_of(arguments=("--requests",))
    names = JobNames.of(job)
    conf = {"spark.executor.instances": 2, "spark.kubernetes.driver.secretKeyRef.OWN": "shop:dsn"}
    settings = settings_of(kubernetes_namespace="shop", spark_conf=conf)

    command = submission.command(settings, names, job, f"{names.job}-x7")

    assert SECRET not in str(command)
    assert command[1:7] == ["--master", MASTER, "--deploy-mode", "cluster", "--name", names.job]
    script = command.index("local:///opt/deltaforge/bin/deltaforge_stream_job.py")
    assert command[script + 1 :] == ["--pipeline", "orders", "--generation", "3", "--requests"]
    sent = confs(command)
    for role in ("driver", "executor"):
        for variable in ("MYSQL_DSN", "DELTAFORGE_STORE"):
            reference = sent[f"spark.kubernetes.{role}.secretKeyRef.{variable}"]
            assert reference == f"{names.job}-x7:{variable}"
        assert sent[f"spark.kubernetes.{role}.label.deltaforge/job"] == names.job
    assert sent["spark.kubernetes.driver.secretKeyRef.OWN"] == "shop:dsn"
    assert sent["spark.kubernetes.driver.pod.name"] == names.job
    assert sent["spark.kubernetes.namespace"] == "shop"
    assert sent["spark.executor.instances"] == "2"
    assert sent["spark.kubernetes.submission.waitAppCompletion"] == "false"


def test_an_application_for_the_operator_is_the_same_driver(tmp_path):
    template = tmp_path / "driver.yaml"
    template.write_text("kind: Pod\nspec: {nodeSelector: {disk: fast}}\n")
    job = job_of()
    names = JobNames.of(job)
    settings = settings_of(
        kubernetes_launcher="spark-operator", kubernetes_driver_template=str(template)
    )

    sent = submission.application(settings, names, job, "s1")

    assert SECRET not in json.dumps(sent)
    spec = sent["spec"]
    assert (sent["metadata"]["name"], spec["driver"]["podName"]) == (names.job, names.job)
    assert spec["restartPolicy"] == {"type": "Never"}
    assert spec["driver"]["template"] == {"spec": {"nodeSelector": {"disk": "fast"}}}
    command = submission.command(replace(settings, driver_template=None), names, job, "s1")
    shared = spec["sparkConf"].items() & confs(command).items()
    assert dict(shared) == spec["sparkConf"]
    template.write_text("just words")
    with pytest.raises(SpecError, match="kubernetes_driver_template"):
        submission.application(settings, names, job, "s1")


def test_names_follow_from_pipeline_generation_and_store():
    names = JobNames.of(job_of())
    assert names == JobNames.of(job_of(store="postgresql://other:login@db/deltaforge"))
    assert names.job.startswith("df-orders-g3-")
    others = [
        job_of(generation=4),
        job_of(store="postgresql://df@db2/deltaforge"),
        job_of(pipeline="Orders"),
        job_of(pipeline="o.rders"),
        job_of(pipeline="x" * 100),
        job_of(pipeline="x" * 99 + "y"),
        job_of(pipeline="a-"),
    ]
    found = {JobNames.of(job).job for job in others} | {names.job}
    assert len(found) == len(others) + 1
    for job in (*others, job_of(generation=10**9)):
        made = JobNames.of(job)
        assert len(made.job) <= 47
        secret = {"apiVersion": "v1", "kind": "Secret"}
        metadata = {"name": made.job, "labels": made.labels()}
        kubernetes_validate.validate({**secret, "metadata": metadata}, RELEASES[0], strict=True)
        for value in made.labels().values():
            assert len(value) <= 63
            assert value[0].isalnum()
            assert value[-1].isalnum()


@pytest.mark.parametrize(
    ("master", "store", "image", "said"),
    [
        (MASTER, "sqlite:////s.db", "i:1", "refused with the sqlite store /s.db"),
        (MASTER, "memory://x", "i:1", "refused with the memory store"),
        ("local[2]", STORE, "i:1", "needs the API server's address"),
        ("k8s://kubernetes", STORE, "i:1", "k8s://https://host:6443"),
        (f"k8s://https://u:{SECRET}@h", STORE, "i:1", "one with a login"),
        (MASTER, STORE, None, "needs the extra `kubernetes_image`"),
    ],
)
def test_what_cannot_be_submitted_is_refused_by_name(master, store, image, said):
    backend = KubernetesBackend(KubernetesSettings(image=image))
    with pytest.raises(SpecError) as refused:
        backend.check(master, store)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_template_that_is_not_there_is_named():
    settings = settings_of(kubernetes_executor_template="/nowhere.yaml")
    with pytest.raises(SpecError, match="kubernetes_executor_template: there is no file"):
        KubernetesBackend(settings).check(MASTER, STORE)


def test_other_backends_say_which_one_a_master_of_kubernetes_needs():
    with pytest.raises(SpecError, match="`kubernetes` does"):
        check_master(MASTER, STORE)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"kubernetes_launcher": "helm"}, "kubernetes_launcher: write spark-submit or"),
        ({"kubernetes_image": "a b"}, "kubernetes_image: write the name of an image"),
        ({"kubernetes_namespace": "Shop"}, "kubernetes_namespace: 'Shop'"),
        ({"kubernetes_service_account": "a_b"}, "kubernetes_service_account: 'a_b'"),
        ({"spark_python": "python"}, "spark_python: write the absolute path"),
        ({"spark_conf": "{"}, "spark_conf: is no JSON"),
        ({"spark_conf": ["a"]}, "spark_conf: must be an object"),
        ({"spark_conf": {"cores": 2}}, "'cores' must be a Spark setting"),
        ({"spark_conf": {"spark.kubernetes.namespace": "x"}}, "from the extras kubernetes_"),
        ({"spark_conf": {"spark.authenticate.secret": SECRET}}, "would lie in a ConfigMap"),
        (
            {"spark_conf": {"spark.kubernetes.authenticate.submission.oauthToken": SECRET}},
            "would lie in a ConfigMap",
        ),
    ],
)
def test_an_extra_of_the_connection_that_is_wrong_is_named(extra, said):
    with pytest.raises(SpecError) as refused:
        KubernetesSettings.from_extra(extra)
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def away(tmp_path, monkeypatch):
    """Configure an API server that nobody runs."""
    place = tmp_path / "kubeconfig"
    cluster = KubernetesCluster(client.Configuration(host=f"https://{HOST}:9"))
    place.write_text(json.dumps(cluster.kubeconfig("shop")))
    monkeypatch.setenv("KUBECONFIG", str(place))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_an_api_server_that_is_away_is_a_reason_to_try_again(tmp_path, monkeypatch):
    away(tmp_path, monkeypatch)
    backend = KubernetesBackend(settings_of())
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:9 does not answer"):
        backend.submit(job_of(master=f"k8s://https://{HOST}:9"))
    backends = LaunchBackends(LocalBackend(tmp_path), kubernetes=backend)
    handle = {
        "backend": "kubernetes",
        "name": "df-orders-g3-a",
        "namespace": "shop",
        "uid": "1",
        "cluster": {"server": f"https://{HOST}:9"},
    }
    for _ in range(2):  # The second time it is not asked at all.
        assert backends.status(handle).state is JobState.UNKNOWN
    assert backends.logs_tail(handle) == ""
    assert backends.links(handle)["pod"] == "shop/df-orders-g3-a"


def test_no_cluster_at_all_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SpecError, match="no Kubernetes cluster is configured here"):
        ClusterAccess().cluster()
    status = KubernetesBackend().status({"name": "x", "cluster": {}})
    assert (status.state, "no Kubernetes cluster" in str(status.detail)) == (JobState.UNKNOWN, True)


def test_another_cluster_is_not_asked_about_a_driver(tmp_path, monkeypatch):
    away(tmp_path, monkeypatch)
    handle = {"name": "x", "namespace": "n", "uid": "1", "cluster": {"server": "https://other"}}
    status = KubernetesBackend().status(handle)
    assert status.state is JobState.UNKNOWN
    assert "its cluster is not" in str(status.detail)


def test_a_cluster_is_known_by_its_authority_first(tmp_path):
    def cluster(host, authority):
        configuration = client.Configuration(host=host)
        configuration.ssl_ca_cert = str(authority) if authority else None
        return KubernetesCluster(configuration)

    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.write_text("authority 1")
    other.write_text("authority 2")
    outside = cluster("https://api.example.com", mine)
    inside = cluster("https://10.96.0.1", mine)
    assert outside.is_same(inside.identity)
    assert not outside.is_same(cluster("https://api.example.com", other).identity)
    assert outside.is_same(cluster("https://api.example.com", None).identity)
    assert not outside.is_same({})


# What pods say. Each is a pod of the API's own form: the validator would refuse another.


def pod_of(phase="Pending", container=None, node=None, **status):
    name = "spark-kubernetes-driver"
    states = [{"name": name, "image": "i:1", "imageID": "", "ready": False, "restartCount": 0}]
    limits = {"limits": {"memory": "1Gi"}}
    driver = {"name": name, "image": "i:1", "args": ["driver"], "resources": limits}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "df-orders-g3", **status.pop("metadata", {})},
        "spec": {"containers": [{"name": "sidecar", "image": "s:1"}, driver]},
        "status": {"phase": phase, **status},
    }
    if node:
        pod["spec"]["nodeName"] = node
    if container:
        pod["status"]["containerStatuses"] = [{**states[0], "state": container}]
    kubernetes_validate.validate(pod, RELEASES[-1], strict=True)
    return pod


def waits(reason, message=""):
    return pod_of(container={"waiting": {"reason": reason, "message": message}}, node="n1")


def ended(code, reason="Error", **more):
    terminated = {"exitCode": code, "reason": reason, **more}
    return pod_of("Failed" if code else "Succeeded", {"terminated": terminated}, "n1")


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient memory.",
}
LEAVES = {"deletionTimestamp": "2026-01-01T11:50:00Z"}


@pytest.mark.parametrize(
    ("pod", "state", "code", "said"),
    [
        (None, "ended", None, "its pod is gone"),
        (pod_of(), "running", None, "waits for a node"),
        (
            pod_of(conditions=[UNSCHEDULABLE]),
            "running",
            None,
            "no node takes it (Unschedulable: 0/3",
        ),
        (pod_of(node="n1"), "running", None, "its node prepares it"),
        (waits("ContainerCreating"), "running", None, "its node prepares the container"),
        (waits("ImagePullBackOff", "denied"), "running", None, "i:1 cannot be pulled (ImagePull"),
        (
            waits("CreateContainerConfigError", 'secret "x" not found'),
            "running",
            None,
            "is the Sec",
        ),
        (waits("RunContainerError", "no such file"), "running", None, "cannot start (RunContainer"),
        (pod_of("Running", {"running": {}}, "n1"), "running", None, "pod df-orders-g3 on node n1"),
        (
            pod_of(
                "Running",
                node="n1",
                metadata={**LEAVES, "deletionTimestamp": "2026-01-01T12:00:05Z"},
            ),
            "running",
            None,
            "is being ended",
        ),
        (pod_of("Running", node="n1", metadata=LEAVES), "unknown", None, "node does not answer"),
        (pod_of("Unknown", node="n1"), "unknown", None, "node does not answer"),
        (ended(0, "Completed"), "ended", 0, "exit code 0"),
        (ended(4), "ended", 4, "exit code 4"),
        (ended(137), "ended", None, "was killed by SIGKILL"),
        (ended(137, "OOMKilled"), "ended", None, "more than its memory, 1Gi (OOMKilled)"),
        (
            ended(128, "StartError", message="no such file"),
            "ended",
            None,
            "could not run (StartErr",
        ),
        (
            pod_of("Failed", reason="Evicted", message="low on resource: memory"),
            "ended",
            None,
            "was evicted (low on resource",
        ),
        (pod_of("Failed", reason="NodeShutdown"), "ended", None, "failed (NodeShutdown)"),
        (pod_of("Succeeded"), "ended", 0, "succeeded"),
    ],
)
def test_what_a_pod_says_is_a_reason_for_people(pod, state, code, said):
    status = driver_status(pod, NOW)
    assert (status.state.value, status.exit_code) == (state, code)
    assert said in str(status.detail)


def test_what_keeps_an_executor_waiting_is_shown():
    driver = pod_of("Running", {"running": {}}, "n1")
    status = driver_status(driver, NOW, [pod_of("Running"), pod_of(conditions=[UNSCHEDULABLE])])
    assert status.state is JobState.RUNNING
    assert "its executor waits: no node takes it" in str(status.detail)


def test_no_secret_of_a_message_is_shown():
    status = driver_status(waits("RunContainerError", f"password={SECRET}"), NOW)
    assert SECRET not in str(status.detail)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", ["drivers.yaml", "launchers.yaml"])
def test_manifests_are_what_the_api_takes(name, release):
    documents = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, release, strict=True)


def test_the_values_of_airflows_chart_name_what_the_backend_takes():
    """What we put into them; ``tests/airflow/test_chart.py`` asks the chart itself."""
    text = (MANIFESTS / "values.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["executor"] == "KubernetesExecutor"
    [literal] = re.findall(r"connection='(\{.*?\}\})'", text, re.DOTALL)
    connection = json.loads(literal.replace("\n#", "\n"))
    settings = KubernetesSettings.from_extra(connection["extra"])
    accounts = yaml.safe_load_all((MANIFESTS / "drivers.yaml").read_text())
    made = {(each["kind"], each["metadata"]["name"]) for each in accounts}
    assert {("Namespace", settings.namespace), ("ServiceAccount", settings.service_account)} <= made
    store = "postgresql://" + connection["host"] + "/" + connection["schema"]
    KubernetesBackend(settings).check(MASTER, store)
