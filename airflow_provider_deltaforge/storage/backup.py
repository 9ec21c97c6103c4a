"""A state store as a file: one moment of it, to be put back there or into another store.

Lines of JSON, compressed by gzip: what the file is, every row, and a checksum of all that. Values
that are text stand as they are, others in base64. The same file fits every backend that keeps its
state in tables.

What is put back is older than what was there. Versions of slots, and with them the epochs that
fence drivers, therefore jump ahead by a random number: a driver that was frozen since, or a process
that holds a version, finds neither its own nor, later on, the same number again.
"""

import gzip
import hashlib
import os
import secrets
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.errors import AccessError, FatalError, SpecError
from airflow_provider_deltaforge.storage import layout, names
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.sql import Execute, Query, SqlStore

VERSION = 1
"""The version of the file's own format."""

READABLE_FORMATS = frozenset({1, 2})
"""Formats of stores whose rows fit into the tables of this release as they are."""

KIND = "deltaforge-backup"

Progress = Callable[[int, int], None]
"""Called with how many rows are done, and how many there are."""

_JUMP_LEAST, _JUMP_MOST = 1_000_000, 1_000_000_000
_NUMBERS_LEFT_OUT = 1_000_000
"""Numbers of the log and of queues that may have been drawn since the backup was made."""

