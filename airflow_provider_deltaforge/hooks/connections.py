"""Airflow connections: looked up seldom, again when they do not work, and as addresses."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from airflow.sdk.exceptions import AirflowNotFoundException, AirflowRuntimeError

from airflow_provider_deltaforge.errors import SpecError

LOOKUP_ERRORS = (AirflowNotFoundException, AirflowRuntimeError)
"""What a lookup raises that may work later. Airflow says *not defined* of every trouble of a
secrets backend or of its own API; a denial has a class of its own, which is not among these."""

KEPT_S = 60.0
"""For how long a connection that was looked up is used, in seconds."""


class KeptConnection:
    """A connection that is looked up once a minute, so that triggers do not ask with every look.

    Args:
        look_up: returns the connection.
    """

    def __init__(self, look_up: Callable[[], Any]) -> None:
        self._look_up = look_up
        self._kept: tuple[Any, float] | None = None

    def get(self) -> Any:
        """Return the connection; what the lookup raises is passed on."""
        kept, now_s = self._kept, time.monotonic()
        if kept is None or now_s - kept[1] >= KEPT_S:
            kept = self._kept = (self._look_up(), now_s)
        return kept[0]

    def forget(self) -> None:
        """Have it looked up again: it may have been changed."""
        self._kept = None


_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey")


def extra_of(connection: Any) -> Mapping[str, Any]:
    """Return the extra of the state store's connection.

    Raises:
        SpecError: it is not a JSON object.
    """
    extra = connection.extra_dejson
    if not extra and connection.extra:
        try:
            extra = json.loads(connection.extra)
        except ValueError:  # Airflow logs it, and takes it for an empty one.
            extra = None
    if not isinstance(extra, Mapping):
        raise SpecError(
            f"connection {connection.conn_id!r}: the extra must be a JSON object, such as "
            '{"path": "/var/lib/deltaforge/state.db"}'
        )
    return extra


def dsn_of(connection: Any) -> str:
    """Return the state store's DSN of an Airflow connection.

    Raises:
        SpecError: it names neither a file nor a host, or a value of it means nothing.
    """
    extra = extra_of(connection)
    path = extra.get("path")
    if path and connection.host:
        raise SpecError(
            f"connection {connection.conn_id!r} has both a SQLite file (extra `path`) and a host; "
            "keep one"
        )
    if path:
        if not isinstance(path, str) or not Path(path).is_absolute():
            raise SpecError(
                f"connection {connection.conn_id!r}: `path` must be absolute, every Airflow "
                f"component has its own working directory; got {path!r}"
            )
        return f"sqlite:///{path}"
    if not connection.host:
        raise SpecError(
            f"connection {connection.conn_id!r} names no state store: set the extra `path` for "
            "SQLite, or host, database, login and password for PostgreSQL"
        )
    return _postgresql_dsn(connection, _tls_parameters(connection.conn_id, extra))


def _postgresql_dsn(connection: Any, parameters: dict[str, str]) -> str:
    login = quote(connection.login or "", safe="")
    if connection.password and not login:
        raise SpecError(
            f"connection {connection.conn_id!r} has a password without a login; set the login"
        )
    if connection.password:
        login += f":{quote(connection.password, safe='')}"
    port = str(connection.port) if connection.port else ""
    if connection.host.startswith("/"):  # A socket has no place in front of the path.
        authority = ""
        parameters = {"host": connection.host, **({"port": port} if port else {}), **parameters}
    else:
        authority = ",".join(_with_port(host, port) for host in connection.host.split(","))
    at = f"{login}@" if login else ""
    database = quote(connection.schema or "deltaforge", safe="")
    query = f"?{urlencode(parameters, quote_via=quote)}" if parameters else ""
    return f"postgresql://{at}{authority}/{database}{query}"


def _with_port(host: str, port: str) -> str:
    """Return one of the hosts as it stands in an address, an IPv6 one in brackets."""
    host = host.strip()
    if host.startswith("["):
        address, _, own_port = host[1:].partition("]")
        return _with_own_port(f"[{quote(address, safe=':')}]", own_port.removeprefix(":"), port)
    if host.count(":") > 1:
        return _with_own_port(f"[{quote(host, safe=':')}]", "", port)
    name, _, own_port = host.partition(":")
    return _with_own_port(quote(name, safe=""), own_port, port)


def _with_own_port(host: str, own_port: str, port: str) -> str:
    number = own_port or port
    return f"{host}:{quote(number, safe='')}" if number else host


def _tls_parameters(conn_id: str, extra: Mapping[str, Any]) -> dict[str, str]:
    found = {key: value for key, value in extra.items() if key.startswith("ssl") and value}
    for key, value in found.items():
        if key not in _TLS:
            raise SpecError(
                f"connection {conn_id!r}: the extra {key!r} is not passed on to PostgreSQL; of its "
                f"TLS settings {', '.join(_TLS)} are"
            )
        if not isinstance(value, str):
            raise SpecError(f"connection {conn_id!r}: the extra {key!r} must be text")
    return found


def address_of(connection: Any) -> str:
    """Return a connection's URI, with texts and numbers of its extra as parameters.

    Airflow itself puts the whole extra into one parameter, ``__extra__``, which no server knows, as
    soon as it holds a number.
    """
    uri, extra = str(connection.get_uri()), connection.extra_dejson
    if extra and all(type(value) in (str, int, float) for value in extra.values()):
        return f"{uri.partition('?')[0]}?{urlencode(extra, quote_via=quote)}"
    return uri
