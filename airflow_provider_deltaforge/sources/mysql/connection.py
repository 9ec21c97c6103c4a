"""Connections to MySQL and MariaDB: TLS, what the server is, where its log ends, its errors."""

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_attempt

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    PositionLostError,
    RetryableError,
)
from airflow_provider_deltaforge.sources.mysql import session
from airflow_provider_deltaforge.sources.mysql.dsn import MySqlDsn, unverified_tls
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition

_ACCESS = {1044, 1045, 1095, 1130, 1142, 1143, 1227, 1251, 1370, 1396, 1698, 1820, 1862, 3118, 3159}
_LOST_WORDS = ("purge", "could not find", "not found", "impossible position", "bogus data")
_KEEPALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
}
_SAME_ID_WORDS = ("same server_uuid", "same server_id", "same uuid")

_TORN = "truncated in the middle of event"


class KickedError(RetryableError):
    """Another reader with our server id has begun.

    Perhaps a forgotten one of our own that ends by itself, so it is worth a few attempts.
    """


class TornLogError(RetryableError):
    """A log file ends inside a transaction, as MariaDB leaves it when it is killed meanwhile."""


class TimeLimitError(RetryableError):
    """A time limit of the server ended a statement."""


# A limit of some milliseconds for everybody may end even the statement that lifts it.
@retry(retry=retry_if_exception_type(TimeLimitError), stop=stop_after_attempt(10), reraise=True)
def connect(dsn: MySqlDsn, connect_timeout_s: float = 30, read_timeout_s: float = 90) -> Any:
    """Return an autocommitting pymysql connection, pinned as ``session`` says.

    Raises:
        TimeLimitError: the server's time limit ended the first statements, ten times.
        AccessError: credentials or TLS were refused.
        RetryableError: the server is away.
    """
    import pymysql

    where = f"connecting to {dsn.host}:{dsn.port}"
    try:
        connection = connection_class()(
            host=dsn.host,
            port=dsn.port,
            user=dsn.user,
            # As bytes: from text the driver makes Latin-1, which not every password is.
            password=dsn.password.get_secret_value().encode(),
            database=dsn.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            write_timeout=read_timeout_s,
            init_command=session.FIRST,
            ssl=dsn.tls(),
            ssl_disabled=dsn.ssl_mode == "disabled",
        )
    except (pymysql.err.MySQLError, OSError, RuntimeError) as error:
        raise translated(error, where) from None
    try:
        session.pin(connection)
        _keep_alive(connection._sock)  # noqa: SLF001 - as below
        _check_tls(connection, dsn)
    except BaseException as error:
        connection.close()
        if isinstance(error, (pymysql.err.MySQLError, OSError, RuntimeError)):
            raise translated(error, where) from None
        raise
    return connection


@cache
def connection_class() -> Any:
    """Return the driver's class, made to read no certificates unless it verifies some.

    Where TLS is taken if it is offered, the driver itself reads those of the machine for each
    connection, and trusts any server all the same: 25 ms of a core.
    """
    from pymysql.connections import Connection

    class QuickConnection(Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, settings: Any) -> ssl.SSLContext:
            return settings if isinstance(settings, ssl.SSLContext) else unverified_tls()

    return QuickConnection


def _check_tls(connection: Any, dsn: MySqlDsn) -> None:
    encrypted = isinstance(connection._sock, ssl.SSLSocket)  # noqa: SLF001 - there is no other way
    if dsn.ssl_mode not in ("disabled", "preferred") and not encrypted:
        raise AccessError(
            f"{dsn.host}:{dsn.port} offers no TLS, but ssl_mode is {dsn.ssl_mode}; enable TLS on "
            "the server or set ssl_mode to preferred"
        )


def _keep_alive(connected: Any) -> None:
    """Make the kernel notice a host that vanished, where that can be set."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)


def translated(  # noqa: PLR0911 - one per reaction
    error: BaseException, doing: str
) -> DeltaForgeError:
    """Return our error for a driver's, by what the engine should do about it."""
    if isinstance(error, DeltaForgeError):
        return error
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    cause = getattr(error, "original_exception", None) or error
    if isinstance(cause, ssl.SSLError) or "CERTIFICATE" in text or "SSL is required" in text:
        return AccessError(
            f"{doing}: TLS failed ({text}); check ssl_ca, ssl_cert and "
            "ssl_mode (verify_ca leaves the name in the certificate out)"
        )
    if code in _ACCESS:
        return AccessError(f"{doing}: {text}; check user, password and privileges")
    lowered = text.lower()
    if any(word in lowered for word in _SAME_ID_WORDS):
        return KickedError(
            f"{doing}: another replica or pipeline reads with our server id ({text}); give this "
            "source its own 'server_id'"
        )
    if code == 1236:
        return _log_refused(doing, text)
    if code in (1969, 3024):
        return TimeLimitError(f"{doing}: {text}")
    if isinstance(error, OSError) or code in (0, 1040, 1053, 1152, 1158, 1159, 1160, 1161, 1927):
        return RetryableError(f"{doing}: {text}")
    if 2000 <= code < 3000 or code in (1203, 1205, 1213, 1226, 3032):
        return RetryableError(f"{doing}: {text}")
    return FatalError(f"{doing}: error {code}: {text}")


