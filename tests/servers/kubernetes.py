"""A real Kubernetes control plane on loopback: etcd, API server, scheduler, controllers.

Its programs are those of a release of Kubernetes, in the directory that DELTAFORGE_KUBERNETES
names; etcd is Debian's. There is no kubelet: ``played_kubelet`` stands in for one.
"""

import base64
import json
import os
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.servers.process import HOST, Server, ServerError, answers, free_port, run

PROGRAMS = "DELTAFORGE_KUBERNETES"
_ADMIN = "admin-7c1e5b"
_HINT = f"put kube-apiserver, kube-scheduler, kube-controller-manager into ${PROGRAMS}"
_CONTROLLERS = ",".join(
    f"{name}-controller"
    for name in ("garbage-collector", "serviceaccount", "root-ca-certificate-publisher")
)


@dataclass
class ControlPlane:
    """A running cluster without nodes."""

    directory: Path
    api: Server
    others: list[Server]

    @property
    def url(self) -> str:
        """Return the API server's address."""
        return f"https://{HOST}:{self.api.port}"

    @property
    def authority(self) -> Path:
        """Return the certificate of the authority that signed the API server's."""
        return self.directory / "pki" / "ca.crt"

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
    ) -> Any:
        """Return the API's answer to its administrator; None where an object is not there."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Authorization": f"Bearer {_ADMIN}", "Content-Type": kind},
            method=method,
        )
        context = ssl.create_default_context(cafile=str(self.authority))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise ServerError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from None

    def apply(self, document: Mapping[str, Any], strict: str = "Strict") -> Any:
        """Make the object of a manifest; every field that the API does not know is an error."""
        return self.ask("POST", f"{_collection(document)}?fieldValidation={strict}", document)

    def dry_run(self, document: Mapping[str, Any]) -> Any:
        """Return what a manifest would make or change, as ``apply`` does; keep nothing of it."""
        options = "dryRun=All&fieldValidation=Strict&fieldManager=tests&force=true"
        path = f"{_collection(document)}/{document['metadata']['name']}?{options}"
        return self.ask("PATCH", path, document, "application/apply-patch+yaml")

    def allows(self, account: str, verb: str, resource: str, namespace: str) -> bool:
        """Return whether a service account (``namespace:name``) may do that in a namespace."""
        name, _, subresource = resource.partition("/")
        group = "sparkoperator.k8s.io" if name == "sparkapplications" else ""
        asked = {"namespace": namespace, "verb": verb, "resource": name, "group": group}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{account}",
                "resourceAttributes": {**asked, "subresource": subresource},
            },
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(self.ask("POST", path, review)["status"]["allowed"])

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, as its pods get it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        wanted = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.ask("POST", path, wanted)["status"]["token"])

    def kubeconfig(self, place: Path, namespace: str, account: str) -> Path:
        """Write a kubeconfig that acts as a service account."""
        authority = base64.b64encode(self.authority.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": self.token(namespace, account)}}],
        }
        place.write_text(json.dumps(content))
        return place

    def stop(self) -> None:
        """End everything."""
        for server in (*self.others, self.api):
            server.kill()


def _collection(document: Mapping[str, Any]) -> str:
    """Return the path of a manifest's kind, in its namespace."""
    group = document["apiVersion"]
    base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    namespace = document["metadata"].get("namespace")
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{where}/{document['kind'].lower()}s"


