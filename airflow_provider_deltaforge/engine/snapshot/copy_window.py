"""Brings the rows of a chunk up to date with the log that they join.

A chunk that is copied beside a running stream joins the log at a place behind everything that its
view contained. What the log holds up to there is delivered by then. So a row of the chunk may be
older than what was delivered of it: when the log up to that place holds a change of it that the
view did not contain. The row then joins as that change has left it, or not at all if it is gone.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.engine.catch_up.second_reader import RenderedBatch
from airflow_provider_deltaforge.engine.read.read_ahead import Gate
from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position, joined
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sensing.data_drift.findings import TableFindings
from airflow_provider_deltaforge.sensing.row_samples import RowSample
from airflow_provider_deltaforge.sources.contract import Source, TableChunk
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

_ROW_OPS = ("c", "u", "d")


@dataclass(frozen=True, slots=True)
class RenderedRows:
    """The rows of a chunk that join the log, for every sink.

    Attributes:
        parts: rows, and what was rendered of them.
        findings: where they differ from what the catalog says.
        samples: some of them, for schema sensing.
    """

    parts: Sequence[tuple[pa.RecordBatch, SinkMessages]]
    findings: Sequence[TableFindings] = ()
    samples: Sequence[RowSample] = ()


class CopyWindow:
    """What the log holds of a chunk's table since before its view opened.

    The log's thread and the one that copies use it in turn, under the lock of ``WatchedLog``, until
    it is ``closed``; then it belongs to the one that copies.

    Args:
        source: tells what the view contained.
        run_id: the snapshot run.
        chunk: what is copied.
        opened_at: what the log delivered before, the view must contain.
    """

    op: ClassVar[str] = "r"
    """Of the rows, for statistics."""

    def __init__(self, source: Source, run_id: str, chunk: TableChunk, opened_at: Position) -> None:
        self._source = source
        self.run_id, self.chunk, self.opened_at = run_id, chunk, opened_at
        self.cut: Position | None = None
        self.is_read = False
        """All rows of the chunk are here: it may join the log."""
        self.closed = threading.Event()
        """Set at the place where the chunk joins the log, or where it cannot."""
        self.is_void = False
        """Rows and log do not agree on what the table is: the chunk has to be read again."""
        self.rendered: Future[RenderedRows | None] = Future()
        """What joins; None: the chunk does not join after all."""
        self.delivered: Future[bool] = Future()
        """Whether every sink holds it, and that is stored; False: it is to be read again."""
        self._unjudged: list[ChangeBatch] = []
        self._changes: list[pa.RecordBatch] = []
        self._versions: set[str | None] = set()

    def view(self, cut: Position) -> bool:
        """Note what the view contains; False if it lacks what the log had delivered before.

        A commit stands in the log before others see it.
        """
        if not _covers(self._source, cut, self.opened_at):
            return False
        self.cut = cut
        for batch in self._unjudged:
            self._judge(batch, cut)
        self._unjudged = []
        return True

    def look(self, batch: ChangeBatch) -> None:
        """Take note of a part of the log that is about this table."""
        if self.cut is None:
            self._unjudged.append(batch)
        else:
            self._judge(batch, self.cut)

    def is_ready(self, at: Position) -> bool:
        """Return whether the chunk may join the log behind a position."""
        if not self.is_read or self.cut is None:
            return False
        with suppress(PositionLostError):  # Each of the two lacks something that the other has.
            return self._source.is_behind(at, self.cut)
        return False

    def as_of_now(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Return the chunk's rows as they are where the chunk joins the log.

        Args:
            rows: of the chunk, as its view shows them.

        Returns:
            None where that cannot be known: the chunk has to be read again.
        """
        if self.is_void:
            return None
        if not self._changes or not rows.num_rows:
            return rows
        if self._versions - {*rows["schema_version"].unique().to_pylist()}:
            return None
        changes = joined(self._changes)
        keys, places = _last_changes(changes)
        found = pc.index_in(rows["key"], value_set=keys, skip_nulls=True)
        changed = np.flatnonzero(np.asarray(found.is_valid()))
        last = places[np.asarray(found.drop_null())]
        latest = changes.take(pa.array(last[last >= 0]))
        if latest["unchanged"].null_count < latest.num_rows:
            return None  # What the log leaves out of a change, only the copied row shows.
        rows = _with_images(rows, changed[last >= 0], latest["after"])
        kept = np.ones(rows.num_rows, np.bool_)
        kept[changed[last < 0]] = False
        gone = changes.filter(changes["key"].is_null())["before"].drop_null()
        if len(gone) and (self.cut or {}).get("inexact"):
            return None  # The view may show the table without them: equal rows would go as well.
        kept[_alike(rows["after"], gone)] = False
        return rows.filter(pa.array(kept))

    def shown_keys(self) -> pa.Array:
        """Return the keys of rows that the log has shown since the view, and that are there."""
        if not self._changes:
            return pa.array([], pa.binary())
        keys, places = _last_changes(joined(self._changes))
        return keys.filter(pa.array(places >= 0))

    def done(
        self, records: Snapshots, marks: Mapping[str, str], rows: int, row_bytes: int
    ) -> Sequence[Write]:
        """Return what is stored once every sink holds the rows.

        Args:
            records: of copies.
            marks: what the rows left in sinks, by sink.
            rows: that were delivered.
            row_bytes: of their images.
        """
        chunk, cut = self.chunk, self.cut or {}
        return [
            records.chunk_done(
                self.run_id, chunk.id, chunk.full_name, rows, cut, marks, row_bytes=row_bytes
            )
        ]

    def _judge(self, batch: ChangeBatch, cut: Position) -> None:
        unseen = ~self._source.visible(cut, batch)
        is_row = np.asarray(pc.is_in(batch.rows["op"].cast(pa.utf8()), pa.array(_ROW_OPS)))
        if np.any(unseen & ~is_row):  # TRUNCATE, or another table from here on.
            self.is_void = True
        rows = batch.rows.filter(pa.array(unseen))
        if rows.num_rows and not self.is_void:
            self._changes.append(with_former_keys(rows))
            self._versions.update(rows["schema_version"].unique().to_pylist())


