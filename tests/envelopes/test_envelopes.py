import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.columns.binary_columns import uuid_texts
from airflow_provider_deltaforge.columns.row_texts import (
    chosen_from,
    digits_of,
    join,
    per_combination,
)
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.envelopes.debezium import DebeziumEnvelope
from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.envelopes.changes import ORIGIN, slow_cloudevent, slow_debezium, slow_native

GOLDEN = Path(__file__).parent.parent / "golden" / "envelopes"
PREFIX = "com.acme.cdc"
ENVELOPES = {
    "native": (NativeEnvelope(), slow_native),
    "debezium": (DebeziumEnvelope(), slow_debezium),
    "cloudevents": (
        CloudEventsEnvelope(type_prefix=PREFIX),
        lambda row, origin: slow_cloudevent(row, origin, PREFIX),
    ),
}
POSTGRES = {"db": "warehouse", "schema": "shop", "tx_id": "742", "schema_sequence": 3}
LSN = b'"lsn":"0/16B3748","txId":742'
CASES = {
    "insert": change(),
    "insert_ends_transaction": change(row=2, tx_end=True),
    "update": change(op="u", before=b'{"id":1,"sku":"sku-0","total":"12.50"}'),
    "delete": change(op="d", before=b'{"id":1,"sku":"sku-1","total":"12.50"}', after=None),
    "snapshot": change(op="r", tx_id=None, source_position=None, tx_end=True),
    "truncate": change(op="t", after=None, key=None, ddl=b'{"sql":"TRUNCATE","cascade":false}'),
    "ddl": change(
        op="ddl",
        table="_ddl",
        after=None,
        key=None,
        tx_id=None,
        schema_version=None,
        schema_sequence=None,
        ddl=b'{"sql":"ALTER TABLE orders ADD note TEXT","database":"shop"}',
    ),
    "postgres_delete": change(
        op="d", before=b'{"id":1,"sku":null}', after=None, source_position=LSN, **POSTGRES
    ),
    "tags_and_synthetic": change(tags=["vip", 'a "quoted" one'], synthetic="splitter"),
    "unchanged": change(
        op="u",
        after=b'{"id":1,"big":{"_unchanged":true},"j":{"_unchanged": true}}',
        unchanged=b'["big"]',
        source_position=LSN,
        **POSTGRES,
    ),
    "strange_names": change(db='sh"op', table="commandes d'été\\", tx_id='a"b'),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ENVELOPES)
def test_golden(name, case, golden):
    envelope, _ = ENVELOPES[name]

    (text,) = envelope.wrap(change_rows([CASES[case]]), ORIGIN).to_pylist()

    json.loads(text)
    golden(GOLDEN / name / f"{case}.json", text + b"\n")


@pytest.mark.parametrize("name", ENVELOPES)
def test_no_rows_give_no_texts(name):
    envelope, _ = ENVELOPES[name]

    assert envelope.wrap(change_rows([]), ORIGIN).to_pylist() == []


@pytest.mark.parametrize("name", ENVELOPES)
def test_description_travels_to_another_process(name):
    envelope, _ = ENVELOPES[name]

    assert pickle.loads(pickle.dumps(envelope)) == envelope


def test_the_documented_key_order_of_a_native_event():
    (text,) = NativeEnvelope().wrap(change_rows([CASES["insert_ends_transaction"]]), ORIGIN)

    event = json.loads(text.as_py())

    assert list(event) == [
        *("before", "after", "source", "op", "ts_ms", "transaction", "event_id", "tenant_id"),
        *("schema_version", "schema_sequence", "tx_end"),
    ]
    assert list(event["source"]) == [
        *("version", "connector", "name", "ts_ms", "db", "table"),
        *("server_id", "gtid", "file", "pos", "row"),
    ]
    assert event["transaction"] == {"id": CASES["insert"]["tx_id"], "total_order": 3}


