"""Follows inserts by a column that grows; updates and deletes are not seen."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, PositionLostError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.events import Events
from airflow_provider_deltaforge.sources.turso.file_reader import FileReader, Pace
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.rows import key_json, nbytes_of, row_json
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    ROWID_NAMES,
    CapturedTables,
    TursoTable,
    captured_tables,
)


class Growth:
    """The captured tables of a file, and how far each has grown.

    Args:
        database: the open file.
        captured: the tables to follow.
        column: the growing column.
    """

    def __init__(self, database: Database, captured: CapturedTables, column: str) -> None:
        self._database = database
        self._captured = captured
        self._column = column

    @property
    def by_rowid(self) -> bool:
        """Whether the growing column is the row's number."""
        return self._column.lower() in ROWID_NAMES

    def tables(self) -> dict[str, TursoTable]:
        """Return the captured tables that are there now."""
        return captured_tables(self._database, self._captured)

    def tracking(self, table: TursoTable) -> str:
        """Return the growing column's name in a table, as SQL writes it.

        Raises:
            FatalError: the table has none.
        """
        for name in table.columns:
            if name.lower() == self._column.lower():
                return quoted(name)
        if not self.by_rowid:
            raise FatalError(
                f"source.tracking_column: {DB}.{table.name} has no column {self._column!r}; name "
                "one that every captured table has, or leave the table out of 'tables'"
            )
        if table.rowid is None:
            raise FatalError(
                f"{DB}.{table.name} is WITHOUT ROWID: polling needs a growing column, so name one "
                "as source.tracking_column, or leave the table out of 'tables'"
            )
        return quoted(table.rowid)

    def head(self) -> FilePosition:
        """Return the place behind everything that is committed."""
        grown = {}
        for name, table in self.tables().items():
            column = self.tracking(table)
            grown[name] = _checked(
                table, self._database.value(f"SELECT max({column}) FROM {quoted(name)}")
            )
        return FilePosition("polling", tables={n: v for n, v in grown.items() if v is not None})

    def check_kept(self, place: FilePosition) -> None:
        """Check that no row number behind a place is given twice; the rows are the log.

        Only AUTOINCREMENT keeps a number that shows it.

        Raises:
            PositionLostError: the database is an older one.
        """
        counted = {
            table.name: self.tracking(table)
            for table in self.tables().values()
            if table.autoincrement and self.tracking(table) == quoted(str(table.rowid))
        }
        if not counted:
            return
        counters = dict(self._database.rows("SELECT name, seq FROM sqlite_sequence"))
        for name, column in counted.items():
            last = place.tables.get(name)
            if not isinstance(last, int) or int(counters.get(name) or 0) >= last:
                continue
            row = f"SELECT 1 FROM {quoted(name)} WHERE {column} = ?"
            if not self._database.rows(row, (last,)):  # A number that was updated is not counted.
                raise PositionLostError(
                    f"{DB}.{name}: row {last} was read, but AUTOINCREMENT stands at "
                    f"{counters.get(name) or 0}: the database was replaced, or restored from an "
                    "older copy; take a new snapshot"
                )

    def after(self, table: TursoTable, last: Any, limit: int) -> list[tuple[Any, ...]]:
        """Return rows behind a tracking value, the value in front; equal ones stay together."""
        column, names = self.tracking(table), ", ".join(quoted(n) for n in table.columns)
        condition = "1" if last is None else f"{column} > ?"
        values = [] if last is None else [last]
        order = f", {quoted(table.rowid)}" if table.rowid else ""
        source = f"FROM {quoted(table.name)} WHERE {column} IS NOT NULL AND {condition}"
        border = self._database.value(
            f"SELECT {column} {source} ORDER BY {column} LIMIT 1 OFFSET ?", [*values, limit - 1]
        )
        if border is not None:
            source += f" AND {column} <= ?"
            values.append(border)
        return self._database.rows(
            f"SELECT {column}, {names} {source} ORDER BY {column}{order}", values
        )


