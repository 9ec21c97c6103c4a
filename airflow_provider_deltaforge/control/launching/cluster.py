"""What the backends of clusters share: an HTTP exchange, Spark settings, what a store must be."""

import json
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.redaction import redacted

OURS = frozenset(
    {
        *("spark.master", "spark.submit.deployMode", "spark.app.name", "spark.driver.supervise"),
        *("spark.task.maxFailures", "spark.speculation", "spark.sql.shuffle.partitions"),
        *("spark.sql.streaming.minBatchesToRetain", "spark.sql.session.timeZone"),
        *("spark.ui.enabled", "spark.ui.showConsoleProgress", "spark.python.worker.reuse"),
        "spark.python.daemon.killWorkerOnFlushFailure",
    }
)
"""Spark settings that every backend, or the driver's session, makes itself."""

_AWAY_S = 10.0
_TIMEOUT_S = 5.0
_EXAMPLE = '{"spark.executor.cores": "2"}'
_SECRET_KEY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


class AwayServers:
    """Servers that did not answer: they are not asked for a status again for a while.

    A page that shows many pipelines must not wait for each.
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, server: str) -> None:
        """Note that a server does not answer now."""
        self._until[server] = time.monotonic() + _AWAY_S

    def has(self, server: str) -> bool:
        """Return whether a server did not answer a moment ago."""
        return time.monotonic() < self._until.get(server, 0.0)


AWAY = AwayServers()
"""Those of this process, whatever they serve."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """Their names in small letters."""
    content: bytes

    def fields(self) -> Mapping[str, Any] | None:
        """Return the JSON object it is, or None."""
        try:
            value = json.loads(self.content)
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def exchange(
    url: str,
    path: str,
    method: str = "GET",
    *,
    body: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Return a server's answer; no proxy and no redirect sees what is sent.

    Args:
        url: of the server, perhaps with a path.
        path: below it, with its query.
        method: of HTTP.
        body: sent as JSON.
        headers: sent beside those that JSON needs.

    Raises:
        RetryableError: nothing answers there.
    """
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    sent = {"Content-Type": "application/json;charset=UTF-8", **(headers or {})}
    content = json.dumps(body) if body is not None else None
    try:
        connection = kind(str(parts.hostname), parts.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, f"{parts.path}{path}", content, sent)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        words = redacted(str(error)) or type(error).__name__
        raise RetryableError(words) from error
    received = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, received, text)


def urls_of(key: str, value: Any, what: str) -> tuple[str, ...]:
    """Return the addresses that an extra of a connection holds, separated by commas.

    Args:
        key: the extra's name.
        value: its value.
        what: an example and what answers there, for the error.

    Raises:
        SpecError: one is no HTTP address, or holds a login.
    """
    urls = tuple(url.strip().rstrip("/") for url in str(value or "").split(",") if url.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            raise SpecError(f"{key}: write {what}; got {redacted(url)!r}")
    return urls


def spark_conf(
    value: Any,
    ours: Collection[str] = OURS,
    *,
    made_from: str = "",
    instead: str = "would be seen on command lines; set it in spark-defaults.conf of the Spark "
    "workers",
    references: re.Pattern[str] | None = None,
) -> Mapping[str, str]:
    """Return the Spark settings of a connection's extra ``spark_conf``.

    Args:
        value: an object, or its JSON.
        ours: the settings that the backend makes itself,
        made_from: and of what, for the error.
        instead: what is wrong with a secret there, and where it belongs.
        references: settings that name a secret and hold none.

    Raises:
        SpecError: it is no mapping of texts, or holds what is ours or secret.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            raise SpecError(f"spark_conf: is no JSON; write {_EXAMPLE}") from None
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise SpecError(f"spark_conf: must be an object, {_EXAMPLE}")
    for key, setting in value.items():
        if not str(key).startswith("spark.") or isinstance(setting, (dict, list, type(None))):
            raise SpecError(f"spark_conf: {key!r} must be a Spark setting (spark.…) with one value")
        if key in ours:
            raise SpecError(f"spark_conf: {key} is set by the launch backend{made_from}; remove it")
        if _SECRET_KEY.search(key) and not (references and references.fullmatch(key)):
            raise SpecError(f"spark_conf: {key} {instead}")
    return {
        key: str(setting).lower() if isinstance(setting, bool) else str(setting)
        for key, setting in value.items()
    }


def store_place(dsn: str) -> str:
    """Return where a state store is, the same when its account or password changes."""
    return re.sub(r"://[^/?#]*@", "://", StoreLocation.from_dsn(dsn).shown())


def require_postgres(backend: str, store: str) -> None:
    """Refuse a state store that drivers on a cluster's hosts cannot open.

    Args:
        backend: name of the launch backend.
        store: the store's DSN.

    Raises:
        SpecError: it is a file or belongs to one process.
    """
    location = StoreLocation.from_dsn(store)
    if location.backend != "postgres":
        where = location.path or location.backend
        raise SpecError(
            f"the launch backend `{backend}` is refused with the {location.backend} store {where}:"
            " drivers on the cluster's hosts cannot open it; make the connection's store a "
            "PostgreSQL database (docs/airflow.md, 'Where drivers run')"
        )


def first_lines(message: object) -> str:
    """Return the first two lines of what a server says, without secrets."""
    lines = [line.strip() for line in redacted(str(message or "")).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or "no reason was given"
