"""Which schema each row of a chunk has."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.schemas.table import TableSchema
from airflow_provider_deltaforge.sources.mysql.chunk import LogChunk


def versions_of(chunk: LogChunk, plan: Any) -> tuple[tuple[TableSchema, ...], pa.DictionaryArray]:
    """Return the schemas in force, first use first, and which of them each row has.

    The dictionary holds one fingerprint for each schema, also where two tables look the same.

    Args:
        chunk: where the rows are from.
        plan: int32, for each row its plan's ordinal; -1 for a schema change.
    """
    plans = chunk.plans.plans
    first = np.full(len(plans) + 1, len(plan), np.int64)
    first[plan[::-1]] = np.arange(len(plan) - 1, -1, -1)  # Of several, the last one stays.
    used = [
        place
        for place in np.argsort(first[:-1], kind="stable").tolist()
        if first[place] < len(plan)
    ]
    schemas = {place: plans[place].schema for place in used}
    known = {place: schema for place, schema in schemas.items() if schema is not None}
    ordinals = np.full(len(plans) + 1, -1, np.int32)
    ordinals[list(known)] = np.arange(len(known), dtype=np.int32)
    of_rows = ordinals[plan]
    told = (*known.values(), *_without_rows(chunk, plan))
    prints = pa.array([schema.fingerprint for schema in told], pa.utf8())
    return told, pa.DictionaryArray.from_arrays(
        pa.array(of_rows, pa.int32(), mask=of_rows < 0), prints
    )


def _without_rows(chunk: LogChunk, plan: Any) -> list[TableSchema]:
    """Return what tables look like behind their last change, where no row shows it yet."""
    if not any(change.schemas for change in chunk.changes):
        return []
    last: dict[tuple[str, str], tuple[int, TableSchema]] = {}
    for change, row in zip(chunk.changes, np.flatnonzero(plan < 0).tolist(), strict=True):
        last.update({(schema.db, schema.table): (row, schema) for schema in change.schemas})
    found = []
    for name, (row, schema) in last.items():
        mine = [i for i, one in enumerate(chunk.plans.plans) if (one.db, one.table) == name]
        if not np.isin(plan[row:], mine).any():
            found.append(schema)
    return found
