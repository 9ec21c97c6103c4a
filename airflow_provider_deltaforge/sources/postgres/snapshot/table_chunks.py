"""Cuts tables into ranges of their key, with borders the server itself samples.

All comparing is the server's, in the column's own type and collation.

A table without a key is one chunk. Ranges of its pages (``ctid``) would not do with a view per
chunk: an UPDATE can move a row from a page not yet read to one that was read before. No chunk holds
that row then, and its change in the log lacks large values that it left as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.connection import OWN_PATH
from airflow_provider_deltaforge.sources.postgres.tables import (
    CapturedTable,
    KeyColumn,
    literal,
    quote,
)
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, TableRange, check_key


def plan_table(
    connection: Any, db: str, facts: CapturedTable, chunk_rows: int, where: str | None = None
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one; a border's values are texts.

    Args:
        connection: prepared by ``prepare_session``.
        db: name of the database.
        facts: the table.
        chunk_rows: rows from one border to the next.
        where: SQL condition that the chunk's rows must fulfil as well.
    """
    table = TableRange(db, facts.schema, facts.table, _cut_by(facts), where)
    if not facts.key:
        yield from table.chunks((), facts.rows_estimate)
        return
    with connection.transaction():
        if where:
            connection.execute(OWN_PATH)
        borders = connection.execute(_borders_sql(facts, chunk_rows, where)).fetchall()
    yield from table.chunks(borders, chunk_rows)


def select_rows(facts: CapturedTable, chunk: TableChunk, columns: str) -> str:
    """Return the SELECT of a chunk's rows, in key order where there is a key."""
    conditions = range_conditions(facts.key, chunk.bounds)
    if where := chunk.bounds.get("where"):
        conditions.append(f"(\n{where}\n)")
    sql = f"SELECT {columns} FROM {facts.from_clause}"
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if facts.key and chunk.bounds.get("columns"):
        sql += f" ORDER BY {_names(facts.key)}"
    return sql


def range_conditions(key: Sequence[KeyColumn], bounds: Mapping[str, Any]) -> list[str]:
    """Return the SQL conditions of a chunk's range; none for a whole table."""
    found = []
    if "after" in bounds:
        found.append(_compared(key, bounds["after"], ">"))
    if "upto" in bounds:
        found.append(_compared(key, bounds["upto"], "<="))
    return found


def _compared(key: Sequence[KeyColumn], border: Border, operator: str) -> str:
    """Return the condition that a row's key is ``>`` or ``<=`` a border."""
    if all(column.operators is None for column in key):
        return f"({_names(key)}) {operator} ({_values(key, border)})"
    # A comparison of rows takes one operator's name for all columns, but theirs have schemas.
    name, value = quote(key[0].name), _values(key[:1], border[:1])
    within, equal, from_on, beyond = key[0].operators or ("<=", "=", ">=", ">")
    if len(key) == 1:
        return f"{name} {beyond if operator == '>' else within} {value}"
    after = _compared(key[1:], border[1:], ">")
    above = f"({name} {beyond} {value} OR ({name} {equal} {value} AND {after}))"
    if operator == ">":
        return f"({name} {from_on} {value} AND {above})"
    return f"({name} {within} {value} AND NOT {above})"


def check_bounds(facts: CapturedTable, chunk: TableChunk) -> None:
    """Refuse a chunk whose borders do not lie in the key's order any more.

    Raises:
        SchemaError: the key, a type or a collation changed since the chunk was planned.
    """
    if chunk.bounds.get("columns"):
        check_key(facts.full_name, chunk.bounds, _cut_by(facts))


def _cut_by(facts: CapturedTable) -> Mapping[str, Sequence[str]]:
    """Return names of a key's columns, and the order that their values have."""
    return {"columns": [c.name for c in facts.key], "order": [c.order for c in facts.key]}


def _borders_sql(facts: CapturedTable, chunk_rows: int, where: str | None) -> str:
    """Return the query for every ``chunk_rows``-th key: one pass over the key's index."""
    places = range(1, len(facts.key) + 1)
    columns = ", ".join(f"{quote(c.name)} AS k{i}" for i, c in zip(places, facts.key, strict=True))
    condition = f" WHERE (\n{where}\n)" if where else ""
    sampled = ", ".join(f"format('%s', k{i})" for i in places)
    return (
        f"SELECT {sampled} FROM ("
        f"SELECT {columns}, row_number() OVER (ORDER BY {_names(facts.key)}) AS place "
        f"FROM {facts.from_clause}{condition}) keys WHERE place % {max(1, chunk_rows)} = 0 "
        "ORDER BY place"
    )


def _names(key: Sequence[KeyColumn]) -> str:
    return ", ".join(quote(column.name) for column in key)


def _values(key: Sequence[KeyColumn], border: Border) -> str:
    # A literal without a type takes its column's, and with it the column's collation.
    return ", ".join(
        literal(text) + (f"::{column.cast}" if column.cast else "")
        for column, text in zip(key, border, strict=True)
    )
