"""A cluster with our manifests, and what may be seen in it."""

import json

import pytest
import yaml

from tests.airflow.clusters import SECRET, command_lines_with_the_secret, content
from tests.architecture.probe import CHECKOUT
from tests.servers import kubernetes

NAMESPACE = "deltaforge"
IMAGE = "registry.example.com/deltaforge-spark:1"


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


def leaked(plane, node=None):
    """Return where the planted password can be read, Secrets aside."""
    found = []
    for kind in ("pods", "configmaps", "services", "events", "serviceaccounts"):
        items = plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}")["items"]
        found += [
            f"{kind}/{item['metadata']['name']}" for item in items if SECRET in json.dumps(item)
        ]
    found += command_lines_with_the_secret()
    if node is not None:
        logs = [run.log for run in node.runs.values()]
        assert any(log.stat().st_size for log in logs)
        files = [path for path in node.directory.rglob("*") if path.is_file()]
        found += [f"file {path}" for path in files if SECRET.encode() in content(path)]
    return found
