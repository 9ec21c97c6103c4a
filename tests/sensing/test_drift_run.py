"""Data drift from real databases through the lane to what people are shown."""

import json

import pytest
import yaml

from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.storage.records.data_drift import DataDriftRecords
from tests.sensing.drift_run import DriftRun, by_column, mysql_source, postgres_source
from tests.servers import sql
from tests.sources.postgres import stream_reading as postgres_reading
from tests.waiting import wait_for

SCRIPT = """
function processBatch(events) {
  return events.filter(event => event.after.id !== 8).map(event => {
    const row = event.after;
    if (row.id === 3) row.amount = Number(row.amount);
    if (row.id === 4) { row.n = String(row.n); row.extra = {seen: true}; }
    if (row.id === 5) row.n = row.n * 1000000;
    if (row.id === 6) row.name = null;
    if (row.id === 7) row.state = "unknown";
    return event;
  });
}
"""


@pytest.fixture
def shop(mysql_server):
    """An empty database with one table."""
    sql.execute(mysql_server, "DROP DATABASE IF EXISTS drift", "CREATE DATABASE drift")
    sql.execute(
        mysql_server,
        "CREATE TABLE orders (id bigint unsigned PRIMARY KEY, n int, amount decimal(10,2), "
        "name varchar(20) NOT NULL, state enum('new','paid'), email varchar(50), spare int)",
        database="drift",
    )
    return mysql_server


def insert(server, *ids):
    rows = ", ".join(f"({i}, 5000, 9.50, 'ada', 'new', 'a@b.example', 1)" for i in ids)
    sql.execute(server, f"INSERT INTO orders VALUES {rows}", database="drift")


def test_what_a_script_makes_of_rows_is_found_and_shown(shop):
    drops = "function processBatch(es) { es.forEach(e => delete e.after.spare); return es; }"
    run = DriftRun(
        mysql_source(shop, "drift"),
        processors=[
            {"type": "javascript", "id": "odd", "inline": SCRIPT},
            {"type": "mask", "rules": [{"columns": ["drift.orders.email"], "action": "redact"}]},
            {"type": "javascript", "id": "short", "inline": drops},
        ],
    ).start()
    insert(shop, *range(1, 9))
    with run.rest() as client:
        answer = run.wait_analyzed(client, "orders", 8)
        assert client.get("/drift").json() == [answer]
        assert client.get("/drift/drift.orders").json() == answer
        missing = client.get("/drift/others")
        assert (missing.status_code, missing.json()["code"]) == (404, "TABLE_NOT_FOUND")
        assert missing.json()["error"] == "no drift data for table others (known: drift.orders)"
        assert client.get("/drift", params={"since": "x"}).status_code == 400
    run.stop()
    run.authority = lambda request, right: Caller("reader", lambda right, owner: right == "read")
    with run.rest() as client:
        without = client.get("/drift/orders").json()
        fields = client.get("/sensing/schemas/orders").json()["fields"]
    assert {found["column"] for found in without["columns"]} == {
        found["column"] for found in answer["columns"]
    }
    assert not any(record["samples"] for record in without["records"])
    assert not any("examples" in column for column in without["columns"])
    assert not any("enum_values" in field for field in fields)

    assert (answer["table"], answer["has_drift"]) == ("drift.orders", True)
    # Every event that is delivered lacks a column that none has had.
    assert (answer["events_analyzed"], answer["events_with_drift"]) == (8, 7)
    records = by_column(answer)
    shown = {key: (r["expected"], r["observed"], r["count"]) for key, r in records.items()}
    assert shown == {
        ("n", "type_mismatch"): ("int", "string", 1),
        ("n", "value_out_of_range"): ("int", "integer", 1),
        ("name", "unexpected_null"): ("NOT NULL", "NULL", 1),
        ("state", "value_out_of_range"): ("enum('new','paid')", "string", 1),
        ("extra", "undeclared_column"): ("no such column", "object", 1),
        ("spare", "missing_column"): ("int", "absent", 7),
    }
    assert records["n", "type_mismatch"]["samples"] == ['"5000"']
    assert records["extra", "undeclared_column"]["samples"] == ['{"seen":true}']
    assert records["n", "value_out_of_range"]["samples"] == ["5000000000"]
    assert (answer["unexpected_nulls"], answer["type_mismatches"]) == (1, 1)
    assert (answer["undeclared_columns"], answer["missing_columns"]) == (1, 1)
    assert answer["values_out_of_range"] == 2
    assert answer["high_null_columns"] == ["name"]
    (column,) = [column for column in answer["columns"] if column["column"] == "n"]
    assert column == {
        "column": "n",
        "expected_type": "int",
        "observed_types": ["string", "integer"],
        "mismatch_count": 2,
        "examples": ['"5000"', "5000000000"],
        "drift_types": ["type_mismatch", "value_out_of_range"],
    }


def test_counts_outlive_the_driver_and_begin_anew_with_the_document(shop):
    upper = "function processBatch(es) { es.forEach(e => { e.after.n = `${e.after.n}`; }); "
    processors = [{"type": "javascript", "id": "text", "inline": upper + "return es; }"}]
    run = DriftRun(mysql_source(shop, "drift"), processors).start()
    with run.rest() as client:
        insert(shop, 1, 2)
        assert run.wait_analyzed(client, "orders", 2)["type_mismatches"] == 2
        run.stop()
        run.start()
        insert(shop, 3)
        answer = run.wait_analyzed(client, "orders", 3)
        assert (answer["type_mismatches"], answer["events_with_drift"]) == (3, 3)
        run.stop()
        assert run.status_counts() == {"drift.orders": {"type_mismatch": 3}}

        run.spec["processors"] = []
        run.apply()
        run.start()
        insert(shop, 4)
        wait_for("another count", lambda: client.get("/drift/orders").json()["events_analyzed"] < 3)
        answer = client.get("/drift/orders").json()
        assert (answer["has_drift"], answer["columns"], answer["events_with_drift"]) == (
            *(False, []),
            0,
        )
        run.stop()
        # What is counted for graphs only rises.
        assert run.status_counts() == {"drift.orders": {"type_mismatch": 3}}


