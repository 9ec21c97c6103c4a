"""Processing some rows of a batch, the others staying where they are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import EventError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.contract import Processed


def only(
    rows: pa.RecordBatch, mine: Any, process: Callable[[pa.RecordBatch], Processed]
) -> Processed:
    """Process the rows that are chosen, and put the others back between what is made of them.

    Args:
        rows: the batch.
        mine: bool per row.
        process: is given the chosen rows, at least one.
    """
    if mine.all():
        return process(rows)
    if not mine.any():
        return Processed(rows)
    return _put_back(rows, mine, process(rows.filter(pa.array(mine))))


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table in one piece.

    Raises:
        EventError: it is too large for one.
    """
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    if batches:
        raise EventError(
            f"{table.nbytes:,} bytes are too many for one batch; lower batch.max_bytes, or let the "
            "processor return less"
        )
    empty = [pa.array([], field.type) for field in table.schema]
    return pa.RecordBatch.from_arrays(empty, schema=table.schema)


def _put_back(rows: pa.RecordBatch, mine: np.ndarray, done: Processed) -> Processed:
    own, others = np.nonzero(mine)[0], np.nonzero(~mine)[0]
    local = (
        np.arange(done.rows.num_rows)
        if done.origins is None
        else done.origins.to_numpy(zero_copy_only=False)
    )
    origins = np.concatenate([own[local], others]).astype(np.int32)
    order = np.argsort(origins, kind="stable")
    both = pa.Table.from_batches([done.rows, rows.filter(pa.array(~mine))])
    others_none = pa.array(np.zeros(len(others), np.bool_))
    made, placed = (
        None if marks is None else pa.concat_arrays([marks, others_none]).take(pa.array(order))
        for marks in (done.made, done.placed)
    )
    rejections = [
        Rejection(int(own[rejection.event_row]), rejection.kind, rejection.reason)
        for rejection in done.rejections
    ]
    return Processed(
        one_batch(both).take(pa.array(order)),
        pa.array(origins[order]),
        made,
        rejections,
        done.counts,
        placed,
    )
