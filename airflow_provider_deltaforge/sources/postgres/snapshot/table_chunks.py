"""Cuts tables into ranges of their key, with borders the server itself samples.

A border is the key of every n-th row in key order, so sparse keys make no empty chunks. All
comparing is the server's, in the column's own type and collation. A chunk is the half-open range
``(after, upto]``; the first has no ``after``, the last no ``upto``, so together they hold every key
there is or will be.

A table without a key is one chunk. Ranges of its pages (``ctid``) would not do with a view per
chunk: an UPDATE can move a row from a page not yet read to one that was read before. No chunk holds
that row then, and its change in the log lacks large values that it left as they were.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.connection import OWN_PATH
from airflow_provider_deltaforge.sources.postgres.tables import (
    CapturedTable,
    KeyColumn,
    literal,
    quote,
)

Border = Sequence[str]
"""One text per key column, as the server prints the value."""


def plan_table(
    connection: Any, db: str, facts: CapturedTable, chunk_rows: int, where: str | None = None
) -> Iterator[TableChunk]:
    """Yield a table's chunks in key order, at least one.

    Args:
        connection: prepared by ``prepare_session``.
        db: name of the database.
        facts: the table.
        chunk_rows: rows from one border to the next.
        where: SQL condition that the chunk's rows must fulfil as well.
    """
    if not facts.key:
        yield _chunk(db, facts, None, None, facts.rows_estimate, where)
        return
    after: Border | None = None
    with connection.transaction():
        if where:
            connection.execute(OWN_PATH)
        borders = connection.execute(_borders_sql(facts, chunk_rows, where)).fetchall()
    for upto in borders:
        yield _chunk(db, facts, after, upto, chunk_rows, where)
        after = upto
    yield _chunk(db, facts, after, None, chunk_rows, where)


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
    planned = chunk.bounds.get("columns") or []
    if planned and (
        list(planned) != [column.name for column in facts.key]
        or list(chunk.bounds["order"]) != [column.order for column in facts.key]
    ):
        raise SchemaError(
            f"{facts.full_name}: the key changed since its chunks were planned; start a new "
            "snapshot run"
        )


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


def _chunk(
    db: str,
    facts: CapturedTable,
    after: Border | None,
    upto: Border | None,
    rows: int,
    where: str | None,
) -> TableChunk:
    """Build a chunk; its id is the same whenever the same range is planned again."""
    bounds: dict[str, Any] = {
        "columns": [column.name for column in facts.key],
        "order": [column.order for column in facts.key],
    }
    if after is not None:
        bounds["after"] = list(after)
    if upto is not None:
        bounds["upto"] = list(upto)
    if where:
        bounds["where"] = where
    text = json.dumps([db, facts.full_name, bounds], sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return TableChunk(
        id=f"{facts.full_name}:{digest}",
        db=db,
        schema=facts.schema,
        table=facts.table,
        bounds=bounds,
        rows_estimate=rows,
    )
