"""Drivers on a Spark standalone cluster, submitted through its master's REST server.

``spark-submit`` refuses cluster mode for Python there. The REST server takes any main class: given
``SparkSubmit`` itself, the worker that the master chooses starts the Python application as a client
of the same cluster. Nothing of the submitter's host is needed from then on: the submission's id in
the control record is all that another host needs to find the driver again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from airflow_provider_deltaforge.control.launching.cluster import (
    AWAY,
    exchange,
    first_lines,
    require_postgres,
    spark_conf,
    urls_of,
)
from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    happens,
)
from airflow_provider_deltaforge.control.launching.spark_submit import check_master, words_of
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError
from airflow_provider_deltaforge.storage.location import (
    ENVIRONMENT,
    EXECUTOR_VARIABLES,
    JOB,
    StoreLocation,
)

NAME = "standalone"

_SUBMISSIONS = "/v1/submissions/"
_REST_PORT = 6066

_DEFAULTS = {
    # The page is off, as with every driver of ours, and no row ever crosses the JVM.
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.cores": "1",
    # An application takes every core that is free unless it says how many.
    "spark.cores.max": "2",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}
_PLACEHOLDER = re.compile(r"\{\{.*\}\}", re.DOTALL)
_STATES = {
    "SUBMITTED": JobState.RUNNING,
    "RUNNING": JobState.RUNNING,
    "RELAUNCHING": JobState.RUNNING,
    "FINISHED": JobState.ENDED,
    "FAILED": JobState.ENDED,
    "KILLED": JobState.ENDED,
    "ERROR": JobState.ENDED,
}


@dataclass(frozen=True, slots=True)
class StandaloneBackend:
    """Submits drivers to a cluster's master, which places them on its workers.

    Attributes:
        python: interpreter on every host of the cluster, of an environment with this package; its
            directory holds the scripts that came with the package.
        rest_urls: of the masters' REST servers; none: port 6066 of the masters' hosts.
        conf: Spark settings of driver and executors; visible on command lines.
        token: sent to the REST servers as bearer token.
        kill_wait_s: so long a driver may take to end once it is killed; a worker gives it 10 s
            between SIGTERM and SIGKILL.
    """

    python: str | None = None
    rest_urls: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)
    kill_wait_s: float = 20.0

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> "StandaloneBackend":
        """Read the extra of a connection: ``spark_python``, ``spark_rest_url``, ``spark_conf``.

        Also ``spark_rest_token``.

        Raises:
            SpecError: a value is refused; the text names its key.
        """
        urls = urls_of(
            "spark_rest_url",
            extra.get("spark_rest_url"),
            "http://host:6066, the REST server of Spark's master",
        )
        python = extra.get("spark_python") or None
        if python is not None and not PurePosixPath(str(python)).is_absolute():
            raise SpecError(
                "spark_python: write the absolute path of the interpreter on the cluster's hosts, "
                f"/opt/deltaforge/bin/python; got {python!r}"
            )
        token = extra.get("spark_rest_token") or None
        return cls(
            str(python) if python else None,
            urls,
            spark_conf(extra.get("spark_conf")),
            str(token) if token else None,
        )

    def check(self, master: str, store: str) -> None:
        """Refuse what cannot be submitted, before anything is stored or started.

        Args:
            master: Spark's master URL.
            store: the DSN of the state store.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        require_postgres(NAME, store)
        check_master(master, store)
        if not master.startswith("spark://"):
            raise SpecError(
                f"the launch backend `{NAME}` needs a standalone cluster: write spark://host:7077 "
                f"as `master`, or in the connection that spark_conn_id names; got {master!r}"
            )
        if self.python is None:
            raise SpecError(
                f"the launch backend `{NAME}` needs the extra `spark_python` of the connection: "
                "the interpreter on the cluster's hosts that has this package, as in "
                "/opt/deltaforge/bin/python"
            )

    def submit(self, job: LaunchSpec) -> Handle:
        """Submit a driver; its id is the handle.

        A submission whose answer is lost starts a driver all the same. It ends by itself, because
        the caller's next attempt has a newer generation or takes its epoch.

        Raises:
            SpecError: it cannot be submitted as asked, or the master does not understand it.
            AccessError: the REST server refuses us.
            RetryableError: no master that leads is there.
        """
        self.check(job.master, job.store)
        urls = self.rest_urls or _rest_urls(job.master)
        reasons = []
        for url in urls:
            try:
                answer = self._ask(url, "POST", "create", self._request(job))
            except RetryableError as error:
                reasons.append(str(error))
                continue
            if answer.get("success") and answer.get("submissionId"):
                return {
                    "backend": NAME,
                    "name": job.name,
                    "submission_id": answer["submissionId"],
                    "master": job.master,
                    "rest_urls": list(urls),
                }
            reasons.append(f"{url}: {first_lines(answer.get('message'))}")
        raise RetryableError(f"{job.name} was not submitted: {'; '.join(reasons)}")

    def status(self, handle: Handle) -> JobStatus:
        """Ask the master; unknown where none answers, or none knows the submission any more."""
        for url in handle.get("rest_urls") or ():
            if AWAY.has(url):
                continue
            try:
                answer = self._ask(url, "GET", f"status/{handle['submission_id']}")
            except (RetryableError, AccessError, SpecError):
                AWAY.note(url)
                continue
            state = _STATES.get(str(answer.get("driverState")))
            if answer.get("success") and state is not None:
                exit_code = 0 if answer["driverState"] == "FINISHED" else None
                return JobStatus(state, exit_code, detail=_detail(answer))
        return JobStatus(JobState.UNKNOWN)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Wait for the driver to drain, then let the master kill it; return when it is gone.

        Raises:
            RetryableError: the master cannot be asked, or the driver does not end.
        """
        if self._ended(handle, grace_s):
            return
        for url in handle["rest_urls"]:
            try:
                answer = self._ask(url, "POST", f"kill/{handle['submission_id']}")
            except RetryableError:
                continue
            if answer.get("success"):
                break
        if not self._ended(handle, self.kill_wait_s):
            state = self.status(handle).state.value
            raise RetryableError(
                f"{handle.get('name')}: submission {handle.get('submission_id')} on "
                f"{handle.get('master')} has not ended ({state}); is the master's REST server up?"
            )

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return nothing: the driver ships the end of its log to the state store itself."""
        del handle, line_count
        return ""

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return the submission, and where Spark keeps what the driver printed."""
        submission = f"{handle.get('submission_id')}"
        return {
            "driver log": f"{submission}/stderr in the work directory of its Spark worker",
            "submission": f"{submission} on {handle.get('master')}",
        }

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        return happens(lambda: self.status(handle).state is JobState.ENDED, wait_s)

    def _request(self, job: LaunchSpec) -> Mapping[str, Any]:
        """Return a submission; what is secret is in ``environmentVariables`` and nowhere else."""
        conf = {**_DEFAULTS, **self.conf}
        python = PurePosixPath(str(self.python))
        variables = {
            **job.environment,
            ENVIRONMENT: StoreLocation.from_dsn(job.store).to_dsn(),
        }
        for name, value in variables.items():
            if _PLACEHOLDER.fullmatch(value):
                raise SpecError(
                    f"the value of {name} begins with {{{{ and ends with }}}}: Spark's master "
                    "would put a variable of its own in its place; change the value"
                )
        return {
            "action": "CreateSubmissionRequest",
            "clientSparkVersion": "",
            "appResource": "",
            "mainClass": "org.apache.spark.deploy.SparkSubmit",
            "appArgs": [
                *("--master", job.master, "--deploy-mode", "client", "--name", job.name),
                *words_of(conf),
                str(python.parent / f"deltaforge_{job.script}"),
                *("--pipeline", job.pipeline, "--generation", str(job.generation)),
                *job.arguments,
            ],
            "sparkProperties": {
                **conf,
                "spark.app.name": job.name,
                "spark.driver.supervise": "false",  # One restarter only: control/supervise.py.
            },
            "environmentVariables": {
                **variables,
                EXECUTOR_VARIABLES: ",".join(sorted(variables)),
                JOB: job.name,
                "PYSPARK_PYTHON": str(python),
                "PYSPARK_DRIVER_PYTHON": str(python),
            },
        }

    def _ask(
        self, url: str, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        """Return a REST server's answer; no proxy and no redirect sees what is sent."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            reply = exchange(url, f"{_SUBMISSIONS}{path}", method, body=body, headers=headers)
        except RetryableError as error:
            raise RetryableError(f"Spark's master does not answer at {url}: {error}") from error
        if reply.status in {401, 403}:
            raise AccessError(
                f"the REST server at {url} refuses us (HTTP {reply.status}): set the extra "
                "spark_rest_token of the connection to a token that it takes"
            )
        answer = reply.fields()
        if answer is None:
            raise RetryableError(
                f"what answers at {url} is no REST server of a Spark master (HTTP "
                f"{reply.status}): check spark_rest_url, and spark.master.rest.enabled there"
            )
        if reply.status == 400:
            raise SpecError(f"{url} does not take it: {first_lines(answer.get('message'))}")
        return answer


def _rest_urls(master: str) -> tuple[str, ...]:
    hosts = master.removeprefix("spark://").split(",")
    return tuple(f"http://{host.rpartition(':')[0]}:{_REST_PORT}" for host in hosts)


def _detail(answer: Mapping[str, Any]) -> str:
    """Return in words what the master says of a submission."""
    state, worker = answer["driverState"], answer.get("workerId")
    if state == "SUBMITTED":
        return "queued by Spark's master: no worker has the cores and the memory for a driver yet"
    words = [f"Spark says {state}"]
    if worker:
        words.append(f"{answer.get('submissionId')} on {worker}")
    if answer.get("message"):
        words.append(first_lines(answer["message"]))
    return "; ".join(words)
