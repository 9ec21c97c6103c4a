"""Follows what triggers of ours wrote into shadow tables."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.turso.audit import TriggerAudit
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.events import Events, FileTxPositions
from airflow_provider_deltaforge.sources.turso.file_reader import FileReader, Pace
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.rows import key_json, nbytes_of, row_json
from airflow_provider_deltaforge.sources.turso.shadows import Shadows, misfits
from airflow_provider_deltaforge.sources.turso.tables import TursoTable

_log = logging.getLogger(__name__)

_CLEAN_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class TriggerSegment:
    """Changes from the shadows: number, table, time, op and both images in one row."""

    rows: tuple[tuple[Any, ...], ...]
    tables: Mapping[str, TursoTable]
    marks: Mapping[str, str]
    last: int
    time_ms: int

    @property
    def nbytes(self) -> int:
        """Return about how many bytes the images have."""
        return nbytes_of(row[4:] for row in self.rows)

    @property
    def end(self) -> Position:
        """Return where reading may resume."""
        return FilePosition("triggers", self.last, self.time_ms, schemas=self.marks).as_json()


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
        start: FilePosition,
        source_id: str,
        pace: Pace,
        *,
        cleans: bool,
    ) -> None:
        super().__init__(database, pace)
        self._shadows = shadows
        self._last = start.change_id or 0
        self._time = start.change_time  # No change up to the last one was made later.
        self._source_id = source_id
        self._cleans = cleans
        self._cleaning = threading.Lock()
        self._cleaned = self._acknowledged = self._last
        self._clean_at = 0.0
        self._marks: Mapping[str, str] = start.schemas
        self._session = -1
        # Others' connections to a server cannot switch triggers off, and counting has its price.
        self._audits = cleans and database.engine != "server"
        self._auditor = TriggerAudit(database)
        self._audit_at = 0.0
        self._check_kept()

    def decode(self, segment: TriggerSegment) -> ChangeBatch:
        """Turn a segment's images into change events; each is a transaction of its own."""
        events = Events()
        for index, (number, name, time_ms, op, *images) in enumerate(segment.rows):
            table = segment.tables[name]
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
            events.schema.append(table.schema)
        count = len(events)
        events.row, events.tx_end = [0] * count, [True] * count
        events.tx_id, events.ddl = [None] * count, [None] * count
        marks = segment.marks
        numbers = [int(row[0]) for row in segment.rows] or [segment.last]
        ends = [FilePosition("triggers", n, segment.time_ms, schemas=marks) for n in numbers]
        return events.batch(segment.end, FileTxPositions(ends), self._source_id, "triggers")

    def acknowledge(self, position: Position) -> None:
        """Remember what is delivered, and now and then delete it from the shadows."""
        self._acknowledged = max(
            self._acknowledged, FilePosition.from_json(position).change_id or 0
        )
        if time.monotonic() >= self._clean_at:
            self._clean()

    def close(self) -> None:
        """Delete what is delivered, and close the database. Safe to call twice."""
        self._database.hurry()
        with suppress(DeltaForgeError):  # What stays is deleted by the next reader.
            self._clean()
        super().close()

    def _check_kept(self) -> None:
        self._auditor = TriggerAudit(self._database)
        self._tables = self._shadows.prepared(self._last)
        self._version = self._read_version()
        with self._database.view():
            self._check_place()
            self._find_new()

    def _find_new(self) -> None:
        """Report the tables that have new triggers, but rows from before; inside a view.

        The place that knows them is stored together with the report: killed before that, the next
        reader finds them again.
        """
        known, self._marks = self._marks, self._shadows.marks(self._tables)
        new = [name for name, mark in self._marks.items() if not _is_same(known.get(name), mark)]
        place = FilePosition("triggers", self._last, self._time, schemas=self._marks)
        if self._report(self._shadows.filled(new), place):
            # Nothing else may ever move the checkpoint.
            self._ready.append(self._segment(()))

    def _look(self) -> None:
        version = self._read_version()
        if version != self._version:
            self._clean()  # What is delivered must not keep an altered table from new triggers.
            self._tables = self._shadows.prepared(self._last)
            self._version = self._read_version()
            self._auditor = TriggerAudit(self._database)
            with self._database.view():
                self._find_new()
        head = self._shadows.head_id()
        if head == self._last and not self._is_audit_due:
            return
        with self._database.view():
            self._check_place()
            if misfits(self._database, self._tables) or (self._read_version() != self._version):
                return  # Altered just now: the next look makes the shadows fit, or refuses.
            self._shadows.refuse_left(self._last)
            head = self._shadows.head_id()
            rows = self._shadows.after(self._tables, self._last, self._pace.batch_size)
            full = len(rows) >= self._pace.batch_size
            last = int(rows[-1][0]) if full else head
            others = self._shadows.latest(last, self._shadows.others())
            self._audit(rows, is_whole=not full)
        if last == self._last:
            return
        self._last = last
        self._time = max(self._time, others, *(row[2] for row in rows))
        self._ready.append(self._segment(tuple(rows)))
        self._pace.took(len(rows))

    def _segment(self, rows: tuple[tuple[Any, ...], ...]) -> TriggerSegment:
        return TriggerSegment(rows, self._tables, self._marks, self._last, self._time)

    @property
    def _is_audit_due(self) -> bool:
        return self._audits and time.monotonic() >= self._audit_at

    def _audit(self, rows: Iterable[tuple[Any, ...]], *, is_whole: bool) -> None:
        """Warn of tables that grew without triggers; seldom, because rows are counted.

        Args:
            rows: what is read in the view that is open.
            is_whole: there is no more to read in it.
        """
        self._auditor.read((str(row[1]), str(row[3])) for row in rows)
        if not is_whole or not self._is_audit_due:
            return
        warnings = self._auditor.check(self._tables)
        self._audit_at = time.monotonic() + self._pace.audit_s
        for warning in warnings:
            _log.warning("source %s: %s", self._source_id, warning)

    def _check_place(self) -> None:
        """Check that what was read is still what lies before our place; inside a view."""
        # The same connection leads to the same database.
        time_ms = 0 if self._session == self._database.sessions else self._time
        self._shadows.check_kept(FilePosition("triggers", self._last, time_ms))
        self._session = self._database.sessions

    def _read_version(self) -> Any:
        return self._database.value("PRAGMA schema_version")

    def _clean(self) -> None:
        with self._cleaning:
            upto = self._acknowledged
            if not self._cleans or upto <= self._cleaned or self._database.replaced():
                return
            self._clean_at = time.monotonic() + _CLEAN_EVERY_S
            try:
                self._shadows.clean(self._tables, upto)
            except RetryableError as error:
                _log.info("the shadows are cleaned later: %s", error)
            else:
                self._cleaned = upto


def _is_same(known: str | None, mark: str) -> bool:
    """Return whether a table has had its triggers since it was known; columns may have come."""
    return known is not None and known.partition("#")[2] == mark.partition("#")[2]
