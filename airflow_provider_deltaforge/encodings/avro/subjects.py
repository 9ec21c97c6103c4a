"""Schema ids from a schema registry: each worker asks for a schema once.

A lane lives no longer than its window. So that the next one in the same process can go on while the
registry is away, the process remembers earlier answers; the registry is always asked first.
"""

import logging
import time
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import SecretStr

from airflow_provider_deltaforge.encodings.contract import UnaskedError
from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
    WrongServerError,
)
from airflow_provider_deltaforge.telemetry.listener import other_server, place_in

_CONNECT_S, _REQUEST_S = 5.0, 10.0
_REFUSED_S = 30.0
"""So long a registry's refusal is believed; then it is asked again, in case somebody helped."""

_UNAUTHORISED = (401, 403)
_BUSY = (408, 425, 429)
_SERVER_ERROR = 500
_UNPROCESSABLE = (409, 422)
_NOT_FOUND = 404
_GATEWAY = (500, 502, 503, 504)
"""What stands in front of a registry says so while the registry is away, in words of its own."""
_NO_CODE = (None, -1)
"""For the client, an answer that is none of a registry's."""
_SUBJECT_NOT_FOUND = 40401
_NO_SUBJECT = "deltaforge-preflight"
_PORT, _TLS_PORT = 80, 443
_READ_ONLY = 42205
"""The registry's own code, with 422: it takes no schema now, whatever that is."""

_REMEMBERED_MAX = 10_000
_remembered: dict[tuple[str, str, str], int] = {}
"""By registry, subject and schema."""

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SchemaRefused:
    """The registry does not take a schema."""

    reason: str


