"""Leaves out changes that rows of the pipeline's own snapshot show already.

The stream begins where the snapshot began, and each chunk of rows was read from a view of its own,
later. A change that the view of its row's chunk contained is left out; every other one follows. So
a consumer sees each row once as ``r``, and then each later change once. Of a chunk that was begun
twice the first view counts: rows of it may be in the sinks that the second one did not show.

It holds only while the rows and the log agree on what a table is. A statement that changes a table,
or a TRUNCATE, is left out like a change if the views of all chunks contained it. Behind some of the
chunks it ends the seam for that table: everything behind is delivered, shown or not. That is stored
before the statement is delivered, because a lane that goes on behind it must do the same.

A captured table that took another captured name meanwhile was perhaps not read to its end: the
statement then says that it is to be copied under that name.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.errors import DeltaForgeError, PositionLostError, RetryableError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, OUTBOX, ChangeBatch, Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import Snapshotter, Source, TableChunk
from airflow_provider_deltaforge.sources.shared.key_order import OrdersKeys
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots

_log = logging.getLogger(__name__)

_ROW_OPS = ("c", "u", "d")
_MOVES_ROWS = {"copies", "lost"}
# 19 digits that begin with 9 may be more than an int64 holds.
_INTEGER = "-?(?:[0-9]{1,18}|[1-8][0-9]{18})"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID_CHARS = 36
_ASKED_AT_ONCE = 5_000
_ATTEMPTS, _BETWEEN_S = 5, 1.0


class _NotAskedError(Exception):
    """The server was not asked which chunks rows are in."""


@dataclass(frozen=True, slots=True)
class TableCuts:
    """The cuts of one table's chunks.

    Attributes:
        common: a cut that the views of all chunks contained.
        cuts: of the chunks in key order, empty where the chunk of a row is unknown.
        chunks: in key order, if only the server can tell it.
        upto: otherwise the last key of each chunk but the last, see ``_sortable``.
        columns: that the chunks are cut by.
        kinds: of their values, as patterns of their texts.
    """

    common: Position
    cuts: Sequence[Position] = ()
    chunks: Sequence[TableChunk] = ()
    upto: Any = None
    columns: Sequence[str] = ()
    kinds: Sequence[str] = ()

    @classmethod
    def of(
        cls, source: Source, chunks: Sequence[tuple[TableChunk, Position | None]]
    ) -> "TableCuts | None":
        """Return the cuts of a table's chunks, in key order; None where nothing is known."""
        cuts = [cut for _, cut in chunks if cut is not None]
        if len(cuts) < len(chunks):
            return None
        common = cuts[0] if len(cuts) == 1 else source.common_cut(cuts)
        if common is None:
            return None
        bounds = chunks[0][0].bounds
        columns = bounds.get("columns", ())
        upto = [chunk.bounds.get("upto") or () for chunk, _ in chunks[:-1]]
        if not columns or not upto or any(len(key) != len(columns) for key in upto):
            return cls(common)
        # Texts that look alike are ordered by their column's collation.
        are_uuids = [order == "uuid" for order in bounds.get("order", [""] * len(columns))]
        kinds = [_UUID if is_uuid else _INTEGER for is_uuid in are_uuids]
        texts = [[str(key[at]) for key in upto] for at in range(len(columns))]
        pairs = zip(kinds, texts, strict=True)
        if not all(re.fullmatch(kind, text) for kind, column in pairs for text in column):
            return cls(common, cuts, [chunk for chunk, _ in chunks])
        keys = _sortable(kinds, [pa.array(column) for column in texts])
        if np.any(keys[1:] <= keys[:-1]):  # Not in the order that is known here.
            return cls(common)
        return cls(common, cuts, (), keys, columns, kinds)

    def chunk_of(self, keys: pa.Array) -> Any:
        """Return which chunk each key is in, -1 where that is not known; keys are JSON texts."""
        fields = []
        for at, (name, kind) in enumerate(zip(self.columns, self.kinds, strict=True)):
            quote = '"' if kind == _UUID else ""
            fields.append(
                f"{re.escape(orjson.dumps(name).decode())}:{quote}(?P<v{at}>{kind}){quote}"
            )
        found = pc.extract_regex(keys.cast(pa.utf8()), rf"^\{{{','.join(fields)}(?:,.*)?\}}$")
        texts = [pc.fill_null(text, "0") for text in found.flatten()]
        places = np.searchsorted(self.upto, _sortable(self.kinds, texts))
        return np.where(np.asarray(found.is_valid()), places, -1)