def test_a_cloudevent_needs_its_type_prefix():
    with pytest.raises(ValueError, match="type_prefix"):
        CloudEventsEnvelope()


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), min_size=1, max_size=8)
TEXT = st.one_of(st.none(), NAMES)
IMAGE = st.one_of(st.none(), st.just(b'{"id":1}'), st.just('{"n":"é😀"}'.encode()))
CHANGES = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["c", "u", "d", "r", "t", "ddl"]),
        "db": NAMES,
        "schema": TEXT,
        "table": NAMES,
        "before": IMAGE,
        "after": IMAGE,
        "key": IMAGE,
        "ts_ms": st.integers(0, 4_102_444_799_999),
        "tx": st.integers(0, 3),
        "row": st.integers(0, 2_000_000_000),
        "tx_id": TEXT,
        "tx_end": st.booleans(),
        "event_id": st.binary(min_size=16, max_size=16),
        "source_position": st.sampled_from([None, b'"lsn":"0/1"', b'"file":"b.1","pos":4']),
        "schema_version": TEXT,
        "schema_sequence": st.one_of(st.none(), st.integers(0, 2**63 - 1)),
        "ddl": st.sampled_from([None, b'{"sql":"DROP TABLE t"}']),
        "tags": st.one_of(st.none(), st.lists(NAMES, max_size=2)),
        "routing": st.none(),
        "synthetic": TEXT,
    }
)


@pytest.mark.parametrize("name", ENVELOPES)
@given(changes=st.lists(CHANGES, min_size=1, max_size=6), data=st.data())
@settings(max_examples=120, deadline=None)
def test_columns_equal_a_row_by_row_rendering(name, changes, data):
    envelope, slow = ENVELOPES[name]
    start = data.draw(st.integers(0, len(changes) - 1))

    texts = envelope.wrap(change_rows(changes).slice(start), ORIGIN).to_pylist()

    expected = [slow(row, ORIGIN) for row in changes[start:]]
    assert [json.loads(text) for text in texts] == [json.loads(text) for text in expected]
    assert [text.decode() for text in texts] == expected


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_dictionary_may_be_a_slice_of_a_longer_one(name):
    """As the Arrow function of a Python processor may return it."""
    changes = [change(tx=n, tx_id=f"t{n}", source_position=b'"pos":%d' % n) for n in range(3)]
    rows = change_rows(changes)
    for at, column in enumerate(rows.columns):
        if isinstance(column, pa.DictionaryArray):
            own = column.dictionary
            longer = pa.concat_arrays([pa.array(["before"], own.type), own]).slice(1)
            shared = pa.DictionaryArray.from_arrays(column.indices, longer)
            rows = rows.set_column(at, rows.schema.field(at), shared)

    texts = ENVELOPES[name][0].wrap(rows, ORIGIN)

    assert texts.equals(ENVELOPES[name][0].wrap(change_rows(changes), ORIGIN))


def test_ids_of_a_slice_are_its_own():
    rows = change_rows([change(event_id=bytes([n] * 16)) for n in range(3)])

    assert uuid_texts(rows.slice(2)["event_id"]).to_pylist() == [
        b"02020202-0202-0202-0202-020202020202"
    ]


def test_many_combinations_are_sorted_instead_of_counted():
    names = [f"t{n}" for n in range(300)]
    rows = change_rows([change(db=name, table=name, tx_id=name) for name in names])

    texts = per_combination([rows["db"], rows["table"], rows["tx_id"]], lambda *v: v[2].encode())

    assert join([texts], len(names)).to_pylist() == [name.encode() for name in names]


def test_a_choice_by_narrow_numbers():
    column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), pa.array(["a", "b"]))

    texts = chosen_from(pa.array([b"x", None, b"z"]), column)

    assert join([b"<", texts, b">"], 3).to_pylist() == [b"<null>", b"<z>", b"<x>"]


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_a_number_is_written_with_what_is_added(kind):
    numbers = pa.array([5, None, -1, 2**31 - 1], kind)

    assert join([digits_of(numbers, plus=1)], 4).to_pylist() == [b"6", b"null", b"0", b"2147483648"]
    assert join([digits_of(numbers.slice(2))], 2).to_pylist() == [b"-1", b"2147483647"]


def test_more_text_than_a_column_can_hold_is_refused():
    with pytest.raises(FatalError, match=r"batch\.max_bytes"):
        join([b"x" * (1 << 20)], 2048)


@pytest.mark.parametrize(
    ("ts_ms", "time"),
    [
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-62_135_596_800_001, None),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_cloudevent_has_a_time_only_if_it_can_be_written(ts_ms, time):
    envelope = CloudEventsEnvelope(type_prefix="com.acme")
    rows = change_rows([change(), change(ts_ms=ts_ms), change()])
    first, found, last = map(json.loads, envelope.wrap(rows, ORIGIN).to_pylist())
    assert found.get("time") == time
    assert list(first) == list(last) != []
    assert first["time"] == "2023-11-14T22:13:20.000Z"
    assert [name for name in first if name != "time"] == [n for n in found if n != "time"]
