"""What is found in events that differ from what the catalog says of their table."""

import json

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.processors.mask.settings import Mask
from airflow_provider_deltaforge.sensing.data_drift.detector import HIDDEN, SAMPLE_CHARACTERS
from airflow_provider_deltaforge.sensing.data_drift.findings import combined
from tests.sensing.drift_rows import SHOP, detector, drift, rows

CLEAN = {
    "id": 2**64 - 1,
    "n": -(2**31),
    "amount": "99999999.99",
    "name": "üé😀ab",
    "state": "é😀",
    "flags": "a,b c",
    "f": 1e-300,
    "on": True,
    "b": {"_base64": "AA=="},
    "j": [{"any": "thing"}],
}


def with_(**changes):
    return {**CLEAN, **changes}


def test_a_row_as_the_catalog_says_is_clean():
    text = json.dumps(CLEAN, indent=1).encode()  # With spaces, escapes and another order.
    turned = json.dumps(dict(reversed(CLEAN.items())), ensure_ascii=False).encode()
    (found,) = detector().examine(batch := rows(CLEAN, text, turned), batch)
    assert (found.table, found.events, found.drifted) == ("shop.orders", 3, 0)
    assert (found.columns, found.absent, found.unlisted) == ((), {}, 0)


@pytest.mark.parametrize(
    ("column", "value", "drift_type", "observed"),
    [
        ("id", None, "unexpected_null", "NULL"),
        ("name", None, "unexpected_null", "NULL"),
        ("id", "17", "type_mismatch", "string"),
        ("id", 1.5, "type_mismatch", "number"),
        ("id", True, "type_mismatch", "boolean"),
        ("id", -1, "value_out_of_range", "integer"),
        ("id", 2**64, "value_out_of_range", "integer"),
        ("n", 2**31, "value_out_of_range", "integer"),
        ("n", -(2**31) - 1, "value_out_of_range", "integer"),
        ("n", 10**40, "value_out_of_range", "integer"),
        ("n", [1], "type_mismatch", "array"),
        ("amount", "abc", "type_mismatch", "string"),
        ("amount", "", "type_mismatch", "string"),
        ("amount", {}, "type_mismatch", "object"),
        ("amount", "100000000.00", "value_out_of_range", "string"),
        ("amount", "0.125", "value_out_of_range", "string"),
        ("amount", 0.125, "value_out_of_range", "number"),
        ("name", 12, "type_mismatch", "integer"),
        ("name", {"a": 1}, "type_mismatch", "object"),
        ("name", "abcdef", "value_out_of_range", "string"),
        ("name", "üüüüüü", "value_out_of_range", "string"),
        ("state", "old", "value_out_of_range", "string"),
        ("state", "new,new", "value_out_of_range", "string"),
        ("flags", "a,b", "value_out_of_range", "string"),
        ("flags", "a,", "value_out_of_range", "string"),
        ("f", "1.5", "type_mismatch", "string"),
        ("on", 128, "value_out_of_range", "integer"),
        ("b", {"a": 1}, "type_mismatch", "object"),
        ("new", 1, "undeclared_column", "integer"),
        ("new", None, "undeclared_column", "null"),
    ],
)
def test_a_value_that_does_not_fit(column, value, drift_type, observed):
    found = drift(rows(CLEAN, with_(**{column: value})))
    assert list(found) == [(column, drift_type)]
    finding = found[column, drift_type]
    assert (finding.count, finding.observed) == (1, (observed,))
    if drift_type != "unexpected_null":
        shown = json.dumps(value, separators=(",", ":"))
        assert finding.samples == (shown,)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *[(name, None) for name in CLEAN if name not in ("id", "name")],
        ("amount", 12.5),
        ("amount", -1),
        ("amount", "-0.10"),
        ("amount", "NaN"),
        ("amount", "00000000001.500"),
        ("amount", 1e3),
        ("name", "NULL"),
        ("state", ""),
        ("state", "?"),
        ("flags", ""),
        ("f", 7),
        ("on", 1),
        ("b", "text"),
        ("j", None),
        ("n", {"_unchanged": True}),
    ],
)
def test_a_value_that_fits(column, value):
    assert drift(rows(with_(**{column: value}))) == {}


def test_a_row_counts_once_however_much_is_wrong_with_it():
    bad = with_(id=None, n="1", new=2)
    (found,) = detector().examine(batch := rows(CLEAN, bad, bad), batch)
    assert (found.events, found.drifted) == (3, 2)
    assert {(f.column, f.drift_type): f.count for f in found.columns} == {
        ("id", "unexpected_null"): 2,
        ("n", "type_mismatch"): 2,
        ("new", "undeclared_column"): 2,
    }


def test_columns_that_are_not_there_are_counted():
    short = {"id": 1, "name": "a"}
    (found,) = detector().examine(batch := rows(CLEAN, short, short), batch)
    assert found.drifted == 0
    assert found.absent == {
        column.name: (2, column.column_type) for column in SHOP.columns if column.name not in short
    }


