"""Every type of every source: what real servers sent, written as Avro and read back."""

import json
import math
import re

import numpy as np
import pytest

from airflow_provider_deltaforge.encodings.avro.column_types import Modes
from tests.encodings.avro_reading import Writing, as_json, type_named
from tests.servers import sql
from tests.sources.mysql import reading
from tests.sources.mysql import type_matrix as mysql_types
from tests.sources.postgres import type_matrix as postgres_types
from tests.sources.postgres.copying import copied
from tests.sources.postgres.stream_reading import connect, drop, fresh, source_of
from tests.sources.turso.database import Writer, source

LONGEST = Modes("long", "enum", "timestamp")


def rows_of(batches, connector, modes=None):
    """Yield (table, type by column, row as Avro, row as JSON) of snapshot batches."""
    schemas = [schema for batch in batches for schema in batch.schemas]
    writing = Writing(connector, schemas, modes=modes)
    for batch in batches:
        encoded, texts = writing.write(batch.rows)
        assert encoded.rejections == []
        for message, text in zip(encoded.values.to_pylist(), texts, strict=True):
            event, schema = json.loads(text), json.loads(writing.numbers.schemas[message[4]])
            told = writing.numbers.read(message)
            names = {f.get("column", f["name"]): f["name"] for f in fields_of(schema)}
            kinds = {column: type_named(schema, column) for column in names}
            row = {column: told["after"][name] for column, name in names.items()}
            yield event["source"]["table"], kinds, row, event["after"]


def fields_of(schema):
    row = next(one for one in schema["fields"] if one["name"] == "before")["type"][1]
    return row["fields"]


def check(kinds, row, image, differs=lambda _kind, _value: False):
    """Hold each value against the JSON encoding's; return the columns that are in ``_raw``."""
    raw = row.pop("_raw") or {}
    assert row.keys() == image.keys()
    for column, value in image.items():
        kind = kinds[column]
        if column in raw:
            assert row[column] is None
            assert raw[column] == (value if isinstance(value, str) else text(value)), column
        elif kind == "string" and value is not None and row[column] != value:
            assert json.loads(row[column]) == value  # A number, or the text of a JSON column.
        elif kind in ("float", "double") and value is not None:
            assert same(kind, row[column], value), (column, row[column], value)
        elif not differs(kind, value):
            assert same_text(as_json(kind, row[column]), value), (column, kind, row[column], value)
    return set(raw)


