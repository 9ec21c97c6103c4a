"""Dresses the rows of a chunk as change events."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.events.ids import row_ids
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.snapshot.text_stream import RowPart
from airflow_provider_deltaforge.sources.shared.table_copy import RowColumnsJson, View, copied_rows

NO_ROWS = RowPart(
    rows=pa.array([], pa.binary()),
    keys=None,
    key_bytes=np.empty(0, np.uint8),
    key_ends=np.zeros(1, np.int64),
    last=True,
)


def snapshot_batch(
    part: RowPart, chunk: TableChunk, schema: TableSchema | None, view: View, ids: Any, first: int
) -> ChangeBatch:
    """Dress rows as change events; ``first`` is the number of the chunk's rows before them."""
    event_ids = row_ids(ids, part.key_bytes, part.key_ends)
    return copied_rows(
        RowColumnsJson(part.rows, part.keys, event_ids), chunk, view, first, schema, "mysql"
    )
