"""From what a query returns to change events."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.processors.bad_rows import RowsError, apart
from airflow_provider_deltaforge.processors.changed_events import (
    OPS,
    outcome,
    repeated,
    replaced,
    taken,
)
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.sql.engine import ROW, Engine

_NEVER_NULL = ("op", "db", "table", "ts_ms")


class SqlWorker:
    """Runs the query over each batch, in the order of the batch."""

    def __init__(self, query: str, mem_mb: int, timeout_s: float) -> None:
        self._engine = Engine(query, mem_mb, timeout_s)
        self._timeout_s = timeout_s

    def process(self, rows: pa.RecordBatch) -> Processed:
        """Return what the query makes of the batch; rows that it fails for are rejected.

        Raises:
            EventError: the query takes too long or too much memory, or fails for most rows.
        """
        deadline = time.monotonic() + self._timeout_s
        parts, rejections = apart(rows, lambda part: self._select(part, deadline))
        origins, columns = _joined(parts, self._engine.columns)
        order = np.argsort(origins, kind="stable")
        if not np.array_equal(order, np.arange(len(order))):
            origins = origins[order]
            columns = [column.take(pa.array(order)) for column in columns]
        made_rows = taken(rows, origins)
        made_rows = replaced(made_rows, dict(zip(self._engine.columns, columns, strict=True)))
        return outcome(rows, made_rows, origins, repeated(origins), rejections)

    def close(self) -> None:
        """Close the engine. Safe to call twice."""
        self._engine.close()

    def _select(self, part: pa.RecordBatch, deadline: float) -> pa.Table:
        result = self._engine.run(part, max(0.0, deadline - time.monotonic()))
        _check(result, part.num_rows)
        return result


def _check(result: pa.Table, count: int) -> None:
    """Refuse what is no change event.

    Raises:
        RowsError: some row is none.
    """
    if not result.num_rows:
        return
    row = result.column(ROW)
    low, high = pc.min_max(row).as_py().values()
    if row.null_count or low < 0 or high >= count:
        raise RowsError(f"the query returned a {ROW} that is none of the batch's")
    for name in _NEVER_NULL:
        if name in result.column_names and result.column(name).null_count:
            raise RowsError(f"the query returned null for {name}, which an event always has")
    if "op" in result.column_names and not OPS.issuperset(pc.unique(result["op"]).to_pylist()):
        raise RowsError("the query returned an op that is none of c, u, d, r, t and ddl")


def _joined(
    parts: Sequence[tuple[int, pa.Table]], names: Sequence[str]
) -> tuple[Any, list[pa.Array]]:
    """Return the rows of all parts: which input row each stands for, and its columns."""
    if not parts:
        return np.zeros(0, np.int32), [pa.nulls(0) for _ in names]
    origins = [
        table.column(ROW).combine_chunks().cast(pa.int32()).to_numpy() + start
        for start, table in parts
    ]
    whole = pa.concat_tables([table for _, table in parts])
    return np.concatenate(origins), [_one(whole.column(name)) for name in names]


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