def _checked(table: TursoTable, value: Any) -> Any:
    if isinstance(value, bytes):
        raise FatalError(
            f"source.tracking_column: {DB}.{table.name} holds binary values in it; name a column "
            "of numbers or texts"
        )
    return value


@dataclass(frozen=True, slots=True)
class PollPositions:
    """The positions behind the groups of a segment: rows of one table with one tracking value."""

    before: Mapping[str, Any]
    table: str
    values: tuple[Any, ...]

    def after(self, tx: int) -> Position:
        """Return where reading may resume after group ``tx``."""
        return FilePosition(
            "polling", tables={**self.before, self.table: self.values[tx]}
        ).as_json()


@dataclass(frozen=True, slots=True)
class PollSegment:
    """New rows of a table, at least one: the tracking value, the row's values."""

    rows: tuple[tuple[Any, ...], ...]
    table: TursoTable
    before: Mapping[str, Any]
    time_ms: int

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the rows have."""
        return nbytes_of(row[1:] for row in self.rows)

    @property
    def positions(self) -> PollPositions:
        """Return the positions behind each group of rows with one tracking value."""
        values = tuple(value for value, _ in groupby(row[0] for row in self.rows))
        return PollPositions(self.before, self.table.name, values)

    @property
    def end(self) -> Position:
        """Return where reading may resume."""
        return self.positions.after(-1)


class PollReader(FileReader):
    """Reads rows behind the last value of their table's growing column.

    Args:
        database: the file; the reader closes it.
        growth: its tables.
        start: the place to begin behind.
        source_id: seeds the event ids.
        pace: how often to look, and how much to take.
    """

    def __init__(
        self, database: Database, growth: Growth, start: FilePosition, source_id: str, pace: Pace
    ) -> None:
        super().__init__(database, pace)
        self._growth = growth
        self._grown = dict(start.tables)
        self._source_id = source_id
        self._version: Any = None
        for table in growth.tables().values():
            growth.tracking(table)

    def decode(self, segment: PollSegment) -> ChangeBatch:
        """Turn rows into inserts; rows with one tracking value are one transaction."""
        events = Events()
        table, name = segment.table, segment.table.name
        last: Any = None  # No row that was read has NULL.
        tx, row = -1, 0
        for value, *image in segment.rows:
            if value == last:
                row += 1
                events.tx_end[-1] = False
            else:
                tx, row, last = tx + 1, 0, value
            events.after.append(row_json(table, image))
            events.key.append(key_json(table, image))
            events.tx.append(tx)
            events.row.append(row)
            events.tx_end.append(True)
            events.name.append(repr((name, value, row)).encode())
        count = len(segment.rows)
        events.op, events.table = ["c"] * count, [name] * count
        events.schema = [table.schema] * count
        events.ts_ms = [segment.time_ms] * count
        events.before, events.ddl = [None] * count, [None] * count
        events.tx_id, events.source_position = [None] * count, [None] * count
        return events.batch(segment.end, segment.positions, self._source_id, "polling")

    def _check_kept(self) -> None:
        self._version = None  # It counts the changes of one file.

    def _look(self) -> None:
        version = self._database.changes_seen()
        if version is not None and version == self._version:
            return
        full = False
        with self._database.view():
            self._growth.check_kept(FilePosition("polling", tables=self._grown))
            tables = self._growth.tables()
            for name, table in tables.items():
                rows = self._growth.after(table, self._grown.get(name), self._pace.batch_size)
                if rows:
                    full = full or len(rows) >= self._pace.batch_size
                    self._hand_out(table, rows)
        self._version = None if full else version
        self._pace.took(self._pace.batch_size if full else 0)

    def _hand_out(self, table: TursoTable, rows: list[tuple[Any, ...]]) -> None:
        now_ms = int(time.time() * 1000)
        self._ready.append(PollSegment(tuple(rows), table, dict(self._grown), now_ms))
        self._grown[table.name] = rows[-1][0]