def start(directory: Path) -> ControlPlane:
    """Start etcd, then the API server, the scheduler and the controllers.

    Raises:
        ServerError: a program is missing, ended or did not answer.
    """
    programs = os.environ.get(PROGRAMS)
    if not programs or shutil.which("etcd") is None:
        raise ServerError(f"no Kubernetes: apt-get install etcd-server, and {_HINT}")
    for program in ("kube-apiserver", "kube-scheduler", "kube-controller-manager"):
        if not os.access(Path(programs) / program, os.X_OK):
            raise ServerError(f"{programs} has no {program}: {_HINT}")
    pki = directory / "pki"
    _certificates(pki)
    etcd = _etcd(directory / "etcd")
    api = _api_server(directory / "api", Path(programs), etcd, pki)
    plane = ControlPlane(directory, api, [etcd])
    admin = directory / "admin.json"
    admin.write_text(json.dumps(_admin_config(plane)))
    for program, options in (
        ("kube-scheduler", ["--secure-port=0"]),
        (
            "kube-controller-manager",
            [
                "--secure-port=0",
                f"--controllers={_CONTROLLERS}",
                f"--root-ca-file={pki / 'ca.crt'}",
            ],
        ),
    ):
        plane.others.append(_follower(directory / program, Path(programs), admin, options))
    deadline = time.monotonic() + 60
    while plane.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default") is None:
        if time.monotonic() > deadline:
            raise ServerError("the controllers made no service account within 60 s")
        time.sleep(0.2)
    return plane


def _certificates(pki: Path) -> None:
    """Make an authority, the server's certificate, and the key that signs service accounts."""
    pki.mkdir(parents=True)
    hint = "apt-get install openssl"
    names = f"subjectAltName=IP:{HOST},DNS:localhost,DNS:kubernetes.default.svc"
    (pki / "names").write_text(names)
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 7 -subj /CN=authority",
        "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=kube-apiserver",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out server.crt -days 7 "
        "-extfile names",
        "genrsa -out accounts.key 2048",
    ):
        run(["openssl", *command.split()], hint, cwd=pki)


def _etcd(place: Path) -> Server:
    place.mkdir()
    port, peers = free_port(), free_port()
    url, peer = f"http://{HOST}:{port}", f"http://{HOST}:{peers}"
    command = [
        "etcd",
        *("--data-dir", str(place / "data"), "--name", "one"),
        *("--listen-client-urls", url, "--advertise-client-urls", url),
        *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
        *("--initial-cluster", f"one={peer}", "--unsafe-no-fsync"),
    ]
    return Server("etcd", place, port, command, lambda server: answers(server.port), url).launch()


def _api_server(place: Path, programs: Path, etcd: Server, pki: Path) -> Server:
    place.mkdir()
    port = free_port()
    (place / "tokens.csv").write_text(f"{_ADMIN},admin,admin,system:masters\n")
    command = [
        str(programs / "kube-apiserver"),
        f"--etcd-servers={etcd.url}",
        *(f"--bind-address={HOST}", f"--advertise-address={HOST}", f"--secure-port={port}"),
        f"--tls-cert-file={pki / 'server.crt'}",
        f"--tls-private-key-file={pki / 'server.key'}",
        f"--service-account-issuer=https://{HOST}:{port}",
        f"--service-account-key-file={pki / 'accounts.key'}",
        f"--service-account-signing-key-file={pki / 'accounts.key'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=RBAC",
        f"--token-auth-file={place / 'tokens.csv'}",
        "--endpoint-reconciler-type=none",
    ]
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))

    def probe(server: Server) -> None:
        request = urllib.request.Request(
            f"https://{HOST}:{port}/readyz", headers={"Authorization": f"Bearer {_ADMIN}"}
        )
        urllib.request.urlopen(request, timeout=5, context=context).close()

    return Server("kube-apiserver", place, port, command, probe, f"https://{HOST}:{port}").launch()


def _follower(place: Path, programs: Path, admin: Path, options: list[str]) -> Server:
    place.mkdir()
    program = place.name
    command = [
        str(programs / program),
        f"--kubeconfig={admin}",
        "--leader-elect=false",
        *options,
    ]

    def probe(server: Server) -> None:
        os.kill(server.pid, 0)
        if server.log_path.stat().st_size == 0:
            raise ServerError("it has not begun")

    return Server(program, place, 0, command, probe, "").launch()


def _admin_config(plane: ControlPlane) -> dict[str, Any]:
    cluster = {"server": plane.url, "certificate-authority": str(plane.authority)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": _ADMIN}}],
    }


def version(plane: ControlPlane) -> str:
    """Return the release of the API server."""
    return str(plane.ask("GET", "/version")["gitVersion"])


def unshares() -> bool:
    """Return whether this process may make mount namespaces, which the played kubelet needs."""
    return (
        subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0
    )
