"""State in one SQLite file, shared by the processes of one host.

The log is written ahead (WAL) with ``synchronous=FULL``: SQLite's ``NORMAL`` would lose the last
checkpoints at a power cut, and a sink that already acknowledged would then see them again. The
file must not lie on a network file system: WAL needs memory that all its users share.
"""

import contextlib
import errno
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.storage import layout
from airflow_provider_deltaforge.storage.pool import Pool
from airflow_provider_deltaforge.storage.sql import Execute, SqlStore

T = TypeVar("T")

_BUSY_TIMEOUT_S = 15.0
_TYPES = {"text": "TEXT", "blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT"}
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
_REFUSED = ("readonly", "unable to open", "not authorized", "access permission")
_BROKEN = ("not a database", "malformed", "no such table", "no such column", "unsupported file")

_LOOK = "; check that no frozen process holds it, and that its disk has room"


class SqliteStore(SqlStore):
    """A ``Store`` in a file; see the contract for what each method promises.

    The file is created for its owner only (mode 0600), with its parent directories.

    Args:
        path: the database file.

    Raises:
        AccessError: the file cannot be created or written.
        RetryableError: other processes kept it locked for too long.
        FatalError: it is no database, or one of a later release.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self._path = Path(path).expanduser().absolute()
        self._writing = threading.Lock()
        self._pid = os.getpid()
        self._pool: Pool[sqlite3.Connection] = Pool(self._connect, sqlite3.Connection.close)
        self._create_file()
        self._inode = self._present_inode()
        with self._errors(), self._pool.connection() as connection:
            self._prepare(connection)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"

    def close(self) -> None:
        """Let go of the connections."""
        self._pool.drain()

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        with self._errors(), self._pool.connection() as connection:
            return connection.execute(_sql(statement), values).fetchall()

    def _write(self, work: Callable[[Execute], T]) -> T:
        with self._errors(), self._turn(), self._pool.connection() as connection:
            # A write to a file that has lost its name would be lost with it.
            if self._present_inode() != self._inode:
                raise FatalError(
                    f"the state file {self._path} was removed or replaced while it was open: put "
                    "the right file back and start again"
                )
            _begin(connection)
            try:
                result = work(lambda text, values: connection.execute(_sql(text), values))
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            return result

    def _keep_order(self, execute: Execute) -> None:
        """BEGIN IMMEDIATE already lets one writer in at a time."""

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let the threads of this process write one after the other."""
        if self._pid != os.getpid():
            self._writing, self._pid = threading.Lock(), os.getpid()
        if not self._writing.acquire(timeout=2 * _BUSY_TIMEOUT_S):
            raise RetryableError(f"the state file {self._path} is busy{_LOOK}")
        try:
            yield
        finally:
            self._writing.release()

    def _create_file(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Before SQLite opens it, which would make it readable by everybody. Never a file that
            # is there: closing it would drop the locks of this process's other connections to it.
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, flags, 0o600))
            if not os.access(self._path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise AccessError(
                f"the state file {self._path} cannot be opened for writing: {error.strerror}; give "
                "this user the right to, or name another path"
            ) from error

    def _present_inode(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        _use_wal(connection, self._path)
        if _format_of(connection) == layout.FORMAT:
            return
        _begin(connection)
        try:
            found = _format_of(connection)  # Another process may have been first.
            layout.upgrade(connection.execute, found, _TYPES, str(self._path))
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the driver's errors into ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translated(error, self._path) from error


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to WAL; SQLite does not wait for other processes that switch at the same time."""
    rows = _until_free(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall())
    if rows[0][0] != "wal":
        raise AccessError(
            f"the state file {path} cannot use a write-ahead log (mode {rows[0][0]!r}): move it to "
            "a local file system, or use PostgreSQL"
        )


def _begin(connection: sqlite3.Connection) -> None:
    """Become the writer.

    SQLite's own waiting grows to 100 ms between two looks; beside a process that writes without
    pause, an epoch would then wait for seconds. We look every few milliseconds instead.
    """
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        _until_free(lambda: connection.execute("BEGIN IMMEDIATE"))
    finally:
        connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_TIMEOUT_S * 1000)}")


def _until_free(attempt: Callable[[], T]) -> T:
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0.0005, 0.004))  # noqa: S311 - spreads waiters, no secret.


def _format_of(connection: sqlite3.Connection) -> int:
    known = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'df_meta'"
    if not connection.execute(known).fetchall():
        return 0
    return int(connection.execute("SELECT val FROM df_meta WHERE name = 'format'").fetchone()[0])


@lru_cache(maxsize=64)
def _sql(statement: str) -> str:
    return statement.replace("now_ms()", _NOW)


def _translated(error: sqlite3.Error, path: Path) -> DeltaForgeError:
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return FatalError(f"the state file {path} refused a statement: {text}")
    if any(word in text for word in _REFUSED):
        return AccessError(f"the state file {path}: {text}; give this user the right to write it")
    if any(word in text for word in _BROKEN):
        return FatalError(f"{path} is not a healthy state file: {text}; restore it from a backup")
    return RetryableError(f"the state file {path}: {text}{_LOOK}")
