"""Connections to PostgreSQL: the DSN, the session's settings, and the server's errors."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from pydantic import SecretStr

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    PositionLostError,
    RetryableError,
    SpecError,
)

# How values are written as text, in the log as well as in a copy, what conditions mean, and that
# the server's notices are sent: one of them says that changes are lost. The driver sets none of it,
# and what comes with the connection stands above the defaults of servers, databases and roles.
_SESSION = " ".join(
    f"-c {setting}"
    for setting in (
        "datestyle=ISO,MDY",
        "intervalstyle=postgres",
        "extra_float_digits=3",
        "bytea_output=hex",
        "timezone=UTC",
        "lc_monetary=C",
        "lc_numeric=C",
        "lc_time=C",
        "xmloption=content",
        "xmlbinary=base64",
        "quote_all_identifiers=off",
        "standard_conforming_strings=on",
        "array_nulls=on",
        "transform_null_equals=off",
        "gin_fuzzy_search_limit=0",
        r"default_transaction_isolation=read\ committed",
        "default_transaction_read_only=off",
        "default_transaction_deferrable=off",
        "client_min_messages=notice",
    )
)
# Names are found, and printed, as if nothing but the system's own schema were there: in the log
# from the first byte on, elsewhere by the first statement, which keeps the role's own path.
_LOG_PATH = "-c search_path=pg_catalog"
_PIN_PATH = """
SELECT pg_catalog.set_config('deltaforge.search_path',
                             pg_catalog.current_setting('search_path'), false),
       pg_catalog.set_config('search_path', 'pg_catalog', false)
"""
OWN_PATH = """
SELECT pg_catalog.set_config('search_path',
                             pg_catalog.current_setting('deltaforge.search_path'), true)