def text(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def same(kind, found, value):
    value = float(value)
    if math.isnan(value) or math.isinf(value):
        return str(found) == str(value)
    return found == (float(np.float32(value)) if kind == "float" else value)


def same_text(found, value):
    """Say whether two values are the same but for the zeros behind a second."""
    if isinstance(found, str) and isinstance(value, str) and found != value:
        # A time without a zone counts as UTC.
        return seconds(found) in (seconds(value), seconds(value) + "Z")
    if isinstance(found, list):
        return all(map(same_text, found, value)) and len(found) == len(value)
    return found == value


def seconds(value):
    return re.sub(r"\.?0+(Z?)$", r"\1", value) if "." in value else value


def bits(_kind, value):
    """Bit columns are bytes in Avro and numbers in JSON; a test of their own looks at them."""
    return type(value) is int


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


def test_mysql(server):
    flavor = "mariadb" if "mariadb" in server.name else "mysql"
    database = "avro_matrix"
    reading.fresh_database(server, database)
    session = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    tables = mysql_types.tables_for(flavor)
    statements = [statement for table in tables for statement in table.statements()]
    sql.execute(server, session, *statements, database=database)
    batches = reading.copied(reading.source_of(server, database))
    raw = {}
    for modes in (Modes(), LONGEST):
        count = 0
        for table, kinds, row, image in rows_of(batches, "mysql", modes):
            count += 1
            differs = bits if table == "m_bits" else lambda *_: False
            for column in check(kinds, row, image, differs):
                raw.setdefault((modes == LONGEST, table, column), []).append(image["id"])
        assert count == sum(len(table.rows) for table in tables)
    always = {
        ("m_temporal", "d"): [2, 4],
        ("m_temporal", "t"): [2, 3],
        ("m_temporal", "t1"): [2],
        ("m_temporal", "t3"): [2, 3],
        ("m_temporal", "t6"): [2, 3],
        ("m_temporal", "ts"): [2],
        ("m_temporal", "ts3"): [2],
        ("m_temporal", "ts6"): [2],
    }
    longest = {
        ("m_integers", "id"): [18446744073709551615],
        ("m_integers", "bu"): [1, 18446744073709551615],
        ("m_temporal", "dt"): [2, 4],
        ("m_temporal", "dt1"): [2],
        ("m_temporal", "dt3"): [2],
        ("m_temporal", "dt6"): [2],
    }
    expected = {(False, *key): rows for key, rows in always.items()}
    expected |= {(True, *key): rows for key, rows in {**always, **longest}.items()}
    assert raw == expected


@pytest.mark.parametrize("version", ["", pytest.param("18", marks=pytest.mark.long)])
def test_postgres(request, version):
    server = request.getfixturevalue(f"postgres{version}_server")
    fresh(server, "avro_matrix", *postgres_types.PREPARE)
    with connect(server, "avro_matrix") as connection:
        chosen = postgres_types.tables(connection.info.server_version // 10000)
        for table in chosen:
            connection.execute(table.create)
            connection.execute(table.fill)
    batches = copied(source_of(server, "avro_matrix"))
    drop(server, "avro_matrix")
    sqls = {table.name: table.column for table in chosen}

    raw, count = {}, 0
    for table, kinds, row, image in rows_of(batches, "postgresql", LONGEST):
        count += 1
        is_bits = sqls[table].startswith("bit(") and "[" not in sqls[table]
        if check(kinds, row, image, bits if is_bits else lambda *_: False):
            raw.setdefault(sqls[table], set()).add(text(image["v"]))
    assert count == sum(len(table.rows) for table in chosen)
    assert raw == {
        "date": {'"infinity"', '"-infinity"', '"0044-03-15 BC"', '"294276-12-31"'},
        "time": {'"24:00:00"'},
        "timestamp": OUT_OF_RANGE | {'"0044-03-15 12:00:00 BC"', '"294276-12-31T23:59:59.999999"'},
        "timestamp with time zone": OUT_OF_RANGE
        | {'"0044-03-15 12:00:00+00 BC"', '"294276-12-31T23:59:59.999999Z"'},
        "integer[]": {"[[1,2],[3,null]]", "[[1,2],[3,4]]", "[[[1],[2]],[[3],[4]]]"},
        "text[]": {'[["123","true"],["ü",null]]'},
        "date[]": {'["2024-02-29","infinity"]'},
        "bit(3)[]": {"[5,0]"},
        "bit(1)[]": {"[true,false]"},
        "other.hstore": {'"a=>1"'},
        "positive[]": {"[1,2]"},
        "ints[]": {"[[1,2],[null],null]"},
        "ints": {"[1,null,3]"},
    }


OUT_OF_RANGE = {'"infinity"', '"-infinity"'}


def test_turso(tmp_path):
    values = [None, 1, -(2**63), 1.5, math.inf, "text", "12", b"\x00\xff"]
    writer = Writer(tmp_path / "kinds.db")
    writer.run(
        "CREATE TABLE kinds (id INTEGER PRIMARY KEY, i INTEGER, r REAL, t TEXT, b BLOB, "
        "n NUMERIC, x)"
    )
    writer.many(
        "INSERT INTO kinds VALUES (?,?,?,?,?,?,?)", [(n, *[v] * 6) for n, v in enumerate(values)]
    )
    snapshotter = source(tmp_path / "kinds.db").open_snapshot()
    snapshotter.begin()
    batches = [b for chunk in snapshotter.plan(100) for b in snapshotter.read(chunk, "run")]
    snapshotter.close()
    writer.close()

    rows = [(row, image) for _, _, row, image in rows_of(batches, "turso")]

    raw = [set(row["_raw"] or {}) for row, _ in rows]
    assert raw == [
        set(),
        {"b"},
        {"b"},
        {"i", "b"},
        {"i", "b"},
        {"i", "r", "b"},
        {"b"},
        {"i", "r", "t"},
    ]
    assert rows[1][0] == {
        "id": 1,
        "i": 1,
        "r": 1.0,
        "t": "1",
        "b": None,
        "n": 1,
        "x": 1,
        "_raw": {"b": "1"},
    }
    assert rows[7][0]["b"] == b"\x00\xff"
    assert rows[7][0]["x"] == {"text": '{"_base64":"AP8="}'}
    for row, image in rows:
        for column in row["_raw"] or {}:
            told = row["_raw"][column]
            assert told == (
                image[column] if isinstance(image[column], str) else text(image[column])
            )
