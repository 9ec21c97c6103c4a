"""Reads tables in chunks, each from one committed state whose place in the changes is known."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_deltaforge.errors import FatalError, SchemaError, SpecError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.turso.chunks import plan_table, select_rows
from airflow_provider_deltaforge.sources.turso.events import Events, FileTxPositions
from airflow_provider_deltaforge.sources.turso.files import check_engine, quoted
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.rows import key_json, row_json
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    TursoTable,
    captured_tables,
    named_by,
)

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.turso.modes import OpenFile

_log = logging.getLogger(__name__)

_ROWS = 2000


class TursoSnapshotter:
    """Plans and reads chunks over one connection, opened when first needed.

    Args:
        opened: the file in one mode; the snapshotter closes it.
        source_id: seeds the event ids.
        in_mode_of: opens the file in the mode of a position, or says why that cannot be.
    """

    def __init__(
        self, opened: "OpenFile", source_id: str, in_mode_of: Callable[[Position], "OpenFile"]
    ) -> None:
        self.warnings: list[str] = []
        self._opened = opened
        self._database = opened.database
        self._captured = opened.captured
        self._source_id = source_id
        self._in_mode_of = in_mode_of

    def begin(self) -> Position:
        """Return the position the stream must start at so that no chunk read later has a gap."""
        return self._opened.heads().as_json()

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the captured tables into chunks, table by table.

        Raises:
            SpecError: a pattern matches no captured table, or the condition is wrong.
        """
        with self._database.view():
            chosen = chosen_tables(captured_tables(self._database, self._captured), tables)
            if where is not None:
                self._check_where(chosen, where)
        for table in chosen:
            for chunk in plan_table(self._database, table, chunk_rows, where):
                # Read in another process, where the file may offer another mode by then.
                yield replace(chunk, bounds={**chunk.bounds, "mode": self._opened.mode})

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield a chunk's rows as op ``r`` events; every batch's ``end`` is the chunk's cut.

        A table that is gone gives one empty batch and a warning.

        Raises:
            SchemaError: the table's key changed since the chunk was planned.
        """
        self._follow(str(chunk.bounds.get("mode") or self._opened.mode))
        check_engine(self._database.path, self._database.engine)
        with self._database.view():
            place = self._opened.head()
            ts_ms = int(time.time() * 1000)
            table = captured_tables(self._database, self._captured).get(chunk.table)
            if table is None:
                self._warn(f"{DB}.{chunk.table} is gone; its chunk is empty")
                rows: list[tuple[Any, ...]] = []
            else:
                _check_bounds(table, chunk)
                rows = self._database.rows(*select_rows(table, chunk))
        cut = place.as_json()
        seed = (self._source_id, run, json.dumps(cut, sort_keys=True), chunk.table)
        for first in range(0, max(1, len(rows)), _ROWS):
            part = rows[first : first + _ROWS]
            events = _events(table, part, first, ts_ms) if table and part else Events()
            yield events.batch(cut, FileTxPositions((place,)), *seed)

    def guard(self, position: Position) -> None:
        """Check that the changes from ``position`` on are still there.

        Raises:
            PositionLostError: they are not; the snapshot is worthless and must be cancelled.
        """
        place = FilePosition.from_json(position)
        self._follow(place.mode)
        with self._database.view():
            self._opened.log.check_kept(place)

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        self._database.close()

    def _follow(self, mode: str) -> None:
        """Go on in the mode that the pipeline began with."""
        if mode != self._opened.mode:
            opened = self._in_mode_of(FilePosition(mode).as_json())
            self.close()
            self._opened, self._database = opened, opened.database

    def _check_where(self, chosen: Sequence[TursoTable], where: str) -> None:
        if len(chosen) != 1:
            names = ", ".join(f"{DB}.{table.name}" for table in chosen) or "none"
            raise SpecError(f"where: give exactly one table with a condition, not {names}")
        try:
            self._database.rows(
                f"SELECT 1 FROM {quoted(chosen[0].name)} WHERE (\n{where}\n) LIMIT 0"
            )
        except FatalError as error:
            raise SpecError(f"where: the engine refuses the condition: {error}") from None

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning(text)


def chosen_tables(tables: Mapping[str, TursoTable], patterns: Sequence[str]) -> list[TursoTable]:
    """Return the captured tables that the patterns name; all of them without patterns."""
    if not patterns:
        return list(tables.values())
    chosen: set[str] = set()
    for pattern in patterns:
        found = list(filter(named_by((pattern,)), tables))
        if not found:
            raise SpecError(
                f"tables: {pattern!r} matches none of the captured tables; check the source's "
                "'tables'"
            )
        chosen.update(found)
    return [tables[name] for name in sorted(chosen)]


def _check_bounds(table: TursoTable, chunk: TableChunk) -> None:
    if tuple(chunk.bounds["key"]) != table.schema.primary_key:
        raise SchemaError(
            f"{DB}.{table.name}: the primary key changed since its chunks were planned; start a "
            "new snapshot run"
        )


def _events(table: TursoTable, rows: Sequence[tuple[Any, ...]], first: int, ts_ms: int) -> Events:
    """Return rows as events; ``first`` is the number of the chunk's rows before them."""
    images = [row[:-1] for row in rows]
    keys = [key_json(table, image) for image in images]
    count = len(rows)
    nothing: list[None] = [None] * count
    return Events(
        op=["r"] * count,
        table=[table.name] * count,
        before=list(nothing),
        after=[row_json(table, image) for image in images],
        key=keys,
        ts_ms=[ts_ms] * count,
        tx=[0] * count,
        row=list(range(first, first + count)),
        tx_id=list(nothing),
        tx_end=[False] * (count - 1) + [True],
        # The key names a row; without one, its number does.
        name=[key or str(row[-1]).encode() for key, row in zip(keys, rows, strict=True)],
        source_position=list(nothing),
        schema=[table.schema] * count,
        ddl=list(nothing),
    )
