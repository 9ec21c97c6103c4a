"""Where requests may go: the hosts that the document names, and no others.

Fields of the event fill in paths and queries. What comes from the data can neither choose the host,
which is sent our credentials, nor climb out of a path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow_provider_deltaforge.spec.template import REFERENCE, is_event_reference

_PORTS = {"http": 80, "https": 443}
_IN_PATH = "/%:@!$&'()*+,;=~"
_IN_QUERY = _IN_PATH + "?"
_KEPT_MAX = 4096
_ENCODE = "; in a login '/', '?', '#', '@' and ':' are %2F, %3F, %23, %40 and %3A"


class UnroutableError(Exception):
    """A URL that nothing may be sent to; the text says why, without the URL's path."""


@dataclass(frozen=True, slots=True)
class HttpOrigin:
    """Scheme, host and port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.netloc}"

    @property
    def netloc(self) -> str:
        """What the ``Host`` header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """One URL, taken apart for a request."""

    origin: HttpOrigin
    path: bytes
    """Path and query."""


class Addresses:
    """Takes URLs apart, if they may be used."""

    def __init__(self, url: str, further: Sequence[str]) -> None:
        self._allowed = {origin_of(urlsplit(fixed_part(url))), *map(named_origin, further)}
        self._known: dict[str, Target] = {}

    @property
    def encrypted(self) -> bool:
        """Whether any of the hosts speaks TLS."""
        return any(origin.scheme == "https" for origin in self._allowed)

    def target(self, url: str) -> Target:
        """Return where a request for this URL goes.

        Raises:
            UnroutableError: it is no URL, or its host is not among those of the document.
        """
        known = self._known.get(url)  # Several threads ask.
        if known is None:
            if len(self._known) >= _KEPT_MAX:
                self._known.clear()
            known = self._known[url] = self._parsed(url)
        return known

    def _parsed(self, url: str) -> Target:
        try:
            parts = urlsplit(url)
            origin = origin_of(parts)
        except ValueError as error:
            raise UnroutableError(f"routed to what is no URL ({error})") from error
        if origin not in self._allowed:
            raise UnroutableError(
                f"routed to {origin}, which is not the host of 'url'; add it to allowed_origins"
            )
        if {".", ".."} & set(parts.path.split("/")):
            raise UnroutableError("the path has a segment '.' or '..'; leave such events out")
        path = quote(parts.path or "/", safe=_IN_PATH)
        query = f"?{quote(parts.query, safe=_IN_QUERY)}" if parts.query else ""
        return Target(origin, (path + query).encode())


def fixed_part(url: str) -> str:
    """Return a template up to its first field of the event."""
    for match in REFERENCE.finditer(url):
        if is_event_reference(match.group(1).strip()):
            return url[: match.start()]
    return url


def named_origin(text: str) -> HttpOrigin:
    """Return the origin that ``https://host`` or ``https://host:port`` names.

    Raises:
        ValueError: it is something else, or more.
    """
    parts = urlsplit(text)
    if parts.path not in {"", "/"} or parts.query or parts.fragment:
        raise ValueError("write 'https://host' or 'https://host:port'")
    return origin_of(parts)


def proxy_of(text: str) -> tuple[str, tuple[bytes, bytes] | None]:
    """Return the address of a proxy, and who we are there.

    Raises:
        ValueError: it is not ``http://host:port`` or ``http://user:password@host:port``; the text
            does not show it.
    """
    parts = urlsplit(text)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    if "@" in parts.path + parts.query + parts.fragment:
        raise ValueError(f"write 'http://user:password@host:port'{_ENCODE}")
    origin = named_origin(bare.geturl())
    if origin.scheme != "http":
        raise ValueError("a proxy is spoken to as 'http://host:port', also for https URLs")
    auth = None
    if parts.username is not None:
        auth = (unquote(parts.username).encode(), unquote(parts.password or "").encode())
    return f"http://{origin.netloc}", auth


def origin_of(parts: SplitResult) -> HttpOrigin:
    """Return scheme, host and port of a URL.

    Raises:
        ValueError: it lacks one, or holds credentials; the text does not show it.
    """
    if parts.scheme not in _PORTS:
        raise ValueError("begin it with 'http://' or 'https://'")
    if "@" in parts.netloc:
        raise ValueError("it holds credentials; send them in 'headers'")
    if not parts.hostname:
        raise ValueError("it names no host")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    return HttpOrigin(parts.scheme, host, _port(parts) or _PORTS[parts.scheme])


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # Its text quotes what may be the beginning of a password.
        raise ValueError(f"its port is no number up to 65535{_ENCODE}") from None


def check_template(url: str) -> None:
    """Refuse a template whose host is not known before there is an event.

    Raises:
        ValueError: the text says what is wrong. A part that stands in a variable is checked later,
            where the variable is known.
    """
    fixed = fixed_part(url)
    if "${" in fixed:
        return
    parts = urlsplit(fixed)
    origin_of(parts)
    if "@" in parts.path + parts.query + parts.fragment:
        # Of https://user:12/34@host the host would be `user`, and errors would show its port.
        raise ValueError("it holds an '@': send credentials in 'headers', or write %40 in a path")
    if len(fixed) < len(url) and not (parts.path or parts.query):
        raise ValueError(
            "the host may not come from the event, which would be sent our credentials with it; "
            "write fields behind 'https://host/'"
        )
