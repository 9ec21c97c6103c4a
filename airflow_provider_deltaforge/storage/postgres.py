"""State in a PostgreSQL database, for drivers and executors on several hosts.

A connection that broke is replaced and the transaction is made again, unless it broke while it
was being committed: then nobody knows whether it counts, and the caller hears RetryableError.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.storage import layout
from airflow_provider_deltaforge.storage.pool import Pool
from airflow_provider_deltaforge.storage.sql import IDENTITY, Execute, Query, SqlStore

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

_ATTEMPTS = 3
_FETCHED = 200
_VIEW = "10min"
_TYPES = {"text": 'TEXT COLLATE "C"', "blob": "BYTEA", "serial": "BIGSERIAL PRIMARY KEY"}
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_UPGRADE_LOCK, _ORDER_LOCK = 0x64660001, 0x64660002

# Defaults of the connection; what the DSN says wins. A dead host is noticed in about 30 s.
_CONNECTION = {
    "connect_timeout": "10",
    "application_name": "deltaforge",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
    # A standby refuses what we write, and shows what may never have been or is over.
    "target_session_attrs": "primary",
}

# A writer that freezes inside a transaction holds its fence's slot: the server ends it, so that
# the next driver can take the epoch. "Durable on return" does not depend on the server's default.
_SESSION = """
SET lock_timeout = '20s';
SET idle_in_transaction_session_timeout = '10s';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') = 'off'
"""

# Not to_regclass(): it answers from a cache that may miss what others committed a moment ago.
_HAS_TABLES = "SELECT 1 FROM pg_class WHERE relname = 'df_meta' AND pg_table_is_visible(oid)"
_GET_FORMAT = "SELECT val FROM df_meta WHERE name = 'format'"

_ACCESS_STATES = ("28", "3D000", "42501")  # Not authorised, no such database, no privilege.
_NO_TABLES = ("42P01", "3F000")  # No such table, no such schema.
_RETRY_STATES = ("08", "40", "53", "55", "57", "58", "25006", "25P03")
_ACCESS_WORDS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "authentication failed",
    "permission denied",
    "is not permitted to log in",
    "does not exist",
    "does not support SSL",
    "certificate",
)


class PostgresStore(SqlStore):
    """A ``Store`` in a database; see the contract for what each method promises.

    The tables are created in the first schema of the search path. Every new connection looks
    whether they are still those of this store.

    Args:
        dsn: a PostgreSQL URI or connection string, with its secrets.
        create: make the tables where there are none; otherwise a store that is not there is away.
        identity: the store that must be there; None: whichever is.

    Raises:
        AccessError: the server refuses us.
        RetryableError: the server is away, or the tables, or others lie in their place.
        FatalError: a later release wrote the tables.
        SpecError: the DSN cannot be read, or the driver is not installed.
    """

    _lock_version = "SELECT version FROM df_slot WHERE ns = ? AND key = ? FOR SHARE"

    def __init__(self, dsn: str, *, create: bool = False, identity: int | None = None) -> None:
        super().__init__()
        self._driver = _import_driver()
        self._parameters = self._parsed(dsn)
        shown = self._parameters
        self._where = f"{shown.get('host', 'localhost')}/{shown.get('dbname', '')}"
        self._pool: Pool[psycopg.Connection[Any]] = Pool(self._connect, _disconnect)
        try:
            self._expected = self._opened(identity, create=create and identity is None)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStore({self._where!r})"

    @property
    def name(self) -> str:
        """Return the database's name."""
        return self._parameters.get("dbname", "")

    def close(self) -> None:
        """Close the connections."""
        self._pool.drain()

    @contextlib.contextmanager
    def view(self) -> Iterator[Query]:
        """Yield a query over one moment."""
        try:
            with self._pool.connection() as connection:
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{_VIEW}'")

                def query(statement: str) -> Iterator[Sequence[Any]]:
                    with connection.cursor(name="view") as cursor:
                        cursor.itersize = _FETCHED
                        cursor.execute(statement)
                        yield from cursor

                yield query
                connection.execute("ROLLBACK")
        except self._driver.Error as error:
            raise self._translated(error) from None

    def counter(self, query: Query, table: str, column: str) -> int:
        """Return the last number that was drawn for a table; 0 before the first."""
        last = f"SELECT pg_sequence_last_value(pg_get_serial_sequence('{table}', '{column}'))"
        return next((int(row[0] or 0) for row in query(last)), 0)

    def raise_counter(self, execute: Execute, table: str, column: str, number: int) -> None:
        """Let the numbers of a table go on behind ``number``."""
        execute("SELECT setval(pg_get_serial_sequence(?, ?), ?)", (table, column, number))

    def rewrite(self, work: Callable[[Execute], T]) -> T:
        """Run ``work`` in one transaction under a lock that lets others read."""

        def alone(execute: Execute) -> T:
            execute("LOCK TABLE df_slot, df_kv, df_log, df_queue IN EXCLUSIVE MODE", ())
            return work(execute)

        return self._write(alone)

    def _opened(self, identity: int | None, *, create: bool) -> int | None:
        """Return the identity of the store that is there, made or upgraded if need be."""
        found = self._format()
        if not found and not create:
            raise RetryableError(self._without_tables())
        if found != layout.FORMAT:
            self._write(self._upgrade)
        return self._same(identity, self._read(IDENTITY, ()))

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._repeat(lambda connection: _execute(connection, statement, values).fetchall())

    def _write(self, work: Callable[[Execute], T]) -> T:
        def once(connection: "psycopg.Connection[Any]") -> T:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            result = work(lambda statement, values: _execute(connection, statement, values))
            try:
                connection.execute("COMMIT")
            except self._driver.Error as error:
                if _rolled_back(error):
                    raise
                raise RetryableError(
                    f"the state store {self._where} went away while it committed, and whether "
                    f"that write counts is not known: {self._text(error)}; read it again"
                ) from None
            return result

        return self._repeat(once)

    def _keep_order(self, execute: Execute) -> None:
        """Numbers are drawn before the commit: a transaction waits for the one before it."""
        execute("SELECT pg_advisory_xact_lock(?)", (_ORDER_LOCK,))

    def _repeat(self, once: Callable[["psycopg.Connection[Any]"], T]) -> T:
        """Do what has no effect when it fails, again over a new connection if ours had broken."""
        attempt = 1
        while True:
            try:
                with self._pool.connection() as connection:
                    return once(connection)
            except self._driver.Error as error:
                if _connection_lost(error):
                    self._pool.drain()  # The others broke with it.
                elif not _rolled_back(error):
                    raise self._translated(error) from None
                if attempt == _ATTEMPTS:
                    raise self._translated(error) from None
                attempt += 1

    def _connect(self) -> "psycopg.Connection[Any]":
        try:
            connection: psycopg.Connection[Any] = self._driver.connect(
                **{**_CONNECTION, **self._parameters}, autocommit=True, prepare_threshold=None
            )
            try:
                self._prepare(connection)
            except BaseException:
                _disconnect(connection)
                raise
        except self._driver.Error as error:
            # Not "from error": its text and arguments are the server's, ours are safe to show.
            raise self._translated(error) from None
        return connection

    def _prepare(self, connection: "psycopg.Connection[Any]") -> None:
        """Set up a new session, and check that it shows the tables of this store."""
        connection.execute(_SESSION)
        if self._expected is not None:
            if not connection.execute(_HAS_TABLES).fetchall():
                raise RetryableError(self._without_tables())
            self._same(self._expected, connection.execute(IDENTITY).fetchall())

    def _without_tables(self) -> str:
        if self._expected is not None:
            return (
                f"the state store {self._where} is away: its tables (df_…) are not there; bring "
                "them back, and what waits for them goes on"
            )
        return (
            f"there is no state store in {self._where}: its tables (df_…) are not on the search "
            "path, or were never made; `deltaforge run` and the first pipeline that is applied "
            "make them"
        )

    def _format(self) -> int:
        if not self._read(_HAS_TABLES, ()):
            return 0
        return int(self._read(_GET_FORMAT, ())[0][0])

    def _upgrade(self, execute: Execute) -> None:
        execute("SELECT pg_advisory_xact_lock(?)", (_UPGRADE_LOCK,))
        found = 0  # Asked again under the lock: another process may have been first.
        if execute(_HAS_TABLES, ()).fetchall():
            found = int(execute(_GET_FORMAT, ()).fetchall()[0][0])
        layout.upgrade(lambda statement: execute(statement, ()), found, _TYPES, self._where)

    def _parsed(self, dsn: str) -> dict[str, str]:
        from psycopg.conninfo import conninfo_to_dict

        refusal = SpecError(
            "the state store's DSN is no PostgreSQL address; write "
            "postgresql://user:${PASSWORD}@host:5432/database, with special characters of "
            "user and password percent-encoded"
        )
        try:
            found = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
        except self._driver.Error:
            raise refusal from None  # The driver's text quotes the DSN, and with it the password.
        # An unencoded "@" or "/" makes the rest of a password a host, which errors would show.
        misread = "@" in found.get("host", "") + found.get("dbname", "")
        if misread or found.get("port", "0").strip("0123456789,"):
            raise refusal
        return found

    def _text(self, error: "psycopg.Error") -> str:
        """Return the driver's text in one line, without the password."""
        text = " ".join(str(error).split())
        secret = self._parameters.get("password")
        return text.replace(secret, "***") if secret else text

    def _translated(self, error: "psycopg.Error") -> DeltaForgeError:
        text = f"the state store {self._where}: {self._text(error)}"
        state = error.sqlstate
        if self._expected is not None and (state in _NO_TABLES or _no_database(error)):
            return RetryableError(f"{self._without_tables()} ({self._text(error)})")
        if state is not None and state.startswith(_ACCESS_STATES):
            return AccessError(f"{text}; check user, password, database and their rights")
        if state is not None and not state.startswith(_RETRY_STATES):
            return FatalError(f"{text}; this is not a state store of this release")
        # A refused connection carries no state, only text.
        if state is None and any(words in text for words in _ACCESS_WORDS):
            return AccessError(f"{text}; check user, password, database and their rights")
        return RetryableError(f"{text}; check that it is up and reachable")


