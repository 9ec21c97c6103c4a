"""Which rows a chunk has, as SQL: ranges of the leading columns of a primary key."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.binlog import column_kinds as k
from airflow_provider_deltaforge.sources.mysql.catalog import quote
from airflow_provider_deltaforge.sources.mysql.column_types import BY_NAME
from airflow_provider_deltaforge.sources.shared.table_chunks import Border, enclosed

INTEGERS = (k.INT, k.YEAR)
BYTES = (k.TEXT, k.BINARY)
_EXACT = (
    *INTEGERS, *BYTES, k.DECIMAL, k.DATE, k.TIME, k.DATETIME, k.TIMESTAMP, k.UUID, k.INET,
)  # fmt: skip

_ORDERS = {
    **dict.fromkeys(INTEGERS, "number"), k.DECIMAL: "decimal", k.TIME: "time", k.UUID: "uuid parts",
    **dict.fromkeys((k.DATE, k.DATETIME, k.TIMESTAMP), "date"),
    **dict.fromkeys(BYTES, "binary"),
}  # fmt: skip


def chunk_columns(schema: TableSchema) -> list[Column]:
    """Return the leading key columns that can be compared exactly; none means one chunk.

    Only the index PRIMARY is known by name here. Enums are sorted by number but compared as text,
    floats do not survive being written as text.
    """
    if schema.implicit_key:
        return []
    known = {column.name: column for column in schema.columns}
    return [*takewhile(_is_exact, (known[name] for name in schema.primary_key))]


def has_exact_key(schema: TableSchema) -> bool:
    """Return whether there is a key, and each of its values as SQL equals it exactly."""
    key = [column for column in schema.columns if column.name in schema.primary_key]
    return bool(key) and all(map(_is_exact, key))


def _is_exact(column: Column) -> bool:
    row = BY_NAME.get(column.data_type)
    # Of a text or blob without a length the key holds a part only.
    return row is not None and row.kind in _EXACT and not row.length


def cut_by(columns: Sequence[Column]) -> Mapping[str, Sequence[str]]:
    """Return names of a key's columns, and the order that their values have."""
    return {"columns": [column.name for column in columns], "order": [*map(_order, columns)]}


def _order(column: Column) -> str:
    """Return what decides which of two values comes first; a longer type is no other order."""
    kind = BY_NAME[column.data_type].kind
    if kind == k.TEXT and column.charset not in (None, "binary"):
        return f"collation {column.collation}"
    return _ORDERS.get(kind, column.data_type)


def select_rows(schema: TableSchema, chunk: TableChunk, columns: str) -> str:
    """Return the SELECT of a chunk's rows, in key order where there is a key; it counts them."""
    condition = range_condition(chunk.bounds)
    if where := chunk.bounds.get("where"):
        condition = enclosed(where) if condition is None else f"({condition}) AND {enclosed(where)}"
    hint = " FORCE INDEX (PRIMARY)" if schema.primary_key and chunk.bounds.get("columns") else ""
    filtered = f" WHERE {condition}" if condition else ""
    table = quote(schema.db, schema.table)
    return f"SELECT SQL_CALC_FOUND_ROWS {columns} FROM {table}{hint}{filtered}"


def range_condition(bounds: Mapping[str, Any]) -> str | None:
    """Return the SQL condition of ``(after, upto]``; None when it is every row."""
    after, upto = bounds.get("after"), bounds.get("upto")
    if after is None and upto is None:
        return None
    ranges = _ranges(bounds.get("columns", []), after, upto)
    return " OR ".join(f"({' AND '.join(conditions)})" for conditions in ranges)


def _ranges(columns: Sequence[str], after: Border | None, upto: Border | None) -> list[list[str]]:
    """Return disjoint ranges that are ``(after, upto]`` together, each of conditions for AND.

    Of nested conditions MySQL would use the leading column only, and read all rows that have its
    value for each chunk. Texts that differ may be equal in the column's collation.
    """
    name, rest = quote(columns[0]), columns[1:]
    low = None if after is None else literal(after[0])
    high = None if upto is None else literal(upto[0])
    last = "<" if rest else "<="
    above = [] if low is None else [f"{name} > {low}"]
    below = [] if high is None else [f"{name} {last} {high}"]
    if not rest:
        return [above + below]
    behind = None if after is None else after[1:]
    before = None if upto is None else upto[1:]
    both = [[f"{name} = {low}", f"{name} = {high}", *r] for r in _ranges(rest, behind, before)]
    if low == high:
        return [conditions[1:] for conditions in both]
    found = [above + below]
    if low is not None:
        found += [[f"{name} = {low}", *below, *r] for r in _ranges(rest, behind, None)]
    if high is not None:
        found += [[f"{name} = {high}", *above, *r] for r in _ranges(rest, None, before)]
    return found + (both if low is not None and high is not None else [])


def literal(value: Any) -> str:
    """Return a border's value as SQL that equals it exactly."""
    if isinstance(value, Mapping):
        introducer = f"_{value['charset']} " if "charset" in value else ""
        return f"{introducer}X'{value['hex']}'"
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("\\", "\\\\").replace("'", "''") + "'"