def test_a_null_of_the_source_is_found(postgres_server):
    server, database = postgres_server, "drift_nulls"
    postgres_reading.fresh(server, database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    run = DriftRun(postgres_source(server, database), name=database).start()
    run.stop()
    # Written before the catalog forbids it, and read after.
    postgres_reading.execute(
        server,
        *("INSERT INTO t VALUES (1, NULL), (2, 'x')", "UPDATE t SET v = 'y' WHERE id = 1"),
        "ALTER TABLE t ALTER v SET NOT NULL",
        database=database,
    )
    run.start()
    with run.rest() as client:
        answer = run.wait_analyzed(client, "t", 3)
    run.stop()
    postgres_reading.drop(server, database)

    assert answer["table"] == "public.t"
    assert (answer["events_analyzed"], answer["events_with_drift"]) == (3, 1)
    assert [(c["column"], c["expected_type"], c["mismatch_count"]) for c in answer["columns"]] == [
        ("v", "NOT NULL", 1)
    ]


def test_a_snapshot_is_looked_at_as_well(shop):
    insert(shop, *range(1, 31))
    script = "function processBatch(es) { es.forEach(e => { e.after.name = 7; }); return es; }"
    source = mysql_source(shop, "drift", snapshot={"mode": "initial", "chunk_size": 10})
    run = DriftRun(source, [{"type": "javascript", "id": "js", "inline": script}]).start()
    insert(shop, 31)
    with run.rest() as client:
        answer = run.wait_analyzed(client, "orders", 31)
    run.stop()
    assert (answer["events_analyzed"], answer["type_mismatches"]) == (31, 31)


def test_what_is_not_asked_for_says_which_key_to_set(shop):
    run = DriftRun(mysql_source(shop, "drift"), sensing={"enabled": False})
    routes = ("/drift", "/drift/t", "/sensing/schemas", "/sensing/stats", "/sensing/schemas/t")
    with run.rest() as client:
        for route in routes:
            answer = client.get(route)
            assert (answer.status_code, answer.json()["code"]) == (409, "SENSING_OFF"), route
            assert "spec.schema_sensing.enabled" in answer.json()["error"]
        run.spec["schema_sensing"] = {"enabled": True, "tracking": {"detect_drift": False}}
        run.apply()
        answer = client.get("/drift")
        assert answer.status_code == 409
        assert "spec.schema_sensing.tracking.detect_drift" in answer.json()["error"]
    assert DataDriftRecords(run.store, run.name).all() == {}
    assert json.loads(answer.text)["code"] == "SENSING_OFF"


PRODUCTS = """
CREATE TABLE products (
    id SERIAL PRIMARY KEY,
    name TEXT NOT NULL,
    sku TEXT UNIQUE,
    price DECIMAL(10,2),
    metadata JSONB,
    specifications JSONB,
    created_at TIMESTAMPTZ DEFAULT NOW(),
    updated_at TIMESTAMPTZ DEFAULT NOW()
)
"""
SENSING = """
enabled: true
deep_inspect:
  enabled: true
  max_depth: 5
  max_sample_size: 500
sampling:
  warmup_events: 100
  sample_rate: 20
  structure_cache: true
  structure_cache_size: 100
tracking:
  detect_drift: true
  drift_threshold: 0.1
output:
  emit_schemas: true
  json_schema_format: draft-07
"""
"""The block of the documents' example page."""

INSERT = """
INSERT INTO products (name, sku, price, metadata, specifications)
SELECT 'Wireless Headphones', 'WH-' || i, 299.99, {metadata}, '{{"battery_life_hours": 30}}'
  FROM generate_series({first}, {last}) i
"""


def test_the_documents_example_of_a_json_column_that_drifts(postgres_server):
    server, database = postgres_server, "drift_products"
    postgres_reading.fresh(server, database, PRODUCTS)
    run = DriftRun(
        postgres_source(server, database), sensing=yaml.safe_load(SENSING), name=database
    ).start()
    plain = """'{"brand": "AudioTech", "tags": ["wireless"], "ratings": {"count": 1250}}'"""
    drifted = """'{"brand": "AudioTech", "tags": [], "promotion": "x", "seasonal": true}'"""

    def insert(first, last, metadata):
        statement = INSERT.format(first=first, last=last, metadata=metadata)
        postgres_reading.execute(server, statement, database=database)

    with run.rest() as client:
        insert(1, 100, plain)
        before = run.wait_analyzed(client, "public.products", 100)
        insert(101, 400, plain)
        insert(401, 700, drifted)
        run.wait_analyzed(client, "products", 700)
        wait_for("drift", lambda: client.get("/drift/products").json()["has_drift"])
        run.stop()
        answer = client.get("/drift/public.products").json()
    postgres_reading.drop(server, database)

    assert (before["has_drift"], before["columns"]) == (False, [])
    assert (answer["events_analyzed"], answer["json_structure_changes"]) == (700, 1)
    ((column, drift_type),) = by_column(answer)
    assert (column, drift_type) == ("metadata", "json_structure_change")
    (record,) = answer["records"]
    assert record["new_fields"] == ["promotion", "seasonal"]
    assert record["removed_fields"] == ["ratings"]
    # Of those that are looked at when the warm-up is over, half.
    assert 0.4 < record["drift_percentage"] < 0.6
    assert [found["column"] for found in answer["columns"]] == ["metadata"]
