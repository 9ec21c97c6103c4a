"""Routes of what rows really hold: sensed schemas, and data drift."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.control import data_drift, sensing
from airflow_provider_deltaforge.control.sensing import SensingOffError
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sensing.json_schema import Dialect
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry.redaction import redacted

_UNKNOWN = (404, "TABLE_NOT_FOUND")
_OFF = (409, "SENSING_OFF")
_SINCE = Query(
    description="only what was seen since: how long ago (`6h`), a time in ISO 8601, epoch seconds"
)

_QUOTES = frozenset({"samples", "examples", "enum_values", "minimum", "maximum"})
"""What quotes rows: for those who may read them."""

_SCHEMA = {
    "table": "shop.orders",
    "fingerprint": "sha256:a1b2c3d4e5f60718",
    "sequence": 3,
    "event_count": 1500,
    "stabilized": True,
    "first_seen": "2026-05-01T10:30:00.000Z",
    "last_seen": "2026-05-01T14:22:00.000Z",
}
_FIELDS = [
    {"name": "id", "types": ["integer"], "nullable": False, "optional": False},
    {
        "name": "metadata",
        "types": ["object"],
        "nullable": True,
        "optional": False,
        "nested_field_count": 5,
    },
]
_JSON_SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "shop.orders",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "metadata": {"type": ["object", "null"]}},
    "required": ["id", "metadata"],
}
_CLASSIFICATIONS = {
    "table": "shop.orders",
    "paths": {
        "sessions": {"stable_fields": [], "has_dynamic_fields": True, "unique_keys": 1523},
    },
}
_STATS = {
    "tables": [
        {
            "table": "shop.orders",
            "cached_structures": 3,
            "max_cache_size": 100,
            "cache_hits": 1450,
            "cache_misses": 50,
        }
    ],
    "total_cache_hits": 1450,
    "total_cache_misses": 50,
    "hit_rate": 0.9667,
}
_DRIFT = {
    "table": "shop.orders",
    "has_drift": True,
    "columns": [
        {
            "column": "amount",
            "expected_type": "decimal(10,2)",
            "observed_types": ["string"],
            "mismatch_count": 42,
            "examples": ['"12,50"'],
            "drift_types": ["type_mismatch"],
        }
    ],
    "events_analyzed": 1500,
    "events_with_drift": 42,
}


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/sensing`` and ``/pipelines/{name}/drift``."""
    router = APIRouter(prefix="/pipelines/{name}")
    _add_sensing(router, context)
    _add_drift(router, context)
    return router


def _add_sensing(router: APIRouter, context: ApiContext) -> None:
    shared: dict[str, Any] = {"tags": ["sensing"]}
    may_read = context.requires("read")
    shared["dependencies"] = [may_read]

    @router.get("/sensing/schemas", **shared, responses=_example([_SCHEMA]))
    def list_sensed_schemas(name: str) -> list[dict[str, Any]]:
        """Return what was sensed of each table and of each JSON column."""
        with _asked(context, name) as store:
            return sensing.schemas(store, name)

    @router.get(
        "/sensing/schemas/{table:slashed}/json-schema", **shared, responses=_example(_JSON_SCHEMA)
    )
    def get_json_schema(
        name: str,
        table: str,
        draft: Annotated[
            Literal["07", "2020-12"] | None, Query(description="which JSON Schema is written")
        ] = None,
    ) -> dict[str, Any]:
        """Return what was sensed as JSON Schema, in the draft that the document names."""
        dialect: Dialect | None = "draft-07" if draft == "07" else draft
        with _asked(context, name, table) as store:
            return sensing.json_schema(store, name, table, dialect)

    @router.get(
        "/sensing/schemas/{table:slashed}/classifications",
        **shared,
        responses=_example(_CLASSIFICATIONS),
    )
    def get_classifications(name: str, table: str, caller: Caller = may_read) -> dict[str, Any]:
        """Return which objects are maps, whose keys are data, and which keys are fields."""
        with _asked(context, name, table) as store:
            found = sensing.classifications(store, name, table)
            paths = {
                path: _for(caller, store, name, known) for path, known in found["paths"].items()
            }
        return {**found, "paths": paths}

    @router.get(
        "/sensing/schemas/{table:slashed}",
        **shared,
        responses=_example({**_SCHEMA, "fields": _FIELDS}),
    )
    def get_sensed_schema(name: str, table: str, caller: Caller = may_read) -> dict[str, Any]:
        """Return the fields of a table (`shop.orders`) or JSON column (`shop.orders:metadata`)."""
        with _asked(context, name, table) as store:
            found = sensing.schema(store, name, table)
            fields = [_for(caller, store, name, field) for field in found["fields"]]
        return {**found, "fields": fields}

    @router.get("/sensing/stats", **shared, responses=_example(_STATS))
    def get_sensing_stats(name: str) -> dict[str, Any]:
        """Return how often a structure was known already."""
        with _asked(context, name) as store:
            return sensing.stats(store, name)


def _add_drift(router: APIRouter, context: ApiContext) -> None:
    shared: dict[str, Any] = {"tags": ["drift"]}
    may_read = context.requires("read")
    shared["dependencies"] = [may_read]

    @router.get("/drift", **shared, responses=_example([_DRIFT]))
    def list_drift(
        name: str,
        since: Annotated[str | None, _SINCE] = None,
        caller: Caller = may_read,
    ) -> list[dict[str, Any]]:
        """Return where events differ from what the catalog and sensing say, by table."""
        since_ms = data_drift.since_ms(since)
        with _asked(context, name) as store:
            tables = data_drift.drift(store, name, since_ms)
            return [_drift_for(caller, store, name, table) for table in tables]

    @router.get("/drift/{table:slashed}", **shared, responses=_example(_DRIFT))
    def get_drift(
        name: str,
        table: str,
        since: Annotated[str | None, _SINCE] = None,
        caller: Caller = may_read,
    ) -> dict[str, Any]:
        """Return the same of one table, `orders` or `shop.orders`."""
        since_ms = data_drift.since_ms(since)
        with _asked(context, name, table) as store:
            found = data_drift.table_drift(store, name, table, since_ms)
            return _drift_for(caller, store, name, found)


@contextmanager
def _asked(context: ApiContext, name: str, table: str | None = None) -> Iterator[Store]:
    """Open the store for a question about a pipeline, which may know no such table."""
    with context.open_store() as store:
        require_pipeline(store, name)
        try:
            yield store
        except SensingOffError as error:
            raise ApiError(*_OFF, redacted(str(error))) from error
        except SpecError as error:
            if table is None:
                raise
            raise ApiError(*_UNKNOWN, redacted(str(error))) from error


def _for(caller: Caller, store: Store, name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a caller may see of something that may quote rows."""
    record = Control(store, name).read()
    if caller.may("read_rows", record.owner if record is not None else None):
        return dict(found)
    return {key: value for key, value in found.items() if key not in _QUOTES}


def _drift_for(caller: Caller, store: Store, name: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return a table's drift as a caller may see it."""
    columns = [_for(caller, store, name, column) for column in table["columns"]]
    records = [{"samples": [], **_for(caller, store, name, r)} for r in table["records"]]
    return {**table, "columns": columns, "records": records}


def _example(answer: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"application/json": {"example": answer}}}}
