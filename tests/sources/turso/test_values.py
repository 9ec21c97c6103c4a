"""Every kind of value: the same JSON in the snapshot and in each mode of the stream."""

import base64
import json
import math
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.turso.records import values_of
from airflow_provider_deltaforge.sources.turso.rows import row_json
from airflow_provider_deltaforge.sources.turso.tables import table_of
from tests.sources.turso.database import Writer, copied, events_of, source

VALUES = [
    None,
    0,
    1,
    -1,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    1.5,
    0.1,
    1e300,
    5e-324,
    -0.0,
    1e15,
    123456789.123456789,
    math.inf,
    -math.inf,
    "",
    "plain",
    'ü €\u2028 "\\ \t\x01 😀',
    "x" * 5000,
    "12",
    b"",
    b"\x00\xff",
    b"y" * 300,
]
COLUMNS = "i INTEGER, r REAL, t TEXT, b BLOB, n NUMERIC, x"
TABLE = f"CREATE TABLE kinds (id INTEGER PRIMARY KEY, {COLUMNS})"


def expected(value):
    if isinstance(value, bytes):
        return {"_base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def test_native_stream_and_snapshot_agree(tmp_path):
    writer = Writer(tmp_path / "kinds.db")
    writer.run(TABLE)
    taken = source(tmp_path / "kinds.db")
    reader = taken.open(None)
    rows = [(index, *[value] * 6) for index, value in enumerate(VALUES)]
    writer.many("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    streamed = [event["after"] for event in events_of(reader)]

    assert streamed == [event["after"] for event in copied(taken)]
    # A column without affinity keeps what was written.
    assert [json.loads(image)["x"] for image in streamed] == [expected(v) for v in VALUES]
    assert b'"i":9007199254740993' in streamed[4]
    assert b'"r":1.0,' in streamed[2]
    reader.close()
    writer.close()


@pytest.mark.parametrize("mode", ["triggers", "polling"])
def test_other_modes_agree_with_the_snapshot(tmp_path, mode):
    path = tmp_path / "kinds.db"
    connection = sqlite3.connect(path)
    connection.execute(TABLE)
    connection.commit()
    taken = source(path, cdc_mode=mode, auto_create_triggers=True)
    reader = taken.open(None)
    rows = [(index + 1, *[value] * 6) for index, value in enumerate(VALUES)]
    connection.executemany("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.execute("INSERT INTO kinds (id, t) VALUES (99, CAST(x'ff41' AS TEXT))")
    connection.commit()

    streamed = [event["after"] for event in events_of(reader)]

    assert streamed == [event["after"] for event in copied(taken)]
    assert [json.loads(image)["x"] for image in streamed[:-1]] == [expected(v) for v in VALUES]
    assert json.loads(streamed[-1])["t"] == {"_base64": "/0E="}
    reader.close()
    connection.close()


def test_columns_that_hide_the_row_number(tmp_path):
    writer = Writer(tmp_path / "odd.db")
    writer.run(
        'CREATE TABLE odd (rowid TEXT, "a b" TEXT, "select" INT, PRIMARY KEY ("a b", rowid))'
    )
    taken = source(tmp_path / "odd.db")
    reader = taken.open(None)
    writer.many("INSERT INTO odd VALUES (?, ?, ?)", [(f"r{n}", f"k{n}", n) for n in range(25)])

    events = events_of(reader)

    assert events[0]["key"] == b'{"a b":"k0","rowid":"r0"}'
    assert [e["after"] for e in copied(taken)] == [e["after"] for e in events]
    reader.close()
    writer.close()


def record(values):
    """Write a record as the file format says, the longest form of every integer."""
    kinds, body = [], b""
    for value in values:
        if value is None:
            kinds.append(0)
        elif isinstance(value, int):
            kinds.append(6)
            body += value.to_bytes(8, "big", signed=True)
        else:
            data = value.encode() if isinstance(value, str) else value
            kinds.append(2 * len(data) + (13 if isinstance(value, str) else 12))
            body += data
    header = b"".join(varint(kind) for kind in kinds)
    size = len(header) + 1
    if size > 0x7F:
        size += 1
    return varint(size) + header + body


def varint(number):
    out = [number & 0x7F]
    while number := number >> 7:
        out.insert(0, number & 0x7F | 0x80)
    return bytes(out)


VALUE = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=300) | st.binary()


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUE, max_size=90))
def test_any_record_is_read_back(values):
    clean = [v for v in values if not isinstance(v, str) or v.isprintable()]

    assert values_of(record(clean)) == clean


@settings(max_examples=100, deadline=None)
@given(st.integers() | st.floats(allow_nan=False), st.text().filter(lambda t: t.isprintable()))
def test_any_row_is_read_back_from_its_json(number, text):
    table = table_of("t", "CREATE TABLE t (a, b, c)")
    if isinstance(number, int):
        number = max(-(2**63), min(number, 2**63 - 1))

    shown = json.loads(row_json(table, [number, text, None]))

    assert shown == {"a": expected(number), "b": text, "c": None}


def test_a_row_that_does_not_fit_stops_with_the_table(tmp_path):
    from airflow_provider_deltaforge.sources.turso.records import row_of

    table = table_of("t", "CREATE TABLE t (a, b, c)")

    with pytest.raises(SchemaError, match=r"main\.t: a captured row has 2 columns, its table 3"):
        row_of(table, record([1, 2]))
    damaged = [record([1, 2, "abc"])[:-1], record([1, 2, 3])[:-1], record([1, 2])[:2], b""]
    for image in [*damaged, b"\x04\x01\x01\x0a\x01\x01\x01"]:  # The last has a kind that is none.
        with pytest.raises(SchemaError, match=r"main\.t: a captured row is damaged"):
            row_of(table, image)
