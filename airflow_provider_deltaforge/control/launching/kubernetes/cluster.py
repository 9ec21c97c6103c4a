"""The few things we ask of a Kubernetes API server, by the official client.

Answers are the API's JSON, so that a release of the client that knows fewer fields loses none.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError
from airflow_provider_deltaforge.telemetry.redaction import redacted

_TIMEOUT_S = 5.0
_LOG_BYTES = 1 << 20
_CLIENT_LIFE_S = 600.0
"""So long a client is used again; its token is renewed by itself, a changed kubeconfig is not."""
_APPLICATIONS = ("sparkoperator.k8s.io", "v1beta2")
_PLURAL = "sparkapplications"

_configurations: dict[str, tuple[float, Any]] = {}


class ConflictError(RetryableError):
    """An object of this name is there already, or is no longer the one that was meant."""


class AbsentError(SpecError):
    """An object, or its namespace, or the very kind of object is not there."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """How the API server is reached.

    Attributes:
        context: of the kubeconfig; None: the service account of this pod, or, outside of a
            cluster, the kubeconfig's current context.
        configuration: returns a ``kubernetes.client.Configuration`` instead; named by ``source``.
        source: what ``configuration`` reads, for errors.
    """

    context: str | None = None
    configuration: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    source: str = ""

    def cluster(self, server: str | None = None) -> "KubernetesCluster":
        """Return the API server to ask.

        Args:
            server: its address; None: as the configuration says.

        Raises:
            SpecError: there is no configuration, or the client is not installed.
        """
        key = f"{self.source}|{self.context or ''}|{os.environ.get('KUBECONFIG', '')}"
        made_at, configuration = _configurations.get(key, (0.0, None))
        if configuration is None or time.monotonic() - made_at > _CLIENT_LIFE_S:
            configuration = self._read()
            _configurations[key] = (time.monotonic(), configuration)
        configuration = copy(configuration)
        # Whoever asks has a way to go on without an answer, and a page does not wait four times.
        configuration.retries = False
        if server is not None:
            configuration.host = server
        return KubernetesCluster(configuration)

    def _read(self) -> Any:
        try:
            from kubernetes import client, config
        except ImportError:
            raise SpecError(
                "the launch backend `kubernetes` needs the client of Kubernetes: install "
                "airflow-provider-deltaforge[kubernetes]"
            ) from None
        if self.configuration is not None:
            return self.configuration()
        configuration = client.Configuration()
        try:
            if self.context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
                config.load_incluster_config(client_configuration=configuration)
            else:
                # The client itself reads the variable when it is imported, and not again.
                config.load_kube_config(
                    os.environ.get("KUBECONFIG") or None,
                    context=self.context,
                    client_configuration=configuration,
                )
        except (config.ConfigException, OSError) as error:
            raise SpecError(
                f"no Kubernetes cluster is configured here: {redacted(str(error))}; run in a pod "
                "with a service account, set KUBECONFIG, or name the extra kubernetes_conn_id"
            ) from error
        return configuration


@dataclass(frozen=True, slots=True)
class KubernetesCluster:
    """One API server, asked as one account."""

    configuration: Any = field(repr=False)

    @property
    def identity(self) -> dict[str, str]:
        """Return what tells clusters apart: the authority that signed the server, its address."""
        authority = self.configuration.ssl_ca_cert
        words = {"server": str(self.configuration.host)}
        if authority and Path(authority).is_file():
            words["authority"] = hashlib.sha256(Path(authority).read_bytes().strip()).hexdigest()
        return words

    def is_same(self, identity: Mapping[str, str]) -> bool:
        """Return whether this is the cluster of an ``identity``.

        One cluster has many addresses, and inside of every cluster the address is the same: where
        both know the authority, it decides.
        """
        own = self.identity
        by = "authority" if "authority" in own and "authority" in identity else "server"
        return own[by] == identity.get(by)

    def kubeconfig(self, namespace: str) -> dict[str, Any]:
        """Return a kubeconfig by which another program does what we may do; it holds secrets."""
        known = self.configuration
        cluster: dict[str, Any] = {"server": known.host}
        if known.ssl_ca_cert:
            cluster["certificate-authority"] = str(known.ssl_ca_cert)
        if not known.verify_ssl:
            cluster["insecure-skip-tls-verify"] = True
        user: dict[str, Any] = {}
        bearer = known.auth_settings().get("BearerToken", {}).get("value")
        if bearer:
            user["token"] = str(bearer).removeprefix("Bearer ").removeprefix("bearer ")
        if known.cert_file:
            user["client-certificate"] = str(known.cert_file)
            user["client-key"] = str(known.key_file)
        name = "cluster"
        context = {"cluster": name, "user": name, "namespace": namespace}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        }

    def pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a pod, None when there is none."""
        with suppress(AbsentError), self._asked(f"read the pod {namespace}/{name}") as api:
            answer = api.CoreV1Api(self._client(api)).read_namespaced_pod(
                name, namespace, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
            found: dict[str, Any] = json.loads(answer.data)
            return found
        return None

    def pods(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the pods that a label selector finds."""
        with self._asked(f"list the pods of {namespace}") as api:
            answer = api.CoreV1Api(self._client(api)).list_namespaced_pod(
                namespace,
                label_selector=selector,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            items: list[dict[str, Any]] = json.loads(answer.data)["items"]
            return items

    def end_pod(self, namespace: str, name: str, uid: str, grace_s: int) -> None:
        """Delete a pod, unless another one has its name by now; without it, do nothing."""
        with suppress(AbsentError), self._asked(f"delete the pod {namespace}/{name}") as api:
            options = api.V1DeleteOptions(
                grace_period_seconds=grace_s, preconditions=api.V1Preconditions(uid=uid)
            )
            api.CoreV1Api(self._client(api)).delete_namespaced_pod(
                name, namespace, body=options, _preload_content=False, _request_timeout=_TIMEOUT_S
            )

    def log_tail(self, namespace: str, name: str, container: str, line_count: int) -> str:
        """Return the end of what a container printed."""
        with self._asked(f"read the log of {namespace}/{name}") as api:
            answer = api.CoreV1Api(self._client(api)).read_namespaced_pod_log(
                name,
                namespace,
                container=container,
                tail_lines=line_count,
                limit_bytes=_LOG_BYTES,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            return bytes(answer.data).decode(errors="replace")

    def create_secret(
        self, namespace: str, base_name: str, labels: Mapping[str, str], values: Mapping[str, str]
    ) -> str:
        """Make a Secret whose values nobody changes, and return its name."""
        with self._asked(f"create a Secret in {namespace}") as api:
            secret = api.V1Secret(
                api_version="v1",
                kind="Secret",
                metadata=api.V1ObjectMeta(generate_name=f"{base_name}-", labels=dict(labels)),
                string_data=dict(values),
                immutable=True,
            )
            answer = api.CoreV1Api(self._client(api)).create_namespaced_secret(
                namespace, secret, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
            return str(json.loads(answer.data)["metadata"]["name"])

    def secrets(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the metadata of the Secrets that a label selector finds; no value is kept."""
        with self._asked(f"list the Secrets of {namespace}") as api:
            answer = api.CoreV1Api(self._client(api)).list_namespaced_secret(
                namespace,
                label_selector=selector,
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )
            return [item["metadata"] for item in json.loads(answer.data)["items"]]

    def give_secret(self, namespace: str, name: str, owner: Mapping[str, Any]) -> None:
        """Have a Secret deleted together with its owner, by the cluster's garbage collector."""
        with self._asked(f"change the Secret {namespace}/{name}") as api:
            api.CoreV1Api(self._client(api)).patch_namespaced_secret(
                name,
                namespace,
                {"metadata": {"ownerReferences": [dict(owner)]}},
                _preload_content=False,
                _request_timeout=_TIMEOUT_S,
            )

    def delete_secret(self, namespace: str, name: str) -> None:
        """Delete a Secret; without it, do nothing."""
        with suppress(AbsentError), self._asked(f"delete the Secret {namespace}/{name}") as api:
            api.CoreV1Api(self._client(api)).delete_namespaced_secret(
                name, namespace, _preload_content=False, _request_timeout=_TIMEOUT_S
            )

    def create_application(self, namespace: str, application: Mapping[str, Any]) -> dict[str, Any]:
        """Make a ``SparkApplication``.

        Raises:
            AbsentError: the Spark Operator is not installed.
            ConflictError: there is one of this name.
        """
        with self._asked(f"create a SparkApplication in {namespace}") as api:
            answer: dict[str, Any] = api.CustomObjectsApi(
                self._client(api)
            ).create_namespaced_custom_object(
                *_APPLICATIONS, namespace, _PLURAL, dict(application), _request_timeout=_TIMEOUT_S
            )
            return answer

    def application(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a ``SparkApplication``, None when there is none."""
        with (
            suppress(AbsentError),
            self._asked(f"read the SparkApplication {namespace}/{name}") as api,
        ):
            answer: dict[str, Any] = api.CustomObjectsApi(
                self._client(api)
            ).get_namespaced_custom_object(
                *_APPLICATIONS, namespace, _PLURAL, name, _request_timeout=_TIMEOUT_S
            )
            return answer
        return None

    def end_application(self, namespace: str, name: str, uid: str) -> None:
        """Delete a ``SparkApplication``, unless another has its name by now."""
        with (
            suppress(AbsentError),
            self._asked(f"delete the SparkApplication {namespace}/{name}") as api,
        ):
            options = api.V1DeleteOptions(preconditions=api.V1Preconditions(uid=uid))
            api.CustomObjectsApi(self._client(api)).delete_namespaced_custom_object(
                *_APPLICATIONS, namespace, _PLURAL, name, body=options, _request_timeout=_TIMEOUT_S
            )

    def _client(self, api: Any) -> Any:
        return api.ApiClient(self.configuration)

    @contextmanager
    def _asked(self, what: str) -> Iterator[Any]:
        """Yield the client's module.

        Raises:
            AbsentError: the object is not there.
            AccessError: the account may not do it.
            ConflictError: the name is taken, or belongs to another object.
            SpecError: the API refuses what was sent.
            RetryableError: the server does not answer, or cannot do it now.
        """
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        try:
            yield client
        except client.ApiException as error:
            raise _to_error(error, what, self.configuration.host) from None
        except (HTTPError, OSError) as error:
            words = redacted(str(error))[:200] or type(error).__name__
            raise RetryableError(
                f"the API server {self.configuration.host} does not answer: {words}"
            ) from error


def _to_error(error: Any, what: str, server: str) -> Exception:
    """Return what an answer of the API means; its body may hold what was sent, its message not."""
    try:
        message = str(json.loads(error.body or "{}").get("message") or error.reason)
    except (ValueError, AttributeError):
        message = str(error.reason)
    words = f"{server} refuses to {what} (HTTP {error.status}): {redacted(message)[:300]}"
    if error.status in {401, 403}:
        return AccessError(
            f"{words}; docs/kubernetes has the role that Airflow's service account needs"
        )
    if error.status == 409:
        return ConflictError(words)
    if error.status == 404:
        return AbsentError(words)
    if error.status in {400, 422}:
        return SpecError(words)
    return RetryableError(words)