def _sortable(kinds: Sequence[str], columns: Sequence[pa.Array]) -> Any:
    """Return keys, given as texts column by column, as bytes in the keys' order."""
    parts = []
    for kind, texts in zip(kinds, columns, strict=True):
        if kind == _UUID:
            padded = np.array(texts.to_pylist(), f"S{_UUID_CHARS}")
            parts.append(padded.view(np.uint8).reshape(-1, _UUID_CHARS))
        else:
            raised = texts.cast(pa.int64()).to_numpy().view(np.uint64) ^ np.uint64(1 << 63)
            parts.append(raised.astype(">u8").view(np.uint8).reshape(-1, 8))
    whole = np.ascontiguousarray(np.hstack(parts))
    return whole.view(f"S{whole.shape[1]}").ravel()


class SnapshotSeam:
    """Joins the pipeline's own snapshot with the log behind it. Used by one thread.

    Args:
        source: knows what a view contained.
        tables: the cuts by full table name.
        cuts: of all chunks, about in the order of time.
        end_table: stores behind which position a table's changes are all delivered.
        copied: full names of all tables that were copied.
    """

    def __init__(
        self,
        source: Source,
        tables: Mapping[str, TableCuts],
        cuts: Iterable[Position],
        end_table: Callable[[str, Position], None],
        copied: Iterable[str] = (),
    ) -> None:
        self._source = source
        self._tables = dict(tables)
        self._copied = frozenset(copied)
        self._ahead = list({json.dumps(cut, sort_keys=True): cut for cut in cuts}.values())
        self._cuts = list(self._ahead) if self._tables else []
        self._end_table = end_table
        self._left_out = 0
        self._at: Position | None = None
        self._asked: Snapshotter | None = None
        self._left: dict[str, list[Position]] = {}

    @classmethod
    def of(
        cls,
        context: TaskContext,
        start: Position,
        retry: Callable[[Callable[[], Any]], Any],
        *,
        is_rewound: bool = False,
    ) -> "SnapshotSeam":
        """Return the seam of a pipeline, for a reader that begins at ``start``.

        Nothing is left out when a sink was there before the snapshot, or has not got all its rows:
        one that gets the log again may have been emptied before. It joins behind the seam. What was
        renamed is copied all the same.
        """
        source = context.pipeline.spec.source
        records = Snapshots(context.store, context.pipeline.name)
        run = retry(records.current)
        if run is None or run.finished_at_ms is None or not _begins_in(source, run, start):
            return cls(source, {}, (), lambda *_: None)

        def end_table(table: str, position: Position) -> None:
            write = records.end_seam(run.id, table, position)
            retry(lambda: context.store.transact([write], context.fence))

        tables, cuts = retry(lambda: _of_run(source, records, run))
        sink_ids = {sink.id for sink in context.pipeline.spec.sinks}
        rewinds = retry(Rewinds(context.store, context.pipeline.name).all)
        has_failed = any(rewind.state == "failed" for rewind in rewinds.values())
        if is_rewound or has_failed or not sink_ids <= set(run.fresh_sinks):
            tables = {}
        ended = retry(lambda: records.seam_ends(run.id))
        for table, position in ended.items():
            if source.covers(start, position):
                tables.pop(table, None)
        seam = cls(source, tables, cuts, end_table, run.tables)
        seam._pass(start)
        return seam

    def is_over(self, position: Position) -> bool:
        """Return whether nothing behind a position is left out, in whichever order it is read."""
        with suppress(PositionLostError):
            return all(self._source.covers(position, cut) for cut in self._cuts)
        return True  # Of another history, which the views contained nothing of.

    def without_shown(self, batch: ChangeBatch) -> ChangeBatch:
        """Return a batch of the log without the changes that the snapshot's rows show."""
        if not self._ahead:
            return batch
        rows = self._look_through(batch) if batch.rows.num_rows else batch.rows
        self._pass(batch.end)
        return batch if rows is batch.rows else replace(batch, rows=rows)

    def close(self) -> None:
        """Close the connection over which the server is asked; the next question opens another."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.close()

    def _pass(self, position: Position) -> None:
        """Note that what follows lies behind a position: no view up to there contained it."""
        self._at = position
        with suppress(PositionLostError):  # Of another history, which contains none of it either.
            while self._ahead and self._source.covers(position, self._ahead[0]):
                self._ahead.pop(0)
        if not self._ahead:
            self._tables = {}
            self.close()
            if self._left_out:
                _log.info("left out %d changes that the snapshot's rows show", self._left_out)

    def _look_through(self, batch: ChangeBatch) -> pa.RecordBatch:
        rows = batch.rows
        codes, names = combinations([rows[name] for name in ("db", "schema", "table")])
        tables = [_full_name(*name) for name in names]
        is_row = np.asarray(pc.is_in(rows["op"].cast(pa.utf8()), pa.array(_ROW_OPS)))
        shown = np.zeros(len(codes), np.bool_)
        first = 0
        for at in [*np.flatnonzero(~is_row).tolist(), len(codes)]:
            for code in np.unique(codes[first:at]).tolist():
                cuts = self._tables.get(name := tables[code] or "")
                if cuts is not None:
                    mine = first + np.flatnonzero(codes[first:at] == code)
                    try:
                        shown[mine], rows = self._rows_shown(cuts, batch, rows, mine)
                    except _NotAskedError as error:
                        self._give_up(name, error)
            if at < len(codes):
                event = rows.slice(at, 1).to_pylist()[0]
                statement = {} if event["op"] == "t" else json.loads(event["ddl"] or b"{}")
                named = [tables[codes[at]]] if event["op"] == "t" else statement.get("tables")
                shown[at] = self._is_statement_shown(batch, at, statement, named)
                rows = self._with_copies(rows, at, statement)
            first = at + 1
        self._left_out += int(shown.sum())
        return without_rows(rows, shown) if shown.any() else rows

    def _rows_shown(
        self, cuts: TableCuts, batch: ChangeBatch, rows: pa.RecordBatch, mine: Any
    ) -> tuple[Any, pa.RecordBatch]:
        """Return which rows of a table are shown, and all rows with those that are shown in part.

        A row that moved from one chunk to another was deleted in the one and inserted in the other.
        """
        if not len(cuts.cuts) or self._is_behind(cuts):
            return self._source.visible(cuts.common, batch)[mine], rows
        own = with_former_keys(rows.take(pa.array(mine)))
        chunk_of = cuts.chunk_of
        if cuts.chunks:
            # Of what all views contained the chunk does not matter.
            own = _with_keys_of(own, ~self._source.visible(cuts.common, batch)[mine])
            chunk_of = partial(self._chunk_of, cuts.chunks)
        visible = self._visible(cuts, batch, mine, chunk_of(own["key"]))
        moved = np.flatnonzero(np.asarray(own["former_key"].is_valid()))
        if not len(moved):
            return visible, rows
        former = own["former_key"].take(pa.array(moved))
        was_visible = self._visible(cuts, batch, mine[moved], chunk_of(former))
        arrives = moved[was_visible & ~visible[moved]]
        leaves = moved[~was_visible & visible[moved]]
        visible[leaves] = False
        if len(arrives):
            rows = _replaced(rows, mine[arrives], {"op": "c", "before": None})
        if len(leaves):
            keys = own["former_key"].take(pa.array(leaves))
            rows = _replaced(rows, mine[leaves], {"op": "d", "after": None, "key": keys})
        return visible, rows

    def _is_behind(self, cuts: TableCuts) -> bool:
        """Return whether nobody need be asked of a table any more: its last view is passed."""
        if not cuts.chunks or self._at is None:
            return False
        left = self._left.setdefault(cuts.chunks[0].full_name, [*cuts.cuts])
        with suppress(PositionLostError):
            while left and self._source.covers(self._at, left[-1]):
                left.pop()
        return not left

    def _chunk_of(self, chunks: Sequence[TableChunk], keys: pa.Array) -> Any:
        """Return which chunk each key is in, as the server says; -1 where that is not known.

        Raises:
            _NotAskedError: it was not asked.
        """
        distinct = keys.dictionary_encode()
        # Numbers stay as they are written: a float would lose digits.
        wanted = [json.loads(text, parse_float=str) for text in distinct.dictionary.to_pylist()]
        found: list[int] = []
        for first in range(0, len(wanted), _ASKED_AT_ONCE):
            found += self._ask(chunks, wanted[first : first + _ASKED_AT_ONCE])
        codes = np.asarray(distinct.indices.fill_null(len(found)))
        return np.array([*found, -1], np.int64)[codes]

    def _ask(
        self, chunks: Sequence[TableChunk], keys: Sequence[Mapping[str, Any]]
    ) -> Sequence[int]:
        for attempt in range(_ATTEMPTS):
            try:
                if self._asked is None:
                    self._asked = self._source.open_snapshot()
                if isinstance(self._asked, OrdersKeys):
                    return self._asked.chunks_of(chunks, keys)
                return [-1] * len(keys)
            except RetryableError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise _NotAskedError(str(error)) from error
                time.sleep(_BETWEEN_S)
            except DeltaForgeError as error:
                raise _NotAskedError(str(error)) from error
        return []

    def _give_up(self, table: str, error: Exception) -> None:
        """Deliver everything of a table from here on: whoever begins here again does the same."""
        _log.warning("%s: what its copy shows is delivered again: %s", table, error)
        if self._at is not None:
            self._end_table(table, self._at)
        del self._tables[table]

    def _visible(self, cuts: TableCuts, batch: ChangeBatch, places: Any, chunks: Any) -> Any:
        """Return which of a table's rows the views of these chunks contained."""
        visible = np.zeros(len(places), np.bool_)
        for chunk in np.unique(chunks).tolist():
            cut = cuts.common if chunk < 0 else cuts.cuts[chunk]
            mine = chunks == chunk
            visible[mine] = self._source.visible(cut, batch)[places[mine]]
        return visible

    def _is_statement_shown(
        self,
        batch: ChangeBatch,
        at: int,
        statement: Mapping[str, Any],
        named: Sequence[str | None] | None,
    ) -> bool:
        """Return whether nothing is left to do of a statement; end the seam where it matters."""
        # Of one that brings or takes rows the log has no more than the statement.
        if named and not statement.keys() & _MOVES_ROWS:
            cuts = [self._tables.get(name or "") for name in named]
            if all(own is not None and self._source.visible(own.common, batch)[at] for own in cuts):
                return True
        for name in named or [*self._tables]:
            if name in self._tables:
                self._end_table(name, batch.positions.after(batch.rows["tx"][at].as_py()))
                del self._tables[name]
        return False

    def _with_copies(
        self, rows: pa.RecordBatch, at: int, statement: Mapping[str, Any]
    ) -> pa.RecordBatch:
        """Return rows whose statement at a place names the tables to copy for their new names."""
        renamed = statement.get("renamed", {})
        copies = [name for former, name in renamed.items() if former in self._copied]
        if not copies:
            return rows
        changed = {**statement, "copies": [*statement.get("copies", ()), *copies]}
        return _replaced(rows, [at], {"ddl": orjson.dumps(changed)})


