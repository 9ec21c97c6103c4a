"""The writers of columns, against fastavro and Python's own calendar; and what is refused."""

import io
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.encodings.avro import AvroEncoding, binary, scalars
from airflow_provider_deltaforge.encodings.avro.column_types import Modes
from airflow_provider_deltaforge.encodings.avro.names import apart, is_legal
from airflow_provider_deltaforge.encodings.contract import EncoderRequest
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.encodings import avro_page
from tests.encodings.avro_reading import Writing

LONGS = st.integers(-(2**63), 2**63 - 1)
WIDE = st.integers(-(10**38) + 1, 10**38 - 1)
ROUTED = {"topic": None, "key": None, "headers": None, "raw_payload": True}


def by_fastavro(kind, values):
    written = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, {"type": kind}, value)
        written.append(out.getvalue())
    return written


@given(st.lists(LONGS, max_size=9))
@settings(deadline=None)
def test_integers_are_as_fastavro_writes_them(numbers):
    assert binary.integers(np.array(numbers, np.int64)).to_pylist() == by_fastavro("long", numbers)


@given(st.lists(st.text() | st.none(), max_size=9))
@settings(deadline=None)
def test_texts_are_as_fastavro_writes_them(texts):
    found = binary.texts(pa.array(texts, pa.utf8())).to_pylist()

    assert [text for text in found if text is not None] == by_fastavro(
        "string", [text for text in texts if text is not None]
    )
    assert [text is None for text in found] == [text is None for text in texts]


@given(st.lists(WIDE | st.sampled_from([0, -1, 127, 128, -128, -129, 2**63, -(2**63)])))
@settings(deadline=None)
def test_wide_numbers_take_the_fewest_bytes(numbers):
    low = np.array([number & (2**64 - 1) for number in numbers], np.uint64)
    high = np.array([number >> 64 for number in numbers], np.int64)
    found = binary.big_endian(low, high).to_pylist()

    assert [int.from_bytes(text, "big", signed=True) for text in found] == numbers
    for text, number in zip(found, numbers, strict=True):
        bits = number.bit_length() if number >= 0 else (number + 1).bit_length()
        assert len(text) == bits // 8 + 1


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@given(st.lists(st.datetimes(datetime(1, 1, 1)), min_size=1))
@settings(deadline=None)
def test_clocks_agree_with_the_calendar_of_python(found):
    texts = pa.array([each.isoformat() + "Z" for each in found])
    micros, good = scalars.instants(texts)
    days, good_days = scalars.days(pa.array([each.date().isoformat() for each in found]))
    times, good_times = scalars.times(pa.array([each.time().isoformat() for each in found]))

    assert good.all()
    assert good_days.all()
    assert good_times.all()
    for each, micro, day, since_midnight in zip(found, micros, days, times, strict=True):
        exact = each.replace(tzinfo=timezone.utc) - EPOCH
        assert micro == (exact.days * 86_400 + exact.seconds) * 1_000_000 + exact.microseconds
        assert day == (each.date() - date(1970, 1, 1)).days
        assert since_midnight == micro - day * 86_400_000_000
    assert time(0, 0) is not None


@given(st.lists(st.text(alphabet="0123456789-:T.Zé ", max_size=32), min_size=1))
@settings(deadline=None)
def test_clocks_take_nothing_that_is_no_date(texts):
    column = pa.array(texts)
    for read, parse in (
        (scalars.days, date.fromisoformat),
        (scalars.times, time.fromisoformat),
        (scalars.instants, datetime.fromisoformat),
    ):
        for text, good in zip(texts, read(column)[1].tolist(), strict=True):
            if good:
                parse(text.removesuffix("Z"))


@pytest.mark.parametrize(
    "text",
    ["2023-02-29", "1900-02-29", "2024-13-01", "2024-00-15", "0000-01-01", "0000-00-00", ""],
)
def test_days_that_no_calendar_has_are_none(text):
    assert scalars.days(pa.array([text, "2000-02-29", None]))[1].tolist() == [False, True, False]


def test_columns_whose_names_become_the_same_keep_enums_of_their_own():
    columns = (
        Column("a b", "enum", "enum('x','y')", labels=("x", "y")),
        Column("a_u0020b", "enum", "enum('p','q')", labels=("p", "q")),
    )
    table = TableSchema("shop", None, "orders", columns, ())
    writing = Writing("mysql", [table], modes=Modes(enum="enum"))
    image = b'{"a b":"y","a_u0020b":"q"}'

    (found,) = writing.read(change_rows([change(after=image, schema_version=table.fingerprint)]))

    assert found["after"] == {"a_u0020b": "y", "a_u0020b_2": "q", "_raw": None}


