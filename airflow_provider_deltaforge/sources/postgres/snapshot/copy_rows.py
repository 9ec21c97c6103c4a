"""From COPY's text format to Arrow columns of row and key JSON."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_kernel import decode_lines
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import (
    WalDecodePlans,
    WalTablePlan,
)
from airflow_provider_deltaforge.sources.postgres.wal.row_kernel import DONE, MARGIN
from airflow_provider_deltaforge.sources.shared.change_rows import binary_column

_NEWLINE = 10


class CopiedRows(NamedTuple):
    """Some rows of a table.

    Attributes:
        rows: columns ``after`` and ``key``, binary; keys are null for a table without one.
        consumed: bytes that were decoded; what follows is a line whose end is still to come.
    """

    rows: pa.RecordBatch
    consumed: int


def decode_copy(data: bytes | bytearray | memoryview, plan: WalTablePlan) -> CopiedRows:
    """Decode the complete lines of ``COPY (SELECT plan.select …) TO STDOUT``.

    Args:
        data: from the beginning of a line on; may end anywhere.
        plan: of the table the lines come from.

    Raises:
        SchemaError: a line does not hold the values the plan has columns for.
    """
    # A copy, because the kernel takes COPY's escapes out in place.
    text = np.array(np.frombuffer(data, np.uint8))
    lines = int(np.count_nonzero(text == _NEWLINE))
    plans = WalDecodePlans((plan,))
    arrays = plans.arrays
    # Untouched pages cost nothing.
    room = 6 * len(text) + lines * int(arrays.fixed[0]) + MARGIN
    after = np.empty(room, np.uint8)
    key = np.empty(room if plan.key else 0, np.uint8)
    after_ends, key_ends = np.zeros(lines + 1, np.int64), np.zeros(lines + 1, np.int64)
    result, count, consumed = decode_lines(
        text, arrays, after, after_ends, key, key_ends, plans.marks, plans.scratch(len(text))
    )
    if result != DONE:
        raise SchemaError(
            f"{plan.schema.full_name}: a row does not have the values of the table's columns: it "
            "was altered while it was read; read the chunk again"
        )
    everything: Any = np.ones(count, np.bool_)
    keys = binary_column(key, key_ends, count, everything if plan.key else ~everything)
    rows = binary_column(after, after_ends, count, everything)
    return CopiedRows(pa.RecordBatch.from_arrays([rows, keys], ["after", "key"]), int(consumed))


def precompile() -> None:
    """Compile the kernel, or load it from the cache, before rows are waiting."""
    from airflow_provider_deltaforge.events.schema import Column, TableSchema

    schema = TableSchema("db", "public", "t", (Column("c", "text", "text"),))
    decode_copy(b"", WalTablePlan(schema, captured=True, chains=((0,),), identity=(False,)))