class WatchedLog(Gate[RenderedBatch | CopyWindow]):
    """The log of a lane, for the chunks that are to join it. Safe to use from several threads.

    Args:
        source: the pipeline's.
        start: where the lane begins to read.
        admit: returns what is to be delivered of a batch.
    """

    def __init__(
        self, source: Source, start: Position, admit: Callable[[ChangeBatch], ChangeBatch | None]
    ) -> None:
        super().__init__(admit)
        self._source = source
        self._lock = threading.Lock()
        self._windows: list[CopyWindow] = []
        self._at: Position = start
        self._is_between = True

    def admit(self, source_batch: ChangeBatch) -> ChangeBatch | None:
        """Take note of what the lane delivers next; called by the thread that decodes."""
        batch = super().admit(source_batch)
        if batch is None:
            return None
        with self._lock:
            self._at, self._is_between = batch.end, not batch.open_tx
            if self._windows and batch.rows.num_rows:
                tables = {window.chunk.full_name for window in self._windows}
                of_tables = {table: _of_table(batch, table) for table in tables}
                for window in self._windows:
                    mine = of_tables[window.chunk.full_name]
                    if mine.rows.num_rows:
                        window.look(mine)
        return batch

    def open(self, run_id: str, chunk: TableChunk) -> CopyWindow | None:
        """Begin to watch a chunk's table; its view opens afterwards. None inside a transaction."""
        with self._lock:
            if not self._is_between:
                return None
            window = CopyWindow(self._source, run_id, chunk, self._at)
            self._windows.append(window)
            return window

    def view(self, window: CopyWindow, cut: Position) -> bool:
        """Note what a window's view contains; see ``CopyWindow.view``."""
        with self._lock:
            return window.view(cut)

    def read(self, window: CopyWindow) -> None:
        """Note that all rows of a window's chunk are here."""
        with self._lock:
            window.is_read = True

    def add(self, window: CopyWindow) -> None:
        """Have rows join that were not read from a table."""
        with self._lock:
            self._windows.append(window)

    def drop(self, window: CopyWindow) -> None:
        """End a window, whatever became of it."""
        with self._lock:
            if window in self._windows:
                self._windows.remove(window)
        if not window.rendered.done():
            window.rendered.set_result(None)

    def joining(self) -> Sequence[CopyWindow]:
        """Return the chunk that joins the log here, if one does; called by the thread that decodes.

        Not more than one, so that the log goes on between two.
        """
        with self._lock:
            if not self._is_between:
                return ()
            for window in self._windows:
                if window.is_void or window.is_ready(self._at):
                    self._windows.remove(window)
                    window.closed.set()
                    return () if window.is_void else (window,)
        return ()


def _covers(source: Source, cut: Position, position: Position) -> bool:
    with suppress(PositionLostError):
        return source.covers(cut, position)
    return False


def _of_table(batch: ChangeBatch, table: str) -> ChangeBatch:
    """Return what a batch says of a table."""
    rows = batch.rows
    codes, names = combinations([rows[name] for name in ("db", "schema", "table")])
    full_names = [qualified_name(schema or db, name) for db, schema, name in names]
    mine = np.array([name == table for name in full_names], np.bool_)[codes]
    statements = np.flatnonzero(np.asarray(rows["ddl"].is_valid()))
    for at in statements.tolist():
        named = json.loads(rows["ddl"][at].as_py()).get("tables")
        mine[at] |= not named or table in named
    return replace(batch, rows=rows.filter(pa.array(mine)))


def _last_changes(changes: pa.RecordBatch) -> tuple[pa.Array, Any]:
    """Return the keys of changed rows, and of each its last change; -1 where the row is gone."""
    count = changes.num_rows
    is_there = np.asarray(pc.not_equal(changes["op"].cast(pa.utf8()), "d"))
    order = np.tile(2 * np.arange(count), 2) + np.concatenate([is_there, np.zeros(count, np.bool_)])
    keys = pa.concat_arrays([changes["key"], changes["former_key"]])
    known = np.asarray(keys.is_valid())
    codes = keys.filter(pa.array(known)).dictionary_encode()
    last = np.full(len(codes.dictionary), -1, np.int64)
    np.maximum.at(last, codes.indices.to_numpy(), order[known])
    return codes.dictionary, np.where(last % 2 == 1, last // 2, -1)


def _with_images(rows: pa.RecordBatch, places: Any, after: pa.Array) -> pa.RecordBatch:
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[places] = True
    index = rows.schema.get_field_index("after")
    column = pc.replace_with_mask(rows["after"], pa.array(mask), after)
    return rows.set_column(index, rows.schema.field(index), column)


def _alike(images: pa.Array, gone: pa.Array) -> list[int]:
    """Return one place for each image that is gone: rows without a key have nothing else."""
    left = Counter(gone.to_pylist())
    places = []
    for at in np.flatnonzero(np.asarray(pc.is_in(images, value_set=gone))).tolist():
        image = images[at].as_py()
        if left[image] > 0:
            left[image] -= 1
            places.append(at)
    return places