def test_a_cloud_event_of_a_year_that_its_time_cannot_say_has_none():
    envelope = {"type": "cloudevents", "type_prefix": "com.acme"}
    writing = Writing("mysql", envelope=envelope)

    known, unknown = writing.read(change_rows([change(), change(ts_ms=253_402_300_800_000)]))

    assert known["time"] == "2023-11-14T22:13:20.000Z"
    assert unknown["time"] is None
    assert known["id"] == unknown["id"]


def test_names_stay_apart_and_legal():
    names = apart(["id", "sp ace", "sp_u0020ace", "1st", "ü", "", "Id"])

    assert names == ["id", "sp_u0020ace", "sp_u0020ace_2", "_1st", "_u00fc", "_", "Id"]
    assert all(map(is_legal, names))


TABLE = TableSchema(
    "shop",
    None,
    "orders",
    (
        Column("id", "int", "int"),
        Column("_raw", "int", "int"),
        Column("odd name", "enum", "enum('a','b c')", labels=("a", "b c")),
        Column("e", "enum", "enum('a','b')", labels=("a", "b")),
        Column("t", "text", "text"),
    ),
)


def written(*images, **more):
    writing = Writing("mysql", [TABLE], modes=Modes(enum="enum"))
    rows = change_rows([change(after=i, schema_version=TABLE.fingerprint, **more) for i in images])
    return writing, rows


def test_what_a_type_cannot_hold_is_kept_as_text_beside_it():
    writing, rows = written(
        b'{"id":2147483648,"_raw":1,"odd name":"b c","e":"gone","t":{"_unchanged":true}}',
        b'{"id":"7","_raw":null,"odd name":"a","e":"b","t":"{}"}',
    )

    first, second = (event["after"] for event in writing.read(rows))

    assert first == {
        "id": None,
        "_raw": 1,
        "odd_u0020name": "b c",
        "e": None,
        "t": None,
        "_raw_2": {"id": "2147483648", "e": "gone", "t": '{"_unchanged":true}'},
    }
    assert second == {
        "id": None,
        "_raw": None,
        "odd_u0020name": "a",
        "e": "b",
        "t": "{}",
        "_raw_2": {"id": "7"},
    }


def test_a_uuid_that_was_made_something_else_is_kept_as_text_beside_it():
    """A reader makes a value of it, and would fail for the whole message."""
    one = "C56a4180-65aa-42ec-a945-5fd21dec0538"
    uuid = Column("token", "uuid", "uuid", type_oid=2950, udt_name="uuid")
    array = {"is_array": True, "element_type": "uuid"}
    tokens = Column("tokens", "ARRAY", "uuid[]", udt_name="_uuid", **array)
    table = TableSchema("shop", None, "orders", (uuid, tokens), ())
    texts = [one.encode(), b"***", b"7" * 32]
    images = [b'{"token":"%b","tokens":["%b"]}' % (text, text) for text in texts]
    rows = change_rows([change(after=i, schema_version=table.fingerprint) for i in images])
    first, *others = (event["after"] for event in Writing("postgresql", [table]).read(rows))
    assert (str(first["token"]), first["_raw"]) == (one.lower(), None)
    for text, row in zip(["***", "7" * 32], others, strict=True):
        assert (row["token"], row["_raw"]) == (None, {"token": text, "tokens": f'["{text}"]'})


def test_decimals_may_have_an_exponent_and_no_more_digits_than_arrow_keeps():
    amount = Column("amount", "decimal", "decimal", numeric_precision=38, numeric_scale=10)
    table = TableSchema("shop", None, "orders", (amount,), ())
    long = "1" * 45 + ".00"
    texts = ['"2.00E-8"', "2e-8", f'"{long}"', '"000000000000000000000000000000000000000000001.5"']
    images = [b'{"amount":%b}' % text.encode() for text in texts]
    rows = change_rows([change(after=i, schema_version=table.fingerprint) for i in images])
    found = [event["after"] for event in Writing("mysql", [table]).read(rows)]
    assert [row["amount"] for row in found[:2]] == [Decimal("0.00000002")] * 2
    assert (found[2]["amount"], found[2]["_raw"]) == (None, {"amount": long})
    assert found[3]["amount"] == Decimal("1.5")


