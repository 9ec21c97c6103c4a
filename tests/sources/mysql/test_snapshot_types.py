"""The snapshot prints every type as the stream does."""

import json
import math
import struct
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import (
    render_rows,
    rows_bound,
    shape_of,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.text_value_kernel import (
    FLOAT32,
    FLOAT64,
    INTEGER,
    JSON,
    STRING,
)
from tests.servers import sql
from tests.sources.mysql.reading import copied, events, fresh_database, source_of, streamed
from tests.sources.mysql.type_matrix import tables_for


def test_every_type_is_the_same_json_in_snapshot_and_stream(server):
    flavor = "mariadb" if "mariadb" in server.name else "mysql"
    tables = tables_for(flavor)
    fresh_database(server, "matrix_snapshot")
    source = source_of(server, "matrix_snapshot", "m_*")
    start = source.head()
    session = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    statements = [statement for table in tables for statement in table.statements()]
    sql.execute(server, session, *statements, database="matrix_snapshot")
    total = sum(len(table.rows) for table in tables)

    changes = [
        event
        for event in streamed(
            source, start, lambda found: sum(e["op"] == "c" for e in found) >= total
        )
        if event["op"] == "c"
    ]
    rows = events(copied(source, chunk_rows=2))

    for table in tables:
        copy = [e for e in rows if e["table"] == table.name]
        log = [e for e in changes if e["table"] == table.name]
        assert [e["after"] for e in copy] == [e["after"] for e in log], table.name
        assert [e["key"] for e in copy] == [e["key"] for e in log], table.name
        assert len(copy) == len(table.rows)
        for event, expected in zip(copy, table.expected, strict=False):
            assert event["after"].decode() == expected


def test_a_row_larger_than_a_packet_arrives_whole(mysql_server):
    fresh_database(
        mysql_server,
        "big_rows",
        "CREATE TABLE t (id int primary key, v longtext)",
        "INSERT INTO t VALUES (1, REPEAT('a', 17000000)), (2, 'small')",
        "INSERT INTO t VALUES (3, REPEAT('b', 16777205)), (4, REPEAT('c', 33554420))",
    )
    rows = events(copied(source_of(mysql_server, "big_rows")))
    lengths = [len(json.loads(e["after"])["v"]) for e in rows]
    assert lengths == [17_000_000, 5, 16_777_205, 33_554_420]
    assert {json.loads(e["after"])["v"][-1] for e in rows} == {"a", "l", "b", "c"}


ONE_COLUMN = shape_of(TableSchema("db", None, "t", (Column("c", "int", "int"),)))


def rendered(kind: int, text: bytes) -> str:
    """Return a value's JSON, written as part of a row: that way nothing has to be compiled."""
    row = b"\xfe" + len(text).to_bytes(8, "little") + text
    out = np.empty(rows_bound(ONE_COLUMN, 1, len(row)), np.uint8)
    shape = replace(ONE_COLUMN, kinds=np.array([kind], np.uint8))
    ends, nothing = np.zeros(2, np.int64), np.zeros(2, np.int64)
    failed = render_rows(
        np.frombuffer(row + bytes(8), np.uint8).copy(),
        np.zeros(1, np.int64),
        np.array([len(row)], np.int64),
        *(shape.kinds, shape.names, shape.name_ends, shape.key),
        *(out, ends, np.empty(8, np.uint8), nothing),
    )
    assert failed == -1
    written = out[: ends[1]].tobytes().decode()
    assert written.startswith('{"c":')
    assert written.endswith("}")
    return written[len('{"c":') : -1]


def server_text(value: float) -> str:
    """The server's form of a double: positional up to 15 digits, else without a plus sign."""
    text = repr(value).replace("e+", "e")
    return text.removesuffix(".0")


@settings(deadline=None)  # The first call loads the kernels.
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_keep_every_digit(value):
    printed = rendered(FLOAT64, server_text(value).encode())
    assert struct.pack("<d", float(printed)) == struct.pack("<d", value)


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_get_the_shortest_text_of_their_32_bits(value):
    printed = rendered(FLOAT32, server_text(value).encode())
    assert struct.pack("<f", float(printed)) == struct.pack("<f", value)
    shortest = str(np.float32(value))
    assert math.isclose(float(printed), float(shortest), rel_tol=0) or value == 0
    assert len(printed.strip("-")) <= max(len(shortest.strip("-")), 18)


@settings(deadline=None)
@given(st.integers(min_value=-(2**63), max_value=2**64 - 1), st.integers(0, 5))
def test_integers_lose_only_the_zeros_of_zerofill(value, zeros):
    text = str(value) if value < 0 else "0" * zeros + str(value)
    assert rendered(INTEGER, text.encode()) == str(value)


@settings(deadline=None)
@given(st.text())
def test_text_reads_back_as_it_was(text):
    assert json.loads(rendered(STRING, text.encode("utf-8", "ignore"))) == text


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@settings(deadline=None)
@given(JSON_VALUES)
def test_json_loses_only_its_spaces(value):
    text = json.dumps(value, ensure_ascii=False)
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert rendered(JSON, text.encode("utf-8", "surrogatepass")) == compact
