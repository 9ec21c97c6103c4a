"""Reads tables in chunks, each from one committed state whose place in the changes is known.

Tables are cut by their row numbers, those WITHOUT ROWID by their primary key.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.table_chunks import (
    Border,
    TableRange,
    check_key,
    checks_of,
    enclosed,
    sampled,
)
from airflow_provider_deltaforge.sources.shared.table_snapshotter import (
    SelectedRows,
    TableName,
    TableRows,
    TableSnapshotter,
    View,
)
from airflow_provider_deltaforge.sources.turso.database import Database, quoted
from airflow_provider_deltaforge.sources.turso.open_file import OpenFile
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.rows import key_json, row_json
from airflow_provider_deltaforge.sources.turso.tables import (
    DB,
    TursoTable,
    captured_tables,
    named_by,
)

_ROWS = 2000


class TursoSnapshotter(TableSnapshotter[TursoTable]):
    """Reads over one connection, opened when first needed.

    Args:
        opened: the file in one mode; the snapshotter closes it.
        source_id: seeds the event ids.
        in_mode_of: opens the file in the mode of a position, or says why that cannot be.
    """

    connector = "turso"
    pattern_hint = ""

    def __init__(
        self, opened: OpenFile, source_id: str, in_mode_of: Callable[[Position], OpenFile]
    ) -> None:
        super().__init__(source_id)
        self._opened = opened
        self._database = opened.database
        self._captured = opened.captured
        self._in_mode_of = in_mode_of

    def begin(self) -> Position:
        """Return the position where the stream must start so that no change behind it is missed."""
        return self._opened.heads().as_json()

    def guard(self, position: Position) -> None:
        """Check that the changes from ``position`` on are still there.

        Raises:
            PositionLostError: they are not, so the snapshot is worthless and must be cancelled.
        """
        place = FilePosition.from_json(position)
        self._follow(place.mode)
        with self._database.view():
            self._opened.log.check_kept(place)

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        self._database.close()

    def _choose(self, patterns: Sequence[str], where: str | None) -> Mapping[TableName, TursoTable]:
        with self._database.view():
            tables = captured_tables(self._database, self._captured)
            chosen = self._chosen({(DB, name): table for name, table in tables.items()}, patterns)
            if where is not None:
                self._check_where(self._only(chosen), where)
        return chosen

    def _named_by(self, pattern: str) -> Callable[[str, str], bool]:
        is_named = named_by((pattern,))
        return lambda _, name: is_named(name)

    def _chunks(
        self, table: TursoTable, chunk_rows: int, where: str | None
    ) -> Iterator[TableChunk]:
        columns = (table.rowid,) if table.rowid is not None else table.schema.primary_key
        key = {"columns": columns, "key": table.schema.primary_key}
        borders = sampled(lambda after: _border(self._database, table, columns, after, chunk_rows))
        for chunk in TableRange(DB, None, table.name, key, where).chunks(borders, chunk_rows):
            # Read in another process, where the file may offer another mode by then.
            yield replace(chunk, bounds={**chunk.bounds, "mode": self._opened.mode})

    def _borders(self, chunk: TableChunk, rows: int) -> Iterator[Border]:
        self._follow(str(chunk.bounds.get("mode") or self._opened.mode))
        with self._database.view():
            table = captured_tables(self._database, self._captured).get(chunk.table)
            if table is None:
                return
            check_key(f"{DB}.{table.name}", chunk.bounds, {"key": table.schema.primary_key})
            columns, begin = chunk.bounds["columns"], chunk.bounds.get("after")
            found = sampled(
                lambda after: _border(
                    self._database, table, columns, after or begin, rows, chunk.bounds.get("upto")
                )
            )
            yield from list(found)

    def _select(self, chunk: TableChunk, doing: str) -> SelectedRows:
        self._follow(str(chunk.bounds.get("mode") or self._opened.mode))
        self._database.check_access()
        rows: list[tuple[Any, ...]] = []
        with self._database.view():
            cut, ts_ms = self._opened.head().as_json(), int(time.time() * 1000)
            table = captured_tables(self._database, self._captured).get(chunk.table)
            if table is not None:
                key = {"key": table.schema.primary_key}
                check_key(f"{DB}.{table.name}", chunk.bounds, key)
                rows = self._database.rows(*_select_rows(table, chunk))
        schema = None if table is None else table.schema
        parts = iter(()) if table is None else _parts(table, rows)
        return SelectedRows(View(cut, ts_ms), schema, parts, lambda _: None)

    def _follow(self, mode: str) -> None:
        """Go on in the mode that the pipeline began with."""
        if mode != self._opened.mode:
            opened = self._in_mode_of(FilePosition(mode).as_json())
            self.close()
            self._opened, self._database = opened, opened.database

    def _check_where(self, table: TursoTable, where: str) -> None:
        try:
            for sql in checks_of(where, quoted(table.name)):
                self._database.rows(sql)
        except FatalError as error:
            raise SpecError(f"where: the engine refuses the condition: {error}") from None


def _parts(table: TursoTable, rows: Sequence[tuple[Any, ...]]) -> Iterator[TableRows]:
    for first in range(0, len(rows), _ROWS):
        images = rows[first : first + _ROWS]
        after = pa.array([row_json(table, image) for image in images], pa.binary())
        keys = [key_json(table, image) for image in images] if table.key_at else None
        yield TableRows(after, None if keys is None else pa.array(keys, pa.binary()))


def _select_rows(table: TursoTable, chunk: TableChunk) -> tuple[str, list[Any]]:
    """Return the SELECT of a chunk's rows, in key order, and the values it binds."""
    columns = chunk.bounds["columns"]
    condition, values = _range(columns, chunk.bounds.get("after"), chunk.bounds.get("upto"))
    if where := chunk.bounds.get("where"):
        condition = f"{condition} AND {enclosed(where)}"
    names = ", ".join(quoted(name) for name in table.columns)
    order = ", ".join(quoted(name) for name in columns)
    sql = f"SELECT {names} FROM {quoted(table.name)} WHERE {condition} ORDER BY {order}"
    return sql, values


def _border(
    database: Database,
    table: TursoTable,
    columns: Sequence[str],
    after: Border | None,
    chunk_rows: int,
    upto: Border | None = None,
) -> Border | None:
    condition, values = _range(columns, after, upto)
    names = ", ".join(quoted(name) for name in columns)
    rows = database.rows(
        f"SELECT {names} FROM {quoted(table.name)} WHERE {condition} ORDER BY {names} "
        "LIMIT 2 OFFSET ?",
        [*values, chunk_rows - 1],
    )
    # A border that is the last row would leave an empty chunk behind it.
    return [_kept(value) for value in rows[0]] if len(rows) > 1 else None


def _range(
    columns: Sequence[str], after: Border | None, upto: Border | None
) -> tuple[str, list[Any]]:
    names = ", ".join(quoted(name) for name in columns)
    marks = ", ".join("?" for _ in columns)
    left, right = (names, marks) if len(columns) == 1 else (f"({names})", f"({marks})")
    conditions, values = ["1"], []
    for sign, border in ((">", after), ("<=", upto)):
        if border is not None:
            conditions.append(f"{left} {sign} {right}")
            values += [_bound(value) for value in border]
    return " AND ".join(conditions), values


def _kept(value: Any) -> Any:
    """Return a border's value as JSON can hold it."""
    return {"hex": value.hex()} if isinstance(value, bytes) else value


def _bound(value: Any) -> Any:
    return bytes.fromhex(value["hex"]) if isinstance(value, Mapping) else value