@pytest.mark.parametrize(
    "envelope", ["native", "debezium", {"type": "cloudevents", "type_prefix": "com.acme"}]
)
def test_a_row_that_is_no_object_is_refused_and_not_written_as_null(envelope):
    """An outbox's payload may be any JSON; the JSON encoding writes it as it is."""
    images = [b'{"id":1}', b'"text"', b"[1]", b"42", None]
    writing = Writing("mysql", envelope=envelope)
    encoded, _ = writing.write(
        change_rows([change(op="u", after=i, before=b'{"id":0}') for i in images])
    )
    assert [one.event_row for one in encoded.rejections] == [1, 2, 3]
    assert "no JSON object" in encoded.rejections[0].reason
    assert encoded.values.is_valid().to_pylist() == [True, False, False, False, True]


def test_a_payload_alone_must_be_an_object():
    bodies = [b'{"total":1.5,"items":[1]}', b'"text"', b"[1]"]
    writing, rows = written(*bodies, routing=ROUTED)

    encoded, _ = writing.write(rows)

    assert writing.numbers.subjects == ["cdc-value"]
    assert writing.numbers.read(encoded.values[0].as_py()) == {
        "items": {"text": "[1]"},
        "total": 1.5,
        "_raw": None,
    }
    assert [one.event_row for one in encoded.rejections] == [1, 2]
    assert "no JSON object" in encoded.rejections[0].reason
    assert encoded.values.null_count == 2


def test_keys_without_end_are_refused():
    image = ",".join(f'"k{number}":1' for number in range(1001)).encode()
    writing, rows = written(b"{" + image + b"}")

    encoded, _ = writing.write(rows)

    assert "more than 1000 keys" in encoded.rejections[0].reason
    assert writing.numbers.schemas == []


def test_an_empty_batch_and_many_tables_in_one():
    writing = Writing("mysql", [TABLE])
    changes = [
        change(table=f"t{number % 3}", after=b'{"n":%d}' % number, schema_version=None)
        for number in range(20)
    ]

    assert writing.read(change_rows([])) == []
    found = writing.read(change_rows(changes))
    assert [event["after"]["n"] for event in found] == list(range(20))
    assert len(writing.numbers.schemas) == 3


def test_a_topic_for_each_row_costs_an_id_each_and_keeps_the_order():
    writing = Writing("mysql", [TABLE], topic="cdc.${after.id}")
    images = [b'{"id":%d,"t":"%d"}' % (number % 5, number) for number in range(20)]
    changes = [change(after=image, schema_version=TABLE.fingerprint) for image in images]

    found = writing.read(change_rows(changes))

    assert [event["after"]["t"] for event in found] == [str(number) for number in range(20)]
    assert writing.numbers.subjects == [f"cdc.{number}-value" for number in range(5)]
    assert len(writing.numbers.schemas) == 1


SINK = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: p, tenant: t}}
spec:
  source: {{type: scripted, config: {{id: s}}}}
  sinks:
    - {{type: {sink}, config: {{id: k, {settings}, encoding: {{type: avro, {avro}}}}}}}
