"""What people are told of data drift: from the records of a store alone."""

import json

import pytest
from typer.testing import CliRunner

from airflow_provider_deltaforge.cli.app import app
from airflow_provider_deltaforge.control import conditions, data_drift, pipelines
from airflow_provider_deltaforge.control.sensing import SensingOffError
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.data_drift import (
    ColumnDrift,
    DataDriftRecords,
    TableDataDrift,
)
from airflow_provider_deltaforge.storage.records.sensing import (
    Evolution,
    SensedTable,
    SensedTables,
    SensedValue,
)

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: acme}
spec:
  source: {type: scripted, config: {id: shop-db}}
  sinks: [{type: memory, config: {id: out, log: orders}}]
  schema_sensing: {enabled: true}
"""
MAY = 1_777_636_800_000
"""2026-05-01T12:00:00Z in ms."""


def column(name, drift_type, count=1, **more):
    times = {"first_seen_ms": MAY, "last_seen_ms": MAY + 60_000}
    texts = {"expected": "int", "observed": ["string"], "samples": ['"x"']}
    return ColumnDrift(
        column=name, drift_type=drift_type, count=count, **{**times, **texts, **more}
    )


def record(table, *columns, events=1000, drifted=0):
    return TableDataDrift(
        table=table,
        fingerprint="sha256:1",
        spec_hash="1",
        since_ms=MAY,
        events_analyzed=events,
        events_with_drift=drifted,
        last_drift_ms=MAY if columns else None,
        columns=list(columns),
    )


def sensed(table, column_name, drifted, late=100):
    brand = SensedValue(["string", "integer"], seen=9, late_types=["integer"])
    value = SensedValue(["object"], fields={"brand": brand})
    value.fields["promotion"] = SensedValue(["string", "null"], late=True)
    return SensedTable(
        tenant="acme",
        table=table,
        column=column_name,
        fingerprint="0" * 16,
        sequence=2,
        sampled_late=late,
        drifted=drifted,
        first_seen_ms=MAY,
        last_seen_ms=MAY,
        root=value,
        evolutions=[
            Evolution(sequence=1, fingerprint="1" * 16, at_ms=MAY),
            Evolution(
                sequence=2,
                fingerprint="0" * 16,
                at_ms=MAY + 1000,
                added=["promotion"],
                changed=["brand"],
                is_late=True,
            ),
        ],
    )


@pytest.fixture
def dsn(tmp_path):
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def store(dsn):
    store = StoreLocation.from_dsn(dsn).create()
    pipelines.apply(store, DOCUMENT)
    yield store
    store.close()


@pytest.fixture
def keep(store):
    """Keeps records."""

    def keep(*records):
        drift = [found for found in records if isinstance(found, TableDataDrift)]
        others = [found for found in records if isinstance(found, SensedTable)]
        store.transact(DataDriftRecords(store, "orders").put(drift))
        store.transact([SensedTables(store, "orders", "acme").put(found) for found in others])

    return keep


def test_a_table_without_drift_is_shown_as_the_documents_do(store, keep):
    keep(record("shop.orders"))
    answer = data_drift.table_drift(store, "orders", "orders")
    shown = {"table", "has_drift", "columns", "events_analyzed", "events_with_drift"}
    assert {key: answer[key] for key in shown} == {
        "table": "shop.orders",
        "has_drift": False,
        "columns": [],
        "events_analyzed": 1000,
        "events_with_drift": 0,
    }


def test_one_column_that_drifts_in_two_ways_is_one_column(store, keep):
    keep(
        record(
            "shop.orders",
            column("n", "unexpected_null", 2, expected="NOT NULL", observed=["NULL"], samples=[]),
            column("n", "type_mismatch", 40),
            column("m", "unexpected_null", 1, expected="NOT NULL", observed=["NULL"], samples=[]),
            drifted=42,
        )
    )
    (answer,) = data_drift.drift(store, "orders")
    assert answer["columns"][0] == {
        "column": "n",
        "expected_type": "int",
        "observed_types": ["NULL", "string"],
        "mismatch_count": 42,
        "examples": ['"x"'],
        "drift_types": ["unexpected_null", "type_mismatch"],
    }
    assert (answer["total_drift_events"], answer["unexpected_nulls"]) == (43, 3)
    # More than one of a thousand.
    assert answer["high_null_columns"] == ["n"]


@pytest.mark.parametrize(
    ("count", "before", "has_drift"), [(10, 0, False), (101, 0, True), (10, 950, True)]
)
def test_new_columns_drift_above_the_threshold_since_the_first_of_them(
    store, keep, count, before, has_drift
):
    keep(record("shop.orders", column("new", "undeclared_column", count, events_before=before)))
    (answer,) = data_drift.drift(store, "orders")
    assert (answer["has_drift"], bool(answer["columns"])) == (has_drift, has_drift)
    assert answer["undeclared_columns"] == 1
    (shown,) = answer["records"]
    assert (shown["is_drift"], shown["share"]) == (has_drift, count / (1000 - before))


@pytest.mark.parametrize(("drifted", "has_drift"), [(10, False), (15, True)])
def test_the_structure_of_a_json_column_changes(store, keep, drifted, has_drift):
    keep(record("shop.orders"), sensed("shop.orders", "metadata", drifted))
    keep(sensed("shop.orders", None, 0), sensed("shop.others", "j", 0))
    orders, others = data_drift.drift(store, "orders")
    assert (orders["has_drift"], orders["json_structure_changes"]) == (has_drift, 1)
    assert orders["events_with_drift"] == (drifted if has_drift else 0)
    (shown,) = orders["records"]
    assert (shown["column"], shown["drift_type"]) == ("metadata", "json_structure_change")
    assert (shown["new_fields"], shown["type_changes"]) == (
        ["promotion"],
        ["brand: string -> integer"],
    )
    assert (shown["drift_percentage"], shown["first_seen"]) == (
        drifted / 100,
        "2026-05-01T12:00:01.000Z",
    )
    assert (others["table"], others["events_analyzed"]) == ("shop.others", 100)


def test_what_was_not_seen_since_is_left_out(store, keep):
    keep(record("shop.orders", column("n", "type_mismatch")), sensed("shop.orders", "j", 90))
    for since, drifts in (
        ("2026-05-01T12:00:00Z", ["j", "n"]),
        ("2026-05-01T12:00:30", ["n"]),
        ("1777636920", []),
        ("1h", []),
    ):
        (answer,) = data_drift.drift(store, "orders", data_drift.since_ms(since))
        assert sorted(found["column"] for found in answer["columns"]) == drifts, since
        assert answer["has_drift"] == bool(drifts)
    with pytest.raises(SpecError, match="no time"):
        data_drift.since_ms("tomorrow")


def test_a_table_is_named_as_people_do(store, keep):
    keep(record("shop.orders"), record("crm.orders"), record('"a.b".t'))
    for name in ("shop.orders", '"a.b".t', "a.b.t", "t"):
        assert data_drift.table_drift(store, "orders", name)["table"] in ("shop.orders", '"a.b".t')
    with pytest.raises(SpecError, match=r"names several tables.*crm.orders, shop.orders"):
        data_drift.table_drift(store, "orders", "orders")
    with pytest.raises(SpecError, match="no drift data for table nothing"):
        data_drift.table_drift(store, "orders", "nothing")


@pytest.mark.parametrize(
    ("sensing", "key"),
    [
        ("{enabled: false}", "spec.schema_sensing.enabled"),
        ("{enabled: true, tracking: {detect_drift: false}}", "tracking.detect_drift"),
        ("{enabled: true, output: {expose_api: false}}", "output.expose_api"),
    ],
)
def test_what_is_switched_off_names_its_key(store, sensing, key):
    pipelines.apply(store, DOCUMENT.replace("{enabled: true}", sensing))
    with pytest.raises(SensingOffError, match=key):
        data_drift.drift(store, "orders")


def test_conditions_to_wait_for(store, keep):
    def look(condition):
        found = conditions.look(store, "orders", condition)
        return found.met, found.words

    keep(record("shop.orders"), record("shop.t", column("n", "type_mismatch", 2)))
    assert look(conditions.no_drift())[0] is None
    assert look(conditions.no_drift())[1] == "data drift: shop.t: type_mismatch of n"
    assert look(conditions.no_drift(("orders",))) == (True, "no data drift was seen")
    assert look(conditions.no_drift(("t",)))[0] is None
    assert look(conditions.no_drift((), MAY + 60_001))[0] is True
    assert look(conditions.drift_seen()) == (True, "data drift: shop.t: type_mismatch of n")
    assert look(conditions.drift_seen(("orders",))) == (False, "no data drift was seen")
    pipelines.apply(store, DOCUMENT.replace("enabled: true", "enabled: false"))
    assert look(conditions.no_drift())[0] is None
    assert "spec.schema_sensing.enabled" in look(conditions.no_drift())[1]


def run(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_the_commands_print_tables_and_json(dsn, store, keep):
    keep(record("shop.orders", column("n", "type_mismatch", 42), drifted=42))
    keep(sensed("shop.orders", None, 0), sensed("shop.orders", "metadata", 90))
    shown = run("drift", "orders", "--store", dsn)
    assert shown.exit_code == 0
    assert all(word in shown.output for word in ("shop.orders", "type_mismatch", "1,000", "42"))
    assert run("drift", "orders", "--store", dsn, "--fail").exit_code == 1
    assert run("drift", "orders", "--store", dsn, "--fail", "--since", "1h").exit_code == 0
    answer = json.loads(run("drift", "orders", "orders", "--store", dsn, "--json").output)
    assert answer == data_drift.table_drift(store, "orders", "orders")

    listed = run("sense", "orders", "--store", dsn)
    assert "shop.orders:metadata" in listed.output
    assert "brand" in run("sense", "orders", "orders:metadata", "--store", dsn).output
    schema = run("sense", "orders", "orders", "--json-schema", "draft-07", "--store", dsn)
    assert json.loads(schema.output)["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert run("sense", "orders", "orders", "--maps", "--store", dsn).exit_code == 0
    tables = json.loads(run("sense", "orders", "--json", "--store", dsn).output)
    assert [found["table"] for found in tables] == ["shop.orders", "shop.orders:metadata"]
    for wrong in (["--maps"], ["orders", "--maps", "--json-schema", "draft-07"]):
        assert isinstance(run("sense", "orders", "--store", dsn, *wrong).exception, SpecError)