@pytest.mark.parametrize("image", [b"[1]", b"1", b"", b"{", b'{"id"', b'{"id":1', b"{}x", None])
def test_what_is_no_row_is_not_looked_at(image):
    (found,) = detector().examine(batch := rows(CLEAN, image, CLEAN), batch)
    assert (found.events, found.drifted, found.columns) == (2, 0, ())


def test_undeclared_columns_beyond_the_limit_are_counted_together():
    batch = rows(*(with_(**{f"key{i}": i, 'é"\n': 0}) for i in range(100)))
    (found,) = detector().examine(batch, batch)
    assert (len(found.columns), found.unlisted, found.drifted) == (64, 37, 100)
    counts = {finding.column: finding.count for finding in found.columns}
    assert counts['é"\n'] == 100


def test_samples_are_few_short_and_different():
    names = ["x" * 400, *(f"longer than it may be {i % 7}" for i in range(50))]
    finding = drift(rows(*(with_(name=name) for name in names)))["name", "value_out_of_range"]
    assert (finding.count, len(finding.samples)) == (51, 5)
    assert len(finding.samples[0]) == SAMPLE_CHARACTERS
    assert finding.samples[0].endswith("…")
    assert len(set(finding.samples)) == 5


def test_a_sample_shows_no_secret():
    bad = with_(
        n="postgres://df:hunter2@db/shop", api_token="hunter2", more={"password": "hunter2"}
    )
    found = drift(rows(bad))
    assert "hunter2" not in repr(found)
    assert found["api_token", "undeclared_column"].samples == (HIDDEN,)
    assert drift(rows(bad), tracking={"drift_samples": False})["n", "type_mismatch"].samples == ()


def test_a_masked_column_is_judged_before_it_is_masked():
    source = rows(with_(n=1), with_(n=2**31), with_(name=None), CLEAN)
    masked = rows(*(with_(n="***", name="***") for _ in range(4)))
    (found,) = detector(processors=True, hidden=("n", "name")).examine(source, masked)
    assert (found.events, found.drifted) == (4, 2)
    assert {(f.column, f.drift_type): (f.count, f.samples) for f in found.columns} == {
        ("n", "value_out_of_range"): (1, (HIDDEN,)),
        ("name", "unexpected_null"): (1, ()),
    }


def test_nulls_of_the_source_count_also_where_a_processor_fills_or_drops_them():
    source = rows(with_(name=None), with_(name=None), with_(name=None), CLEAN)
    # The first is passed on, the second filled in, the third dropped; the last becomes null.
    left = rows(with_(name=None), with_(name="?"), with_(name=None))
    (found,) = detector(processors=True).examine(source, left, np.array([0, 1, 3]))
    (finding,) = found.columns
    assert (finding.column, finding.drift_type, finding.count) == ("name", "unexpected_null", 4)
    assert (found.events, found.drifted) == (4, 4)


def test_events_that_a_processor_makes_or_drops_are_counted():
    source = rows(CLEAN, CLEAN, CLEAN)
    copies = rows(CLEAN, with_(n="x"), CLEAN, CLEAN)
    (found,) = detector(processors=True).examine(source, copies, np.array([0, 0, 0, 2]))
    assert (found.events, found.drifted) == (5, 1)
    (found,) = detector(processors=True).examine(source, rows(CLEAN).slice(0, 0), np.array([]))
    assert (found.events, found.drifted) == (3, 0)


def test_only_rows_are_looked_at():
    found_by = detector()
    for fields in (
        {"table": "others"},
        {"schema": "__outbox"},
        {"routing": {"raw_payload": True}},
    ):
        batch = rows(with_(id="x"), fields=fields)
        assert found_by.examine(batch, batch) == []
    batch = rows(None, fields={"op": "d", "before": json.dumps(with_(id="x")).encode()})
    assert found_by.examine(batch, batch) == []
    batch = rows(with_(id="x"), fields={"routing": {"topic": "t"}})
    assert [f.drifted for f in found_by.examine(batch, batch)] == [1]


@pytest.mark.parametrize(
    ("tables", "events"),
    [
        ({"include": ["orders"]}, 1),
        ({"include": ["shop.ord%"]}, 1),
        ({"include": ["order"]}, 0),
        ({"exclude": ["shop.orders"]}, 0),
        ({"include": ["*"], "exclude": ["ord*"]}, 0),
    ],
)
def test_the_tables_that_sensing_names_are_looked_at(tables, events):
    batch = rows(with_(id="x"))
    assert sum(f.events for f in detector(tables=tables).examine(batch, batch)) == events


