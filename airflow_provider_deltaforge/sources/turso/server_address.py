"""Where a server is, as a document's ``url`` names it."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from airflow_provider_deltaforge.errors import SpecError

_SCHEMES = ("libsql", "http", "https", "ws", "wss")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server is: ``http`` or ``https``, host, port, and what its paths begin with."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"

    @property
    def is_loopback(self) -> bool:
        """Whether the server is on this machine, so that nothing crosses a network."""
        return self.host in ("localhost", "::1") or self.host.startswith("127.")


def is_server(url: str) -> bool:
    """Return whether a document's ``url`` names a server."""
    return url.partition("://")[0].lower() in _SCHEMES and "://" in url


def server_of(url: str) -> ServerAddress:
    """Return the server that a document's ``url`` names.

    Raises:
        SpecError: it names none, or holds what must not be in it; the text does not show it.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise SpecError("source.url: no URL; write libsql://HOST or http://HOST:PORT") from None
    scheme = parts.scheme
    if scheme in ("ws", "wss"):
        raise SpecError(f"source.url: {scheme}:// is not spoken; write libsql:// or https://")
    if "@" in parts.netloc:
        raise SpecError("source.url holds credentials; put the token into source.auth_token")
    if not host or not host.isascii():
        raise SpecError(f"source.url: {scheme}:// names no host in ASCII letters")
    if parts.fragment or parts.query not in ("", "tls=0", "tls=1"):
        raise SpecError(
            "source.url: no parameters but tls=0 or tls=1; put a token into source.auth_token"
        )
    if scheme == "libsql":
        scheme = "http" if parts.query == "tls=0" else "https"
    elif parts.query:
        raise SpecError(f"source.url: tls is a parameter of libsql://, not of {scheme}://")
    return ServerAddress(scheme, host, port or _PORTS[scheme], parts.path.rstrip("/"))