"""
"""Until the transaction ends, find names as the role does: for conditions that people wrote."""

_FORM = "write postgres://user:password@host:5432/database, or host=… user=… dbname=…"

_RETRIED = ("08", "40", "53", "57P", "58000", "58030", "55P", "25P03", "57014", "XX000")
_ACCESS = ("28", "42501", "3D000")
_PORT_MAX = 65535
_SLOT_IN_USE = "55006"
_NO_OBJECT = "42704"
_ERROR, _LEFT_OUT = b"E", b"LoadPublications"
_ANEW = (
    "drop the slot with pg_drop_replication_slot, reset the pipeline and take a new snapshot of "
    "the tables"
)
_UNPUBLISHED = (
    "The slot holds changes that are older than the publication, which cannot be read through it; "
    "to this pipeline they are lost"
)
_ACCESS_WORDS = (
    "authentication failed",
    "no pg_hba.conf entry",
    "pg_hba.conf rejects",
    "no password supplied",
    "permission denied",
    "must be superuser",
    "is not permitted to log in",
    "certificate",
    "unknown ca",
    "handshake failure",
    "wrong version number",
    "does not support ssl",
    "root.crl",
    "private key",
    "sslmode",
    "requires a valid client certificate",
)
_HIDDEN = "affected by row-level security"
_UNHIDE = (
    "row-level security would hide rows, and a part of a table is not copied: ALTER ROLE … "
    "BYPASSRLS for the pipeline's user, or leave the table out"
)
_CHECK_ACCESS = "check user, password, privileges, pg_hba.conf and the TLS settings"
_READING = "reading the log"
_MISSING = re.compile(r'(role|database) ".*" does not exist')
_LOST_WORDS = (
    "has already been removed",
    "can no longer get changes",
    "can no longer access replication slot",
    "cannot read from logical replication slot",
)


class SlotInUseError(RetryableError):
    """Another session reads from our slot.

    Perhaps a forgotten one of our own that ends by itself, so it is worth a few attempts.
    """


@dataclass(frozen=True)
class PostgresDsn:
    """Where and as whom to connect. Never prints the password.

    Attributes:
        text: as written, in either form.
        application: how the session is called on the server.
        connect_timeout_s: how long connecting may take, in seconds.
        place: another host, and its port if that is not the text's.
    """

    text: SecretStr
    application: str = "deltaforge"
    connect_timeout_s: float = 30
    place: tuple[str, int | None] | None = None

    def parameters(self, *, replication: bool = False) -> dict[str, Any]:
        """Return the connection's parameters for libpq.

        Raises:
            SpecError: the text is no DSN; the message never quotes it.
        """
        options = self._parsed()
        options.setdefault("application_name", self.application)
        options.setdefault("connect_timeout", max(2, round(self.connect_timeout_s)))
        options["gssencmode"] = "disable"  # Also against the environment's.
        # A host that vanished is noticed by the kernel as well, and a dead reader by the server.
        options.setdefault("keepalives_idle", 30)
        options.setdefault("keepalives_interval", 10)
        options.setdefault("keepalives_count", 3)
        options.setdefault("tcp_user_timeout", 60_000)
        options["client_encoding"] = "UTF8"
        options["options"] = f"{options.get('options', '')} {_SESSION}".strip()
        if replication:
            options["replication"] = "database"
            options["options"] += f" {_LOG_PATH}"
        return options

    @property
    def address(self) -> str:
        """Return where the server is, for errors."""
        options = self._parsed()
        return f"{options.get('host', 'localhost')}:{options.get('port', 5432)}"

    def _parsed(self) -> dict[str, Any]:
        options = parse_dsn(self.text.get_secret_value())
        if self.place is not None:
            host, port = self.place
            options.pop("hostaddr", None)
            options |= {"host": host} if port is None else {"host": host, "port": str(port)}
        return options


def parse_dsn(text: str) -> dict[str, Any]:
    """Return the parameters of a DSN in either form.

    Raises:
        SpecError: the text is none; the message never quotes it.
    """
    import psycopg

    try:
        options = dict(psycopg.conninfo.conninfo_to_dict(text))
    except psycopg.Error:
        # libpq's own message quotes parts of the text, perhaps of the password.
        if unknown := _unknown_parameters(text):
            raise SpecError(
                f"source.dsn: PostgreSQL knows no parameter {', '.join(unknown)}; leave it out, in "
                "an Airflow connection out of its extra"
            ) from None
        raise SpecError(
            f"source.dsn: cannot be read; {_FORM}; percent-encode special characters of user and "
            "password"
        ) from None
    if not text.strip():
        raise SpecError(f"source.dsn: is empty; {_FORM}")
    # An unencoded "@" or "/" makes the rest of a password a host, port or database, which errors
    # would show.
    misread = "@" in str(options.get("host", "")) + str(options.get("dbname", ""))
    if misread or str(options.get("port", "")).strip("0123456789,"):
        raise SpecError(
            "source.dsn: its host, port or database is none; percent-encode special characters of "
            "user and password"
        )
    ports = str(options.get("port", "")).split(",")
    if any(port and not 0 < int(port) <= _PORT_MAX for port in ports):
        raise SpecError(f"source.dsn: its port is no number from 1 to {_PORT_MAX}")
    if options.get("gssencmode", "disable") != "disable":
        raise SpecError(
            "source.dsn: gssencmode can only be 'disable': the log is read from the socket itself; "
            "encrypt with TLS (sslmode=verify-full). Kerberos logins work without it"
        )
    if "replication" in options:
        raise SpecError("source.dsn: leave 'replication' out; it is set where it is needed")
    return options


def _unknown_parameters(text: str) -> list[str]:
    """Return the names of a URL's parameters that libpq does not know; none of a password."""
    from psycopg.pq import Conninfo

    place, _, query = text.partition("?")
    if not re.match(r"postgres(ql)?://[^?]*@", place) or "@" in query:
        return []
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    return [name for name in parse_qs(query, keep_blank_values=True) if name not in known]


def connect(dsn: PostgresDsn) -> Any:
    """Return an autocommitting connection whose session writes values as the log does.

    Raises:
        AccessError: credentials or TLS were refused.
        RetryableError: the server is away.
        SpecError: the DSN cannot be read.
    """
    import psycopg

    doing = f"connecting to {dsn.address}"
    connection = _opened(dsn.parameters(), doing)
    try:
        connection.execute(_PIN_PATH)
    except psycopg.Error as error:
        connection.close()
        raise translated(error, doing) from None
    return connection


