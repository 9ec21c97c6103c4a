"""Which schema each row of a segment has, and which rows are outbox messages."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import OUTBOX, TEXT
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import TableDecodePlan
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import DELETE, UPDATE, WRITE
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment
from airflow_provider_deltaforge.sources.shared.change_rows import schemas_in_use, version_column

_KINDS = 5
"""Of rows, and of schema changes, which are never messages."""
_TAGGED = {None: (), "inserts": (WRITE,), "all": (WRITE, UPDATE, DELETE)}


def schema_column(plans: Sequence[TableDecodePlan], plan: Any, kind: Any) -> pa.DictionaryArray:
    """Return the column ``schema``, which says here only whether a row is an outbox message.

    Args:
        plans: of the segment's tables.
        plan: int32, for each row its plan's ordinal; -1 for a schema change.
        kind: int32, what each row is.
    """
    if not any(one.tagged for one in plans):
        return pa.nulls(len(plan), TEXT)
    tagged = np.zeros((len(plans) + 1, _KINDS), np.bool_)
    for ordinal, one in enumerate(plans):
        tagged[ordinal, _TAGGED[one.tagged]] = True
    codes = pa.array(np.zeros(len(plan), np.int32), mask=~tagged[plan, kind])
    return pa.DictionaryArray.from_arrays(codes, pa.array([OUTBOX]))


def versions_of(
    segment: BinlogSegment, plan: Any
) -> tuple[tuple[TableSchema, ...], pa.DictionaryArray]:
    """Return the schemas in force, first use first, and which of them each row has.

    Args:
        segment: where the rows are from.
        plan: int32, for each row its plan's ordinal; -1 for a schema change.
    """
    used, places = schemas_in_use([table.schema for table in segment.plans.plans], plan)
    schemas = (*used, *_without_rows(segment, plan))
    return schemas, version_column(schemas, places)


def _without_rows(segment: BinlogSegment, plan: Any) -> list[TableSchema]:
    """Return what tables look like behind their last change, where no row shows it yet."""
    if not any(change.schemas for change in segment.changes):
        return []
    last: dict[tuple[str, str], tuple[int, TableSchema]] = {}
    for change, row in zip(segment.changes, np.flatnonzero(plan < 0).tolist(), strict=True):
        last.update({(schema.db, schema.table): (row, schema) for schema in change.schemas})
    found = []
    for name, (row, schema) in last.items():
        mine = [i for i, one in enumerate(segment.plans.plans) if (one.db, one.table) == name]
        if not np.isin(plan[row:], mine).any():
            found.append(schema)
    return found