_ROWS_AT_ONCE = 100
_BYTES_AT_ONCE = 4 << 20
_STEP = 500


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the store: its columns, which of them is the value, and what counts it."""

    columns: tuple[str, ...]
    value: int
    counted: str | None = None
    conflict: str = ""


_TABLES = {
    "df_kv": _Table(
        ("ns", "key", "val", "updated_at", "expires_at"), 2, conflict="ON CONFLICT DO NOTHING"
    ),
    "df_log": _Table(("seq", "ns", "key", "val", "ts"), 3, counted="seq"),
    "df_slot": _Table(
        ("ns", "key", "version", "state", "updated_at"),
        3,
        conflict="ON CONFLICT (ns, key) DO UPDATE SET state = excluded.state, "
        "updated_at = excluded.updated_at, version = CASE WHEN df_slot.version > excluded.version "
        "THEN df_slot.version ELSE excluded.version END",
    ),
    "df_queue": _Table(("id", "ns", "key", "val", "ts"), 3, counted="id"),
}


@dataclass(slots=True)
class BackupSummary:
    """What a backup holds.

    Attributes:
        made_at_ms: by the clock of who made it.
        identity: of the store it was made of, as people see it.
        rows: how many, by table.
        pipelines: their names, sorted.
        tokens: how many tokens of the REST API, as hashes.
        sha256: of the uncompressed lines before the last.
    """

    made_at_ms: int
    identity: str
    rows: dict[str, int]
    pipelines: list[str] = field(default_factory=list)
    tokens: int = 0
    sha256: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return asdict(self)

    def note(self, table: str, row: Sequence[Any]) -> None:
        """Count a row."""
        if table == "df_kv" and row[0] == names.DOCUMENTS:
            self.pipelines.append(row[1])
        elif table == "df_kv" and row[0] == names.TOKENS:
            self.tokens += 1


def write_backup(
    store: Store, path: Path, progress: Progress = lambda done, total: None
) -> BackupSummary:
    """Write one moment of a store into a file, while others write to the store.

    The file is its owner's only, and appears when it is whole: killed before, only ``PATH.part``
    is left.

    Raises:
        SpecError: the store is of a kind that keeps no tables.
        AccessError: the file cannot be written.
    """
    tables = _with_tables(store)
    part = path.with_name(f"{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        descriptor = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as file, tables.view() as query:
                summary = _write_lines(tables, query, file, progress)
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
        _make_durable(path.parent)
    except OSError as error:
        raise AccessError(f"the backup {path} cannot be written: {error.strerror}") from error
    return summary


def read_backup(
    store: Store,
    path: Path,
    *,
    replace: bool = False,
    new_identity: bool = False,
    progress: Progress = lambda done, total: None,
) -> BackupSummary:
    """Put a backup into a store, in one transaction that counts only if the file is whole.

    Args:
        store: where to.
        path: the backup.
        replace: what the store holds goes, but for the tokens of the REST API and the writers that
            a successor in a sink has to wait for; otherwise a store that holds anything is refused.
        new_identity: the store is a second one beside that of the backup, and sinks that hold a
            position tell the two apart; otherwise it is the same store again.
        progress: called now and then.

    Raises:
        SpecError: the file is no backup, or the store is not empty.
        FatalError: the file is damaged, or a later release wrote it.
        AccessError: it cannot be read.
    """
    tables = _with_tables(store)

    def work(execute: Execute) -> BackupSummary:
        with _Lines(path) as lines:
            if not replace:
                _require_empty(tables, execute)
            return _restore(tables, execute, lines, new_identity=new_identity, progress=progress)

    try:
        summary = tables.rewrite(work)
    except OSError as error:
        raise AccessError(f"the backup {path} cannot be read: {error.strerror or error}") from error
    return summary


def check_backup(path: Path) -> None:
    """Check that a file begins as a backup does that this release reads.

    Raises:
        SpecError: it does not.
        FatalError: a later release wrote it.
        AccessError: it cannot be read.
    """
    try:
        with _Lines(path) as lines:
            lines.head()
    except OSError as error:
        raise AccessError(f"the backup {path} cannot be read: {error.strerror or error}") from error


def _with_tables(store: Store) -> SqlStore:
    if not isinstance(store, SqlStore):
        raise SpecError(
            f"a backup is made of a store in SQLite or PostgreSQL, and restored into one; {store!r}"
            " is neither"
        )
    return store


def _write_lines(
    store: SqlStore, query: Query, file: gzip.GzipFile, progress: Progress
) -> BackupSummary:
    counts = {
        table: int(next(iter(query(f"SELECT count(*) FROM {table}")))[0]) for table in _TABLES
    }
    made_at_ms, identity = int(time.time() * 1000), f"{store.identity or 0:x}"
    head = {
        "kind": KIND,
        "v": VERSION,
        "release": __version__,
        "made_at_ms": made_at_ms,
        "format": layout.FORMAT,
        "identity": identity,
        "rows": counts,
        "counters": {
            name: store.counter(query, name, table.counted)
            for name, table in _TABLES.items()
            if table.counted
        },
    }
    summary = BackupSummary(made_at_ms, identity, counts)
    checksum, done, total = hashlib.sha256(), 0, sum(counts.values())

    def write(line: Any) -> None:
        text = orjson.dumps(line) + b"\n"
        checksum.update(text)
        file.write(text)

    write(head)
    for name, table in _TABLES.items():
        for row in query(f"SELECT {', '.join(table.columns)} FROM {name}"):
            write([name, *(_shown(cell) for cell in row)])
            summary.note(name, row)
            done += 1
            if done % _STEP == 0:
                progress(done, total)
    progress(done, total)
    summary.sha256 = checksum.hexdigest()
    file.write(orjson.dumps({"end": {"rows": done, "sha256": summary.sha256}}) + b"\n")
    summary.pipelines.sort()
    return summary


def _shown(cell: Any) -> Any:
    if not isinstance(cell, bytes | memoryview):
        return cell
    value = bytes(cell)
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}


class _Lines:
    """The lines of a backup, checked; the last one must be the checksum of the others.

    Raises:
        SpecError: the file is something else.
        FatalError: it is damaged, or of a later release.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = gzip.GzipFile(path, "rb")
        self.sha256 = ""

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def head(self) -> dict[str, Any]:
        """Return what the file says of itself; called first."""
        try:
            head = orjson.loads(first := self._file.readline())
            is_ours = head["kind"] == KIND
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
            is_ours = False
        if not is_ours:
            raise SpecError(f"{self._path} is no backup of a state store")
        if head["v"] > VERSION or head["format"] not in READABLE_FORMATS:
            raise FatalError(
                f"{self._path} was made by release {head['release']} (backup version {head['v']}, "
                f"store format {head['format']}), which this release does not read: upgrade "
                "airflow-provider-deltaforge here"
            )
        self._checksum, self._rows = hashlib.sha256(first), 0
        self._expected = sum(head["rows"].values())
        return dict(head)

    def rows(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield every row with the name of its table."""
        while True:
            try:
                line = self._file.readline()
                parsed = orjson.loads(line)
                if isinstance(parsed, dict):
                    self._finish(parsed["end"])
                    return
                table, row = _row(parsed)
            except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
                raise self._damaged() from error
            self._checksum.update(line)
            self._rows += 1
            yield table, row

    def _finish(self, end: dict[str, Any]) -> None:
        self.sha256 = self._checksum.hexdigest()
        is_whole = (end["rows"], end["sha256"]) == (self._rows, self.sha256)
        if not is_whole or self._rows != self._expected or self._file.read(1):
            raise self._damaged()

    def _damaged(self) -> FatalError:
        return FatalError(
            f"the backup {self._path} is damaged or was cut off (behind row {self._rows} of "
            f"{self._expected}): nothing was restored; take another one"
        )


def _row(parsed: Sequence[Any]) -> tuple[str, list[Any]]:
    """Return the table and the cells of a line.

    Raises:
        ValueError, KeyError, TypeError: it is no row of ours.
    """
    name, *cells = parsed
    table, row = _TABLES[name], [_stored(cell) for cell in cells]
    if len(row) != len(table.columns) or not isinstance(row[table.value], bytes):
        raise ValueError(name)
    return name, row


def _stored(cell: Any) -> Any:
    if not isinstance(cell, dict):
        return cell
    return cell["text"].encode() if "text" in cell else b64decode(cell["base64"], validate=True)


def _require_empty(store: SqlStore, execute: Execute) -> None:
    for table in _TABLES:
        if execute(f"SELECT 1 FROM {table} LIMIT 1", ()).fetchall():
            raise SpecError(
                f"the state store {store.name!r} is not empty, and a restore would replace what it "
                f"holds; if that is meant: --replace {store.name}"
            )


def _restore(
    store: SqlStore, execute: Execute, lines: _Lines, *, new_identity: bool, progress: Progress
) -> BackupSummary:
    head = lines.head()
    summary = BackupSummary(head["made_at_ms"], head["identity"], head["rows"])
    jump = _JUMP_LEAST + secrets.randbelow(_JUMP_MOST)
    was_used = _clear(execute, jump)
    done, total = 0, sum(head["rows"].values())
    batch = _Batch(execute)
    for name, row in lines.rows():
        summary.note(name, row)
        done += 1
        if done % _STEP == 0:
            progress(done, total)
        if name == "df_kv" and row[0] == names.TOKENS and was_used:
            continue  # One of them may have been revoked since.
        if name == "df_slot":
            row[2:4] = [row[2] + jump, _of_no_driver(row[0], row[3])]
        batch.add(name, row)
    batch.flush()
    progress(done, total)
    for name, table in _TABLES.items():
        if table.counted:
            drawn = store.counter(partial(_rows, execute), name, table.counted)
            number = max(head["counters"][name], drawn) + _NUMBERS_LEFT_OUT
            store.raise_counter(execute, name, table.counted, number)
    identity = secrets.randbits(62) if new_identity else int(head["identity"], 16)
    execute("UPDATE df_meta SET val = ? WHERE name = 'identity'", (identity,))
    summary.sha256 = lines.sha256
    summary.pipelines.sort()
    return summary


def _clear(execute: Execute, jump: int) -> bool:
    """Empty the store, but for what must outlive it; return whether there was anything."""
    was_used = any(execute(f"SELECT 1 FROM {table} LIMIT 1", ()).fetchall() for table in _TABLES)
    execute("UPDATE df_slot SET version = version + ?, state = ?", (jump, b""))
    execute("DELETE FROM df_kv WHERE ns NOT IN (?, ?)", (names.WRITERS, names.TOKENS))
    execute("DELETE FROM df_log", ())
    execute("DELETE FROM df_queue", ())
    return was_used


def _rows(execute: Execute, statement: str) -> Iterator[Sequence[Any]]:
    return iter(execute(statement, ()).fetchall())


def _of_no_driver(namespace: str, state: bytes) -> bytes:
    """Return the state of a slot without the driver that it names.

    One that still lives is fenced, and must not be adopted.
    """
    if namespace == names.EPOCHS:
        return b""
    if namespace == names.CONTROL and state:
        return orjson.dumps({**orjson.loads(state), "handle": None})
    return state


class _Batch:
    """Collects rows of one table after the other, and inserts many at a time."""

    def __init__(self, execute: Execute) -> None:
        self._execute = execute
        self._table = ""
        self._rows: list[list[Any]] = []
        self._bytes = 0

    def add(self, table: str, row: list[Any]) -> None:
        """Add a row."""
        if table != self._table or self._bytes > _BYTES_AT_ONCE or len(self._rows) >= _ROWS_AT_ONCE:
            self.flush()
        self._table = table
        self._rows.append(row)
        self._bytes += len(row[_TABLES[table].value])

    def flush(self) -> None:
        """Insert what was collected."""
        if self._rows:
            table = _TABLES[self._table]
            marks = f"({', '.join('?' * len(table.columns))})"
            statement = (
                f"INSERT INTO {self._table} ({', '.join(table.columns)}) "
                f"VALUES {', '.join([marks] * len(self._rows))} {table.conflict}"
            )
            self._execute(statement, [cell for row in self._rows for cell in row])
        self._rows, self._bytes = [], 0


def _make_durable(directory: Path) -> None:
    """Make the name of a new file outlive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
