"""What a Kubernetes cluster of the tests holds, and what a kubelet would say of its pods."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.architecture.probe import CHECKOUT
from tests.servers import spark
from tests.servers.process import family

SECRET = "planted-8b41f0"
NAMESPACE = "deltaforge"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
STRATEGIC = "application/strategic-merge-patch+json"


def image_of_this_machine(place):
    """What an image for pods has at /opt/deltaforge, made of parts of this machine."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)]
    subprocess.run(build, check=True, cwd=CHECKOUT, capture_output=True)
    [wheel] = place.glob("*.whl")
    home = place / "deltaforge"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    python = str(home / "bin" / "python")
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    [site] = home.glob("lib/python*/site-packages")
    ours = next(Path(entry) for entry in sys.path if entry.endswith("site-packages"))
    (site / "dependencies.pth").write_text(f"{ours}\n")
    (home / "spark").symlink_to(ours / "pyspark")
    written = place / "written"
    deltaforge = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app"]
    subprocess.run([*deltaforge, "image", str(written), "--host", "kubernetes"], check=True)
    shutil.copy(written / "entrypoint.sh", home / "entrypoint.sh")
    return home


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


def leaked(plane, node=None):
    """Return where the planted password can be read, Secrets aside."""
    found = []
    for kind in ("pods", "configmaps", "services", "events", "serviceaccounts"):
        items = plane.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}")["items"]
        found += [
            f"{kind}/{item['metadata']['name']}" for item in items if SECRET in json.dumps(item)
        ]
    lines = [spark.command_line(int(path.name)) for path in Path("/proc").glob("[0-9]*")]
    found += [f"process {line}" for line in lines if SECRET in line]
    if node is not None:
        logs = [run.log for run in node.runs.values()]
        assert any(log.stat().st_size for log in logs)
        files = [path for path in node.directory.rglob("*") if path.is_file()]
        found += [f"file {path}" for path in files if SECRET.encode() in content(path)]
    return found


def content(path):
    try:
        return path.read_bytes()
    except (FileNotFoundError, PermissionError):
        return b""


def processes(node):
    return [
        pid
        for run in node.runs.values()
        if run.process.poll() is None
        for pid in family(run.process.pid)
    ]


def is_driver_jvm(pid):
    line = spark.command_line(pid)
    return "/java" in line.partition(" ")[0] and "deltaforge_stream_job.py" in line


def holders_of_the_secret(node):
    """Return the kinds of processes that have the password of the store in their environment."""
    kinds = {
        "KubernetesExecutorBackend": "jvm",
        "SparkSubmit": "jvm",
        "deltaforge_stream_job": "driver",
        "python_streaming_source_runner": "driver",
        "pyspark.daemon": "executor",
        "tini": "jvm",
    }
    found = set()
    for pid in processes(node):
        try:
            environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        except OSError:
            continue
        if SECRET in environment:
            line = spark.command_line(pid)
            found.add(next((kind for mark, kind in kinds.items() if mark in line), line))
    return found
