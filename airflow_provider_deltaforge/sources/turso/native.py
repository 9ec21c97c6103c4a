"""Follows the capture table that Turso itself writes."""

import logging
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import orjson

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.turso.audit import Audit, holds_others
from airflow_provider_deltaforge.sources.turso.capture import (
    CATALOG,
    COMMIT,
    DELETE,
    INSERT,
    UPDATE,
    Capture,
    Row,
    catalog_change,
    statement_of,
)
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.events import Events, FileTxPositions
from airflow_provider_deltaforge.sources.turso.file_reader import FileReader, Pace
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.records import row_of
from airflow_provider_deltaforge.sources.turso.rows import key_json, row_json
from airflow_provider_deltaforge.sources.turso.tables import DB, CapturedTables, TursoTable

_log = logging.getLogger(__name__)

_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}


@dataclass(frozen=True, slots=True)
class NativeSegment:
    """Rows of the capture table that one set of table definitions decodes.

    Attributes:
        rows: in order.
        tables: the definitions, by name.
        before: the place before the rows.
        open_tx: the last transaction goes on in the next segment.
        continues: the first transaction began in an earlier segment.
    """

    rows: tuple[Row, ...]
    tables: Mapping[str, TursoTable]
    before: FilePosition
    open_tx: bool = False
    continues: bool = False

    @property
    def nbytes(self) -> int:
        """Return the length in bytes of the row images."""
        return sum(64 + len(row.before or b"") + len(row.after or b"") for row in self.rows)

    @property
    def ends(self) -> tuple[FilePosition, ...]:
        """Return the places behind the segment's complete transactions; without one, before it."""
        marks = {name: table.mark for name, table in self.tables.items()}
        places = (
            FilePosition("native", row.change_id, row.time, schemas=marks)
            for row in self.rows
            if row.kind == COMMIT
        )
        return tuple(places) or (self.before,)

    @property
    def end(self) -> Position:
        """Return where reading may resume after the segment's last complete transaction."""
        return self.ends[-1].as_json()


