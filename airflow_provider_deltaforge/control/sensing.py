"""What schema sensing has learned of a pipeline's tables, as people ask for it.

The shapes are those of the REST API. A table is named ``shop.orders``, one of its JSON columns
``shop.orders:metadata``; ``orders`` and ``orders:metadata`` do where only one table is meant.
"""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.table_names import short_names
from airflow_provider_deltaforge.sensing.json_schema import Dialect
from airflow_provider_deltaforge.sensing.json_schema import json_schema as exported
from airflow_provider_deltaforge.sensing.paths import DYNAMIC_KEY, ELEMENT_KEY, shown
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.sensing import (
    Evolution,
    SensedMap,
    SensedTable,
    SensedTables,
    SensedValue,
)


class SensingOffError(SpecError):
    """The document does not ask for what is asked of it; the message says which key to set."""


class _Sensed:
    """The records of one pipeline, and what its document says of showing them."""

    def __init__(self, store: Store, pipeline: str) -> None:
        text = existing(store, pipeline).document()
        if text is None:
            raise SpecError(f"pipeline {pipeline!r} has no document in this state store; apply it")
        document = load(text, expand=False)
        self.settings: SchemaSensing = document.spec.schema_sensing
        if not self.settings.enabled:
            raise SensingOffError(
                f"pipeline {pipeline!r} senses no schemas: set spec.schema_sensing.enabled"
            )
        if not self.settings.output.expose_api:
            raise SensingOffError(
                "spec.schema_sensing.output.expose_api is false: nothing is shown"
            )
        self.tables = SensedTables(store, pipeline, document.metadata.tenant).all()

    def named(self, name: str) -> SensedTable:
        """Return the one record that a person calls so.

        Raises:
            SpecError: there is none, or there are several.
        """
        found = [table for table in self.tables if table.name == name]
        found = found or [table for table in self.tables if name in _short_names(table)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(table.name for table in found or self.tables) or "none yet"
        if found:
            raise SpecError(f"{name!r} names several tables; write one of {known}")
        raise SpecError(f"pipeline schema for table {name} not found (known: {known})")

    def columns(self, table: SensedTable) -> dict[str, SensedTable]:
        """Return the records of a table's JSON columns, by column."""
        if table.column is not None:
            return {}
        return {
            other.column: other
            for other in self.tables
            if other.table == table.table and other.column is not None
        }


def schemas(store: Store, pipeline: str) -> list[dict[str, Any]]:
    """Return every table and JSON column that was sensed.

    With ``output.emit_schemas`` each has its ``json_schema`` as well.

    Raises:
        SpecError: there is no such pipeline, or it senses nothing that may be shown.
    """
    sensed = _Sensed(store, pipeline)
    return [{**_summary(table), **_emitted(sensed, table)} for table in sensed.tables]


def schema(store: Store, pipeline: str, table: str) -> dict[str, Any]:
    """Return what one table or JSON column consists of.

    Raises:
        SpecError: see ``schemas``; or nothing was sensed under this name.
    """
    sensed = _Sensed(store, pipeline)
    found = sensed.named(table)
    columns = {name: column.root for name, column in sensed.columns(found).items()}
    prefix = "" if found.column is None else f"{found.column}."
    fields = [
        _field(f"{prefix}{name}", value, columns.get(name, value))
        for name, value in found.root.fields.items()
    ]
    if found.root.dynamic is not None:
        fields.append(_field(f"{prefix}<dynamic>", found.root.dynamic, found.root.dynamic))
    return {
        **_summary(found),
        "fields": fields,
        "types": _types(found.root),
        "evolutions": [_evolution(evolution) for evolution in found.evolutions],
        **_emitted(sensed, found),
    }


def json_schema(
    store: Store, pipeline: str, table: str, dialect: Dialect | None = None
) -> dict[str, Any]:
    """Return one table or JSON column as a JSON Schema.

    Args:
        store: the state store.
        pipeline: its name.
        table: see above.
        dialect: None: the one that the document names.

    Raises:
        SpecError: see ``schema``; or the document lets no JSON Schema be exported.
    """
    sensed = _Sensed(store, pipeline)
    if not sensed.settings.output.export_json_schema:
        raise SensingOffError(
            "spec.schema_sensing.output.export_json_schema is false: no JSON Schema is exported"
        )
    return _exported(sensed, sensed.named(table), dialect)


def classifications(store: Store, pipeline: str, table: str) -> dict[str, Any]:
    """Return which objects of a table are maps, whose keys are data, and which keys are fields.

    Of a table the objects in its JSON columns are among them, below the column's name.

    Raises:
        SpecError: see ``schema``.
    """
    sensed = _Sensed(store, pipeline)
    found = sensed.named(table)
    paths = {shown(known.path): _classified(known) for known in found.maps}
    for name, column in sensed.columns(found).items():
        paths.update({shown([name, *known.path]): _classified(known) for known in column.maps})
    return {"table": found.name, "paths": paths}


def stats(store: Store, pipeline: str) -> dict[str, Any]:
    """Return how well the structure cache does, by table and in total.

    Raises:
        SpecError: see ``schemas``.
    """
    tables = _Sensed(store, pipeline).tables
    rows = [table for table in tables if table.column is None]
    hits = sum(table.cache_hits for table in tables)
    misses = sum(table.cache_misses for table in tables)
    return {
        "tables": [
            {
                "table": table.name,
                "cached_structures": table.cached_structures,
                "max_cache_size": table.max_cache_size,
                "cache_hits": table.cache_hits,
                "cache_misses": table.cache_misses,
            }
            for table in tables
        ],
        "total_cache_hits": hits,
        "total_cache_misses": misses,
        "hit_rate": round(hits / (hits + misses), 4) if hits + misses else 0.0,
        "total_events_analyzed": sum(table.event_count for table in rows),
        "total_events_sampled": sum(table.sampled for table in rows),
        "cache_hits": hits,
        "cache_misses": misses,
        "tables_tracked": len(rows),
        "json_columns_tracked": len(tables) - len(rows),
    }


def structure_changes(store: Store, pipeline: str) -> list[dict[str, Any]]:
    """Return what came after the warm-up that it had not seen, by table and JSON column.

    ``drift_percentage`` is the share, 0 to 1, of the events looked at since then that have fields
    or types which the warm-up did not see. Above ``tracking.drift_threshold`` the table has
    drifted. Empty with ``tracking.detect_drift`` off.

    Raises:
        SpecError: see ``schemas``.
    """
    sensed = _Sensed(store, pipeline)
    tracking = sensed.settings.tracking
    if not tracking.detect_drift:
        return []
    return [
        {
            "table": table.table,
            "column": table.column,
            "has_drift": _share(table) > tracking.drift_threshold,
            "drift_percentage": round(_share(table), 4),
            "events_analyzed": table.sampled_late,
            "events_with_drift": table.drifted,
            "new_fields": [path for path, value in _places(table.root) if value.late],
            "removed_fields": [path for path, value in _places(table.root) if value.late_optional],
            "type_changes": [
                {"field": path, "types": value.types, "new_types": value.late_types}
                for path, value in _places(table.root)
                if value.late_types
            ],
            "changes": [
                _evolution(evolution) for evolution in table.evolutions if evolution.is_late
            ],
        }
        for table in sensed.tables
    ]


def _share(table: SensedTable) -> float:
    return table.drifted / table.sampled_late if table.sampled_late else 0.0


def _short_names(table: SensedTable) -> set[str]:
    """Return the other names of a record: without quotes, without the qualifier."""
    ending = "" if table.column is None else f":{table.column}"
    return {f"{name}{ending}" for name in short_names(table.table)}


def _summary(table: SensedTable) -> dict[str, Any]:
    return {
        "table": table.name,
        "fingerprint": f"sha256:{table.fingerprint}",
        "sequence": table.sequence,
        "event_count": table.event_count,
        "stabilized": table.stabilized,
        "first_seen": _timestamp(table.first_seen_ms),
        "last_seen": _timestamp(table.last_seen_ms),
        "events_sampled": table.sampled,
        "events_unreadable": table.unreadable,
        "events_passed_over": table.passed_over,
    }


def _emitted(sensed: _Sensed, table: SensedTable) -> dict[str, Any]:
    if not sensed.settings.output.emit_schemas:
        return {}
    return {"json_schema": _exported(sensed, table, None)}


def _exported(sensed: _Sensed, table: SensedTable, dialect: Dialect | None) -> dict[str, Any]:
    columns = {name: column.root for name, column in sensed.columns(table).items()}
    title = table.table if table.column is None else f"{table.table}.{table.column}"
    chosen = dialect or sensed.settings.output.json_schema_format
    return exported(table.root, title, chosen, columns)


def _field(name: str, value: SensedValue, inner: SensedValue) -> dict[str, Any]:
    """Return a field as the API shows it.

    Args:
        name: the field's.
        value: what was sensed of it among the others.
        inner: what was sensed of it alone, if it is a JSON column.
    """
    field: dict[str, Any] = {
        "name": name,
        "types": _types(value),
        "nullable": "null" in value.types,
        "optional": value.optional,
    }
    if inner.elements is not None:
        field["array_element_types"] = _types(inner.elements)
    if "object" in inner.types:
        field["nested_field_count"] = len(inner.fields)
        field["has_dynamic_fields"] = inner.dynamic is not None
    if value.seen:
        field["null_rate"] = round(value.nulls / value.seen, 4)
    for key, found in (
        ("minimum", value.minimum),
        ("maximum", value.maximum),
        ("min_length", value.shortest),
        ("max_length", value.longest),
    ):
        if found is not None:
            field[key] = found
    if is_enumeration(value):
        field["enum_values"] = sorted(value.values or ())
    return field


def is_enumeration(value: SensedValue) -> bool:
    """Return whether a field's strings are few and come again: each twice on average, at least."""
    counts = value.values
    if not counts or "string" not in value.types:
        return False
    return sum(counts.values()) >= 2 * len(counts)


def _types(value: SensedValue) -> list[str]:
    return [name for name in value.types if name != "null"] or list(value.types)


def _evolution(evolution: Evolution) -> dict[str, Any]:
    return {
        "sequence": evolution.sequence,
        "fingerprint": f"sha256:{evolution.fingerprint}",
        "at": _timestamp(evolution.at_ms),
        "added": list(evolution.added),
        "changed": list(evolution.changed),
    }


def _classified(known: SensedMap) -> dict[str, Any]:
    is_map = known.decided == "map"
    shown: dict[str, Any] = {
        "stable_fields": list(known.stable),
        "has_dynamic_fields": is_map,
        "objects": known.objects,
        "is_decided": known.decided is not None,
        "confidence": round(known.confidence, 4),
    }
    if is_map:
        shown |= {"unique_keys": known.unique_keys, "examples": list(known.examples)}
    return shown


def _places(value: SensedValue, path: tuple[str, ...] = ()) -> Iterator[tuple[str, SensedValue]]:
    for name, inner in value.fields.items():
        yield shown((*path, name)), inner
        yield from _places(inner, (*path, name))
    for name, below in ((DYNAMIC_KEY, value.dynamic), (ELEMENT_KEY, value.elements)):
        if below is not None:
            yield from _places(below, (*path, name))


def _timestamp(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
