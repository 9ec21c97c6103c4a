"""Where a Redis is: one server, a socket, a master that sentinels know, or a cluster."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote

Kind = Literal["server", "socket", "sentinel", "cluster"]

_SCHEMES: Mapping[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("socket", False),
    "redis+sentinel": ("sentinel", False),
    "redis-sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "rediss-sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "redis-cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "rediss-cluster": ("cluster", True),
}
_PARAMETERS: Mapping[Kind, set[str]] = {
    "server": {"db"},
    "socket": {"db"},
    "sentinel": {"db", "sentinel_username", "sentinel_password"},
    "cluster": set(),
}
_URI = re.compile(
    r"(?P<scheme>[a-z+-]+)://(?:(?P<login>[^/]*)@)?(?P<hosts>[^/@?#]*)"
    r"(?:/(?P<path>[^?#]*))?(?:\?(?P<query>[^#]*))?(?:#(?P<fragment>.*))?"
)
_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")
_REDIS_PORT = 6379
_SENTINEL_PORT = 26379
_PORT_MAX = 65535
_ENCODE = "; in a login '/', '?', '#' and '@' are %2F, %3F, %23 and %40"


@dataclass(frozen=True, slots=True)
class Address:
    """What a URI says.

    Attributes:
        kind: how the server is found.
        tls: whether every connection is encrypted.
        hosts: one server, the sentinels, or some nodes of the cluster.
        path: of the socket.
        service: the name under which sentinels know the master.
        database: None if the URI names none.
        login: user and password for Redis.
        sentinel_login: user and password for the sentinels themselves.
    """

    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    database: int | None = None
    login: tuple[str | None, str | None] = (None, None)
    sentinel_login: tuple[str | None, str | None] = (None, None)

    @property
    def shown(self) -> str:
        """Return it for people, without what is secret."""
        if self.kind == "socket":
            return self.path
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{self.service!r} at the sentinels {hosts}" if self.service else hosts


def parse(uri: str) -> Address:
    """Read a URI.

    Raises:
        ValueError: it cannot be read; the text holds nothing of it that may be secret.
    """
    found = _URI.fullmatch(uri.strip())
    if found is None or found["scheme"] not in _SCHEMES:
        raise ValueError(f"write one of {', '.join(f'{name}://' for name in _SCHEMES)}")
    if "@" in (found["path"] or "") + (found["query"] or "") + (found["fragment"] or ""):
        raise ValueError(f"write it as …://user:password@host:6379/0{_ENCODE}")
    kind, tls = _SCHEMES[found["scheme"]]
    parameters = _parameters(kind, found["query"] or "")
    path = unquote(found["path"] or "")
    if kind == "socket":
        if found["hosts"] or not path:
            raise ValueError("name the socket by its whole path: unix:///run/redis.sock")
        return Address(
            kind,
            tls,
            path=f"/{path}",
            database=_database(parameters.get("db")),
            login=_login(found),
        )
    hosts = _hosts(found["hosts"], _SENTINEL_PORT if kind == "sentinel" else _REDIS_PORT)
    if kind == "server" and len(hosts) > 1:
        raise ValueError(
            "several hosts are a redis+cluster:// or the sentinels of redis+sentinel://"
        )
    service, database = _place(kind, path, found["fragment"] or "")
    return Address(
        kind,
        tls,
        hosts,
        service=service,
        database=_database(database or parameters.get("db")),
        login=_login(found),
        sentinel_login=(parameters.get("sentinel_username"), parameters.get("sentinel_password")),
    )


def _place(kind: Kind, path: str, fragment: str) -> tuple[str, str]:
    """Return the name of the service and the database, each empty if not there."""
    parts = [part for part in path.split("/") if part]
    if kind == "sentinel":
        if fragment:  # As the Java client Lettuce writes it: the path is the database.
            parts.insert(0, fragment)
        if not parts or len(parts) > 2:
            raise ValueError("name the master that the sentinels watch: …://host:26379/mymaster/0")
        return parts[0], "".join(parts[1:])
    if len(parts) > 1 or fragment or (kind == "cluster" and parts not in ([], ["0"])):
        raise ValueError(
            "a cluster has database 0 only" if kind == "cluster" else "write …://host:6379/0"
        )
    return "", "".join(parts)


def _parameters(kind: Kind, query: str) -> dict[str, str]:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    for name in parameters:
        if name not in _PARAMETERS[kind]:
            known = ", ".join(sorted(_PARAMETERS[kind])) or "none"
            raise ValueError(f"parameter {name!r} is not known here (known: {known})")
    return parameters


def _hosts(text: str, port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in text.split(","):
        found = _HOST.fullmatch(part.strip())
        number = int(found["port"] or port) if found else 0
        if found is None or not 0 < number <= _PORT_MAX:
            raise ValueError(
                f"write each server as host:port, several separated by commas{_ENCODE}"
            )
        hosts.append((found["six"] or found["name"], number))
    return tuple(hosts)


def _database(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise ValueError("the database is a number")
    return int(text)


def _login(found: "re.Match[str]") -> tuple[str | None, str | None]:
    user, colon, password = (found["login"] or "").partition(":")
    return unquote(user) or None, (unquote(password) or None) if colon else None
