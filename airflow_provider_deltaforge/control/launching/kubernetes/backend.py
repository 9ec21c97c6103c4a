"""Drivers as pods: submitted, found by their labels, watched and ended through the API server.

The driver's pod is the handle. Its name follows from pipeline, generation and state store, so
that a submission that is repeated finds the pod of the first. Variables that may be secret are in
a Secret of their own, which the pod (or its ``SparkApplication``) owns: the cluster deletes both
together.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control.launching.cluster import AWAY, require_postgres
from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    happens,
)
from airflow_provider_deltaforge.control.launching.kubernetes import submission
from airflow_provider_deltaforge.control.launching.kubernetes.cluster import (
    ClusterAccess,
    ConflictError,
    KubernetesCluster,
)
from airflow_provider_deltaforge.control.launching.kubernetes.pod_status import (
    driver_container,
    driver_status,
    is_overdue,
)
from airflow_provider_deltaforge.control.launching.kubernetes.settings import (
    GENERATION_LABEL,
    JOB_LABEL,
    SECRET_ANNOTATION,
    SPARK_OPERATOR,
    JobNames,
    KubernetesSettings,
)
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation

NAME = "kubernetes"
MASTER = "k8s://"

_ORPHAN_S = 600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KubernetesBackend:
    """Starts drivers as pods of a cluster.

    Attributes:
        settings: where and as what they run.
        access: how the API server is reached.
        kill_grace_s: so long a driver that is deleted may take between SIGTERM and SIGKILL.
        kill_wait_s: so long the cluster may take to end it, beyond the grace.
    """

    settings: KubernetesSettings = field(default_factory=KubernetesSettings)
    access: ClusterAccess = field(default_factory=ClusterAccess)
    kill_grace_s: int = 10
    kill_wait_s: float = 20.0

    def check(self, master: str, store: str) -> None:
        """Refuse what cannot be submitted, before anything is stored or started.

        Args:
            master: Spark's master URL.
            store: the DSN of the state store.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        require_postgres(NAME, store)
        _server_of(master)
        if self.settings.image is None:
            raise SpecError(
                f"the launch backend `{NAME}` needs the extra `kubernetes_image` of the connection:"
                " the image of driver and executors; `deltaforge image --host kubernetes` writes "
                "what it is built of"
            )
        for role in ("driver", "executor"):
            template = getattr(self.settings, f"{role}_template")
            if template is not None and not Path(template).is_file():
                raise SpecError(
                    f"kubernetes_{role}_template: there is no file {template} on this worker"
                )

    def submit(self, job: LaunchSpec) -> Handle:
        """Start a driver, or adopt the one of its pipeline and generation.

        Raises:
            SpecError: it cannot be submitted as asked.
            AccessError: the API server refuses the account.
            RetryableError: the API server is away, or the submission failed.
        """
        self.check(job.master, job.store)
        cluster, names = self.access.cluster(_server_of(job.master)), JobNames.of(job)
        found = self._running(cluster, names)
        if found is not None:
            return found
        self._clear(cluster, names)
        values = {**job.environment, ENVIRONMENT: StoreLocation.from_dsn(job.store).to_dsn()}
        secret = cluster.create_secret(self.settings.namespace, names.job, names.labels(), values)
        try:
            if self.settings.launcher == SPARK_OPERATOR:
                owner = self._apply(cluster, names, job, secret)
            else:
                owner = self._spark_submit(cluster, names, job, secret)
        except DeltaForgeError:
            # Of two that submit at the same time, one finds the name taken; and an answer that was
            # lost may stand for a driver that is there.
            found = self._made_all_the_same(cluster, names, secret)
            if found is None:
                raise
            return found
        return self._handle(cluster, names, owner)

    def status(self, handle: Handle) -> JobStatus:
        """Ask the API server; unknown where it does not answer, or is another cluster's."""
        try:
            cluster = self.access.cluster()
            server = cluster.identity["server"]
            if not cluster.is_same(handle.get("cluster") or {}):
                return JobStatus(
                    JobState.UNKNOWN, detail=f"its cluster is not {server}, which is known here"
                )
        except SpecError as error:
            return JobStatus(JobState.UNKNOWN, detail=str(error))
        if AWAY.has(server):
            return JobStatus(JobState.UNKNOWN)
        try:
            return self._status(cluster, handle)
        except AccessError as error:
            return JobStatus(JobState.UNKNOWN, detail=str(error))
        except DeltaForgeError:
            AWAY.note(server)
            return JobStatus(JobState.UNKNOWN)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Wait for the driver to drain, then delete its pod; return when nothing of it lives.

        Raises:
            RetryableError: the API server does not answer, or the pod stays.
        """
        if self._ended(handle, grace_s):
            return
        cluster = self.access.cluster()
        if not cluster.is_same(handle.get("cluster") or {}):
            raise RetryableError(f"{handle.get('name')}: {self.status(handle).detail}")
        namespace, name = str(handle["namespace"]), str(handle["name"])
        with suppress(ConflictError):  # Another pod has the name by now.
            if handle.get("application"):
                cluster.end_application(namespace, name, str(handle["application"]))
            pod = cluster.pod(namespace, name)
            if pod is not None and _is_of(pod, handle):
                cluster.end_pod(namespace, name, str(pod["metadata"]["uid"]), self.kill_grace_s)
        if not self._ended(handle, self.kill_grace_s + self.kill_wait_s):
            present = self.status(handle)
            raise RetryableError(
                f"{name} has not ended: {present.detail or 'the API server does not answer'}; "
                f"`kubectl --namespace {namespace} describe pod {name}` says more"
            )

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the end of what the driver printed; nothing where its pod or node is away."""
        namespace, name = str(handle.get("namespace")), str(handle.get("name"))
        with suppress(DeltaForgeError):
            cluster = self.access.cluster()
            if cluster.is_same(handle.get("cluster") or {}):
                pod = cluster.pod(namespace, name)
                if pod is not None and _is_of(pod, handle):
                    container = driver_container(pod)
                    return cluster.log_tail(namespace, name, container, line_count)
        return ""

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return the pod, and the command that shows its log."""
        namespace, name = handle.get("namespace"), handle.get("name")
        return {
            "driver log": f"kubectl --namespace {namespace} logs {name}",
            "pod": f"{namespace}/{name}",
        }

    def _status(self, cluster: KubernetesCluster, handle: Handle) -> JobStatus:
        namespace, name = str(handle["namespace"]), str(handle["name"])
        pods = cluster.pods(namespace, f"{JOB_LABEL}={name}")
        pod = next((pod for pod in pods if pod["metadata"]["name"] == name), None)
        if pod is not None and not _is_of(pod, handle):
            pod = None
        now = datetime.now(timezone.utc)
        executors = [other for other in pods if other["metadata"]["name"] != name]
        if pod is None and handle.get("application"):
            application = cluster.application(namespace, name)
            return _application_status(application, str(handle["application"]))
        return driver_status(pod, now, executors)

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        return happens(lambda: self.status(handle).state is JobState.ENDED, wait_s)

    def _running(self, cluster: KubernetesCluster, names: JobNames) -> Handle | None:
        """Return the handle of a driver that was submitted before and has not ended."""
        owner = self._owner(cluster, names)
        pod = cluster.pod(self.settings.namespace, names.job)
        if owner is None:
            return None
        leaves = any(each["metadata"].get("deletionTimestamp") for each in (owner, pod) if each)
        status = (
            driver_status(pod, datetime.now(timezone.utc))
            if pod is not None
            else _application_status(owner, str(owner["metadata"]["uid"]))
        )
        if leaves or status.state is JobState.ENDED:
            return None
        return self._handle(cluster, names, owner)

    def _made_all_the_same(
        self, cluster: KubernetesCluster, names: JobNames, secret: str
    ) -> Handle | None:
        """Return the handle of the driver that is there; delete a Secret that it does not use."""
        with suppress(DeltaForgeError):
            owner = self._owner(cluster, names)
            if owner is None or _secret_of(owner) != secret:
                cluster.delete_secret(self.settings.namespace, secret)
            return self._running(cluster, names)
        return None

    def _owner(self, cluster: KubernetesCluster, names: JobNames) -> dict[str, Any] | None:
        """Return what the Secret of a driver belongs to: its application, else its pod."""
        namespace = self.settings.namespace
        if self.settings.launcher == SPARK_OPERATOR:
            application = cluster.application(namespace, names.job)
            if application is not None:
                return application
        return cluster.pod(namespace, names.job)

    def _clear(self, cluster: KubernetesCluster, names: JobNames) -> None:
        """Take away what is in the way, and what earlier drivers of the pipeline left behind.

        The newest pod that ended stays, for its log. A pod on a node that does not answer is taken
        out of the API: should its driver live on, its epoch is old, and nothing it writes counts.

        Raises:
            RetryableError: a former pod of this name is not gone yet.
        """
        namespace, now = self.settings.namespace, datetime.now(timezone.utc)
        pods = [
            pod
            for pod in cluster.pods(namespace, names.selector())
            if pod["metadata"]["labels"].get("spark-role") == "driver"
        ]
        pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        former = [pod for pod in pods if pod["metadata"]["name"] != names.job]
        ended = [pod for pod in former if driver_status(pod, now).state is JobState.ENDED]
        own = [pod for pod in pods if pod["metadata"]["name"] == names.job]
        for pod in [*ended[:-1], *own]:
            grace_s = 0 if is_overdue(pod, now) or pod not in own else self.kill_grace_s
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            with suppress(ConflictError):
                if self.settings.launcher == SPARK_OPERATOR:
                    self._end_application(cluster, name)
                cluster.end_pod(namespace, name, uid, grace_s)
        if self.settings.launcher == SPARK_OPERATOR:
            self._end_application(cluster, names.job)
        wait_s = self.kill_grace_s + self.kill_wait_s
        if not happens(lambda: self._is_free(cluster, names), wait_s):
            raise RetryableError(f"the former pod {namespace}/{names.job} is not gone yet")
        self._sweep(cluster, names, now)

    def _end_application(self, cluster: KubernetesCluster, name: str) -> None:
        former = cluster.application(self.settings.namespace, name)
        if former is not None:
            cluster.end_application(self.settings.namespace, name, former["metadata"]["uid"])

    def _is_free(self, cluster: KubernetesCluster, names: JobNames) -> bool:
        namespace = self.settings.namespace
        if self.settings.launcher == SPARK_OPERATOR and cluster.application(namespace, names.job):
            return False
        return cluster.pod(namespace, names.job) is None

    def _sweep(self, cluster: KubernetesCluster, names: JobNames, now: datetime) -> None:
        """Delete Secrets whose submission died before a pod could own them."""
        for secret in cluster.secrets(self.settings.namespace, names.selector()):
            made = datetime.fromisoformat(secret["creationTimestamp"].replace("Z", "+00:00"))
            older = int(secret["labels"].get(GENERATION_LABEL, 0)) < int(names.generation)
            aged = (now - made).total_seconds() > _ORPHAN_S
            if not secret.get("ownerReferences") and (older or aged):
                cluster.delete_secret(self.settings.namespace, secret["name"])

    def _apply(
        self, cluster: KubernetesCluster, names: JobNames, job: LaunchSpec, secret: str
    ) -> dict[str, Any]:
        application = submission.application(self.settings, names, job, secret)
        return cluster.create_application(self.settings.namespace, application)

    def _spark_submit(
        self, cluster: KubernetesCluster, names: JobNames, job: LaunchSpec, secret: str
    ) -> dict[str, Any]:
        namespace = self.settings.namespace
        line = submission.command(self.settings, names, job, secret)
        submission.submit(line, cluster.kubeconfig(namespace))
        pod = cluster.pod(namespace, names.job)
        if pod is None:
            raise RetryableError(
                f"spark-submit succeeded, and {cluster.configuration.host} has no pod "
                f"{namespace}/{names.job}"
            )
        return pod

    def _handle(
        self, cluster: KubernetesCluster, names: JobNames, owner: Mapping[str, Any]
    ) -> Handle:
        """Return the handle, once the driver's Secret belongs to ``owner``."""
        metadata = owner["metadata"]
        secret = _secret_of(owner)
        if secret:
            reference = {
                "apiVersion": owner.get("apiVersion", "v1"),
                "kind": owner.get("kind", "Pod"),
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
            try:
                cluster.give_secret(self.settings.namespace, secret, reference)
            except DeltaForgeError as error:
                log.warning("%s: its Secret %s has no owner yet: %s", names.job, secret, error)
        is_application = owner.get("kind") == "SparkApplication"
        return {
            "backend": NAME,
            "name": names.job,
            "pod": names.job,
            "namespace": self.settings.namespace,
            ("application" if is_application else "uid"): metadata["uid"],
            "cluster": cluster.identity,
        }


def _server_of(master: str) -> str:
    """Return the address of the API server in a Spark master.

    Raises:
        SpecError: it is none of Kubernetes.
    """
    server = master.removeprefix(MASTER)
    scheme, found, host = server.partition("://")
    if not master.startswith(MASTER) or not found or scheme not in {"https", "http"} or "@" in host:
        raise SpecError(
            f"the launch backend `{NAME}` needs the API server's address: write "
            "k8s://https://kubernetes.default.svc (from inside of the cluster) or "
            "k8s://https://host:6443 as `master`, or in the connection that spark_conn_id names; "
            f"got {'one with a login' if '@' in host else repr(master)}"
        )
    return server.rstrip("/")


def _secret_of(owner: Mapping[str, Any]) -> str | None:
    """Return the name of the Secret that was made for a pod or an application."""
    return (owner["metadata"].get("annotations") or {}).get(SECRET_ANNOTATION)


def _is_of(pod: Mapping[str, Any], handle: Handle) -> bool:
    """Return whether a pod is the one of a handle, and not a later one of its name."""
    metadata = pod["metadata"]
    if handle.get("uid"):
        return bool(metadata["uid"] == handle["uid"])
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or ()]
    return handle.get("application") in owners


def _application_status(application: Mapping[str, Any] | None, uid: str) -> JobStatus:
    """Return what the operator says of a driver that has no pod, or not any more."""
    if application is None or application["metadata"]["uid"] != uid:
        return JobStatus(JobState.ENDED, detail="its SparkApplication is gone: somebody deleted it")
    state = (application.get("status") or {}).get("applicationState") or {}
    word = state.get("state") or ""
    reason = " ".join(str(state.get("errorMessage") or "").split())[:300]
    words = f"the Spark Operator says {word}{f' ({reason})' if reason else ''}"
    if word == "":
        return JobStatus(
            JobState.RUNNING,
            detail="waits for the Spark Operator; does it watch this namespace?",
        )
    if word == "COMPLETED":
        return JobStatus(JobState.ENDED, 0, detail=words)
    if word in {"FAILED", "SUBMISSION_FAILED", "SUSPENDED"}:
        return JobStatus(JobState.ENDED, None, detail=words)
    return JobStatus(JobState.RUNNING, detail=words)
