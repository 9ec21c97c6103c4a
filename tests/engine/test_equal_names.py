"""The tables ("a.b", "c") and ("a", "b.c") share no record, though both are written a.b.c."""

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.processor_stats import BatchStats, EventCounts
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch
from airflow_provider_deltaforge.engine.read.registrar import registry_of
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.registry import named
from airflow_provider_deltaforge.sources.scripted import ScriptedSnapshotter
from airflow_provider_deltaforge.sources.shared.table_chunks import TableRange
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.engine.in_process import InProcess

TABLES = (("a.b", "c"), ("a", "b.c"))
FIRST, SECOND = '"a.b".c', 'a."b.c"'


@pytest.fixture
def pipeline():
    return InProcess(snapshot="initial")


def test_a_killed_snapshot_copies_the_other_one_still(pipeline, monkeypatch):
    ranges = [TableRange("db", schema, table, {"columns": ("id",)}) for schema, table in TABLES]
    monkeypatch.setattr(
        ScriptedSnapshotter, "plan", lambda *_: (c for r in ranges for c in r.chunks([], 5))
    )
    context = pipeline.context()
    plan = SnapshotRun(context).prepare()
    records = Snapshots(pipeline.store, pipeline.name)
    (chunk,) = plan.remaining[FIRST]
    pipeline.store.transact([records.chunk_done(plan.run.id, chunk.id, FIRST, 5, {"tx": 1})])

    (left,) = SnapshotRun(context).prepare().remaining.values()
    assert [(chunk.schema, chunk.table) for chunk in left] == [("a", "b.c")]
    shown = records.progress()["tables"]
    assert {name: counts["chunks_done"] for name, counts in shown.items()} == {FIRST: 1, SECOND: 0}


def test_events_are_counted_apart():
    rows = [
        {"op": "c", "db": "db", "schema": schema, "table": table, "ts_ms": 1}
        for schema, table in TABLES
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)

    counted = EventCounts.of([BatchStats.of(batch, 1, 0.0)])
    assert counted.by_table == {(FIRST, "c"): 1, (SECOND, "c"): 1}


def test_a_stop_of_one_leaves_the_schema_of_the_other_trusted(pipeline):
    context = pipeline.context()
    registry = registry_of(context)
    column = Column("id", "int", "int")
    schemas = [TableSchema("db", schema, table, (column,)) for schema, table in TABLES]
    registry.register_all([(schema, {"tx": 1}) for schema in schemas])
    stop = TableRecords(pipeline.store, pipeline.name).stop(schemas[0].full_name, "why", 9)
    pipeline.store.transact([stop])
    history = TableWatch(context, registry).history()

    assert history.schema_at("db", "a.b", "c", {"tx": 2}) is None
    assert history.schema_at("db", "a", "b.c", {"tx": 2}) == schemas[1]


def test_a_person_can_name_one_of_them(pipeline):
    registry = registry_of(pipeline.context())
    for schema, table in TABLES:
        registry.register_all([(TableSchema("db", schema, table, ()), None)])

    assert named(registry, FIRST) == ("db", "a.b", "c")
    assert named(registry, SECOND) == ("db", "a", "b.c")
    with pytest.raises(SpecError, match=r'write one of db\.a\."b\.c", db\."a\.b"\.c'):
        named(registry, "a.b.c")
