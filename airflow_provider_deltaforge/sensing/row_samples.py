"""Rows of a copy that are chosen where they are copied, and looked at by the driver.

Many workers copy at once, and one schema is learned of all their rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.value_codes import combinations

TABLE_NAMES = ("db", "schema", "table", "schema_version")
"""Columns of change events that name a table's version."""

_ROWS_MAX = 64
_BYTES_MAX = 128 << 10


@dataclass(frozen=True, slots=True)
class RowSample:
    """Rows of one table that were chosen to be looked at elsewhere. Picklable."""

    table: tuple[str, str | None, str]
    """Database, schema and name."""
    version: str | None
    """``schema_version`` of the rows."""
    events: int
    """Rows that they stand for, themselves included."""
    texts: tuple[bytes, ...]
    """Their images."""


def samples_of(rows: pa.RecordBatch, *, counted_only: bool = False) -> list[RowSample]:
    """Choose rows of a copy to be looked at elsewhere, spread evenly over those of each table.

    Args:
        rows: change events as sinks receive them.
        counted_only: choose none.
    """
    after = rows.column("after")
    there = np.flatnonzero(np.asarray(after.is_valid()))
    codes, tables = combinations([rows.column(name) for name in TABLE_NAMES])
    found, rows_max = [], 0 if counted_only else _ROWS_MAX
    for ordinal, (db, schema, name, version) in enumerate(tables):
        mine = there[codes[there] == ordinal]
        if not len(mine):
            continue
        places = np.linspace(0, len(mine) - 1, min(rows_max, len(mine))).astype(np.int64)
        texts = images_of(rows, after, mine[places])
        ends = np.cumsum(np.asarray(pc.binary_length(texts)))
        kept = texts.slice(0, int(np.searchsorted(ends, _BYTES_MAX, side="right")))
        found.append(RowSample((db, schema, name), version, len(mine), tuple(kept.to_pylist())))
    return found


def images_of(rows: pa.RecordBatch, after: pa.BinaryArray, picked: Any) -> pa.BinaryArray:
    """Return the images of rows, but for those that lack values which did not change."""
    unchanged = rows.column("unchanged")
    if unchanged.null_count < len(unchanged):
        picked = picked[np.asarray(unchanged.is_null())[picked]]
    return after.take(pa.array(picked))