def test_each_row_is_held_to_its_own_schema():
    later = TableSchema("shop", None, "orders", (*SHOP.columns, Column("new", "int", "int")))
    other = TableSchema("shop", None, "t", (Column("id", "varchar", "varchar(9)"),))
    batch = pa.Table.from_batches(
        [
            rows(CLEAN),
            rows(with_(new=1)),
            rows(with_(new="1"), with_(new=1), schema=later),
            rows({"id": "a"}, {"id": 1}, schema=other),
        ]
    ).unify_dictionaries().combine_chunks().to_batches()[0]  # fmt: skip
    found = detector(SHOP, later, other).examine(batch, batch)
    assert [(f.table, f.events, f.drifted) for f in found] == [
        ("shop.orders", 2, 1),
        ("shop.orders", 2, 1),
        ("shop.t", 2, 1),
    ]
    assert [[(c.column, c.drift_type) for c in f.columns] for f in found] == [
        [("new", "undeclared_column")],
        [("new", "type_mismatch")],
        [("id", "type_mismatch")],
    ]


def test_a_table_without_columns_or_with_odd_names():
    names = ['a"b\\c', "ü", "a b", "\x01", "", "😀"]
    odd = TableSchema("d", None, "t", tuple(Column(name, "int", "int") for name in names))
    escaped = json.dumps(dict.fromkeys(names, 1)).encode()
    plain = json.dumps(dict.fromkeys(names, 1), ensure_ascii=False).encode()
    (found,) = detector(odd).examine(batch := rows(escaped, plain, schema=odd), batch)
    assert (found.events, found.drifted, found.absent) == (2, 0, {})

    empty = TableSchema("d", None, "e", ())
    batch = rows({"a": 1}, schema=empty)
    assert detector(empty).examine(batch, batch) == []


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        (Column("c", "integer", "integer", type_oid=23, udt_name="int4"), 2**31, False),
        (Column("c", "boolean", "boolean", type_oid=16, udt_name="bool"), 1, False),
        (Column("c", "integer[]", "integer[]", type_oid=1007, is_array=True), [1, None], True),
        (Column("c", "integer[]", "integer[]", type_oid=1007, is_array=True), "{1}", False),
        (Column("c", "bit", "bit(3)", type_oid=1560, udt_name="bit"), 8, False),
        (Column("c", "bit", "bit(3)", type_oid=1560, udt_name="bit"), 7, True),
        (Column("c", "real", "real", type_oid=700, udt_name="float4"), "-Infinity", True),
        (Column("c", "mood", "mood", type_oid=20000, udt_name="int4"), "sad", True),
        (Column("c", "numeric", "numeric(3,-2)", type_oid=1700, udt_name="numeric",
                numeric_precision=3, numeric_scale=-2), "12300", True),
        (Column("c", "numeric", "numeric(3,-2)", type_oid=1700, udt_name="numeric",
                numeric_precision=3, numeric_scale=-2), "123400", False),
    ],
)  # fmt: skip
def test_types_of_postgres(column, value, fits):
    table = TableSchema("shop", "public", "t", (column,))
    batch = rows({"c": value}, schema=table)
    (found,) = detector(table, type_system="postgresql").examine(batch, batch)
    assert (found.table, found.drifted) == ("public.t", 0 if fits else 1)


@pytest.mark.parametrize(
    ("affinity", "value", "fits"),
    [
        ("integer", "seven", False),
        ("integer", 7, True),
        ("real", 7, True),
        ("real", "x", False),
        ("text", 7, False),
        ("numeric", "2024-01-01", True),
        ("blob", 7, True),
    ],
)
def test_affinities_of_turso(affinity, value, fits):
    table = TableSchema("main", None, "t", (Column("c", affinity, affinity.upper()),))
    batch = rows({"c": value}, schema=table)
    (found,) = detector(table, type_system="turso").examine(batch, batch)
    assert found.drifted == (0 if fits else 1)


def test_findings_add_up():
    parts = [rows(with_(n="1")), rows(with_(n="2"), {"id": 1, "name": "a"}), rows(with_(new=1))]
    found = [detector().examine(part, part)[0] for part in parts]
    (whole,) = combined(found, 5)
    (at_once,) = detector().examine(
        batch := rows(with_(n="1"), with_(n="2"), {"id": 1, "name": "a"}, with_(new=1)), batch
    )
    assert whole == at_once


def test_a_mask_hides_the_columns_that_its_rules_name():
    mask = Mask(
        rules=[
            {"columns": ["*.orders.NAME"], "action": "redact"},
            {"columns": ["shop.*.j.inner.field"], "action": "redact"},
        ]
    )
    assert [c.name for c in SHOP.columns if mask.hides(SHOP, c.name)] == ["name", "j"]


def test_what_becomes_of_outbox_messages_is_not_held_to_their_tables_columns():
    source = rows(with_(), fields={"schema": "__outbox"})
    left = rows({"customer": 1, "total": "9.90"})
    assert detector(processors=True).examine(source, left) == []
