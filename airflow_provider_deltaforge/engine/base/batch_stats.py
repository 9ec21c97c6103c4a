"""Counts of a batch, for the statistics of its lane."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(slots=True)
class BatchStats:
    """Counts of one batch, taken in the decoder thread so that delivery does not wait for them."""

    events: int
    nbytes: int
    commit_ms: np.ndarray
    by_table: Counter[tuple[str, str]]

    @classmethod
    def of(cls, rows: pa.RecordBatch, nbytes: int) -> "BatchStats":
        """Count the rows of a batch by table and op."""
        return cls(
            events=rows.num_rows,
            nbytes=nbytes,
            commit_ms=rows.column("ts_ms").to_numpy(),
            by_table=_by_table(rows),
        )


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """What one sink was given: events, and bytes of message values."""

    events: int
    nbytes: int

    def __add__(self, other: "SinkCounts") -> "SinkCounts":
        """Return both together."""
        return SinkCounts(self.events + other.events, self.nbytes + other.nbytes)


def _by_table(rows: pa.RecordBatch) -> Counter[tuple[str, str]]:
    """Count rows by (qualified table, op) over dictionary codes, without touching each row."""
    columns = [rows.column(name) for name in ("db", "schema", "table", "op")]
    code = np.zeros(rows.num_rows, dtype=np.int64)
    for column in columns:
        size = len(column.dictionary) + 1
        indices = column.indices.fill_null(size - 1).to_numpy(zero_copy_only=False)
        code = code * size + indices
    counted: Counter[tuple[str, str]] = Counter()
    _, first, counts = np.unique(code, return_index=True, return_counts=True)
    for row, count in zip(first.tolist(), counts.tolist(), strict=True):
        db, schema, table, op = (column[row].as_py() for column in columns)
        counted[f"{schema or db}.{table}", op] += count
    return counted
