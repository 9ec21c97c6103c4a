"""Drivers on a YARN cluster: ``spark-submit`` in cluster mode, then the resource manager's REST.

The driver is the application's own container, so nothing of the submitter's host is needed once
``spark-submit`` has returned: the application's id in the control record is all that another host
needs to find it again. Where its answer was lost, a tag of the application finds it.
"""

import getpass
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode

from airflow_provider_deltaforge.control.launching.cluster import (
    AWAY,
    OURS,
    Reply,
    exchange,
    first_lines,
    require_postgres,
    spark_conf,
    store_place,
    urls_of,
)
from airflow_provider_deltaforge.control.launching.contract import (
    Handle,
    JobState,
    JobStatus,
    LaunchSpec,
    happens,
)
from airflow_provider_deltaforge.control.launching.yarn_submit import SET_BY_US, Submission
from airflow_provider_deltaforge.errors import AccessError, RetryableError, SpecError

NAME = "yarn"

USER = "HADOOP_USER_NAME"
"""The variable by which Hadoop's clients know on whose behalf they ask, without Kerberos."""

_APPS = "/ws/v1/cluster/apps"
_TAIL_BYTES = 1 << 20
_ALIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
_STATES = {
    **dict.fromkeys(_ALIVE.split(","), JobState.RUNNING),
    **dict.fromkeys(("FINISHED", "FAILED", "KILLED"), JobState.ENDED),
}
_EXIT_CODE = re.compile(r"User application exited with (?:status )?(\d{1,3})")
_CONTAINER = re.compile(r"/(container_[\w]+)/")
_CONTENT = re.compile(r"^LogContents:\n(.*?)^End of LogType:", re.MULTILINE | re.DOTALL)
_ARCHIVE = re.compile(r"[^\s,#]+\.(?:tar\.gz|tgz|zip|tar)")