class NativeReader(FileReader):
    """A reader of the capture table.

    Args:
        database: the file; the reader closes it.
        capture: its capture table.
        captured: the tables to follow.
        start: the place to begin behind.
        source_id: seeds the event ids.
        pace: how often to look, and how much to take.
        schema_events: changes of tables become events as well.
    """

    def __init__(
        self,
        database: Database,
        capture: Capture,
        captured: CapturedTables,
        start: FilePosition,
        source_id: str,
        pace: Pace,
        schema_events: bool,  # noqa: FBT001
    ) -> None:
        super().__init__(database, pace)
        self._capture = capture
        self._captured = captured
        self._place = start  # Behind the last complete transaction that was handed out.
        self._last = start.change_id or 0  # The last row that was read, and its time.
        self._time = start.change_time
        self._source_id = source_id
        self._schema_events = schema_events
        self._tables: dict[str, TursoTable] = {}
        self._version: int | None = None
        self._inside = False
        self._auditor = Audit(database, capture.name)
        self._audit_at = 0.0
        self._begin()

    def decode(self, segment: NativeSegment) -> ChangeBatch:
        """Turn the segment's row images into change events."""
        events = Events()
        known = {name.lower(): table for name, table in segment.tables.items()}
        tx = 0
        for row in segment.rows:
            if row.kind == COMMIT:
                if len(events) and events.tx[-1] == tx:
                    events.tx_end[-1] = True
                tx += 1
            elif row.table == CATALOG:
                if self._schema_events and any(catalog_change(row, self._captured)):
                    _add_statement(events, row, tx)
            elif row.table in self._captured:
                _add_row(events, row, _table(known, row), tx)
        ends = segment.ends
        return events.batch(
            ends[-1].as_json(),
            FileTxPositions(ends),
            self._source_id,
            "native",
            open_tx=segment.open_tx,
            continues=segment.continues,
        )

    def _begin(self) -> None:
        with self._database.view():
            self._capture.check()
            self._capture.check_kept(self._place)
            self._tables = self._capture.tables_at(self._place)
            self._hand_out_new(self._tables.keys() - self._place.schemas.keys())
        self._audit()

    def _look(self) -> None:
        self._audit()
        version = self._database.value("PRAGMA schema_version")
        if self._capture.head_id() == self._last and version == self._version:
            return
        with self._database.view():
            self._capture.check_kept(FilePosition("native", self._last, self._time))
            self._verify()
            rows = self._capture.after(self._last, self._pace.batch_size)
            self._find_made(rows)
        self._cut(rows)
        self._pace.took(len(rows))

    def _check_kept(self) -> None:
        self._version = None
        self._auditor = Audit(self._database, self._capture.name)
        with self._database.view():
            self._capture.check()
            self._capture.check_kept(FilePosition("native", self._last, self._time))

    def _audit(self) -> None:
        """Warn of tables that grew without being captured; seldom, because rows are counted."""
        if time.monotonic() < self._audit_at:
            return
        with self._database.view():
            tables = self._capture.tables_now()  # Not those of our place: they may be gone.
            warnings = self._auditor.check(tables, self._capture.head_id())
        self._audit_at = time.monotonic() + self._pace.audit_s
        for warning in warnings:
            _log.warning("source %s: %s", self._source_id, warning)

    def _verify(self) -> None:
        version = self._database.value("PRAGMA schema_version")
        if version != self._version:
            known = self._tables.keys()
            self._tables = self._capture.verify(self._tables, self._last)
            self._hand_out_new(self._tables.keys() - known)
            self._version = version

    def _hand_out_new(self, names: AbstractSet[str]) -> None:
        """Report tables that came up without a row of the capture table saying so.

        The place that knows them is stored together with the report: killed before that, the next
        reader finds them again.
        """
        marks = {name: table.mark for name, table in self._tables.items()}
        place = FilePosition(
            "native", self._place.change_id, self._place.change_time, schemas=marks
        )
        if self._report(names, place) and not self._inside:
            self._place = place  # Nothing else may ever move the checkpoint.
            self._ready.append(NativeSegment((), self._tables, place))

    def _find_made(self, rows: Sequence[Row]) -> None:
        """Report tables made under capture whose first rows were not: ``CREATE TABLE … AS``."""
        for row in rows:
            if row.table != CATALOG or row.kind != INSERT:
                continue
            _, table = catalog_change(row, self._captured)
            if table is not None and holds_others(
                self._database, self._capture.name, table.name, row.change_id
            ):
                self._report([table.name], FilePosition("native", row.change_id, row.time))

    def _cut(self, rows: list[Row]) -> None:
        """Make segments, each with one set of table definitions."""
        start = 0
        for index, row in enumerate(rows):
            if row.table != CATALOG:
                continue
            old, new = catalog_change(row, self._captured)
            if old is None and new is None:
                continue
            self._hand_out(rows[start:index])
            start = index
            self._tables = dict(self._tables)
            if old is not None:
                self._tables.pop(old.name, None)
            if new is not None:
                self._tables[new.name] = new
        self._hand_out(rows[start:])

    def _hand_out(self, rows: list[Row]) -> None:
        if not rows:
            return
        open_tx = rows[-1].kind != COMMIT
        segment = NativeSegment(tuple(rows), self._tables, self._place, open_tx, self._inside)
        self._inside = open_tx
        self._last, self._time = rows[-1].change_id, rows[-1].time
        self._place = segment.ends[-1]
        self._ready.append(segment)


def _table(known: Mapping[str, TursoTable], row: Row) -> TursoTable:
    table = known.get(str(row.table).lower())
    if table is None:
        raise SchemaError(
            f"{DB}.{row.table}: change {row.change_id} is of a table whose columns are not known, "
            "because it was renamed, made or dropped without being captured; take a new snapshot"
        )
    return table


def _add_row(events: Events, row: Row, table: TursoTable, tx: int) -> None:
    before = None if row.before is None else row_of(table, row.before)
    after = None if row.after is None else row_of(table, row.after)
    if row.kind == DELETE:
        after = None
    elif row.kind == INSERT and after is None:
        before, after = None, before  # So the engine (0.8.3) writes a row that got another rowid.
    image = before if after is None else after
    if image is None:
        raise SchemaError(
            f"{DB}.{table.name}: change {row.change_id} was captured without its row; capture with "
            "the level 'full', and take a new snapshot"
        )
    _add(events, row, tx, _OPS[row.kind], table.name)
    events.before.append(None if before is None else row_json(table, before))
    events.after.append(None if after is None else row_json(table, after))
    events.key.append(key_json(table, image))
    events.schema.append(table.schema)
    events.ddl.append(None)


def _add_statement(events: Events, row: Row, tx: int) -> None:
    _add(events, row, tx, "ddl", "_ddl")
    for column in (events.before, events.after, events.key, events.schema):
        column.append(None)
    events.ddl.append(orjson.dumps({"sql": statement_of(row), "database": DB}))


def _add(events: Events, row: Row, tx: int, op: str, table: str) -> None:
    events.op.append(op)
    events.table.append(table)
    events.ts_ms.append(row.time * 1000)
    events.tx.append(tx)
    events.row.append(row.change_id - row.tx)
    events.tx_id.append(str(row.tx))
    events.tx_end.append(False)
    events.name.append(b"%d:%d" % (row.change_id, row.time))
    events.source_position.append(b'"change_id":%d' % row.change_id)
