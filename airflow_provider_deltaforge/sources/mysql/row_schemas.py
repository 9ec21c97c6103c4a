"""Which schema each row of a chunk has."""

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.schemas.table import TableSchema
from airflow_provider_deltaforge.sources.mysql.plans import PlanSet


def versions_of(plan_set: PlanSet, plan: Any) -> tuple[tuple[TableSchema, ...], pa.DictionaryArray]:
    """Return the schemas of the rows, first use first, and which of them each row has.

    The dictionary holds one fingerprint for each schema, also where two tables look the same.

    Args:
        plan_set: of the chunk.
        plan: int32, for each row its plan's ordinal; -1 for none.
    """
    plans = plan_set.plans
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
    prints = pa.array([schema.fingerprint for schema in known.values()], pa.utf8())
    return tuple(known.values()), pa.DictionaryArray.from_arrays(
        pa.array(of_rows, pa.int32(), mask=of_rows < 0), prints
    )
