"""Functions that are given one event at a time, as a dict."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.bad_rows import RowsError
from airflow_provider_deltaforge.processors.changed_events import replaced, taken
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.processors.python.event_dicts import EventDicts

_TOO_DEEP = "returned something that is nested too deep to be compared"


def processed(rows: pa.RecordBatch, call: Callable[[dict[str, Any]], Any]) -> Processed:
    """Call a function with each event, and return what it made of them.

    Args:
        rows: change events.
        call: returns a dict, a list of them, or None; raises ``RowsError``.
    """
    events = EventDicts(rows)
    collected = _Collected()
    rejections: list[Rejection] = []
    dropped = 0
    for row in range(rows.num_rows):
        try:
            results = _several(call(events.event(row)))
            changes = [events.changes(row, result) for result in results]
        except (RowsError, RecursionError) as error:
            bad = error if isinstance(error, RowsError) else RowsError(_TOO_DEEP)
            rejections.append(bad.about(row, rows.slice(row, 1)))
            continue
        dropped += not changes
        own = False
        for changed, stands in changes:
            collected.add(row, changed, made=own or not stands)
            own = own or stands
    origins = np.array(collected.origins, np.int32)
    kept = taken(rows, origins)
    return Processed(
        replaced(kept, collected.columns(kept)),
        pa.array(origins),
        pa.array(collected.made, pa.bool_()) if any(collected.made) else None,
        rejections,
        {"dropped": dropped} if dropped else {},
    )


def _several(result: Any) -> list[Any]:
    if result is None:
        return []
    return list(result) if isinstance(result, (list, tuple)) else [result]


@dataclass
class _Collected:
    """Events that were returned: the row each belongs to, and what differs from it."""

    origins: list[int] = field(default_factory=list)
    made: list[bool] = field(default_factory=list)
    changed: dict[str, dict[int, Any]] = field(default_factory=dict)

    def add(self, row: int, changes: dict[str, Any], *, made: bool) -> None:
        for name, value in changes.items():
            self.changed.setdefault(name, {})[len(self.origins)] = value
        self.origins.append(row)
        self.made.append(made)

    def columns(self, kept: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = {}
        for name, changes in self.changed.items():
            values = kept.column(name).to_pylist()
            for at, value in changes.items():
                values[at] = value
            kind = CHANGE_SCHEMA.field(name).type
            columns[name] = pa.array(values, pa.utf8() if pa.types.is_dictionary(kind) else kind)
        return columns
