"""Which table each event of a batch belongs to."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.events.change import OUTBOX
from airflow_provider_deltaforge.spec.patterns import TableMatcher

Table = tuple[str, str | None, str]
"""The database, the schema where there are schemas, and the name."""


class TablePatterns:
    """Which tables a document's patterns match; each table is matched once."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._matcher = TableMatcher(patterns)
        self._known: dict[Table, bool] = {}

    def take(self, table: Table) -> bool:
        """Return whether one of them fits the table; without patterns every table fits."""
        if table not in self._known:
            db, schema, name = table
            qualifiers = [db if schema is None else schema]
            # An outbox row of MySQL is marked where the schema stands; its table is db.table.
            if schema == OUTBOX:
                qualifiers.append(db)
            self._known[table] = any(
                self._matcher.matches(qualifier, name) for qualifier in qualifiers
            )
        return self._known[table]


def tables_of(rows: pa.RecordBatch) -> tuple[list[Table], Any]:
    """Return the tables of a batch, and per row the index of its table among them."""
    index, found = combinations([rows.column(name) for name in ("db", "schema", "table")])
    return [(db, schema, table) for db, schema, table in found], index


def belonging(rows: pa.RecordBatch, takes: Callable[[Table], bool]) -> Any:
    """Return a bool per row: whether its table matches."""
    tables, index = tables_of(rows)
    return np.array([takes(table) for table in tables], np.bool_)[index]


def full_name(table: Table) -> str:
    """Return a table's name as people write it."""
    db, schema, name = table
    return f"{schema or db}.{name}"
