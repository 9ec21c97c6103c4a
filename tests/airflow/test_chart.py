"""Airflow's official chart with our values, rendered by Helm.

Long, and only where DELTAFORGE_AIRFLOW_CHART names the directory of a chart and DELTAFORGE_HELM
the program: neither is ours to ship. Without them it fails, it is not skipped. The API server is
that of ``tests/servers/kubernetes.py``.
"""

import base64
import json
import os
import re
import subprocess

import kubernetes_validate
import pytest
import yaml

from tests.airflow.pods import NAMESPACE
from tests.architecture.probe import CHECKOUT

CHART, HELM = "DELTAFORGE_AIRFLOW_CHART", "DELTAFORGE_HELM"
pytestmark = [pytest.mark.airflow, pytest.mark.long, pytest.mark.timeout(600)]

RELEASES = ("1.31", "1.34", "1.37")
VALUES = CHECKOUT / "docs" / "kubernetes" / "values.yaml"
PASSWORD = "planted-9c41d0-of-the-metadata"
LAUNCHERS = ("worker", "triggerer", "api-server")


def render(*more):
    """Run helm as the page says it: the release `airflow` in the namespace `airflow`."""
    if missing := [name for name in (CHART, HELM) if not os.environ.get(name)]:
        pytest.fail(f"{missing} not set: {CHART} to Airflow's official chart, {HELM} to helm")
    command = [os.environ[HELM], "template", "airflow", os.environ[CHART], "--namespace", "airflow"]
    files = [option for file in (VALUES, *more) for option in ("--values", str(file))]
    return subprocess.run([*command, *files], check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    """What the chart makes of our values, and the pod template of tasks that is in its settings."""
    planted = tmp_path_factory.mktemp("chart") / "planted.yaml"
    secret = {
        "data": {"metadataConnection": {"pass": PASSWORD}},
        "postgresql": {"auth": {"postgresPassword": PASSWORD}},
    }
    planted.write_text(yaml.safe_dump(secret))
    rendered = render(planted)
    assert rendered.returncode == 0, rendered.stderr
    found = [document for document in yaml.safe_load_all(rendered.stdout) if document]
    settings = named(found, "ConfigMap", "airflow-config")
    found.append(yaml.safe_load(settings["data"]["pod_template_file.yaml"]))
    for document in found:
        document["metadata"].setdefault("namespace", "airflow")
    return found


def test_the_charts_schema_is_what_takes_the_values(tmp_path):
    misspelt = tmp_path / "misspelt.yaml"
    misspelt.write_text("triggerer: {enable: true}\n")

    assert render().returncode == 0
    refused = render(misspelt)
    assert refused.returncode != 0
    assert re.search(r"triggerer.*enable", refused.stderr, re.DOTALL)


@pytest.mark.parametrize("release", RELEASES)
def test_every_manifest_is_what_the_api_takes(manifests, release):
    kinds = {document["kind"] for document in manifests}

    assert kinds >= {"Deployment", "StatefulSet", "Job", "ConfigMap", "Secret", "Pod"}
    for document in manifests:
        kubernetes_validate.validate(document, release, strict=True)


def test_whoever_launches_has_an_account_that_our_roles_name(manifests):
    pods = pods_of(manifests)
    roles = yaml.safe_load_all((VALUES.parent / "launchers.yaml").read_text())
    [binding] = [document for document in roles if document["kind"] == "RoleBinding"]
    bound = {(subject["namespace"], subject["name"]) for subject in binding["subjects"]}

    accounts = {pods[component]["serviceAccountName"] for component in LAUNCHERS}
    assert bound == {("airflow", account) for account in accounts}
    for component in LAUNCHERS:
        # Without its token in the pod nobody there reaches the API server.
        account = named(manifests, "ServiceAccount", pods[component]["serviceAccountName"])
        assert account["automountServiceAccountToken"] is True
        assert pods[component].get("automountServiceAccountToken", True)


def test_an_api_server_takes_every_manifest(plane, manifests):
    kinds = {document["kind"] for document in manifests}

    assert kinds >= {"Deployment", "StatefulSet", "Job", "ConfigMap", "Secret", "Pod"}
    for document in manifests:
        made = plane.dry_run(document)
        assert made["metadata"]["name"] == document["metadata"]["name"]


def test_whoever_launches_may(plane, manifests):
    pods = pods_of(manifests)

    for component in LAUNCHERS:
        account = pods[component]["serviceAccountName"]
        assert account == f"airflow-{component}"
        # Without its token in the pod nobody there reaches the API server.
        made = named(manifests, "ServiceAccount", account)
        assert made["automountServiceAccountToken"] is True
        assert pods[component].get("automountServiceAccountToken", True)
        name = f"airflow:{account}"
        for verb in ("create", "get", "list", "delete"):
            assert plane.allows(name, verb, "pods", NAMESPACE), (account, verb)
            assert plane.allows(name, verb, "sparkapplications", NAMESPACE), (account, verb)
        assert plane.allows(name, "get", "pods/log", NAMESPACE)
        assert plane.allows(name, "create", "secrets", NAMESPACE)
        assert not plane.allows(name, "get", "secrets", NAMESPACE)
        assert not plane.allows(name, "create", "secrets", "airflow")
    driver = f"{NAMESPACE}:deltaforge-driver"
    assert plane.allows(driver, "create", "pods", NAMESPACE)
    assert not plane.allows(driver, "create", "pods", "airflow")


def test_airflows_pods_have_our_image_and_the_connection_from_the_secret(manifests):
    values = yaml.safe_load(VALUES.read_text())
    image = f"{values['defaultAirflowRepository']}:{values['defaultAirflowTag']}"
    pods = pods_of(manifests)

    for component in (*LAUNCHERS, "scheduler", "dag-processor"):
        for container in pods[component]["containers"]:
            assert container["image"] == image, (component, container["name"])
        # The first is Airflow itself; beside it are those that groom logs.
        environment = {entry["name"]: entry for entry in pods[component]["containers"][0]["env"]}
        variable = environment["AIRFLOW_CONN_DELTAFORGE_DEFAULT"]
        reference = variable["valueFrom"]["secretKeyRef"]
        assert reference == {"name": "deltaforge-connection", "key": "connection"}
        assert "value" not in variable
    assert environment["AIRFLOW__CORE__FERNET_KEY"]["valueFrom"]["secretKeyRef"]


def test_no_secret_is_outside_of_secrets(manifests):
    kept = [document for document in manifests if document["kind"] == "Secret"]
    others = "\n".join(
        json.dumps(document) for document in manifests if document["kind"] != "Secret"
    )
    values = [decoded(value) for secret in kept for value in secret.get("data", {}).values()]
    held = [value for value in values if value]

    assert any(PASSWORD in value for value in held)
    assert PASSWORD not in others
    assert [value for value in held if value in others] == []
    # The chart's own first user has a password that everybody knows, in the arguments of a job.
    jobs = [document["metadata"]["name"] for document in manifests if document["kind"] == "Job"]
    assert jobs == ["airflow-run-airflow-migrations"]


def named(manifests, kind, name):
    [found] = [
        document
        for document in manifests
        if (document["kind"], document["metadata"]["name"]) == (kind, name)
    ]
    return found


def pods_of(manifests):
    """Return the pods that Airflow's parts run in, by the chart's name of the part."""
    found = {}
    for document in manifests:
        component = document["metadata"].get("labels", {}).get("component")
        if document["kind"] == "Pod":
            found[component] = document["spec"]
        elif document["kind"] in {"Deployment", "StatefulSet", "Job"}:
            found[component] = document["spec"]["template"]["spec"]
    return found


def decoded(value):
    return base64.b64decode(value).decode()
