"""Data drift of a pipeline, as people ask for it: events that differ from what is expected of them.

Expected is what the catalog says of a table's columns, and what schema sensing learned of its JSON
columns. The shapes are those of the REST API.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control import sensing
from airflow_provider_deltaforge.control.history import epoch_seconds
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.sensing import SensingOffError
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import is_named
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.data_drift import (
    ColumnDrift,
    DataDriftRecords,
    TableDataDrift,
)

HIGH_NULL_RATE = 0.001
"""A NOT NULL column with a larger share of NULLs is named as such."""

_STRUCTURE = "json_structure_change"
_COUNTED = {
    "unexpected_nulls": "unexpected_null",
    "type_mismatches": "type_mismatch",
    "values_out_of_range": "value_out_of_range",
    "missing_columns": "missing_column",
    "undeclared_columns": "undeclared_column",
    "json_structure_changes": _STRUCTURE,
}
_BY_COLUMN = {"missing_columns", "undeclared_columns", "json_structure_changes"}
"""Counted by columns; the others by values."""


def since_ms(text: str | None) -> int:
    """Return the time that a person means, in ms since the epoch; 0 for None.

    Args:
        text: how long ago (``6h``), a time in ISO 8601, or seconds since the epoch.

    Raises:
        SpecError: it is no time.
    """
    return 0 if text is None else int(1000 * epoch_seconds(text, time.time()))


def drift(store: Store, pipeline: str, since_ms: int = 0) -> list[dict[str, Any]]:
    """Return the data drift of every table that was looked at, by name.

    Args:
        store: the state store.
        pipeline: its name.
        since_ms: leave out what was not seen since then, in ms since the epoch.

    Raises:
        SpecError: there is no such pipeline.
        SensingOffError: it does not look for data drift.
    """
    return [table.answer() for table in _tables(store, pipeline, since_ms)]


def table_drift(store: Store, pipeline: str, table: str, since_ms: int = 0) -> dict[str, Any]:
    """Return the data drift of one table.

    Args:
        store: the state store.
        pipeline: its name.
        table: ``orders`` or ``shop.orders``.
        since_ms: see ``drift``.

    Raises:
        SpecError: see ``drift``; or no events of such a table were looked at, or of several.
        SensingOffError: it does not look for data drift.
    """
    tables = _tables(store, pipeline, since_ms)
    found = [known for known in tables if known.name == table]
    found = found or [known for known in tables if is_named(known.name, (table,))]
    if len(found) == 1:
        return found[0].answer()
    known = ", ".join(other.name for other in found or tables) or "none yet"
    if found:
        raise SpecError(f"{table!r} names several tables; write one of {known}")
    raise SpecError(f"no drift data for table {table} (known: {known})")


def in_words(table: Mapping[str, Any]) -> str:
    """Return what differs in a table, in one line."""
    kinds: dict[str, list[str]] = {}
    for record in table["records"]:
        if record["is_drift"]:
            kinds.setdefault(record["drift_type"], []).append(record["column"])
    words = "; ".join(f"{kind} of {', '.join(columns)}" for kind, columns in kinds.items())
    return f"{table['table']}: {words or 'no drift'}"


@dataclass(frozen=True, slots=True)
class _Table:
    """One table.

    Attributes:
        name: its full name.
        settings: what its pipeline's document says.
        since_ms: what was not seen since then is left out.
        record: how it differs from the catalog; None if it was not held to it.
        structures: how its JSON columns differ from what they were, as ``control.sensing`` says.
    """

    name: str
    settings: SchemaSensing
    since_ms: int
    record: TableDataDrift | None = None
    structures: tuple[Mapping[str, Any], ...] = ()

    def answer(self) -> dict[str, Any]:
        records = [*self._records(), *self._structures()]
        drifted = [record for record in records if record["is_drift"]]
        kept = self.record
        analyzed = [s["events_analyzed"] for s in self.structures]
        structural = [s["events_with_drift"] for s in self.structures if s["has_drift"]]
        return {
            "table": self.name,
            "has_drift": bool(drifted),
            "columns": _columns(drifted),
            "events_analyzed": kept.events_analyzed if kept else max(analyzed, default=0),
            "events_with_drift": max([kept.events_with_drift if kept else 0, *structural]),
            "total_drift_events": sum(record["count"] for record in records),
            **_counts(records),
            "high_null_columns": self._high_null_columns(),
            "since": _timestamp(kept.since_ms) if kept else None,
            "last_drift": _timestamp(kept.last_drift_ms) if kept and kept.last_drift_ms else None,
            "records": records,
            "unlisted": kept.unlisted if kept else 0,
        }

    def _records(self) -> Iterable[dict[str, Any]]:
        for column in self.record.columns if self.record is not None else ():
            if column.last_seen_ms >= self.since_ms:
                share = self._share(column)
                yield {
                    "table": self.name,
                    "column": column.column,
                    "drift_type": column.drift_type,
                    "expected": column.expected,
                    "observed": ", ".join(column.observed),
                    "observed_types": list(column.observed),
                    "count": column.count,
                    "share": round(share, 4),
                    "is_drift": self._is_drift(column.drift_type, share),
                    "first_seen": _timestamp(column.first_seen_ms),
                    "last_seen": _timestamp(column.last_seen_ms),
                    "samples": list(column.samples),
                }

    def _share(self, column: ColumnDrift) -> float:
        """Return the share of the events since the first of its kind."""
        events = self.record.events_analyzed - column.events_before if self.record else 0
        return column.count / events if events else 1.0

    def _is_drift(self, drift_type: str, share: float) -> bool:
        if drift_type != "undeclared_column":
            return True
        return share > self.settings.tracking.drift_threshold

    def _structures(self) -> Iterable[dict[str, Any]]:
        for structure in self.structures:
            changes = structure["changes"]
            times = [change["at"] for change in changes]
            if not times or _milliseconds(max(times)) < self.since_ms:
                continue
            yield {
                "table": self.name,
                "column": structure["column"],
                "drift_type": _STRUCTURE,
                "expected": "the structure that the warm-up saw",
                "observed": "new fields or types",
                "observed_types": ["object"],
                "count": structure["events_with_drift"],
                "share": structure["drift_percentage"],
                "is_drift": structure["has_drift"],
                "first_seen": min(times),
                "last_seen": max(times),
                "samples": [],
                "new_fields": sorted(structure["new_fields"]),
                "removed_fields": sorted(structure["removed_fields"]),
                "type_changes": [_type_change(change) for change in structure["type_changes"]],
                "drift_percentage": structure["drift_percentage"],
            }

    def _high_null_columns(self) -> list[str]:
        if self.record is None or not self.record.events_analyzed:
            return []
        least = HIGH_NULL_RATE * self.record.events_analyzed
        return [
            column.column
            for column in self.record.columns
            if column.drift_type == "unexpected_null" and column.count > least
        ]


def _tables(store: Store, pipeline: str, since_ms: int) -> list[_Table]:
    text = existing(store, pipeline).document()
    if text is None:
        raise SpecError(f"pipeline {pipeline!r} has no document in this state store; apply it")
    settings: SchemaSensing = load(text, expand=False).spec.schema_sensing
    changes = sensing.structure_changes(store, pipeline)
    if not settings.tracking.detect_drift:
        raise SensingOffError(
            f"pipeline {pipeline!r} looks for no data drift: set "
            "spec.schema_sensing.tracking.detect_drift"
        )
    records = DataDriftRecords(store, pipeline).all()
    tables = {
        name: _Table(name, settings, since_ms, record) for name, record in sorted(records.items())
    }
    for change in changes:
        if change["column"] is not None:
            name = change["table"]
            table = tables.get(name) or _Table(name, settings, since_ms)
            tables[name] = replace(table, structures=(*table.structures, change))
    return list(tables.values())


def _type_change(change: Mapping[str, Any]) -> str:
    new = change["new_types"]
    former = [name for name in change["types"] if name not in new]
    return f"{change['field']}: {' | '.join(former) or 'none'} -> {' | '.join(new)}"


def _columns(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each column that has drifted, whatever the ways."""
    columns: dict[str, dict[str, Any]] = {}
    for record in records:
        column = columns.setdefault(
            record["column"],
            {
                "column": record["column"],
                "expected_type": record["expected"],
                "observed_types": [],
                "mismatch_count": 0,
                "examples": [],
                "drift_types": [],
            },
        )
        if column["expected_type"] == "NOT NULL":
            column["expected_type"] = record["expected"]
        for key, value in (
            ("observed_types", record["observed_types"]),
            ("examples", record["samples"]),
            ("drift_types", [record["drift_type"]]),
        ):
            column[key] = list(dict.fromkeys([*column[key], *value]))
        column["mismatch_count"] += record["count"]
    return list(columns.values())


def _counts(records: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found = list(records)
    return {
        name: sum(
            1 if name in _BY_COLUMN else record["count"]
            for record in found
            if record["drift_type"] == drift_type
        )
        for name, drift_type in _COUNTED.items()
    }


def _milliseconds(timestamp: str) -> int:
    return int(1000 * datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp())


def _timestamp(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
