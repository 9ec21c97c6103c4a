"""Cuts tables into ranges of their primary key, with borders the server itself samples.

A border is the key of every n-th row in index order (``ORDER BY key LIMIT 1 OFFSET n``), so the
server compares strings in the column's own collation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.catalog import TableSize, fetch, quote
from airflow_provider_deltaforge.sources.mysql.column_types import BY_NAME
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, TableRange, sampled

_INTEGERS = (k.INT, k.YEAR)
_BYTES = (k.TEXT, k.BINARY)
_EXACT = (
    *_INTEGERS, *_BYTES, k.DECIMAL, k.DATE, k.TIME, k.DATETIME, k.TIMESTAMP, k.UUID, k.INET,
)  # fmt: skip


def plan_table(
    connection: Any, facts: TableSize, chunk_rows: int, where: str | None = None
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one; borders are sampled as it goes on.

    Args:
        connection: pymysql connection, time zone UTC.
        facts: the table.
        chunk_rows: rows from one border to the next.
        where: SQL condition that the chunk's rows must fulfil as well.
    """
    schema = facts.schema
    columns = chunk_columns(schema) if facts.transactional else []
    names = [column.name for column in columns]
    table = TableRange(schema.db, None, schema.table, {"columns": names}, where)
    if not columns:
        yield from table.chunks((), facts.rows_estimate)
        return
    borders = sampled(lambda after: _border(connection, schema, columns, after, chunk_rows))
    yield from table.chunks(borders, chunk_rows)


def chunk_columns(schema: TableSchema) -> list[Column]:
    """Return the leading key columns that can be compared exactly; none means one chunk.

    Only the index PRIMARY is known by name here. Enums are sorted by number but compared as text,
    floats do not survive being written as text.
    """
    if schema.implicit_key:
        return []
    known = {column.name: column for column in schema.columns}
    usable: list[Column] = []
    for name in schema.primary_key:
        column = known[name]
        row = BY_NAME.get(column.data_type)
        # Of a text or blob without a length the key holds a part only.
        if row is None or row.kind not in _EXACT or row.length:
            break
        usable.append(column)
    return usable


def select_rows(schema: TableSchema, chunk: TableChunk, columns: str) -> str:
    """Return the SELECT of a chunk's rows, in key order where there is a key; it counts them."""
    condition = range_condition(chunk.bounds)
    if where := chunk.bounds.get("where"):
        condition = f"({where})" if condition is None else f"{condition} AND ({where})"
    hint = " FORCE INDEX (PRIMARY)" if schema.primary_key and chunk.bounds.get("columns") else ""
    filtered = f" WHERE {condition}" if condition else ""
    table = quote(schema.db, schema.table)
    return f"SELECT SQL_CALC_FOUND_ROWS {columns} FROM {table}{hint}{filtered}"


def range_condition(bounds: Mapping[str, Any]) -> str | None:
    """Return the SQL condition of ``(after, upto]``; None when it is every row."""
    columns = bounds.get("columns", [])
    parts = []
    if bounds.get("after") is not None:
        parts.append(_beyond(columns, bounds["after"]))
    if bounds.get("upto") is not None:
        # Written out instead of as NOT (beyond), so that the optimizer sees a range.
        parts.append(_within(columns, bounds["upto"]))
    return " AND ".join(parts) or None


def _beyond(columns: Sequence[str], border: Border) -> str:
    """Return the condition ``(c1, c2, …) > border`` in the form that uses the index."""
    return _compare(columns, border, ">", ">")


def _within(columns: Sequence[str], border: Border) -> str:
    """Return the condition ``(c1, c2, …) <= border``."""
    return _compare(columns, border, "<", "<=")


def _compare(columns: Sequence[str], border: Border, inner: str, last: str) -> str:
    """Return ``c1 >= b1 AND (c1 > b1 OR (c1 = b1 AND (c2 …)))`` for ``>``, likewise for ``<``."""
    name, value = quote(columns[0]), literal(border[0])
    if len(columns) == 1:
        return f"{name} {last} {value}"
    rest = _compare(columns[1:], border[1:], inner, last)
    return f"({name} {inner}= {value} AND ({name} {inner} {value} OR ({rest})))"


def literal(value: Any) -> str:
    """Return a border's value as SQL that equals it exactly."""
    if isinstance(value, Mapping):
        introducer = f"_{value['charset']} " if "charset" in value else ""
        return f"{introducer}X'{value['hex']}'"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"


def _border(
    connection: Any,
    schema: TableSchema,
    columns: Sequence[Column],
    after: Border | None,
    chunk_rows: int,
) -> Border | None:
    """Return the key of the ``chunk_rows``-th row behind ``after``; None when fewer are left.

    A value is an int, a str, or ``{"hex": …}``, with ``charset`` for text.
    """
    names = [column.name for column in columns]
    condition = "" if after is None else f" WHERE {_beyond(names, after)}"
    order = ", ".join(quote(name) for name in names)
    rows = fetch(
        connection,
        f"SELECT {', '.join(_sampled(column) for column in columns)} "
        f"FROM {quote(schema.db, schema.table)} FORCE INDEX (PRIMARY){condition} "
        f"ORDER BY {order} LIMIT 1 OFFSET {max(1, chunk_rows) - 1}",
    )
    if not rows:
        return None
    return [_stored(column, value) for column, value in zip(columns, rows[0], strict=True)]


def _sampled(column: Column) -> str:
    """Return what to select so that a key's value arrives exactly."""
    name, kind = quote(column.name), BY_NAME[column.data_type].kind
    if kind in _BYTES:
        return f"HEX({name})"
    return name if kind in _INTEGERS else f"CAST({name} AS CHAR)"


def _stored(column: Column, value: Any) -> Any:
    """Return a sampled value in its JSON form."""
    kind = BY_NAME[column.data_type].kind
    if kind in _INTEGERS:
        return int(value)
    if kind not in _BYTES:
        return str(value)
    if kind == k.TEXT and column.charset not in (None, "binary"):
        return {"hex": value, "charset": column.charset}
    return {"hex": value}
