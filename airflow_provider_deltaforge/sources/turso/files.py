"""The database file: which engine may open it, how it is opened, and what its errors mean.

Two engines know the format, and they do not see each other's write-ahead log: Turso keeps its
index in ``<file>-tshm``, SQLite in ``<file>-shm``. A reader of the other engine would go on
seeing an old state without any error, so the file's locks are looked at before and while reading.
"""

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airflow_provider_deltaforge.errors import (
    AccessError,
    DeltaForgeError,
    FatalError,
    RetryableError,
    SpecError,
)
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.tuning import TURSO_TUNING

Engine = Literal["turso", "sqlite"]

SHARED = "multiprocess_wal"
_ANY_READ = "SELECT 1 FROM sqlite_schema LIMIT 1"
_BEGINS = 100
_SHARE = f"open it there with turso.connect(path, experimental_features={SHARED!r})"
_LOCKS = Path("/proc/locks")
_SQLITE_LOCKS_FROM = 0x40000000  # SQLite locks bytes from here on, Turso the file from byte 0.


def file_of(url: str) -> Path:
    """Return the database file that a document's ``url`` names.

    Raises:
        SpecError: it names no file.
    """
    path = url.removeprefix("file://") if url.startswith("file://") else url.removeprefix("file:")
    if not path or ":memory:" in path or "?" in path:
        raise SpecError("source.url: name a file, without parameters; memory cannot be shared")
    return Path(path)


def usual_engine(path: Path) -> Engine:
    """Return the engine that writes the file: Turso leaves its shared index beside it."""
    return "turso" if Path(f"{path}-tshm").exists() else "sqlite"


@dataclass(frozen=True, slots=True)
class _Lock:
    kind: str
    first: int


def check_engine(path: Path, engine: Engine) -> None:
    """Check that nobody uses the file in a way that ``engine`` would not see.

    Only where the kernel lists its locks (Linux).

    Raises:
        RetryableError: somebody does; once they have closed it, the call may be repeated.
    """
    if engine == "sqlite":
        if _locks(Path(f"{path}-tshm")):
            raise RetryableError(
                f"{path} is open in Turso, whose writes SQLite does not see; use cdc_mode: native"
            )
        return
    for lock in _locks(path):
        if lock.kind == "WRITE" and lock.first == 0:
            raise RetryableError(f"{path} is locked by one Turso process alone; {_SHARE}")
        if lock.first >= _SQLITE_LOCKS_FROM:
            raise RetryableError(
                f"{path} is open in SQLite, whose writes Turso does not see; close it there, or, "
                f"if no process uses Turso, delete {path}-tshm and follow the file with "
                "cdc_mode: triggers or polling"
            )


def _locks(path: Path) -> list[_Lock]:
    """Return who locks a file, from the kernel's list: opening it would drop our own locks."""
    try:
        inode = f":{path.stat().st_ino}"
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        words = [word for word in line.split()[1:] if word != "->"]
        if len(words) > 5 and words[4].endswith(inode):
            found.append(_Lock(words[2], int(words[5])))
    return found


class _SchemaChangedError(RetryableError):
    """Another process changed the schema after this one had last looked."""


