"""Change events for tests of data drift, and detectors that know their tables."""

import json

import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sensing.data_drift.detector import DriftDetector, DriftSettings
from airflow_provider_deltaforge.spec.sensing import SchemaSensing

SHOP = TableSchema(
    "shop",
    None,
    "orders",
    (
        Column("id", "bigint", "bigint unsigned", nullable=False, unsigned=True),
        Column("n", "int", "int"),
        Column("amount", "decimal", "decimal(10,2)", numeric_precision=10, numeric_scale=2),
        Column("name", "varchar", "varchar(5)", nullable=False, char_max_length=5),
        Column("state", "enum", "enum('new','é😀','?')", labels=("new", "é?", "?")),
        Column("flags", "set", "set('a','b c')", labels=("a", "b c")),
        Column("f", "double", "double"),
        Column("on", "tinyint", "tinyint(1)"),
        Column("b", "blob", "blob"),
        Column("j", "json", "json"),
    ),
    ("id",),
)


def rows(*images, schema=SHOP, fields=None):
    """Return change events with these images, as objects or as JSON text; ``fields`` are more."""
    texts = [json.dumps(i, separators=(",", ":")).encode() if isinstance(i, dict) else i
             for i in images]  # fmt: skip
    event = {"op": "c", "db": schema.db, "schema": schema.schema, "table": schema.table}
    event |= {"ts_ms": 1, "row": 0, "tx_end": True, "event_id": bytes(16)}
    event |= {"schema_version": schema.fingerprint, **(fields or {})}
    events = [{**event, "tx": tx, "after": text} for tx, text in enumerate(texts)]
    return pa.RecordBatch.from_pylist(events, schema=CHANGE_SCHEMA)


def detector(*schemas, type_system="mysql", processors=False, hidden=(), **sensing):
    """Return a detector that knows some tables; ``hidden`` are names of masked columns."""
    known = {(s.db, s.schema, s.table, s.fingerprint): s for s in schemas or [SHOP]}
    settings = DriftSettings(
        SchemaSensing(enabled=True, **sensing),
        type_system,
        processors,
        lambda _, column: column in hidden,
    )
    return DriftDetector(settings, lambda *key: known.get(key))


def drift(batch, **settings):
    """Return what is found in a batch of one table: (column, type) to finding."""
    (found,) = detector(**settings).examine(batch, batch)
    return {(finding.column, finding.drift_type): finding for finding in found.columns}
