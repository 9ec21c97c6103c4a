"""The schema changes that lie ahead: between a reader's position and the end of the log.

The catalog describes a table as it is now. That is how it was at a reader's position only if
nothing in between has changed it, which only the log itself shows.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import TableDecodePlan
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import TableMap
from airflow_provider_deltaforge.sources.mysql.catalog import (
    captured_tables,
    load_locked,
    log_says_all,
)
from airflow_provider_deltaforge.sources.mysql.connection import translated
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode
from airflow_provider_deltaforge.sources.mysql.ddl.statements import DDL, INDEX, Key, Statement
from airflow_provider_deltaforge.sources.mysql.ddl.temporary_tables import TemporaryTables
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition, compare, file_number
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_READ_S = 0.5


class Walker(Protocol):
    """A reader of the log, as far as looking ahead needs one."""

    @property
    def place(self) -> tuple[str, int]:
        """Return file and offset read so far."""

    @property
    def position(self) -> Any:
        """Return the position behind what was read."""

    def read(self, timeout_s: float) -> BinlogSegment | None:
        """Read on."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(frozen=True)
class PendingDdl:
    """One statement that lies ahead."""

    db: str
    statement: Statement
    sql: str

    def touches(self, key: Key) -> bool:
        """Return whether the table may look different after it."""
        statement = self.statement
        if statement.kind != DDL:
            return False
        if statement.databases:
            return statement.drops_database and key[0] in statement.databases
        if not statement.acts:
            return True
        names = [
            name
            for act in statement.acts
            if act.what != INDEX or act.body
            for name in (act.table, act.other)
            if name is not None
        ]
        return key in [(name[0] or self.db, name[1]) for name in names]


class Recorder:
    """Records statements: the catalog of a reader that only looks ahead.

    Attributes:
        temporary: the sessions' temporary tables; None: statements on them are recorded, too.
    """

    def __init__(self, temporary: TemporaryTables | None = None) -> None:
        self.temporary = temporary
        self.settled: list[PendingDdl] = []
        self._since: list[PendingDdl] = []

    def captures(self, db: str, table: str) -> bool:
        """Capture nothing."""
        return False

    def touches(self, db: str) -> bool:
        """Capture nothing."""
        return False

    def begin(self, position: LogPosition, here: Callable[[], LogPosition]) -> None:
        """Forget what will be read again."""
        self._since = []
        if self.temporary is not None:
            self.temporary.rewind()

    def passed(self, position: LogPosition) -> None:
        """Keep what will not be read again."""
        self.settled += self._since
        self._since = []
        if self.temporary is not None:
            self.temporary.settle()

    def changed(self, statement: Statement, db: str, sql: str) -> tuple[TableSchema, ...]:
        """Record a statement."""
        self._since.append(PendingDdl(db, statement, sql))
        return ()

    def judge(self, sql: str, db: str, place: str, *, session: int, mode: SqlMode) -> None:
        """Accept every statement."""
        if self.temporary is not None:
            self.temporary.note_statement(sql, db, session, mode)

    def without_temporary(self, statement: Statement, db: str, session: int) -> Statement:
        """Return what a statement does to other tables than the session's temporary ones."""
        if self.temporary is None:
            return statement
        return self.temporary.without(statement, db, session)

    def is_transactional(self, db: str, table: str) -> bool:
        """Rely on nothing: no table is captured."""
        return False

    def server_restarted(self) -> None:
        """Forget the temporary tables, whose sessions ended."""
        if self.temporary is not None:
            self.temporary.clear()

    def plan(self, table: TableMap) -> TableDecodePlan:
        """Describe no table: none is captured.

        Raises:
            AssertionError: always.
        """
        raise AssertionError(f"{table.db}.{table.table} is not captured")

    @property
    def seen(self) -> list[PendingDdl]:
        """Everything so far."""
        return self.settled + self._since


class DdlLookahead:
    """Finds the statements ahead of a reader; what was read once is not read again.

    Args:
        walk: opens a reader of its own at a position, with a recorder as its catalog.
        timeout_s: how long the server may be silent.
        stopping: ends the look.
    """

    def __init__(
        self,
        walk: Callable[[LogPosition, Recorder], Walker],
        timeout_s: float,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._walk = walk
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._known: list[PendingDdl] = []
        self._upto: LogPosition | None = None
        self._temporary: TemporaryTables | None = None

    def passed(self, count: int, position: LogPosition) -> None:
        """Record that the reader passed ``count`` statements and is at ``position``."""
        if self._upto is not None and (count > len(self._known) or _reached(position, self._upto)):
            self._known, self._upto = [], None
        del self._known[:count]

    def between(
        self, start: LogPosition, end: LogPosition, temporary: TemporaryTables | None = None
    ) -> list[PendingDdl]:
        """Return every statement behind ``start`` and up to ``end``, in order.

        Args:
            start: where the reader is.
            end: how far to look.
            temporary: the temporary tables of sessions at ``start``, if they are known.

        Raises:
            RetryableError: the server fell silent, or a stop was asked for.
        """
        if self._upto is None:
            self._temporary = temporary
        begin = self._upto or start
        if not _reached(begin, end):
            self._known += self._read(begin, end)
            self._upto = end
        return self._known

    def _read(self, begin: LogPosition, end: LogPosition) -> list[PendingDdl]:
        recorder = Recorder(self._temporary)
        walker = self._walk(begin, recorder)
        heard_at, was = time.monotonic(), walker.place
        try:
            while not _arrived(walker, end):
                if self._stopping():
                    raise RetryableError("asked to stop while schema changes were looked for")
                walker.read(_READ_S)
                if walker.place != was:
                    heard_at, was = time.monotonic(), walker.place
                elif time.monotonic() - heard_at > self._timeout_s:
                    raise RetryableError(
                        f"the log did not come up to {end.file}:{end.pos} while schema changes "
                        "were looked for; trying again"
                    )
        finally:
            walker.close()
        return recorder.seen


def _arrived(walker: Walker, end: LogPosition) -> bool:
    file, pos = walker.place
    if end.file and (file_number(file), pos) >= (file_number(end.file), end.pos):
        return True
    return _reached(LogPosition.from_json(walker.position), end)


def _reached(position: LogPosition, end: LogPosition) -> bool:
    try:
        return compare(position.as_json(), end.as_json()) >= 0
    except PositionLostError:
        return False


def schemas_at(
    connect: Callable[[], Any], matcher: TableMatcher, ahead: DdlLookahead, position: LogPosition
) -> Sequence[TableSchema]:
    """Return the captured tables that look now as they looked at a position.

    Args:
        connect: opens a connection.
        matcher: which tables are captured.
        ahead: finds the statements behind the position.
        position: a recent one, behind which little of the log lies.

    Returns:
        Nothing when the server writes full row metadata: the log describes every row then.
    """
    connection = connect()
    try:
        if log_says_all(connection):
            return []
        tables = captured_tables(connection, matcher)
        found = [load_locked(connection, table.db, table.table) for table in tables]
    except Exception as error:
        raise translated(error, "describing the captured tables") from error
    finally:
        connection.close()
    if not found:
        return []
    changes = ahead.between(position, found[-1][1])
    return [
        schema
        for schema, _ in found
        if schema is not None and not any(ddl.touches((schema.db, schema.table)) for ddl in changes)
    ]