def _import_driver() -> Any:
    try:
        import psycopg
    except ImportError as error:
        raise SpecError(
            "the storage backend 'postgres' needs an extra: "
            "pip install 'airflow-provider-deltaforge[postgres]'"
        ) from error
    return psycopg


def _disconnect(connection: "psycopg.Connection[Any]") -> None:
    with contextlib.suppress(Exception):  # It may be broken already.
        connection.close()


def _execute(connection: "psycopg.Connection[Any]", statement: str, values: Sequence[Any]) -> Any:
    return connection.execute(_sql(statement), values)


def _no_database(error: "psycopg.Error") -> bool:
    """Return whether the server answers, and the database is gone."""
    words = str(error)
    return error.sqlstate == "3D000" or ('database "' in words and "does not exist" in words)


def _connection_lost(error: "psycopg.Error") -> bool:
    if error.sqlstate is None:
        return type(error).__name__ in {"OperationalError", "InterfaceError"}
    return error.sqlstate.startswith(("08", "57P", "25P03"))


def _rolled_back(error: "psycopg.Error") -> bool:
    """Return whether the server undid the transaction and asks for it to be made again."""
    return error.sqlstate in {"40001", "40P01"}


@lru_cache(maxsize=64)
def _sql(statement: str) -> str:
    return statement.replace("now_ms()", _NOW).replace("?", "%s")