class _Turns:
    """Keeps a file from being opened while another connection of this process reads it.

    Turso's engine (0.8.3, its issue 7213) takes every reader of its own process for a dead one
    when it opens a file once more, and aborts the process when that reader ends.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers = 0
        self._openers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Wait for those who open the file, and keep others from it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._openers)
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def opening(self, busy_s: float) -> Iterator[None]:
        """Wait until nobody reads, for ``busy_s`` at most.

        Raises:
            RetryableError: somebody goes on for too long.
        """
        with self._changed:
            self._openers += 1
            try:
                if not self._changed.wait_for(lambda: not self._readers, busy_s):
                    raise RetryableError(
                        "another reader of this process is in the way; trying again"
                    )
                yield
            finally:
                self._openers -= 1
                self._changed.notify_all()


_turns: dict[Path, _Turns] = {}


class FileDatabase(Database):
    """One connection to the file.

    Args:
        path: of the file.
        engine: opens it.
        busy_s: how long to wait for others who have it, in seconds.
    """

    def __init__(self, path: Path, engine: Engine, busy_s: float = TURSO_TUNING.busy_s) -> None:
        self.path = path
        self.place = str(path)
        self.engine: Engine = engine
        self._busy_s = busy_s
        self._lock = threading.RLock()
        self._turns = _turns.setdefault(path.resolve(), _Turns())
        self._in_transaction = False
        self._connection: Any = None
        self._identity: tuple[int, int] | None = None

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        with self._lock, translated(f"reading {self.path}"):
            connection = self._open()
            with nullcontext() if self._in_transaction else self._turns.reading():
                return list(connection.execute(sql, tuple(values)).fetchall())

    def changes_seen(self) -> Any:
        """Return a number that other connections' commits change; None where there is none."""
        return self.value("PRAGMA data_version") if self.engine == "sqlite" else None

    def about(self) -> dict[str, Any]:
        """Return which engine reads the file, and how large it is."""
        return {"engine": self.engine, "bytes": self.path.stat().st_size}

    def check_access(self) -> None:
        """Check that nobody uses the file in a way that the engine would not see."""
        check_engine(self.path, self.engine)

    def view(self) -> AbstractContextManager[None]:
        """Read everything inside from one committed state."""
        return self._transaction("BEGIN")

    def writing(self, *, brief: bool = False) -> AbstractContextManager[None]:
        """Commit everything done inside, or nothing."""
        del brief  # Who has the file is waited for.
        return self._transaction("BEGIN IMMEDIATE")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        """Close when a statement fails: that ends the transaction, whatever state it is in.

        A COMMIT that has to wait for a reader fails as well, and would leave its lock behind.
        """
        with self._lock:
            with translated(f"reading {self.path}"):
                self._open()
            with self._turns.reading():
                self._in_transaction = True
                try:
                    self._begin(begin)
                    yield
                    self.rows("COMMIT")
                except BaseException:
                    self.close()
                    raise
                finally:
                    self._in_transaction = False

    def _begin(self, begin: str) -> None:
        """Begin, and read: what others commit from then on is not seen.

        That another process changed the schema is something that Turso's engine (0.8.3) finds and
        gets over outside of a transaction only; inside, the first statement fails.
        """
        for is_last in (*[False] * _BEGINS, True):
            self.rows(begin)
            try:
                self.rows(_ANY_READ)
            except _SchemaChangedError:
                if is_last:
                    raise
                self.rows("ROLLBACK")
                self.rows(_ANY_READ)
            else:
                return

    def replaced(self) -> bool:
        """Return whether the path leads to another file than the one that was opened.

        Raises:
            RetryableError: it leads to none.
        """
        return self._identity not in (None, _identity(self.path))

    @contextmanager
    def replacement(self) -> Iterator[None]:
        """Open the file that the path leads to now, and stay with it if nothing inside fails."""
        with self._lock:
            self.close()
            identity = _identity(self.path)
            yield
            self._identity = identity

    def close(self) -> None:
        """Close the file. Safe to call twice; the next statement opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _open(self) -> Any:
        if self._connection is None:
            if not self.path.exists():
                raise FatalError(
                    f"there is no file {self.path.absolute()}; check source.url, which is best "
                    "absolute, and that the process that reads it runs on the machine that has it"
                )
            check_engine(self.path, self.engine)
            self.sessions += 1
            if self._identity is None:
                self._identity = _identity(self.path)
            if self.engine == "turso":
                with self._turns.opening(self._busy_s):
                    self._connection = _turso(self.path, self._busy_s)
            else:
                self._connection = _sqlite(self.path, self._busy_s)
        return self._connection


def _identity(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise RetryableError(
            f"{path} was there and is gone; put it back, or stop the pipeline"
        ) from error
    return found.st_dev, found.st_ino


def _turso(path: Path, busy_s: float) -> Any:
    try:
        import turso
    except ImportError as error:
        raise FatalError(
            "the Turso engine is not installed; pip install 'airflow-provider-deltaforge[turso]'"
        ) from error
    connection = turso.connect(str(path), experimental_features=SHARED, isolation_level=None)
    try:
        connection.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _sqlite(path: Path, busy_s: float) -> Any:
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _text
    return connection


def _text(data: bytes) -> str | bytes:
    """Keep the bytes of a text that is none: they are then written as base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Turn the engines' errors into ours."""
    try:
        yield
    except DeltaForgeError:
        raise
    except Exception as error:
        if not _from_engine(error):
            raise
        text = str(error)
        small = text.lower()
        if "locked by another process" in small:
            raise RetryableError(f"{doing}: another process has it for itself; {_SHARE}") from error
        if "database is locked" in small or "busy" in small:
            raise RetryableError(
                f"{doing}: the database is locked; a writer holds its transaction too long, or a "
                f"Turso process has the file for itself: {_SHARE}"
            ) from error
        if "schema changed" in small:
            raise _SchemaChangedError(f"{doing}: {text}; looking again") from error
        if "mvcc" in small:
            raise FatalError(
                f"{doing}: it has journal_mode mvcc, which cannot be read beside its writer; set "
                "PRAGMA journal_mode = 'wal' there"
            ) from error
        if "readonly" in small or "permission" in small or "unable to open" in small:
            raise AccessError(
                f"{doing}: {text}; the user needs to write the file and its folder"
            ) from error
        raise FatalError(f"{doing}: {text}") from error


def _from_engine(error: Exception) -> bool:
    return isinstance(error, sqlite3.Error | OSError) or type(error).__module__.startswith("turso")
