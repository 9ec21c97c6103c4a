"""Routes of the tables' schemas: how they are registered, and since when."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import answering
from airflow_provider_deltaforge.control import schemas
from airflow_provider_deltaforge.control.schemas import SchemaVersionQuery

_UNKNOWN = (404, "TABLE_NOT_FOUND")


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/schemas``."""
    router = APIRouter(prefix="/pipelines/{name}/schemas", tags=["schemas"])
    may_read, may_operate = context.requires("read"), context.requires("operate")

    @router.get("", dependencies=[may_read])
    def list_schemas(name: str) -> list[dict[str, Any]]:
        """Return every registered table of the source."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return schemas.schemas(store, name)

    @router.post("/reload", dependencies=[may_operate])
    def reload_schemas(name: str) -> dict[str, Any]:
        """Register what the source's catalog says now."""
        context.require_servers()
        with context.open_store() as store:
            require_pipeline(store, name)
            return schemas.reload(store, name)

    @router.get("/{db}/{table:slashed}/versions", dependencies=[may_read])
    def list_versions(name: str, db: str, table: str) -> list[dict[str, Any]]:
        """Return when each version of a table came into force."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(*_UNKNOWN):
                return schemas.versions(store, name, f"{db}.{table}")

    @router.post("/{db}/{table:slashed}/reload", dependencies=[may_operate])
    def reload_schema(name: str, db: str, table: str) -> dict[str, Any]:
        """Register what the source's catalog says of one table now, and return it."""
        context.require_servers()
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(*_UNKNOWN):
                schemas.reload(store, name, f"{db}.{table}")
                return _detail(schemas.schema(store, name, f"{db}.{table}"))

    @router.get("/{db}/{table:slashed}", dependencies=[may_read])
    def get_schema(
        name: str,
        db: str,
        table: str,
        version: Annotated[int | None, Query()] = None,
        at: Annotated[str | None, Query(description="a time in ISO 8601")] = None,
        sequence: Annotated[int | None, Query(description="`schema_sequence` of an event")] = None,
    ) -> dict[str, Any]:
        """Return one table's columns: as registered last, or at some version, time or event."""
        which = SchemaVersionQuery.of(version, at, sequence)
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(*_UNKNOWN):
                return _detail(schemas.schema(store, name, f"{db}.{table}", which))

    return router


def _detail(found: dict[str, Any]) -> dict[str, Any]:
    """Return a table's schema; its columns bear the names of both generations of the API."""
    columns = [
        {**column, "type": column["column_type"], "default": column["default_value"]}
        for column in found["columns"]
    ]
    return {**found, "columns": columns}
