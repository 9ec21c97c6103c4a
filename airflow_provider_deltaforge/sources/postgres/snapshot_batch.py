"""Dresses the rows of a chunk as change events."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import row_ids
from airflow_provider_deltaforge.schemas.table import TableSchema
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.postgres.views import View

CONNECTOR = "postgresql"

NO_ROWS = pa.RecordBatch.from_arrays(
    [pa.array([], pa.binary()), pa.array([], pa.binary())], ["after", "key"]
)


@dataclass(frozen=True, slots=True)
class SamePosition:
    """The positions of a snapshot batch: its one transaction is the chunk's view."""

    cut: Position

    def after(self, tx: int) -> Position:
        """Return the chunk's cut."""
        return self.cut


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
    count = rows.num_rows
    last = np.zeros(count, np.bool_)
    last[-1:] = True
    keys = rows.column("key")
    columns: dict[str, pa.Array] = {
        "op": _repeated("r", count),
        "db": _repeated(chunk.db, count),
        "schema": _repeated(str(chunk.schema), count),
        "table": _repeated(chunk.table, count),
        "after": rows.column("after"),
        "key": keys,
        "ts_ms": pa.array(np.full(count, view.ts_ms, np.int64)),
        "tx": pa.array(np.zeros(count, np.int32)),
        "row": pa.array(np.arange(first, first + count, dtype=np.int32)),
        "tx_end": pa.array(last),
        "event_id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), count, [None, pa.py_buffer(row_ids(ids, *_names(keys, first)))]
        ),
    }
    if schema is not None:
        columns["schema_version"] = _repeated(schema.fingerprint, count)
    dressed = pa.RecordBatch.from_arrays(
        [columns.get(f.name, pa.nulls(count, f.type)) for f in CHANGE_SCHEMA], schema=CHANGE_SCHEMA
    )
    return ChangeBatch(
        rows=dressed,
        positions=SamePosition(view.cut),
        end=view.cut,
        connector=CONNECTOR,
        nbytes=dressed.nbytes,
        schemas=(schema,) if schema is not None else (),
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


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))