class Subjects:
    """Registers schemas under subjects, one after the other. Safe to use from several threads.

    Args:
        url: of the registry; several, separated by commas, are tried in turn.
        username: None: without authentication.
        password: of that user.
        where: names the sink in errors.
        tls: the client's settings of certificates.
        request_s: so long the registry may take to answer.
    """

    def __init__(
        self,
        url: str,
        username: str | None,
        password: SecretStr | None,
        where: str,
        tls: Mapping[str, str] | None = None,
        request_s: float = _REQUEST_S,
    ) -> None:
        self.counts: Counter[str] = Counter()
        """``registered`` schemas; whoever uses it may give it a counter of its own."""
        self._where = where
        self._url = url
        timeouts_s = (_CONNECT_S, request_s, request_s, _CONNECT_S)
        self._client = self._connected(username, password, {"timeout": timeouts_s, **(tls or {})})
        self._ids: dict[tuple[str, str], int] = {}
        self._refused: dict[tuple[str, str], tuple[float, SchemaRefused]] = {}

    def id_of(self, subject: str, schema: str, *, asks: bool = True) -> int | SchemaRefused:
        """Return the id of a schema under a subject, registering it when it is new.

        Raises:
            UnaskedError: it is not known, and the registry must not be asked now.
            RetryableError: the registry is away.
            AccessError: it does not let this user in.
            FatalError: it is no schema registry.
        """
        key = (subject, schema)
        if key in self._ids:
            return self._ids[key]
        if key in self._refused and time.monotonic() < self._refused[key][0]:
            return self._refused[key][1]
        if not asks:
            raise UnaskedError(f"{self._where}: a schema of subject {subject!r} is not known yet")
        found = self._asked(subject, schema)
        if isinstance(found, SchemaRefused):
            _remember(self._refused, key, (time.monotonic() + _REFUSED_S, found))
        else:
            _remember(self._ids, key, found)
            self._refused.pop(key, None)
        return found

    def _asked(self, subject: str, schema: str) -> int | SchemaRefused:
        """Ask the registry, or one's memory while it is away."""
        key = (self._url, subject, schema)
        try:
            found = self._register(subject, schema)
        except RetryableError as error:
            if key not in _remembered:
                raise
            _log.warning("%s; this process knows the schema from before", error)
            return _remembered[key]
        if not isinstance(found, SchemaRefused):
            self.counts["registered"] += 1
            _remember(_remembered, key, found)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _connected(
        self, username: str | None, password: SecretStr | None, options: Mapping[str, Any]
    ) -> Any:
        try:
            import fastavro  # noqa: F401 - missed now rather than at the first list
            from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise SpecError(
                f"{self._where}: encoding type 'avro' needs {error.name or 'a package'}; install "
                "'airflow-provider-deltaforge[avro]'"
            ) from error
        # Trying again is the lane's, which says so; the client would do it unseen.
        settings = {"url": self._url, "max.retries": 0, **options}
        if username is not None:
            secret = password.get_secret_value() if password is not None else ""
            settings["basic.auth.user.info"] = f"{username}:{secret}"
        try:
            return SchemaRegistryClient(settings)
        except OSError as error:  # What OpenSSL says of a file is one, too.
            reason = getattr(error, "reason", None) or error.strerror or "unknown reason"
            raise SpecError(
                f"{self._where}: encoding.ca_file, cert_file or key_file cannot be used "
                f"({reason}); name files in PEM that this process may read"
            ) from error
        except (ValueError, TypeError) as error:
            raise SpecError(
                f"{self._where}: encoding.schema_registry_url, username or password: the registry "
                f"client refuses them ({type(error).__name__}); write the address as "
                "http://host:8081 or https://host:8081"
            ) from error

    def reach(self) -> None:
        """Ask the registry once which kinds of schema it takes.

        Raises:
            RetryableError: it is away, or another server answers.
            AccessError: it does not let this user in.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            kinds = self._kinds()
        except SchemaRegistryError as error:
            status, code = error.http_status_code, error.error_code
            self._judged("a question", status, code, str(error.error_message))
        except Exception as error:
            raise self._away(error) from error
        else:
            if not isinstance(kinds, list):
                raise self._wrong("answers something else")

    def _kinds(self) -> Any:
        """Return which kinds of schema the registry takes; old ones know Avro, and no question."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return self._client.get_schema_types()
        except SchemaRegistryError as error:
            if error.http_status_code != _NOT_FOUND:
                raise
        try:
            self._client.get_versions(_NO_SUBJECT)
        except SchemaRegistryError as error:
            if error.error_code != _SUBJECT_NOT_FOUND:
                raise
        return ["AVRO"]

    def _register(self, subject: str, schema: str) -> int | SchemaRefused:
        from confluent_kafka.schema_registry import Schema
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return int(self._client.register_schema(subject, Schema(schema, "AVRO")))
        except SchemaRegistryError as error:
            status, code = error.http_status_code, error.error_code
            return self._judged(f"subject {subject!r}", status, code, str(error.error_message))
        except Exception as error:
            raise self._away(error) from error

    def _judged(self, asked: str, status: int, code: int | None, message: str) -> SchemaRefused:
        if code in _NO_CODE and status not in (*_UNAUTHORISED, *_BUSY, *_GATEWAY):
            raise self._wrong(f"answers {status}")
        text = f"{self._where}: the schema registry answers {status} for {asked}"
        if status in _UNAUTHORISED:
            raise AccessError(
                f"{text}; check encoding.username and encoding.password, and that the user may "
                "register schemas"
            )
        if status in _BUSY or status >= _SERVER_ERROR or code == _READ_ONLY:
            raise RetryableError(f"{text}: {message}")
        if status in _UNPROCESSABLE:
            return SchemaRefused(
                f"{text}: {message}; the schema does not fit what is registered there: relax the "
                "subject's compatibility, or write each table to a topic of its own"
            )
        raise FatalError(f"{text}: {message}; check encoding.schema_registry_url")

    def _wrong(self, doing: str) -> DeltaForgeError:
        return WrongServerError(
            f"{self._where}: encoding.schema_registry_url: an HTTP server that is no schema "
            f"registry {doing} at {self._url}; correct its host, port and path"
        )

    def _away(self, error: Exception) -> DeltaForgeError:
        text = f"{self._where}: the schema registry does not answer ({type(error).__name__})"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return AccessError(
                f"{text}: its certificate is not trusted; name the file of its authority in "
                "encoding.ca_file"
            )
        if isinstance(error, (ValueError, TypeError, KeyError, AttributeError)):
            return self._wrong("answers something else")
        found = other_server("HTTP", self._places())
        if found is not None:
            return WrongServerError(
                f"{self._where}: encoding.schema_registry_url: {found}; correct it"
            )
        return RetryableError(
            f"{text}; check that {self._url} is up: what needs a schema that is not known yet waits"
        )

    def _places(self) -> list[tuple[str, int]]:
        """Return where the registry is, which speaks HTTP."""
        found = []
        for each in self._url.split(","):
            port = _TLS_PORT if each.strip().startswith("https") else _PORT
            found.append(place_in(each, port))
        return [place for place in found if place is not None]


def _remember(what: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep an answer; beyond the limit, which only endless topics reach, only the newest one."""
    if len(what) >= _REMEMBERED_MAX:
        what.clear()
    what[key] = value
