"""Follows what triggers of ours wrote into shadow tables."""

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    PositionLostError,
    RetryableError,
    SchemaError,
)
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.turso import trigger_sql
from airflow_provider_deltaforge.sources.turso.events import Events, TxPositions
from airflow_provider_deltaforge.sources.turso.files import Database, quoted
from airflow_provider_deltaforge.sources.turso.following import FileReader
from airflow_provider_deltaforge.sources.turso.pacing import Pace
from airflow_provider_deltaforge.sources.turso.positions import Place
from airflow_provider_deltaforge.sources.turso.rows import key_json, row_json
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    Captured,
    Table,
    captured_tables,
)
from airflow_provider_deltaforge.sources.turso.trigger_sql import CLEANED, SEQUENCE, shadow_name

_log = logging.getLogger(__name__)

_CLEAN_EVERY_S = 1.0


class Shadows:
    """The shadow tables of a file.

    Args:
        database: the open file.
        captured: the tables to follow.
        create: make or renew what is missing; else that is an error with the SQL in it.
    """

    def __init__(self, database: Database, captured: Captured, *, create: bool) -> None:
        self._database = database
        self._captured = captured
        self._create = create
        self._begun = False

    def prepared(self) -> dict[str, Table]:
        """Return the captured tables; each has a shadow that fits.

        Raises:
            FatalError: a shadow is missing and may not be made; the text holds the SQL.
            SchemaError: a table was altered, and its shadow still holds changes.
        """
        with self._database.view():
            tables = captured_tables(self._database, self._captured)
            missing = trigger_sql.misfits(self._database, tables)
        if not missing:
            self._begun = True
            return tables
        if not self._create:
            names = ", ".join(f"{DB}.{name}" for name in missing)
            raise FatalError(
                f"{names}: the triggers are missing or do not fit the table's columns; set "
                "source.auto_create_triggers: true, or run this in the database (it drops "
                f"changes that were not read yet):\n{trigger_sql.script(missing)}"
            )
        with self._database.writing():
            # Looked at again: another process may have made them meanwhile.
            tables = captured_tables(self._database, self._captured)
            missing = trigger_sql.misfits(self._database, tables)
            for statement in trigger_sql.common_sql():
                self._database.rows(statement)
            for table in missing.values():
                self._make(table)
        self._begun = True
        return tables

    def _make(self, table: Table) -> None:
        self._refuse_pending(table.name)
        for statement in trigger_sql.table_sql(table):
            self._database.rows(statement)
        _log.info("made the capture triggers of %s.%s", DB, table.name)
        rows = self._database.rows(f"SELECT 1 FROM {quoted(table.name)} LIMIT 1")
        if self._begun and rows:
            _log.warning(
                "%s.%s had rows or changes before its triggers were made anew; snapshot it",
                DB,
                table.name,
            )

    def _refuse_pending(self, name: str) -> None:
        shadow = shadow_name(name)
        there = self._database.rows(
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (shadow,)
        )
        if there and self._database.rows(f"SELECT 1 FROM {quoted(shadow)} LIMIT 1"):
            raise SchemaError(
                f"{DB}.{name} was altered while its changes were not all read and cleaned up: "
                "those behind the ALTER lack the new columns; take a new snapshot, and make the "
                f"triggers anew:\n{trigger_sql.script(self._only(name))}"
            )

    def _only(self, name: str) -> dict[str, Table]:
        return {name: captured_tables(self._database, self._captured)[name]}

    def head_id(self) -> int:
        """Return the number of the last change."""
        return int(self._database.one(f"SELECT last FROM {SEQUENCE}") or 0)

    def head(self) -> Place:
        """Return the place behind everything that is committed."""
        return Place("triggers", self.head_id())

    def check_kept(self, place: Place) -> None:
        """Check that everything behind a place is still there.

        Raises:
            PositionLostError: it is not.
        """
        last, head = place.change_id or 0, self.head_id()
        if last > head:
            raise PositionLostError(
                f"the triggers counted {head} changes, but {last} were read: the file was "
                "replaced; take a new snapshot"
            )
        cleaned = self._database.rows(
            f"SELECT table_name, change_id FROM {CLEANED} WHERE change_id > ?", (last,)
        )
        lost = sorted(str(name) for name, _ in cleaned if name in self._captured)
        if lost:
            raise PositionLostError(
                f"{', '.join(lost)}: changes behind {last} were cleaned up; take a new snapshot. "
                "Only one pipeline can follow a table by triggers"
            )

    def after(self, tables: Mapping[str, Table], last: int, limit: int) -> list[tuple[Any, ...]]:
        """Return changes of all tables behind a number, in order, with the table in front."""
        found = []
        for name in tables:
            rows = self._database.rows(
                f"SELECT * FROM {quoted(shadow_name(name))} WHERE change_id > ? "
                "ORDER BY change_id LIMIT ?",
                (last, limit),
            )
            found.append([(row[0], name, *row[1:]) for row in rows])
        return list(islice(merge(*found), limit))

    def clean(self, tables: Mapping[str, Table], upto: int) -> None:
        """Delete the changes up to a number."""
        with self._database.writing():
            for name in tables:
                shadow = quoted(shadow_name(name))
                if self._database.rows(f"SELECT 1 FROM {shadow} WHERE change_id <= ?", (upto,)):
                    self._database.rows(f"DELETE FROM {shadow} WHERE change_id <= ?", (upto,))
                    self._database.rows(
                        f"INSERT OR REPLACE INTO {CLEANED} VALUES (?, ?)", (name, upto)
                    )


