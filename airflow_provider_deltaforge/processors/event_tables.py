"""Which table each event of a batch belongs to."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.spec.patterns import TableMatcher

Table = tuple[str, str]
"""The schema (the database, where there are no schemas) and the name."""


def tables_of(rows: pa.RecordBatch) -> tuple[list[Table], Any]:
    """Return the tables of a batch, and per row the index of its table among them."""
    dbs, db = _coded(rows.column("db"))
    schemas, schema = _coded(rows.column("schema"))
    names, name = _coded(rows.column("table"))
    combined = (db * (len(schemas) + 1) + schema + 1) * len(names) + name
    distinct, index = np.unique(combined, return_inverse=True)
    tables = []
    for code in distinct.tolist():
        rest, at = divmod(code, len(names))
        place, owner = divmod(rest, len(schemas) + 1)
        tables.append((schemas[owner - 1] if owner else dbs[place], names[at]))
    return tables, index


def belonging(rows: pa.RecordBatch, matcher: TableMatcher) -> Any:
    """Return a bool per row: whether a matcher takes its table."""
    tables, index = tables_of(rows)
    return np.array([matcher.matches(*table) for table in tables], np.bool_)[index]


def _coded(column: pa.DictionaryArray) -> tuple[list[str], Any]:
    codes = column.indices
    if codes.null_count:
        codes = codes.fill_null(-1)
    return column.dictionary.to_pylist(), codes.to_numpy(zero_copy_only=False).astype(np.int64)