def replication_connection(dsn: PostgresDsn) -> Any:
    """Return a connection that understands replication commands; libpq's, blocking.

    Raises:
        AccessError, RetryableError, SpecError: as ``connect``.
    """
    doing = f"connecting for replication to {dsn.address}"
    return _opened(dsn.parameters(replication=True), doing)


def _opened(parameters: dict[str, Any], doing: str) -> Any:
    import psycopg

    try:
        return psycopg.connect(**parameters, autocommit=True, prepare_threshold=None)
    except psycopg.Error as error:
        raise translated(error, doing) from None


def translated(error: BaseException, doing: str) -> DeltaForgeError:
    """Return our error for a driver's, by what the engine should do about it."""
    import psycopg

    if isinstance(error, DeltaForgeError):
        return error
    diagnosis = getattr(error, "diag", None)
    code = str(getattr(error, "sqlstate", None) or "")
    text = str(getattr(diagnosis, "message_primary", None) or error).strip()
    own = (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError)
    if not code and isinstance(error, own):
        # The driver never sent it, and will not send it another time.
        return FatalError(f"{doing}: {text}")
    hint = getattr(diagnosis, "message_hint", None)
    return server_error(code, f"{text} ({hint})" if hint else text, doing)


def server_error(code: str, text: str, doing: str) -> DeltaForgeError:
    """Return our error for what a server said.

    Args:
        code: its SQLSTATE; empty when the connection failed before there was one.
        text: its message.
        doing: what we were about to do.
    """
    lowered = text.lower()
    if code == _SLOT_IN_USE:
        return SlotInUseError(f"{doing}: {text}")
    unpublished = code == _NO_OBJECT and doing == _READING and "publication" in lowered
    if unpublished or any(words in lowered for words in _LOST_WORDS):
        why = _UNPUBLISHED if unpublished else "The changes it held are lost"
        return PositionLostError(f"{doing}: {text}. {why}: {_ANEW}")
    denied = not code and (any(w in lowered for w in _ACCESS_WORDS) or _MISSING.search(lowered))
    if denied or code.startswith(_ACCESS):
        return AccessError(f"{doing}: {text}; {_UNHIDE if _HIDDEN in lowered else _CHECK_ACCESS}")
    if not code or code.startswith(_RETRIED):
        return RetryableError(f"{doing}: {text}")
    if "wal_level" in lowered:
        return FatalError(
            f"{doing}: {text}; set wal_level = logical in postgresql.conf and restart the server"
        )
    return FatalError(f"{doing}: error {code}: {text}")


def check_report(frame: bytes) -> None:
    """Raise the error that the server of the log reports; a notice that is none passes.

    Servers before 18 report an error for changes that are older than the publication; from 18 on
    they leave them out, and only a notice says so.
    """
    if frame[:1] == _ERROR:
        raise error_response(frame[5:])
    if b"\0R" + _LEFT_OUT + b"\0" in frame:
        text = _fields(frame[5:]).get(b"M", "changes are left out")
        raise PositionLostError(f"{_READING}: {text}. {_UNPUBLISHED}: {_ANEW}")


def notice_frame(code: str, text: str, routine: str) -> bytes:
    """Return a notice as it came over the wire, from what the driver says of it."""
    fields = (b"C" + code.encode(), b"M" + text.encode(), b"R" + routine.encode(), b"")
    body = b"\0".join(fields) + b"\0"
    return b"N" + (len(body) + 4).to_bytes(4, "big") + body


def _fields(body: bytes) -> dict[bytes, str]:
    return {part[:1]: part[1:].decode("utf-8", "replace") for part in body.split(b"\0") if part}


def error_response(body: bytes, doing: str = _READING) -> DeltaForgeError:
    """Return our error for the body of an ErrorResponse; ``doing`` as in ``server_error``."""
    fields = _fields(body)
    text = fields.get(b"M", "the server reported an error")
    if b"H" in fields:
        text = f"{text} ({fields[b'H']})"
    return server_error(fields.get(b"C", ""), text, doing)
