"""Names with slashes in a path: copies that Airflow's tasks ask for, and odd names of tables."""

from urllib.parse import quote

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.storage.records.data_drift import DataDriftRecords, TableDataDrift
from airflow_provider_deltaforge.storage.records.sensing import (
    Evolution,
    SensedTable,
    SensedTables,
    SensedValue,
)
from tests.control.bench import DOCUMENT

ORDERS = "/pipelines/orders"
REQUEST = "airflow:shop/copy.orders/manual__2026-01-05T00:00:00+00:00/-1"
NAMES = ("a/b", "a//b/", "line\nfeed", "plain")


def encoded(name):
    return quote(name, safe="")


@pytest.fixture
def tables(server):
    """Tables that are registered and sensed, with drift, and the names of their columns."""
    pipelines.apply(server.store, DOCUMENT + "  schema_sensing: {enabled: true}\n")
    for name in NAMES:
        _register(server.store, name)
    return {name: f"only in {name}" for name in NAMES}


def _register(store, name):
    column = Column(
        name=f"only in {name}",
        column_type="bigint",
        data_type="bigint",
        nullable=False,
        ordinal_position=1,
    )
    schema = TableSchema("shop", None, name, (column,), (column.name,))
    Registry(store, "shop-db", "acme").register_all([(schema, {"tx": 4})])
    table, times = f"shop.{name}", {"first_seen_ms": 1000, "last_seen_ms": 2000}
    field = SensedValue(types=["integer"], seen=9)
    sensed = SensedTable(
        table=table,
        tenant="acme",
        root=SensedValue(types=["object"], fields={column.name: field}),
        evolutions=[Evolution(sequence=1, fingerprint="0b69", at_ms=1000)],
        sequence=1,
        fingerprint="0b69",
        event_count=9,
        **times,
    )
    drift = TableDataDrift(
        table=table,
        fingerprint="sha256:0b69",
        spec_hash="",
        since_ms=1000,
        events_analyzed=9,
        events_with_drift=0,
    )
    records = DataDriftRecords(store, "orders").put([drift])
    store.transact([SensedTables(store, "orders", "acme").put(sensed), *records])


@pytest.mark.parametrize("path", [encoded(REQUEST), REQUEST])
def test_a_copy_that_a_task_asked_for_is_read_and_withdrawn(rest, server, path):
    pipelines.apply(server.store, DOCUMENT)
    rest.post(f"{ORDERS}/snapshots", json={"tables": ["shop.orders"], "id": REQUEST})
    rest.post(f"{ORDERS}/snapshots", json={"id": "other"})

    assert rest.get(f"{ORDERS}/snapshots/{path}").json()["tables"] == ["shop.orders"]
    answer = rest.delete(f"{ORDERS}/snapshots/{path}")
    assert answer.json() == {"id": REQUEST, "withdrawn": True}
    requests = rest.get(f"{ORDERS}/snapshots").json()["requests"]
    assert [(each["id"], each["state"]) for each in requests] == [
        (REQUEST, "cancelled"),
        ("other", "pending"),
    ]


def test_tables_are_asked_for_by_any_name(rest, tables):
    for name, column in tables.items():
        schema = rest.get(f"{ORDERS}/schemas/shop/{encoded(name)}")
        versions = rest.get(f"{ORDERS}/schemas/shop/{encoded(name)}/versions")
        assert [each["name"] for each in schema.json()["columns"]] == [column]
        assert [each["version"] for each in versions.json()] == [1]

        table = encoded(f"shop.{name}")
        sensed = rest.get(f"{ORDERS}/sensing/schemas/{table}")
        described = rest.get(f"{ORDERS}/sensing/schemas/{table}/json-schema")
        classified = rest.get(f"{ORDERS}/sensing/schemas/{table}/classifications")
        assert [each["name"] for each in sensed.json()["fields"]] == [column]
        assert list(described.json()["properties"]) == [column]
        assert classified.json()["table"] == f"shop.{name}"

        drift = rest.get(f"{ORDERS}/drift/{table}")
        assert drift.json()["table"] == f"shop.{name}"


def test_a_reload_reaches_a_table_of_any_name(rest, tables):
    del tables
    for name in NAMES:
        answer = rest.post(f"{ORDERS}/schemas/shop/{encoded(name)}/reload")
        # The scripted source has a catalog of its own, which knows none of them.
        assert (answer.status_code, answer.json()["code"]) == (404, "TABLE_NOT_FOUND")


@pytest.mark.parametrize("place", ["snapshots", "drift", "sensing/schemas"])
def test_a_list_with_a_slash_behind_it_is_still_the_list(rest, tables, place):
    del tables
    answer = rest.get(f"{ORDERS}/{place}/")

    assert (answer.status_code, answer.headers["location"]) == (
        307,
        f"{rest.base_url}{ORDERS}/{place}",
    )


def test_metrics_call_a_route_as_the_description_does(rest, server):
    pipelines.apply(server.store, DOCUMENT)
    rest.get(f"{ORDERS}/snapshots/{encoded(REQUEST)}")

    route = "/pipelines/{name}/snapshots/{request_id}"
    assert f'route="{route}",status="404"' in rest.get("/metrics").text
    assert route in rest.get("/openapi.json").json()["paths"]