def _begins_in(source: Source, run: SnapshotRecord, start: Position) -> bool:
    """Return whether a position is one behind which a run's views can be known."""
    with suppress(PositionLostError):
        return source.covers(start, run.start_position)
    return False  # Of another history.


def _of_run(
    source: Source, records: Snapshots, run: SnapshotRecord
) -> tuple[dict[str, TableCuts], list[Position]]:
    """Return the cuts of a run by table, and all of them in the order of time."""
    own_cuts = records.cuts(run.id)
    chunks: dict[str, list[tuple[TableChunk, Position | None]]] = {}
    for stored in records.plan(run.id):
        chunk = TableChunk(**stored)
        chunks.setdefault(chunk.full_name, []).append((chunk, own_cuts.get(chunk.id)))
    tables = {name: TableCuts.of(source, mine) for name, mine in chunks.items()}
    done = records.done(run.id).items()
    in_time = sorted(done, key=lambda chunk: chunk[1].finished_at_ms)
    cuts: list[Position] = [own_cuts[chunk_id] for chunk_id, _ in in_time if chunk_id in own_cuts]
    return {name: own for name, own in tables.items() if own is not None}, cuts


def _full_name(db: str, schema: str | None, table: str) -> str | None:
    """Return a table's name as chunks have it; None of an outbox's, whose copied rows are none."""
    return None if schema == OUTBOX else qualified_name(schema or db, table)