@dataclass(frozen=True, slots=True)
class YarnBackend:
    """Submits drivers to a YARN cluster, whose resource manager places them on its nodes.

    Attributes:
        python: interpreter on every node, of an environment with this package.
        archive: address of such an environment as an archive, which travels with each driver.
        rest_urls: of the resource managers' web services.
        user: on whose behalf applications are submitted and killed; None: this process's.
        conf_dir: directory of ``yarn-site.xml`` and ``core-site.xml``; None: what the environment
            says.
        conf: Spark settings of driver and executors; visible on command lines.
        kill_wait_s: so long an application may take to end once it is killed.
        submit_wait_s: so long ``spark-submit`` may take; it may have to upload Spark.
    """

    python: str | None = None
    archive: str | None = None
    rest_urls: tuple[str, ...] = ()
    user: str | None = None
    conf_dir: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    kill_wait_s: float = 30.0
    submit_wait_s: float = 600.0

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any]) -> "YarnBackend":
        """Read the extra of a connection: ``yarn_rest_url``, ``yarn_user``, ``spark_archive``, ….

        Also ``hadoop_conf_dir``, ``spark_python`` and ``spark_conf``.

        Raises:
            SpecError: a value is refused; the text names its key.
        """
        urls = urls_of(
            "yarn_rest_url",
            extra.get("yarn_rest_url"),
            "http://host:8088, the web address of YARN's resource manager",
        )
        python, archive = extra.get("spark_python") or None, extra.get("spark_archive") or None
        if archive is not None and not _ARCHIVE.fullmatch(str(archive)):
            raise SpecError(
                "spark_archive: write the address of one archive that YARN unpacks (.tar.gz, .tgz, "
                f".zip, .tar), hdfs:///apps/deltaforge.tar.gz; got {archive!r}"
            )
        directory = extra.get("hadoop_conf_dir") or None
        user = extra.get("yarn_user") or None
        return cls(
            str(python) if python else None,
            str(archive) if archive else None,
            urls,
            str(user) if user else None,
            str(directory) if directory else None,
            spark_conf(extra.get("spark_conf"), OURS | SET_BY_US),
        )

    def check(self, master: str, store: str) -> None:
        """Refuse what cannot be submitted, before anything is stored or started.

        Args:
            master: Spark's master.
            store: the DSN of the state store.

        Raises:
            SpecError: it is refused; the text says what works.
        """
        require_postgres(NAME, store)
        if master != NAME:
            raise SpecError(
                f"the launch backend `{NAME}` needs the Spark master `yarn`: write it as `master`, "
                f"or in the connection that spark_conn_id names; got {master!r}"
            )
        if not self.rest_urls:
            raise SpecError(
                f"the launch backend `{NAME}` needs the extra `yarn_rest_url` of the connection: "
                "the web address of the resource manager, as in http://rm:8088"
            )
        if (self.python is None) == (self.archive is None):
            raise SpecError(
                f"the launch backend `{NAME}` needs one of two extras of the connection: "
                "`spark_python`, the interpreter on the cluster's nodes that has this package "
                "(/opt/deltaforge/bin/python), or `spark_archive`, an environment that has it "
                "(hdfs:///apps/deltaforge.tar.gz)"
            )
        if self.python is not None and not PurePosixPath(self.python).is_absolute():
            raise SpecError(f"spark_python: must be an absolute path; got {self.python!r}")
        self._submission().check()

    def submit(self, job: LaunchSpec) -> Handle:
        """Submit a driver; its application's id is the handle.

        One of this job that lives is adopted, also when an earlier ``spark-submit`` was killed, or
        its answer never came.

        Raises:
            SpecError: it cannot be submitted as asked.
            AccessError: the resource manager refuses us.
            RetryableError: it is away, or did not take the application.
        """
        self.check(job.master, job.store)
        tag = tag_of(job)
        alive = self._alive(tag)
        if alive is None:
            words = self._submission().run(job, tag, self.submit_wait_s)
            alive = self._alive(tag)
            if alive is None:
                raise RetryableError(f"{job.name} was not submitted: {words}")
        return {
            "backend": NAME,
            "name": job.name,
            "application_id": alive["id"],
            "user": self._user(),
            "rest_urls": list(self.rest_urls),
        }

    def status(self, handle: Handle) -> JobStatus:
        """Ask the resource manager; unknown where none answers, or none knows the application."""
        try:
            application = self._application(handle)
        except (RetryableError, AccessError):
            return JobStatus(JobState.UNKNOWN)
        state = _STATES.get(str(application.get("state")))
        if state is None:
            return JobStatus(JobState.UNKNOWN)
        ended = state is JobState.ENDED
        return JobStatus(
            state, _exit_code(application) if ended else None, detail=_words(application)
        )

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Wait for the driver to drain, then let YARN kill its application; return when it ended.

        Raises:
            AccessError: the resource manager does not let us.
            RetryableError: it cannot be asked, or the application does not end.
        """
        if self._ended(handle, grace_s):
            return
        path = f"{_APPS}/{handle['application_id']}/state"
        self._ask(handle["rest_urls"], path, handle.get("user"), {"state": "KILLED"})
        if not self._ended(handle, self.kill_wait_s):
            raise RetryableError(
                f"{handle.get('name')}: {handle.get('application_id')} has not ended "
                f"({self.status(handle).state.value}); is YARN's resource manager up?"
            )

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the end of what the driver printed, from the node that its container is on.

        Spark lets a Python driver print to the container's ``stdout``; its own words, and why no
        Python was started, are in ``stderr``.
        """
        try:
            application = self._application(handle)
        except (RetryableError, AccessError):
            return ""
        node = str(application.get("amHostHttpAddress") or "")
        container = _CONTAINER.search(str(application.get("amContainerLogs") or ""))
        if not node or container is None:
            return ""
        scheme = str(handle["rest_urls"][0]).partition("://")[0]
        for name in ("stdout", "stderr"):
            path = f"/ws/v1/node/containers/{container[1]}/logs/{name}?size=-{_TAIL_BYTES}"
            try:
                reply = exchange(f"{scheme}://{node}", path)
            except RetryableError:
                return ""
            text = _file_part(reply)
            if text:
                return "".join(f"{line}\n" for line in text.splitlines()[-line_count:])
        return ""

    def links(self, handle: Handle) -> Mapping[str, str]:
        """Return the application's page, which also leads to its log."""
        urls = handle.get("rest_urls") or ("",)
        page = f"{urls[0]}/cluster/app/{handle.get('application_id')}"
        return {"driver log": page, "application": page}

    def _submission(self) -> Submission:
        return Submission(self.python, self.archive, self.user, self.conf_dir, self.conf)

    def _user(self) -> str:
        return self.user or os.environ.get(USER) or getpass.getuser()

    def _alive(self, tag: str) -> Mapping[str, Any] | None:
        """Return the application that bears a tag and has not ended, as YARN knows it."""
        query = urlencode({"applicationTags": tag, "states": _ALIVE})
        reply = self._ask(self.rest_urls, f"{_APPS}?{query}", self._user())
        found = ((reply.fields() or {}).get("apps") or {}).get("app") or []
        return max(found, key=lambda application: application.get("startedTime", 0), default=None)

    def _application(self, handle: Handle) -> Mapping[str, Any]:
        urls = [url for url in handle.get("rest_urls") or () if not AWAY.has(url)]
        reply = self._ask(urls, f"{_APPS}/{handle['application_id']}", handle.get("user"))
        return (reply.fields() or {}).get("app") or {}

    def _ended(self, handle: Handle, wait_s: float) -> bool:
        return happens(lambda: self.status(handle).state is JobState.ENDED, wait_s)

    def _ask(
        self,
        urls: Iterable[str],
        path: str,
        user: str | None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Return the answer of the resource manager that is active; a standby one redirects.

        Raises:
            AccessError: it does not let us.
            RetryableError: none answers, or what answers is none.
        """
        named = (
            f"{path}{'&' if '?' in path else '?'}user.name={quote(user or '')}" if user else path
        )
        reasons = []
        for url in urls:
            try:
                reply = exchange(url, named, "GET" if body is None else "PUT", body=body)
            except RetryableError as error:
                AWAY.note(url)
                reasons.append(f"nothing answers at {url}: {error}")
                continue
            if reply.status in {401, 403}:
                raise AccessError(_refusal(url, reply))
            if reply.status in {200, 202, 404} and reply.fields() is not None:
                return reply
            reasons.append(
                f"what answers at {url} is no active resource manager (HTTP {reply.status}): "
                "check yarn_rest_url"
            )
        raise RetryableError("; ".join(reasons) or "no resource manager answered a moment ago")


def tag_of(job: LaunchSpec) -> str:
    """Return the tag by which a job's application is found: of its store, pipeline and generation.

    Two installations may have a pipeline of the same name on one cluster; YARN knows tags in small
    letters only.
    """
    named = f"{store_place(job.store)}\n{job.pipeline}\n{job.generation}"
    return f"deltaforge-{hashlib.sha256(named.encode()).hexdigest()[:24]}"


def _refusal(url: str, reply: Reply) -> str:
    if "negotiate" in reply.headers.get("www-authenticate", "").lower():
        return (
            f"the resource manager at {url} asks for Kerberos (SPNEGO), which this release does "
            "not speak; docs/airflow.md, 'On YARN', has what works"
        )
    remote = (reply.fields() or {}).get("RemoteException") or {}
    return (
        f"the resource manager at {url} refuses us (HTTP {reply.status}: "
        f"{first_lines(remote.get('message'))}): set the extra yarn_user of the connection to a "
        "user that may see and kill its applications"
    )


def _exit_code(application: Mapping[str, Any]) -> int | None:
    """Return the driver's own exit code, which YARN has in words only."""
    if application.get("finalStatus") == "SUCCEEDED":
        return 0
    found = _EXIT_CODE.search(str(application.get("diagnostics") or ""))
    return int(found[1]) if found else None


def _words(application: Mapping[str, Any]) -> str:
    """Return in words what YARN says of an application."""
    identity, state = application.get("id"), application.get("state")
    diagnostics = application.get("diagnostics")
    if state in {"NEW", "NEW_SAVING", "SUBMITTED", "ACCEPTED"}:
        queue = application.get("queue")
        why = f": {first_lines(diagnostics)}" if diagnostics else ""
        return f"{identity} waits for a container in YARN's queue {queue}{why}"
    final = application.get("finalStatus")
    words = [f"YARN says {state if final in {'UNDEFINED', state} else f'{state}, {final}'}"]
    node = application.get("amHostHttpAddress")
    words.append(f"{identity} on {node}" if node else str(identity))
    if diagnostics:
        words.append(first_lines(diagnostics))
    return "; ".join(words)


def _file_part(reply: Reply) -> str:
    """Return a log file without what the node's web service puts around it."""
    if reply.status != 200:
        return ""
    text = reply.content.decode(errors="replace")
    found = _CONTENT.search(text)
    return (found[1] if found else text).strip()
