"""MariaDB's system-versioned tables: which columns hold the period in which a row was current.

Such a table keeps its rows of the past beside the current ones. Its log has them as well: an update
is followed by an insert of the old row, and a deletion is an update that ends the row. Only current
rows are delivered, so the decoder must know the column ROW END. The log does not mark it; the
catalog does, and so does a schema registered from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql import column_types as t
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import (
    LogColumn,
    TableMap,
    without_hashes,
)

ROW_START, ROW_END = "ROW START", "ROW END"
IMPLICIT = ("row_start", "row_end")
"""Names of the columns that the server adds if a statement names none; no catalog lists them."""

_MICROSECONDS = 6


@dataclass(frozen=True)
class Period:
    """The two columns of a table's map, as ordinals; ``hidden`` ones no catalog lists."""

    start: int
    end: int
    hidden: bool


def explicit_period(schema: TableSchema) -> tuple[str, str] | None:
    """Return the names of ROW START and ROW END, if they are columns that the catalog lists."""
    marked: Mapping[str, str] = {
        mark: column.name
        for column in schema.columns
        for mark in (ROW_START, ROW_END)
        if column.extra is not None and mark in column.extra
    }
    return (marked[ROW_START], marked[ROW_END]) if len(marked) == 2 else None


def counts_transactions(schema: TableSchema) -> bool:
    """Return whether a table's history is one of transactions instead of times.

    MariaDB logs every change of such a table as a statement, whatever ``binlog_format`` is.
    """
    names = explicit_period(schema)
    return names is not None and any(
        column.name in names and column.data_type == "bigint" for column in schema.columns
    )


def without_key_part(schema: TableSchema) -> TableSchema:
    """Return a schema whose primary key tells current rows apart: ROW END is no part of it."""
    names = explicit_period(schema)
    if names is None:
        return schema
    key = tuple(name for name in schema.primary_key if name not in names)
    return replace(schema, primary_key=key)


def may_keep_history(table: TableMap) -> bool:
    """Return whether two columns of a table could say how long its rows were current."""
    moments = [column for column in table.columns if _is_moment(column)]
    counters = [column for column in table.columns if column.type == t.LONGLONG]
    return len(moments) >= 2 or len(counters) >= 2


def period_of(table: TableMap, schema: TableSchema | None) -> Period | None:
    """Return a table's period.

    Args:
        table: what the log says of it.
        schema: from registry or catalog, of this time or another one; None without one.

    Raises:
        SchemaError: the log may hold rows of the past, and which ones is unknown.
    """
    table = listed_columns(table, schema)
    explicit = explicit_period(schema) if schema is not None else None
    places = _places(table, explicit, schema) if explicit is not None else None
    if places is not None:
        start, end = places
        if table.columns[end].type == t.LONGLONG:
            _refuse()
        if _is_moment(table.columns[start]) and _is_moment(table.columns[end]):
            return Period(start, end, hidden=False)
    start, end = len(table.columns) - 2, len(table.columns) - 1
    return Period(start, end, hidden=True) if _is_implicit(table, schema) else None


def _is_implicit(table: TableMap, schema: TableSchema | None) -> bool:
    """Return whether a table's last columns are those of versioning that no catalog lists."""
    last = table.columns[-2:]
    names = tuple(column.name for column in last)
    if len(table.columns) <= 2 or not all(map(_is_moment, last)):
        return False
    versioned = schema is not None and schema.system_versioned
    if names == (None, None):
        return versioned and schema is not None and len(schema.columns) == len(table.columns) - 2
    if names != IMPLICIT or (schema is not None and _lists(schema)):
        return False
    if table.primary_key:
        # The server itself adds ROW END to every key of a table with a history.
        return len(table.columns) - 1 in table.primary_key
    if not versioned:
        raise SchemaError(
            f"it has columns {' and '.join(IMPLICIT)}, and it is not known any more whether the "
            "server keeps them for system versioning"
        )
    return True


def as_listed(table: TableMap, schema: TableSchema) -> TableMap:
    """Return a table's map with the columns that the catalog lists."""
    table = listed_columns(table, schema)
    try:
        period = period_of(table, schema)
    except SchemaError:
        return table
    return without_period(table, period)


def listed_columns(table: TableMap, schema: TableSchema | None) -> TableMap:
    """Return a table's map without the columns that MariaDB adds for its UNIQUE indexes."""
    if schema is None:
        return without_hashes(table, (), 0)
    return without_hashes(table, {c.name for c in schema.columns}, schema.hash_columns)


def without_period(table: TableMap, period: Period | None) -> TableMap:
    """Return a map without the columns that no catalog lists, and a key without ROW END."""
    if period is None:
        return table
    key = table.primary_key
    if key is not None:
        key = tuple(place for place in key if place not in (period.start, period.end))
    columns = table.columns[: period.start] if period.hidden else table.columns
    return replace(table, columns=columns, primary_key=key)


def marked(schema: TableSchema, period: Period) -> TableSchema:
    """Return a schema that was made of the log, with what is known of its period."""
    if period.hidden:
        return replace(schema, system_versioned=True)
    if explicit_period(schema) is not None:
        return schema
    marks = {period.start: ROW_START, period.end: ROW_END}
    columns = tuple(
        replace(column, extra=marks[place]) if place in marks else column
        for place, column in enumerate(schema.columns)
    )
    return replace(schema, columns=columns)


def _places(
    table: TableMap, names: tuple[str, str], schema: TableSchema | None
) -> tuple[int, int] | None:
    """Return where the columns of these names are; None where the log has none of them."""
    found = [column.name for column in table.columns]
    if None in found:
        if schema is None or len(schema.columns) != len(found):
            return None
        found = [column.name for column in schema.columns]
    if not set(names) <= set(found):
        return None
    return found.index(names[0]), found.index(names[1])


def _lists(schema: TableSchema) -> bool:
    """Return whether a table has columns of its own that only look like those of versioning."""
    return set(IMPLICIT) <= {column.name for column in schema.columns}


def _is_moment(column: LogColumn) -> bool:
    return column.type == t.TIMESTAMP2 and column.meta == _MICROSECONDS and not column.nullable


def _refuse() -> NoReturn:
    raise SchemaError(
        "its history is one of transactions (ROW START and ROW END are BIGINT UNSIGNED), which the "
        "log does not tell; give it TIMESTAMP(6) columns, or leave it out of 'tables'"
    )