def without_rows(rows: pa.RecordBatch, gone: Any) -> pa.RecordBatch:
    """Return rows without some; the last one left of a transaction ends it as that did."""
    tx, ends = rows["tx"].to_numpy(), np.asarray(rows["tx_end"])
    kept = rows.filter(pa.array(~gone))
    mine = tx[~gone]
    last = np.ones(len(mine), np.bool_)
    last[:-1] = mine[1:] != mine[:-1]
    return _set(kept, "tx_end", pa.array(last & np.isin(mine, tx[ends])))


def _replaced(rows: pa.RecordBatch, places: Any, values: Mapping[str, Any]) -> pa.RecordBatch:
    """Return rows with other values in some places."""
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[places] = True
    for name, value in values.items():
        column = rows[name]
        plain = column.cast(pa.utf8()) if name == "op" else column
        is_one = not isinstance(value, pa.Array)
        others = pa.array([value] * len(places), plain.type) if is_one else value
        plain = pc.replace_with_mask(plain, pa.array(mask), others)
        rows = _set(rows, name, plain.dictionary_encode() if name == "op" else plain)
    return rows


def _with_keys_of(rows: pa.RecordBatch, kept: Any) -> pa.RecordBatch:
    """Return rows of which only some have keys."""
    for name in ("key", "former_key"):
        column = pc.if_else(pa.array(kept), rows[name], pa.scalar(None, rows[name].type))
        rows = _set(rows, name, column)
    return rows


def _set(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    index = CHANGE_SCHEMA.get_field_index(name)
    return rows.set_column(index, CHANGE_SCHEMA.field(index), column)
