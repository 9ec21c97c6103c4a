"""State in one SQLite file, shared by the processes of one host.

The log is written ahead (WAL) with ``synchronous=FULL``: SQLite's ``NORMAL`` would lose the last
checkpoints at a power cut, and a sink that already acknowledged would then see them again. The
file must not lie on a network file system: WAL needs memory that all its users share.

A volume can go away under a running driver, with an empty directory or another file in its place.
Every use therefore looks whether the path still names the file that its connection has open; what
lies there otherwise is used only if it is this very store, with the last write in it.
"""

import contextlib
import errno
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
)
from airflow_provider_deltaforge.storage import layout, sql
from airflow_provider_deltaforge.storage.pool import Pool
from airflow_provider_deltaforge.storage.sql import Execute, Query, SqlStore

T = TypeVar("T")

_BUSY_TIMEOUT_S = 15.0
_TYPES = {"text": "TEXT", "blob": "BLOB", "serial": "INTEGER PRIMARY KEY AUTOINCREMENT"}
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
_REFUSED = ("readonly", "not authorized", "access permission")
_UNOPENED = "unable to open"
"""What SQLite says of a file that it may not open, and if the process has no file handle left."""
_BROKEN = ("not a database", "malformed", "no such table", "no such column", "unsupported file")

_LOOK = "; check that no frozen process holds it, and that its disk has room"
_AWAY = (errno.ENOENT, errno.ENOTDIR, errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.ENXIO)
_NO_HANDLES = (errno.EMFILE, errno.ENFILE)
_CLOCK_MS = 2
"""How far SQLite's clock, a floating-point number of days, may differ from ours."""

_Inode = tuple[int, int]


_in_use: set[Path] = set()


def files_in_use() -> set[Path]:
    """Return the files of the stores that this process has opened, there or not."""
    return {
        path.with_name(f"{path.name}{suffix}")
        for path in _in_use
        for suffix in ("", "-wal", "-shm", "-journal")
    }


class _Connection(sqlite3.Connection):
    """A connection that knows which file it has open."""

    inode: _Inode | None = None


