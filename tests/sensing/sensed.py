"""A sensor over rows of the test's own making."""

import json
import time
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sensing.sensor import SchemaSensor
from airflow_provider_deltaforge.spec.sensing import SchemaSensing
from airflow_provider_deltaforge.storage.records.sensing import SensedTable

CATALOG = {"id": "int", "name": "varchar", "price": "decimal", "notes": "text", "data": "json"}
"""Columns of every table that the catalog knows, and their types."""


def settings(**changed: Any) -> SchemaSensing:
    return SchemaSensing.model_validate({"enabled": True, **changed})


class Sensed:
    """Observes batches, and shows the records."""

    def __init__(
        self,
        *,
        catalog=None,
        known=(),
        clock=time.perf_counter,
        cost=time.thread_time,
        **changed: Any,
    ) -> None:
        self._catalog = CATALOG if catalog is None else catalog
        self.sensor = SchemaSensor(
            settings(**changed), "acme", self._schema, known, clock=clock, cost=cost
        )

    def observe(self, *images: Any, table="orders", db="shop", op="c", unchanged=None) -> None:
        """Observe one batch of rows: objects, or JSON texts."""
        rows = [image if isinstance(image, bytes) else text(image) for image in images]
        self.sensor.observe(batch([(db, table, row) for row in rows], op, unchanged))

    def records(self) -> dict[str, SensedTable]:
        return {record.name: record for _, record in self.sensor.unwritten(0, 0)}

    def record(self, name="shop.orders:data") -> SensedTable:
        return self.records()[name]

    def _schema(self, db, schema, table, _version) -> TableSchema | None:
        if not self._catalog:
            return None
        columns = tuple(Column(name, kind, kind) for name, kind in self._catalog.items())
        return TableSchema(db, schema, table, columns)


def batch(rows, op="c", unchanged=None) -> pa.RecordBatch:
    """Return change events of (database, table, row image)."""
    count = len(rows)
    made = {
        "op": pa.array([op] * count),
        "db": pa.array([db for db, _, _ in rows]),
        "table": pa.array([table for _, table, _ in rows]),
        "after": pa.array([after for _, _, after in rows], pa.binary()),
        "ts_ms": pa.array([0] * count),
        "tx": pa.array([0] * count, pa.int32()),
        "row": pa.array(range(count), pa.int32()),
        "tx_end": pa.array([True] * count),
        "event_id": pa.array([bytes(16)] * count, pa.binary(16)),
        "unchanged": pa.array([unchanged] * count, pa.binary()),
    }
    columns = []
    for field in CHANGE_SCHEMA:
        column = made.get(field.name, pa.nulls(count))
        is_coded = pa.types.is_dictionary(field.type)
        columns.append(column.dictionary_encode() if is_coded and field.name in made else column)
        columns[-1] = columns[-1].cast(field.type)
    return pa.RecordBatch.from_arrays(columns, schema=CHANGE_SCHEMA)


def text(image: Any) -> bytes | None:
    return None if image is None else json.dumps(image, ensure_ascii=False).encode()