def _log_refused(doing: str, text: str) -> DeltaForgeError:
    lowered = text.lower()
    if any(word in lowered for word in _LOST_WORDS):
        return PositionLostError(f"{doing}: {text}; take a new snapshot of the tables")
    if _TORN in lowered:
        return TornLogError(f"{doing}: {text}")
    return FatalError(f"{doing}: the server refuses to send its log: {text}")


@dataclass(frozen=True)
class MySqlServer:
    """What we must know about a server to read its log.

    Attributes:
        mariadb: MariaDB, else MySQL.
        uuid: identity of its data; MariaDB has only its server id.
        gtids: whether new transactions get GTIDs.
        checksum: whether its log carries CRC32 checksums.
        charsets: collation id to character set name.
        lower_names: names of databases and tables have no case: its log has them in small letters,
            but statements as they were written.
    """

    mariadb: bool
    uuid: str
    gtids: bool
    checksum: bool
    charsets: Mapping[int, str] = field(default_factory=dict)
    lower_names: bool = False


def server_info(connection: Any) -> MySqlServer:
    """Ask a server what it is."""
    mariadb = "mariadb" in str(_value(connection, "SELECT VERSION()")).lower()
    checksum = str(_value(connection, "SELECT @@GLOBAL.binlog_checksum")) != "NONE"
    if mariadb:
        uuid = f"server-id-{_value(connection, 'SELECT @@GLOBAL.server_id')}"
        gtids = True
    else:
        uuid = str(_value(connection, "SELECT @@GLOBAL.server_uuid"))
        gtids = str(_value(connection, "SELECT @@GLOBAL.gtid_mode")) == "ON"
    lower = bool(_value(connection, "SELECT @@GLOBAL.lower_case_table_names"))
    charsets = _charsets(connection, mariadb=mariadb)
    return MySqlServer(mariadb, uuid, gtids, checksum, charsets, lower)


def _charsets(connection: Any, *, mariadb: bool) -> dict[int, str]:
    # MariaDB's newer collations serve several character sets, each pair with an id of its own.
    table = "COLLATION_CHARACTER_SET_APPLICABILITY" if mariadb else "COLLATIONS"
    sql = f"SELECT ID, CHARACTER_SET_NAME FROM information_schema.{table} WHERE ID IS NOT NULL"
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql)
        except Exception as error:
            raise translated(error, "reading the collations") from error
        return {int(number): str(name) for number, name in cursor.fetchall()}


def _value(connection: Any, sql: str, doing: str = "asking the server what it is") -> Any:
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]
    except Exception as error:
        raise translated(error, doing) from error


def read_head(connection: Any) -> LogPosition:
    """Return the current end of the log, as the connection's server has it.

    Raises:
        FatalError: the server writes no log.
        AccessError: REPLICATION CLIENT is missing.
    """
    info = server_info(connection)
    row = _log_status(connection, mariadb=info.mariadb)
    if row is None:
        raise FatalError("the server writes no binary log; start it with log_bin")
    file, pos = str(row[0]), int(row[1])
    gtids: GtidSet | GtidPos | None = None
    if info.mariadb:
        sql = f"SELECT BINLOG_GTID_POS('{file}', {pos})"
        gtids = GtidPos.parse(_value(connection, sql, "asking for the end of the log") or "")
    elif info.gtids:
        # The status row's own set belongs exactly to its file and offset.
        gtids = GtidSet.parse(str(row[4]))
    return LogPosition(file, pos, gtids, info.uuid)


def _log_status(connection: Any, *, mariadb: bool) -> Any:
    statements = ["SHOW MASTER STATUS"] if mariadb else []
    statements = statements or ["SHOW BINARY LOG STATUS", "SHOW MASTER STATUS"]
    for statement in statements:
        with connection.cursor() as cursor:
            try:
                cursor.execute(statement)
                return cursor.fetchone()
            except Exception as error:
                syntax_error = 1064
                if error.args[:1] == (syntax_error,) and statement != statements[-1]:
                    continue
                raise translated(error, "asking for the end of the log") from error
    return None
