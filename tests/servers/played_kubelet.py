"""Plays a kubelet: runs the first container of each pod as a process of this machine.

Not a container runtime: no image is pulled. What ``images`` names is mounted at /opt in a mount
namespace of the process, beside the volumes of the pod. Everything else is as the pod says it:
command, environment from Secrets and fields, service account, grace, exit code.
"""

import base64
import contextlib
import os
import shlex
import signal
import ssl
import subprocess
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.servers.kubernetes import ControlPlane
from tests.servers.process import HOST, ServerError, free_port

_MERGE = "application/merge-patch+json"
_STRATEGIC = "application/strategic-merge-patch+json"
_ACCOUNT = "/run/secrets/kubernetes.io/serviceaccount"


@dataclass
class Run:
    """A pod that runs here."""

    process: subprocess.Popen
    log: Path
    ip: str
    killed_at: float | None = None
    ended: bool = False


@dataclass
class PlayedKubelet:
    """A node of a cluster.

    Args:
        plane: its control plane.
        directory: for volumes and logs.
        images: name of an image to a directory that is mounted at /opt/deltaforge.
        name: of the node.
    """

    plane: ControlPlane
    directory: Path
    images: dict[str, Path]
    name: str = "played-node"
    runs: dict[str, Run] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _logs: ThreadingHTTPServer | None = None

    def start(self) -> "PlayedKubelet":
        """Register the node and begin to run its pods."""
        self.directory.mkdir(parents=True, exist_ok=True)
        port = self._serve_logs()
        self.plane.ask(
            "POST",
            "/api/v1/nodes",
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}},
        )
        room = {"cpu": "8", "memory": "16Gi", "pods": "20", "ephemeral-storage": "10Gi"}
        now = _now()
        status = {
            "capacity": room,
            "allocatable": room,
            "addresses": [{"type": "InternalIP", "address": HOST}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "Played", "lastHeartbeatTime": now}
            ],
        }
        self.plane.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, _MERGE)
        self.plane.ask("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}}, _MERGE)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Kill what runs and leave."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(20)
        for run in self.runs.values():
            _signal(run, signal.SIGKILL)
        if self._logs is not None:
            self._logs.shutdown()

    def _work(self) -> None:
        while not self._over.wait(0.3):
            path = f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}"
            with contextlib.suppress(OSError, ServerError):  # A pod went between two looks.
                for pod in self.plane.ask("GET", path)["items"]:
                    self._look(pod)

    def _look(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        run = self.runs.get(metadata["uid"])
        if run is None and not metadata.get("deletionTimestamp"):
            self._begin(pod)
        elif run is None:
            self._delete(pod)
        elif run.process.poll() is not None:
            if not run.ended:
                run.ended = True
                _signal(run, signal.SIGKILL)  # What the container left behind.
                code = run.process.returncode
                self._report(pod, run, ended=128 - code if code < 0 else code)
            if metadata.get("deletionTimestamp"):
                self._delete(pod)
        elif metadata.get("deletionTimestamp"):
            grace = metadata.get("deletionGracePeriodSeconds") or 0
            if run.killed_at is None:
                run.killed_at = time.monotonic()
                run.process.send_signal(signal.SIGTERM)
            if time.monotonic() > run.killed_at + grace:
                _signal(run, signal.SIGKILL)

    def _begin(self, pod: dict[str, Any]) -> None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        image = self.images.get(container["image"])
        if image is None:
            words = f"no image {container['image']} is played here"
            self._wait(pod, container, "ErrImagePull", words)
            return
        if not self._mountable(pod):
            return  # Spark makes the settings after the pod: a kubelet waits for them.
        place = self.directory / metadata["uid"]
        ip = f"127.1.0.{len(self.runs) + 1}"
        try:
            environment = self._environment(pod, container, ip)
        except KeyError as error:
            self._wait(pod, container, "CreateContainerConfigError", f"secret {error} not found")
            return
        place.mkdir()
        script = self._mounts(pod, container, place, image)
        words = [*(container.get("command") or [f"{image}/entrypoint.sh"]), *container["args"]]
        words[0] = words[0].replace(str(image), "/opt/deltaforge")
        (place / "begin.sh").write_text(f"{script}\ncd /opt/work\nexec {shlex.join(words)}\n")
        log = place / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["unshare", "-m", "/bin/sh", "-e", str(place / "begin.sh")],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.runs[metadata["uid"]] = run = Run(process, log, ip)
        self._report(pod, run)

    def _mountable(self, pod: dict[str, Any]) -> bool:
        base = f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps"
        names = [
            volume["configMap"]["name"]
            for volume in pod["spec"].get("volumes") or ()
            if "configMap" in volume
        ]
        return all(self.plane.ask("GET", f"{base}/{name}") is not None for name in names)

    def _environment(self, pod: dict[str, Any], container: dict[str, Any], ip: str) -> dict:
        namespace = pod["metadata"]["namespace"]
        values = {
            "PATH": f"/opt/deltaforge/bin:{os.environ['PATH']}",
            "HOME": "/opt/work",
            "LANG": "C.UTF-8",
            "SPARK_HOME": "/opt/deltaforge/spark",
            "KUBERNETES_SERVICE_HOST": HOST,
            "KUBERNETES_SERVICE_PORT": str(self.plane.api.port),
        }
        if "JAVA_HOME" in os.environ:
            values["JAVA_HOME"] = os.environ["JAVA_HOME"]
        for variable in container.get("env") or ():
            source = variable.get("valueFrom") or {}
            if "secretKeyRef" in source:
                name, key = source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]
                secret = self.plane.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
                if secret is None:
                    raise KeyError(name)
                values[variable["name"]] = base64.b64decode(secret["data"][key]).decode()
            elif "fieldRef" in source:
                fields = {"status.podIP": ip, "metadata.name": pod["metadata"]["name"]}
                values[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
            else:
                values[variable["name"]] = variable.get("value") or ""
        return values

    def _mounts(
        self, pod: dict[str, Any], container: dict[str, Any], place: Path, image: Path
    ) -> str:
        """Return the shell lines that give the process its file system."""
        namespace = pod["metadata"]["namespace"]
        lines = ["mount -t tmpfs tmpfs /opt", "mount -t tmpfs tmpfs /run"]
        lines += ["mkdir -p /opt/deltaforge /opt/work", f"mount --bind {image} /opt/deltaforge"]
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
        for mount in container.get("volumeMounts") or ():
            volume = volumes[mount["name"]]
            source = place / "volumes" / mount["name"]
            source.mkdir(parents=True, exist_ok=True)
            target = mount["mountPath"].replace("/var/run/", "/run/")
            if "configMap" in volume:
                path = f"/api/v1/namespaces/{namespace}/configmaps/{volume['configMap']['name']}"
                for name, text in (self.plane.ask("GET", path) or {}).get("data", {}).items():
                    (source / name).write_text(text)
            elif target == _ACCOUNT:
                account = pod["spec"]["serviceAccountName"]
                (source / "token").write_text(self.plane.token(namespace, account))
                (source / "ca.crt").write_bytes(self.plane.authority.read_bytes())
                (source / "namespace").write_text(namespace)
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
        return "\n".join(lines)

    def _wait(self, pod: dict, container: dict, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        status = {**_container(container), "ready": False, "state": state}
        self._patch(pod, {"phase": "Pending", "containerStatuses": [status]})

    def _report(self, pod: dict[str, Any], run: Run, ended: int | None = None) -> None:
        container = pod["spec"]["containers"][0]
        state: dict[str, Any] = {"running": {"startedAt": _now()}}
        phase = "Running"
        if ended is not None:
            reason = "Error" if ended else "Completed"
            state = {"terminated": {"exitCode": ended, "reason": reason, "finishedAt": _now()}}
            phase = "Failed" if ended else "Succeeded"
        status = {**_container(container), "ready": ended is None, "state": state}
        ips = {"podIP": run.ip, "podIPs": [{"ip": run.ip}], "hostIP": HOST}
        ready = {"type": "Ready", "status": "True" if ended is None else "False"}
        self._patch(
            pod, {"phase": phase, **ips, "conditions": [ready], "containerStatuses": [status]}
        )

    def _patch(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        self.plane.ask("PATCH", path, {"status": status}, _STRATEGIC)

    def _delete(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        self.plane.ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _serve_logs(self) -> int:
        """Serve what containers print, as the API server asks a kubelet for it."""
        runs, plane = self.runs, self.plane

        class Logs(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, _, namespace, name, _ = self.path.partition("?")[0].split("/")
                pod = plane.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{name}") or {}
                run = runs.get(pod.get("metadata", {}).get("uid", ""))
                text = run.log.read_bytes()[-100_000:] if run else b""
                self.send_response(200)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pki = self.plane.directory / "pki"
        context.load_cert_chain(pki / "server.crt", pki / "server.key")
        port = free_port()
        self._logs = ThreadingHTTPServer((HOST, port), Logs)
        self._logs.socket = context.wrap_socket(self._logs.socket, server_side=True)
        threading.Thread(target=self._logs.serve_forever, daemon=True).start()
        return port


def _container(container: dict[str, Any]) -> dict[str, Any]:
    image = {"image": container["image"], "imageID": ""}
    return {"name": container["name"], "restartCount": 0, **image}


def _signal(run: Run, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(run.process.pid, number)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
