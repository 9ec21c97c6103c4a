"""The launch backends by name: a new driver starts at one, a handle says where an old one runs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from airflow_provider_deltaforge.control.launching import standalone, threads, yarn
from airflow_provider_deltaforge.control.launching.contract import (
    Backend,
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    NamedBackend,
)
from airflow_provider_deltaforge.control.launching.kubernetes import backend as kubernetes
from airflow_provider_deltaforge.control.launching.kubernetes.backend import KubernetesBackend
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from airflow_provider_deltaforge.control.launching.standalone import StandaloneBackend
from airflow_provider_deltaforge.control.launching.threads import ThreadBackend
from airflow_provider_deltaforge.control.launching.yarn import YarnBackend
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.telemetry.redaction import redacted

LOCAL = "local"
NAMES = (LOCAL, standalone.NAME, kubernetes.NAME, yarn.NAME)

REST_TOKEN = "DELTAFORGE_SPARK_REST_TOKEN"  # noqa: S105 - a name
"""The variable from which commands take the bearer token for the REST server of Spark's master."""


@dataclass(frozen=True, slots=True)
class LaunchBackends:
    """Every place where the drivers of a state store may run.

    Attributes:
        local: processes of this machine.
        standalone: submissions to a Spark standalone cluster.
        kubernetes: pods of a Kubernetes cluster.
        yarn: applications of a YARN cluster.
        threads: threads of this process, where it runs many pipelines.
        chosen: the name of the one that starts drivers.
    """

    local: LocalBackend
    standalone: StandaloneBackend = field(default_factory=StandaloneBackend)
    kubernetes: KubernetesBackend = field(default_factory=KubernetesBackend)
    yarn: YarnBackend = field(default_factory=YarnBackend)
    threads: ThreadBackend | None = None
    chosen: str = LOCAL

    @classmethod
    def of_store(cls, dsn: str) -> "LaunchBackends":
        """Return what a command uses: it starts drivers here, and finds others by their handles."""
        token = os.environ.get(REST_TOKEN)
        return cls(LocalBackend(jobs_directory(dsn)), StandaloneBackend(token=token))

    def check(self, master: str, store: str) -> None:
        """Refuse a Spark master or state store that the chosen backend cannot work with.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        self._by_name()[self.chosen].check(master, store)

    def submit(self, job: LaunchSpec) -> Handle:
        """Start a driver at the chosen backend.

        Raises:
            SpecError: the backend cannot run it as asked.
            RetryableError: the backend is away, or this machine lacks what it takes.
        """
        with _lacking_nothing(f"{job.name} could not be started"):
            return self._by_name()[self.chosen].submit(job)

    def status(self, handle: Handle) -> JobStatus:
        """Return what is known where the driver runs.

        Raises:
            RetryableError: this machine lacks what it takes to look.
        """
        backend = self._of(handle)
        if backend is None:
            return JobStatus(JobState.UNKNOWN)
        with _lacking_nothing(f"{handle.get('name')} could not be looked for"):
            return backend.status(handle)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Return when nothing of the job lives.

        Raises:
            RetryableError: it cannot be ended from here.
        """
        backend = self._of(handle)
        if backend is None:
            raise RetryableError(
                f"{handle.get('name')} was started by the launch backend "
                f"{handle.get('backend')!r}, which this release does not have"
            )
        backend.stop(handle, grace_s)

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the last lines of a driver's log that can be read from here."""
        backend = self._of(handle)
        return backend.logs_tail(handle, line_count) if backend is not None else ""

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return names and places a person can open."""
        backend = self._of(handle)
        return backend.links(handle) if backend is not None else {"driver log": "where it runs"}

    def _by_name(self) -> Mapping[str, NamedBackend]:
        return {
            LOCAL: self.local,
            standalone.NAME: self.standalone,
            kubernetes.NAME: self.kubernetes,
            yarn.NAME: self.yarn,
            threads.NAME: self.threads or ThreadBackend(self.local.directory),
        }

    def _of(self, handle: Handle) -> Backend | None:
        """Return whose handle it is; None when a later release wrote it."""
        return self._by_name().get(str(handle.get("backend", LOCAL)))


@contextmanager
def _lacking_nothing(what: str) -> Iterator[None]:
    """Make an error of this machine, such as a full disk or no free file, one that may pass."""
    try:
        yield
    except OSError as error:
        raise RetryableError(f"{what}: {redacted(str(error))}") from error


def require_known(name: str) -> str:
    """Return the name of a launch backend.

    Raises:
        SpecError: there is none of this name.
    """
    if name not in NAMES:
        raise SpecError(
            f"launch_backend: {name!r} is not there; write {', '.join(NAMES[:-1])} or {NAMES[-1]} "
            "(docs/airflow.md, 'Where drivers run')"
        )
    return name