class SqliteStore(SqlStore):
    """A ``Store`` in a file; see the contract for what each method promises.

    The file is its owner's only (mode 0600), and so are the directories that are made for it.

    Args:
        path: the database file.
        create: make the file where there is none; otherwise a store that is not there is away.
        identity: the store that must be there; None: whichever is.
        busy_timeout_s: so long a write waits for other processes that write.

    Raises:
        AccessError: the file cannot be created or written.
        RetryableError: it is away, another lies in its place, or other processes kept it locked
            for too long.
        FatalError: it is no state store, or one of a later release.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        identity: int | None = None,
        busy_timeout_s: float = _BUSY_TIMEOUT_S,
    ) -> None:
        super().__init__()
        self._path = Path(path).expanduser().absolute()
        self._where = str(self._path)
        self._creates = create and identity is None
        self._busy_timeout_s = busy_timeout_s
        self._writing = threading.Lock()
        self._pid = os.getpid()
        self._expected = identity
        self._inode: _Inode | None = None
        self._last_put: tuple[str, str, float] | None = None
        self._pool: Pool[_Connection] = Pool(
            self._connect, sqlite3.Connection.close, is_usable=self._is_present
        )
        if self._creates:
            self._create_file()
        _in_use.add(self._path.resolve())
        with self._errors(), self._pool.connection():
            self._creates = False  # From now on, a file that is missing is away.

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r})"

    @property
    def name(self) -> str:
        """Return the file's name."""
        return self._path.name

    def close(self) -> None:
        """Close the connections."""
        self._pool.drain()

    @contextlib.contextmanager
    def view(self) -> Iterator[Query]:
        """Yield a query over one moment; the write-ahead log grows while the block runs."""
        with self._errors(), self._pool.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield lambda statement: connection.execute(_sql(statement))
            finally:
                connection.execute("ROLLBACK")

    def counter(self, query: Query, table: str, column: str) -> int:
        """Return the last number that was drawn for a table; 0 before the first."""
        del column
        rows = query("SELECT name, seq FROM sqlite_sequence")
        return next((int(number) for name, number in rows if name == table), 0)

    def raise_counter(self, execute: Execute, table: str, column: str, number: int) -> None:
        """Let the numbers of a table go on behind ``number``."""
        del column
        execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
        execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (table, number))

    def rewrite(self, work: Callable[[Execute], T]) -> T:
        """Run ``work`` in one transaction; BEGIN IMMEDIATE lets no other writer beside it."""
        return self._write(work)

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        with self._errors(), self._pool.connection() as connection:
            return connection.execute(_sql(statement), values).fetchall()

    def _write(self, work: Callable[[Execute], T]) -> T:
        last_put: tuple[str, str, float] | None = None
        began_ms = time.time() * 1000 - _CLOCK_MS

        def execute(text: str, values: Sequence[Any]) -> sqlite3.Cursor:
            nonlocal last_put
            if text is sql.PUT and values[3] is None:
                last_put = (values[0], values[1], began_ms)
            elif text is sql.DELETE:
                last_put = self._last_put = None
            return connection.execute(_sql(text), values)

        with self._errors(), self._turn(), self._pool.connection() as connection:
            self._begin(connection)
            try:
                result = work(execute)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            # A write to a file that has lost its name may be lost with it.
            if not self._is_present(connection):
                raise RetryableError(
                    f"{self._away()}; it went while a write was made, and whether that write "
                    "counts is not known: read it again"
                )
            self._last_put = last_put or self._last_put
            return result

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Become the writer.

        SQLite's own waiting grows to 100 ms between two looks; beside a process that writes
        without pause, an epoch would then wait for seconds. We look every few milliseconds.
        """
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            _until_free(lambda: connection.execute("BEGIN IMMEDIATE"), self._busy_timeout_s)
        finally:
            connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout_s * 1000)}")

    def _keep_order(self, execute: Execute) -> None:
        """BEGIN IMMEDIATE already lets one writer in at a time."""

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Make the threads of this process write one after the other."""
        if self._pid != os.getpid():
            self._writing, self._pid = threading.Lock(), os.getpid()
        if not self._writing.acquire(timeout=2 * self._busy_timeout_s):
            raise RetryableError(f"the state file {self._path} is busy{_LOOK}")
        try:
            yield
        finally:
            self._writing.release()

    def _create_file(self) -> None:
        try:
            for directory in reversed((self._path.parent, *self._path.parent.parents)):
                if not directory.exists():
                    directory.mkdir(mode=0o700, exist_ok=True)
            # Before SQLite opens it, which would make it readable by everybody. Never a file that
            # is there: closing it would drop the locks of this process's other connections to it.
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self._path, flags, 0o600))
        except OSError as error:
            if error.errno in _NO_HANDLES:
                raise RetryableError(f"the state file {self._path}: {error.strerror}") from error
            raise AccessError(
                f"the state file {self._path} cannot be opened for writing: {error.strerror}; give "
                "this user the right to, or name another path"
            ) from error

    def _present_inode(self) -> _Inode | None:
        """Return what the path names now; None when it names nothing.

        Raises:
            AccessError: this user may not look.
            RetryableError: the same, of a store that was open before.
        """
        try:
            found = self._path.stat()
        except OSError as error:
            if error.errno in _AWAY:
                return None
            if self._expected is not None:
                raise RetryableError(f"{self._away()} ({error.strerror})") from error
            raise AccessError(
                f"the state file {self._path} cannot be opened for writing: {error.strerror}; give "
                "this user the right to, or name another path"
            ) from error
        return found.st_dev, found.st_ino

    def _is_present(self, connection: _Connection) -> bool:
        return connection.inode is not None and connection.inode == self._present_inode()

    def _away(self) -> str:
        return (
            f"the state store {self._path} is away: bring its file or volume back, and what waits "
            "for it goes on"
        )

    def _connect(self) -> _Connection:
        inode = self._present_inode()
        if inode is None:
            raise RetryableError(self._away() if self._expected else f"{_never(self._path)}")
        if not os.access(self._path, os.R_OK | os.W_OK):
            raise AccessError(
                f"the state file {self._path} cannot be opened for writing: "
                f"{os.strerror(errno.EACCES)}; give this user the right to, or name another path"
            )
        _make_private(self._path)
        connection = sqlite3.connect(
            f"file:{quote(str(self._path))}?mode=rw",
            uri=True,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        try:
            connection.inode = inode
            connection.execute("PRAGMA synchronous = FULL")
            self._admit(connection, inode)
        except BaseException:
            connection.close()
            raise
        return connection

    def _admit(self, connection: _Connection, inode: _Inode) -> None:
        """Make sure that what was opened is this store."""
        if inode != self._inode:
            self._prepare(connection)
            found = self._same(self._expected, connection.execute(sql.IDENTITY).fetchall())
            if self._inode is not None and inode[1] != self._inode[1]:
                self._require_last_put(connection)
            self._expected = found
        if not self._is_present(connection):
            raise RetryableError(self._away())
        self._inode = inode

    def _require_last_put(self, connection: sqlite3.Connection) -> None:
        """Refuse a copy of this store that was made before its last write."""
        if self._last_put is None:
            return
        namespace, key, since_ms = self._last_put
        wanted = "SELECT 1 FROM df_kv WHERE ns = ? AND key = ? AND updated_at >= ?"
        if not connection.execute(wanted, (namespace, key, since_ms)).fetchall():
            raise FatalError(
                f"an older copy of the state store lies at {self._path}: what was written since is "
                "not in it; put the newest back, or start again to go on from what it holds"
            )

    def _prepare(self, connection: sqlite3.Connection) -> None:
        found = _format_of(connection)
        if not found and not self._creates:
            raise RetryableError(
                f"there is no state store in {self._path}, which is empty: put the right file back"
            )
        if not found and _is_foreign(connection):
            raise FatalError(
                f"{self._path} is a database of something else: name another file for the state"
            )
        _use_wal(connection, self._path, self._busy_timeout_s)
        if found == layout.FORMAT:
            return
        self._begin(connection)
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
            if self._expected is not None and self._present_inode() != self._inode:
                raise RetryableError(f"{self._away()} ({error})") from error
            raise _translated(error, self._path) from error


def _never(path: Path) -> str:
    return (
        f"there is no state store at {path}: it is away, or was never made; `deltaforge run` and "
        "the first pipeline that is applied make one"
    )


def _make_private(path: Path) -> None:
    """Take everybody else's rights to a store's files; those of another owner are left alone."""
    for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        with contextlib.suppress(OSError):
            found = name.stat()
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o177:
                name.chmod(0o600)


def _use_wal(connection: sqlite3.Connection, path: Path, wait_s: float) -> None:
    """Switch to WAL; SQLite does not wait for other processes that switch at the same time."""
    rows = _until_free(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchall(), wait_s)
    if rows[0][0] != "wal":
        raise AccessError(
            f"the state file {path} cannot use a write-ahead log (mode {rows[0][0]!r}): move it to "
            "a local file system, or use PostgreSQL"
        )


def _until_free(attempt: Callable[[], T], wait_s: float) -> T:
    deadline = time.monotonic() + wait_s
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


def _is_foreign(connection: sqlite3.Connection) -> bool:
    # One statement: between two, another process may have made the store's tables.
    foreign = (
        "SELECT 1 FROM sqlite_master WHERE NOT EXISTS "
        "(SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'df_meta') LIMIT 1"
    )
    return bool(connection.execute(foreign).fetchall())


@lru_cache(maxsize=64)
def _sql(statement: str) -> str:
    return statement.replace("now_ms()", _NOW)


def _may_write(path: Path) -> bool:
    """Return whether this user may write a store's files, and make them."""
    files = [path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")]
    may_make = os.access(path.parent, os.W_OK | os.X_OK)
    return may_make and all(os.access(f, os.R_OK | os.W_OK) for f in files if f.exists())


def _translated(error: sqlite3.Error, path: Path) -> DeltaForgeError:
    text = str(error)
    if isinstance(error, sqlite3.ProgrammingError):
        return FatalError(f"the state file {path} refused a statement: {text}")
    is_refused = _UNOPENED in text and not _may_write(path)
    if is_refused or any(word in text for word in _REFUSED):
        return AccessError(f"the state file {path}: {text}; give this user the right to write it")
    if any(word in text for word in _BROKEN):
        return FatalError(f"{path} is not a healthy state file: {text}; restore it from a backup")
    return RetryableError(f"the state file {path}: {text}{_LOOK}")
