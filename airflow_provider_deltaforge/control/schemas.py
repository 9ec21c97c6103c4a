"""The schemas of a pipeline's tables, as people ask for them.

The shapes are those of the REST API: ``database``, ``table``, ``columns``, ``registry_version`` and
so on, with ``schema`` where the source has schemas.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.events.position import Position
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import is_named
from airflow_provider_deltaforge.schemas.registry import Registry, named
from airflow_provider_deltaforge.schemas.versions import TableName, Version, name_of
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class SchemaVersionQuery:
    """Which version of a table: by at most one of these; the latest without any."""

    version: int | None = None
    at_ms: int | None = None
    sequence: int | None = None

    @classmethod
    def of(cls, version: int | None, at: str | None, sequence: int | None) -> "SchemaVersionQuery":
        """Check what a person wrote.

        Args:
            version: a version's number.
            at: a time in ISO 8601; UTC if it names no zone.
            sequence: a ``schema_sequence`` of an event.

        Raises:
            SpecError: more than one was given, or the time is none.
        """
        if sum(choice is not None for choice in (version, at, sequence)) > 1:
            raise SpecError("give one of version, at and sequence; each says which version alone")
        return cls(version, None if at is None else _milliseconds(at), sequence)

    def among(self, registry: Registry, name: TableName) -> Version | None:
        """Return the version that is asked for."""
        if self.version is not None:
            return registry.version(*name, self.version)
        if self.at_ms is not None:
            return registry.at_time(*name, self.at_ms)
        if self.sequence is not None:
            return registry.at_sequence(*name, self.sequence)
        return registry.latest(*name)


def schemas(store: Store, pipeline: str) -> list[dict[str, Any]]:
    """Return every registered table of a pipeline's source, as it was registered last.

    Raises:
        SpecError: there is no such pipeline.
    """
    return [_summary(version) for version in _registry(store, pipeline).all()]


def schema(
    store: Store, pipeline: str, table: str, asked: SchemaVersionQuery | None = None
) -> dict[str, Any]:
    """Return one table's schema with its columns.

    Args:
        store: the state store.
        pipeline: its name.
        table: ``orders`` or ``shop.orders``.
        asked: which version; the latest if absent.

    Raises:
        SpecError: there is no such pipeline, table or version.
    """
    registry = _registry(store, pipeline)
    name = named(registry, table)
    found = (asked or SchemaVersionQuery()).among(registry, name)
    if found is None:
        known = ", ".join(str(version.number) for version in registry.versions(*name))
        raise SpecError(f"{table}: no such version was registered (known: {known})")
    return _detail(found)


def versions(store: Store, pipeline: str, table: str) -> list[dict[str, Any]]:
    """Return a table's history: one line whenever a version came into force.

    Raises:
        SpecError: there is no such pipeline or table.
    """
    registry = _registry(store, pipeline)
    return [
        {
            "version": entry.number,
            "fingerprint": entry.fingerprint,
            "sequence": entry.sequence,
            "column_count": len(entry.schema.columns),
            "registered_at": _timestamp(entry.registered_at_ms),
            "position": None if entry.position is None else dict(entry.position),
        }
        for entry in registry.entries(*named(registry, table))
    ]


def reload(store: Store, pipeline: str, table: str | None = None) -> dict[str, Any]:
    """Register what the source's catalog says now.

    A running lane goes on with what is in force where it reads.

    Args:
        store: the state store.
        pipeline: its name; ``${VAR}`` in its document is resolved in this process.
        table: only this one.

    Raises:
        SpecError: there is no such pipeline or table.
        RetryableError: the server is away, or altered its tables all the time.
    """
    began = time.monotonic()
    document = _document(store, pipeline, expand=True)
    source: Source = document.spec.source
    registry = _registry(store, pipeline)
    found, position = _settled(source)
    if table is not None:
        found = [schema for schema in found if is_named(schema.full_name, (table,))]
        if not found:
            raise SpecError(f"the source captures no table {table!r}")
    former = [registry.latest(*name_of(schema)) for schema in found]
    registry.register_all([(schema, position) for schema in found], compare=source.compare)
    reloaded = [
        {
            **_place(schema),
            "status": "ok",
            "changed": was is None or was.fingerprint != schema.fingerprint,
            "error": None,
        }
        for schema, was in zip(found, former, strict=True)
    ]
    return {
        "pipeline": pipeline,
        "tables_reloaded": len(reloaded),
        "tables": reloaded,
        "elapsed_ms": int((time.monotonic() - began) * 1000),
    }


def _settled(source: Source) -> tuple[Sequence[TableSchema], Position]:
    """Return how tables look, and a position at which they did: none changed around it."""
    before = source.describe()
    for _ in range(_ATTEMPTS):
        position = source.head()
        after = source.describe()
        if list(after) == list(before):
            return after, position
        before = after
    raise RetryableError("tables were altered while they were described; reload again")


def _document(store: Store, pipeline: str, *, expand: bool) -> Pipeline:
    text = existing(store, pipeline).document()
    if text is None:
        raise SpecError(f"pipeline {pipeline!r} has no document in this state store; apply it")
    return load(text, expand=expand)


def registered_tables(store: Store, pipeline: Pipeline) -> list[TableSchema]:
    """Return the tables of a pipeline's source by name, as they were registered last."""
    registry = Registry(store, pipeline.spec.source.id, pipeline.metadata.tenant)
    return sorted((each.schema for each in registry.all()), key=lambda table: table.full_name)


def _registry(store: Store, pipeline: str) -> Registry:
    document = _document(store, pipeline, expand=False)
    return Registry(store, document.spec.source.id, document.metadata.tenant)


def _place(table: TableSchema) -> dict[str, Any]:
    schema = {} if table.schema is None else {"schema": table.schema}
    return {"database": table.db, **schema, "table": table.table}


def _summary(version: Version) -> dict[str, Any]:
    table = version.schema
    return {
        **_place(table),
        "column_count": len(table.columns),
        "primary_key": list(table.primary_key),
        "fingerprint": version.fingerprint,
        "registry_version": version.number,
        "sequence": version.sequence,
    }


def _detail(version: Version) -> dict[str, Any]:
    table = version.schema
    keys = ("name", "column_type", "data_type", "nullable", "ordinal_position", "default_value")
    columns = [
        {
            **{key: getattr(column, key) for key in keys},
            "extra": column.extra,
            "is_primary_key": column.name in table.primary_key,
        }
        for column in table.columns
    ]
    loaded_at = _timestamp(version.registered_at_ms)
    position = None if version.position is None else dict(version.position)
    return {**_summary(version), "columns": columns, "loaded_at": loaded_at, "position": position}


def _timestamp(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1000, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise SpecError(f"{text!r} is no time; write 2026-05-01T12:00:00 or add a zone") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return int(moment.timestamp() * 1000)
