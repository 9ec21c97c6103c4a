"""Cuts tables into ranges, with borders sampled from the table itself.

Tables are cut by their row numbers, those WITHOUT ROWID by their primary key. A border is the key
of every n-th row in index order, so sparse keys make no empty chunks. A chunk is the half-open
range ``(after, upto]``; the first has no ``after``, the last no ``upto``, so together they hold
every key there is or will be.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.turso.files import Database, quoted
from airflow_provider_deltaforge.sources.turso.tables import DB, TursoTable


def plan_table(
    database: Database, table: TursoTable, chunk_rows: int, where: str | None
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one."""
    columns = chunk_columns(table)
    after: list[Any] | None = None
    while True:
        upto = _border(database, table, columns, after, chunk_rows)
        yield _chunk(table, columns, (after, upto), chunk_rows, where)
        if upto is None:
            return
        after = upto


def chunk_columns(table: TursoTable) -> tuple[str, ...]:
    """Return the columns that chunks are cut by."""
    return (table.rowid,) if table.rowid is not None else table.schema.primary_key


def select_rows(table: TursoTable, chunk: TableChunk) -> tuple[str, list[Any]]:
    """Return the SELECT of a chunk's rows, in key order, and the values it binds."""
    columns = chunk.bounds["columns"]
    condition, values = _range(columns, chunk.bounds.get("after"), chunk.bounds.get("upto"))
    if where := chunk.bounds.get("where"):
        # On a line of its own, so that a comment at its end hides nothing of ours.
        condition = f"{condition} AND (\n{where}\n)"
    names = ", ".join(quoted(name) for name in table.columns)
    order = ", ".join(quoted(name) for name in columns)
    rowid = quoted(table.rowid) if table.rowid else "NULL"
    sql = f"SELECT {names}, {rowid} FROM {quoted(table.name)} WHERE {condition} ORDER BY {order}"
    return sql, values


def _border(
    database: Database,
    table: TursoTable,
    columns: Sequence[str],
    after: Sequence[Any] | None,
    chunk_rows: int,
) -> list[Any] | None:
    condition, values = _range(columns, after, None)
    names = ", ".join(quoted(name) for name in columns)
    rows = database.rows(
        f"SELECT {names} FROM {quoted(table.name)} WHERE {condition} ORDER BY {names} "
        "LIMIT 2 OFFSET ?",
        [*values, chunk_rows - 1],
    )
    # A border that is the last row would leave an empty chunk behind it.
    return [_kept(value) for value in rows[0]] if len(rows) > 1 else None


def _range(
    columns: Sequence[str], after: Sequence[Any] | None, upto: Sequence[Any] | None
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


def _chunk(
    table: TursoTable,
    columns: Sequence[str],
    borders: tuple[list[Any] | None, list[Any] | None],
    rows: int,
    where: str | None,
) -> TableChunk:
    bounds: dict[str, Any] = {"columns": list(columns), "key": list(table.schema.primary_key)}
    for name, border in zip(("after", "upto"), borders, strict=True):
        if border is not None:
            bounds[name] = border
    if where:
        bounds["where"] = where
    text = json.dumps([table.name, bounds], sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return TableChunk(f"{DB}.{table.name}:{digest}", DB, None, table.name, bounds, rows)
