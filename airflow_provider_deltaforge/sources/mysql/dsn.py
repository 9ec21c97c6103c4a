"""The address of a MySQL or MariaDB server, and how TLS is used with it."""

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from pydantic import SecretStr

from airflow_provider_deltaforge.errors import AccessError, SpecError

SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")

_OPTIONS = ("ssl_ca", "ssl_cert", "ssl_key", "ssl_mode")
_SCHEME = re.compile(r"(?:mysql|mariadb)://", re.IGNORECASE)
_PLACE = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/@?#\[\]]+))(?::(?P<port>[0-9]{1,5})?)?"
    r"(?:/(?P<database>[^/@?#]*))?(?:\?(?P<query>[^#]*))?"
)
_PORT, _PORT_MAX = 3306, 65535
_UNREADABLE = (
    "cannot be read; write mysql://user:password@host:port/database, with '/', '?', "
    "'#', '@', ':' and '%' of user and password percent-encoded (%2F, %3F, %23, %40, %3A, %25)"
)


@dataclass(frozen=True)
class MySqlDsn:
    """Where and as whom to connect. Never prints the password."""

    host: str
    port: int
    user: str
    password: SecretStr
    database: str | None = None
    ssl_ca: str | None = None
    ssl_mode: str = "preferred"
    ssl_cert: str | None = None
    ssl_key: str | None = None

    def tls(self) -> ssl.SSLContext | None:
        """Return how connections are encrypted; None: as the driver does it by itself.

        Raises:
            AccessError: a file of certificates or keys cannot be read.
        """
        named = self.ssl_ca or self.ssl_cert
        # Without a context the driver itself takes TLS if it is offered, unverified.
        if self.ssl_mode == "disabled" or (self.ssl_mode == "preferred" and not named):
            return None
        context = unverified_tls()
        if self.ssl_mode.startswith("verify") or self.ssl_ca:
            context = _loaded("ssl_ca", self.ssl_ca, ssl.create_default_context, cafile=self.ssl_ca)
            context.check_hostname = self.ssl_mode == "verify_identity"
        if self.ssl_cert:
            files = {"certfile": self.ssl_cert, "keyfile": self.ssl_key, "password": ""}
            _loaded("ssl_cert or ssl_key", self.ssl_cert, context.load_cert_chain, **files)
        return context


def unverified_tls() -> ssl.SSLContext:
    """Return what encrypts and trusts any server, without reading the machine's certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def parse_dsn(
    text: str,
    ssl_ca: str | None = None,
    ssl_mode: str | None = None,
    ssl_cert: str | None = None,
    ssl_key: str | None = None,
    *,
    key: str = "source.dsn",
    tls: MySqlDsn | None = None,
) -> MySqlDsn:
    """Read ``mysql://user:password@host:port/database?ssl_ca=…&ssl_mode=…``.

    Args:
        text: the address.
        ssl_ca: setting of the source, goes before an option of the address; as the following ones.
        ssl_mode: the same.
        ssl_cert: the same.
        ssl_key: the same.
        key: of the address in the document, for errors.
        tls: an address whose TLS is used if this one has no options of its own.

    A password with characters that should have been percent-encoded is read where only one reading
    is an address. Nothing of a text that is none is ever taken for a host, which errors show.

    Raises:
        SpecError: the text is no such URL; the message never quotes it.
    """
    scheme = _SCHEME.match(text)
    login, place = next(_readings(text[scheme.end() :] if scheme else ""), (None, None))
    if login is None or place is None:
        raise SpecError(f"{key}: {_UNREADABLE}")
    port = int(place["port"] or _PORT)
    if not 0 < port <= _PORT_MAX:
        raise SpecError(f"{key}: no port has the number {port}; write one up to {_PORT_MAX}")
    options = _options(place["query"] or "", key)
    settings = {"ssl_ca": ssl_ca, "ssl_cert": ssl_cert, "ssl_key": ssl_key, "ssl_mode": ssl_mode}
    found = {name: settings[name] or options.get(name) for name in _OPTIONS}
    if tls is not None and not options:
        found = {name: getattr(tls, name) for name in _OPTIONS}
    setting = "source." if tls is None else f"{key}: "
    mode = _mode(found, setting)
    user, _, password = login.partition(":")
    return MySqlDsn(
        host=place["six"] or place["name"],
        port=port,
        user=unquote(user),
        password=SecretStr(unquote(password)),
        database=unquote(place["database"] or "") or None,
        ssl_ca=found["ssl_ca"],
        ssl_mode=mode,
        ssl_cert=found["ssl_cert"],
        ssl_key=found["ssl_key"],
    )


def _mode(found: Mapping[str, str | None], setting: str) -> str:
    """Return how TLS is used; what would mean nothing is refused."""
    if found["ssl_key"] and not found["ssl_cert"]:
        raise SpecError(
            f"{setting}ssl_key: goes together with ssl_cert, the certificate it belongs to"
        )
    named = next((name for name in ("ssl_ca", "ssl_cert") if found[name]), None)
    mode = (found["ssl_mode"] or ("verify_identity" if named else "preferred")).lower()
    if mode not in SSL_MODES:
        raise SpecError(f"{setting}ssl_mode: {mode!r} is none of {', '.join(SSL_MODES)}")
    if named and mode == "disabled":
        raise SpecError(f"{setting}{named}: means nothing with ssl_mode: disabled; keep one")
    return mode


def _readings(text: str) -> Iterator[tuple[str, "re.Match[str]"]]:
    """Yield what may be login and place: as URLs are read, then with a login not encoded."""
    until = re.search(r"[/?#]", text)
    login, _, _ = text[: until.start() if until else len(text)].rpartition("@")
    plain = _PLACE.fullmatch(text[len(login) + 1 :] if login else text.removeprefix("@"))
    if plain is not None and _is_known(plain["query"] or "", shown=bool(login)):
        yield login, plain
    login, _, rest = text.rpartition("@")
    place = _PLACE.fullmatch(rest)
    if ":" in login and place is not None:
        yield login, place


def _is_known(query: str, *, shown: bool) -> bool:
    """Return whether a query is one of ours; after a login, an error names an unknown option."""
    names = {name.replace("-", "_") for name in parse_qs(query, keep_blank_values=True)}
    return names <= set(_OPTIONS) or (shown and "@" not in query)


def _options(query: str, key: str) -> dict[str, str]:
    parsed = parse_qs(query, keep_blank_values=True)
    options = {name.replace("-", "_"): values[-1] for name, values in parsed.items()}
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        named = f" {unknown[0]!r}" if re.fullmatch(r"[a-z_]{1,32}", unknown[0]) else ""
        raise SpecError(f"{key}: unknown option{named}; known: {', '.join(_OPTIONS)}")
    return options


def _loaded(key: str, path: str | None, load: Callable[..., Any], **files: Any) -> Any:
    """Call what reads a file; name the setting of a file that cannot be read."""
    try:
        return load(**files)
    except ssl.SSLError as error:
        raise AccessError(f"{key}: {path!r} holds no such PEM: {error.reason}") from error
    except OSError as error:
        raise AccessError(f"{key}: {path!r} cannot be read: {error.strerror}") from error
