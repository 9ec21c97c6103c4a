"""Dresses the rows of a chunk as change events."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import row_ids
from airflow_provider_deltaforge.schemas.table import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.mysql.text_stream import RowPart
from airflow_provider_deltaforge.sources.mysql.views import View


@dataclass(frozen=True, slots=True)
class SamePosition:
    """The positions of a snapshot batch: its one transaction is the chunk's view."""

    cut: Position

    def after(self, tx: int) -> Position:
        """Return the chunk's cut."""
        return self.cut


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
    count = len(part.rows)
    last = np.zeros(count, np.bool_)
    last[-1:] = True
    version = schema.fingerprint if schema is not None else None
    event_ids = row_ids(ids, part.key_bytes, part.key_ends)
    columns: dict[str, pa.Array] = {
        "op": _repeated("r", count),
        "db": _repeated(chunk.db, count),
        "table": _repeated(chunk.table, count),
        "after": part.rows,
        "ts_ms": pa.array(np.full(count, view.ts_ms, np.int64)),
        "tx": pa.array(np.zeros(count, np.int32)),
        "row": pa.array(np.arange(first, first + count, dtype=np.int32)),
        "tx_end": pa.array(last),
        "event_id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), count, [None, pa.py_buffer(event_ids)]
        ),
    }
    if part.keys is not None:
        columns["key"] = part.keys
    if version is not None:
        columns["schema_version"] = _repeated(version, count)
    rows = pa.RecordBatch.from_arrays(
        [columns.get(f.name, pa.nulls(count, f.type)) for f in CHANGE_SCHEMA], schema=CHANGE_SCHEMA
    )
    return ChangeBatch(
        rows=rows,
        positions=SamePosition(view.cut),
        end=view.cut,
        connector="mysql",
        nbytes=rows.nbytes,
        schemas=() if schema is None else (schema,),
    )


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))
