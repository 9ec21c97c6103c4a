"""Dresses the rows of a chunk as change events."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.events.ids import row_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.table_copy import RowColumnsJson, View, copied_rows

CONNECTOR = "postgresql"

NO_ROWS = pa.RecordBatch.from_arrays(
    [pa.array([], pa.binary()), pa.array([], pa.binary())], ["after", "key"]
)


def snapshot_batch(
    rows: pa.RecordBatch,
    chunk: TableChunk,
    schema: TableSchema | None,
    view: View,
    ids: Any,
    first: int,
) -> ChangeBatch:
    """Dress rows as change events.

    Args:
        rows: columns ``after`` and ``key``.
        chunk: what they belong to.
        schema: of the table; None for one that is gone.
        view: what they were read from.
        ids: the key of their event ids.
        first: number of the chunk's rows before them.
    """
    key = rows.column("key")
    event_ids = row_ids(ids, *_names(key, first))
    return copied_rows(
        RowColumnsJson(rows.column("after"), key, event_ids), chunk, view, first, schema, CONNECTOR
    )


def _names(keys: pa.Array, first: int) -> tuple[Any, Any]:
    """Return what names each row in its chunk: its key, or its number where there is none."""
    count = len(keys)
    if count == 0 or keys.null_count:
        numbers = np.arange(first, first + count, dtype="<i8")
        return numbers.view(np.uint8), np.arange(0, 8 * count + 1, 8, dtype=np.int64)
    _, ends, data = keys.buffers()
    places = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + count + 1]
    return np.frombuffer(data, np.uint8), places.astype(np.int64)