@dataclass(frozen=True, slots=True)
class TriggerChunk:
    """Changes from the shadows: number, table, time, op and both images in one row."""

    rows: tuple[tuple[Any, ...], ...]
    tables: Mapping[str, Table]
    last: int

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the images have."""
        return sum(
            64 + sum(len(v) if isinstance(v, str | bytes) else 8 for v in row[4:])
            for row in self.rows
        )

    @property
    def end(self) -> Position:
        """Return where reading may resume."""
        return Place("triggers", self.last).as_json()


class TriggerReader(FileReader):
    """Reads the shadows, and empties them behind what is delivered.

    Args:
        database: the file; the reader closes it.
        shadows: its shadow tables.
        start: the place to begin behind.
        source_id: seeds the event ids.
        pace: how often to look, and how much to take.
        cleans: delete what is acknowledged.
    """

    def __init__(
        self,
        database: Database,
        shadows: Shadows,
        start: Place,
        source_id: str,
        pace: Pace,
        *,
        cleans: bool,
    ) -> None:
        super().__init__(database, pace)
        self._shadows = shadows
        self._last = start.change_id or 0
        self._source_id = source_id
        self._cleans = cleans
        self._cleaning = threading.Lock()
        self._cleaned = self._acknowledged = self._last
        self._clean_at = 0.0
        self._tables = shadows.prepared()
        self._version = self._read_version()
        with database.view():
            shadows.check_kept(start)

    def decode(self, chunk: TriggerChunk) -> ChangeBatch:
        """Turn a chunk's images into change events; each is a transaction of its own."""
        events = Events()
        for index, (number, name, time_ms, op, *images) in enumerate(chunk.rows):
            table = chunk.tables[name]
            width = len(table.columns)
            before = None if op == "c" else images[:width]
            after = None if op == "d" else images[width:]
            events.op.append(op)
            events.table.append(name)
            events.before.append(None if before is None else row_json(table, before))
            events.after.append(None if after is None else row_json(table, after))
            events.key.append(key_json(table, after or before or []))
            events.ts_ms.append(time_ms)
            events.tx.append(index)
            events.name.append(b"%d:%d" % (number, time_ms))
            events.source_position.append(b'"change_id":%d' % number)
            events.schema_version.append(table.schema.fingerprint)
        count = len(events)
        events.row, events.tx_end = [0] * count, [True] * count
        events.tx_id, events.ddl = [None] * count, [None] * count
        ends = tuple(Place("triggers", int(row[0])).as_json() for row in chunk.rows)
        return events.batch(
            chunk.end, TxPositions(ends or (chunk.end,)), self._source_id, "triggers"
        )

    def acknowledge(self, position: Position) -> None:
        """Remember what is delivered, and now and then delete it from the shadows."""
        self._acknowledged = max(self._acknowledged, Place.from_json(position).change_id or 0)
        if time.monotonic() >= self._clean_at:
            self._clean()

    def close(self) -> None:
        """Delete what is delivered, and let go of the file. Safe to call twice."""
        with suppress(DeltaForgeError):  # What stays is deleted by the next reader.
            self._clean()
        super().close()

    def _look(self) -> None:
        version = self._read_version()
        if version != self._version:
            self._tables = self._shadows.prepared()
            self._version = self._read_version()
        head = self._shadows.head_id()
        if head == self._last:
            return
        with self._database.view():
            self._shadows.check_kept(Place("triggers", self._last))
            if trigger_sql.misfits(self._database, self._tables) or (
                self._read_version() != self._version
            ):
                return  # Altered just now: the next look makes the shadows fit, or refuses.
            head = self._shadows.head_id()
            rows = self._shadows.after(self._tables, self._last, self._pace.batch_size)
        full = len(rows) >= self._pace.batch_size
        self._last = int(rows[-1][0]) if full else head
        self._ready.append(TriggerChunk(tuple(rows), self._tables, self._last))
        self._pace.took(len(rows))

    def _read_version(self) -> Any:
        return self._database.one("PRAGMA schema_version")

    def _clean(self) -> None:
        with self._cleaning:
            upto = self._acknowledged
            if not self._cleans or upto <= self._cleaned:
                return
            self._clean_at = time.monotonic() + _CLEAN_EVERY_S
            try:
                self._shadows.clean(self._tables, upto)
            except RetryableError as error:
                _log.info("the shadows are cleaned later: %s", error)
            else:
                self._cleaned = upto
