"""What the tests of schemas register, and find again, one by one."""

from typing import Any

from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.schemas.versions import Version


def register(registry: Registry, schema: TableSchema, position: Any = None, **more: Any) -> Version:
    """Register one schema, and return its version."""
    return registry.register_all([(schema, position)], **more)[0]


def find(registry: Registry, schema: TableSchema) -> Version | None:
    """Return the version that a schema is; None when it was never registered."""
    versions = registry.versions(schema.db, schema.schema, schema.table)
    known = (v for v in versions if v.schema.fingerprint == schema.fingerprint)
    return next(known, None)