"""
URL = "schema_registry_url: 'http://registry:8081'"
KAFKA = "brokers: b, topic: t"


@pytest.mark.parametrize(
    ("sink", "settings", "avro", "refusal"),
    [
        ("file", "path: ./x.jsonl", URL, r"encoding.*lines of text; use json"),
        ("stdout", "topic: t", URL, r"encoding.*lines of text; use json"),
        ("kafka", KAFKA, "schema_registry_url: 'registry:8081'", r"schema_registry_url.*http://"),
        ("kafka", KAFKA, "schema_registry_url: 'http://a:b@r'", r"schema_registry_url.*password"),
        ("kafka", KAFKA, f"{URL}, password: x", r"password.*needs a username"),
        ("kafka", KAFKA, f"{URL}, enum_mode: number", r"enum_mode"),
    ],
)
def test_what_cannot_work_is_refused_by_its_key(sink, settings, avro, refusal):
    with pytest.raises(SpecError, match=rf"(?s)sinks\[0\]\.config.*{refusal}"):
        load(SINK.format(sink=sink, settings=settings, avro=avro), {})


def test_an_envelope_of_unknown_shape_is_refused():
    encoding = AvroEncoding(schema_registry_url="http://registry:8081")

    with pytest.raises(SpecError, match="does not say what its messages look like"):
        encoding.open(EncoderRequest("out", "mysql", None, lambda *_: None))


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    writing = Writing("mysql")
    encoding = AvroEncoding(schema_registry_url="http://registry:8081")

    with pytest.raises(
        SpecError, match=r"needs fastavro; install 'airflow-provider-deltaforge\[avro\]'"
    ):
        encoding.open(EncoderRequest("out", "mysql", writing.sink.envelope.shape, lambda *_: None))


def test_the_page_shows_the_types_that_columns_have():
    page = avro_page.PAGE.read_text(encoding="utf-8")

    for connector, table in avro_page.tables().items():
        assert table in page, f"{connector}: run python -m tests.encodings.avro_page"


def test_an_event_without_a_version_has_the_record_of_its_table():
    """An empty record between two versions would let a registry pass any change of columns."""
    writing, _ = written()
    writing.known["shop", None, "orders", None] = TABLE
    image = b'{"id":1,"_raw":1,"odd name":"a","e":"a","t":""}'
    rows = change_rows(
        [
            change(after=image, schema_version=TABLE.fingerprint),
            change(after=None, op="t", schema_version=None),
        ]
    )
    assert [event["op"] for event in writing.read(rows)] == ["c", "t"]
    assert len(writing.numbers.schemas) == 1


def test_a_row_whose_keys_are_unknown_is_refused_alone():
    plain = [b'{"id":%d,"more":%d}' % (number, number) for number in range(5)]
    writing, rows = written(*plain[:3], b'{"id":3,"\\ud800":1}', *plain[3:])

    encoded, _ = writing.write(rows)

    (refused,) = encoded.rejections
    assert (refused.event_row, refused.kind) == (3, "serialization")
    assert "json encoding" in refused.reason
    found = [writing.numbers.read(one) for one in encoded.values.to_pylist() if one is not None]
    assert [event["after"]["more"] for event in found] == [0, 1, 2, 3, 4]


def test_a_number_of_many_digits_is_no_trouble():
    digits = b"7" * 5000
    writing, rows = written(b'{"id":1,"more":%b}' % digits)
    (event,) = writing.read(rows)
    assert event["after"]["more"] == {"text": digits.decode()}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.1", 0.1),
        ("-12345678.1234567", -12345678.1234567),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("0.10000000000000001", 0.1),
        ("5e-324", 5e-324),
        *((text, {"text": text}) for text in ("0.12345678901234567890", "1e-400", "1e400")),
    ],
)
def test_a_number_that_a_double_does_not_hold_is_text(text, found):
    writing, rows = written(b'{"more":%b}' % text.encode())
    (event,) = writing.read(rows)
    assert event["after"]["more"] == found


def test_a_float_is_exact_or_text():
    table = TableSchema("shop", None, "orders", (Column("f", "float", "float"),))
    writing = Writing("mysql", [table])
    texts = [b"1.5", b"1e300", b"1e400", b'"1_0"', b'"Infinity"']
    images = [change(after=b'{"f":%b}' % t, schema_version=table.fingerprint) for t in texts]
    rows = [event["after"] for event in writing.read(change_rows(images))]
    assert [row["f"] for row in rows] == [1.5, None, None, None, math.inf]
    raw = [row["_raw"] and row["_raw"]["f"] for row in rows]
    assert raw == [None, "1e300", "1e400", "1_0", None]


def test_lists_of_decimals_and_times_are_written_however_their_elements_are():
    columns = [
        Column(name, "ARRAY", f"{kind}[]", udt_name=f"_{kind}", is_array=True, element_type=kind)
        for name, kind in (("n", "numeric"), ("at", "timestamptz"), ("t", "time"))
    ]
    table = TableSchema("shop", None, "orders", tuple(columns), ())
    times = b'"at":["2024-02-29T12:00:00.5Z"],"t":["12:00:00.78"]'
    images = [
        b'{"n":%b,%b}' % (list_of, times)
        for list_of in (
            b'[1.10,"NaN",null,123456789012345678.90]',
            b'["1.10","NaN",null,"123456789012345678.90"]',
        )
    ]
    rows = change_rows([change(after=i, schema_version=table.fingerprint) for i in images])
    first, second = (event["after"] for event in Writing("postgresql", [table]).read(rows))
    assert first == second
    assert first["n"] == ["1.10", "NaN", None, "123456789012345678.90"]
    assert first["_raw"] is None
    assert [each.microsecond for each in (*first["at"], *first["t"])] == [500_000, 780_000]
