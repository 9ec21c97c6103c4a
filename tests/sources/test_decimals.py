"""Decimals as JSON numbers, where the source's document says so: every digit and the scale kept."""

import json
from decimal import Decimal

import pytest

from tests.sources.mysql import reading as my
from tests.sources.postgres import copying as pg
from tests.sources.postgres import stream_reading as pg_stream

VALUES = [
    ("1.10", "-0.50", "0.000000000000000000000000000001"),
    ("0.00", "99999999.99", "-12345678901234567890123456789012345.123456789012345678901234567890"),
    ("-99999999.99", "12.00", "0.100000000000000000000000000000"),
]
COLUMNS = "a decimal(10,2) PRIMARY KEY, b decimal(10,2) DEFAULT 5.00, c decimal(65,30)"


def expected(quote=""):
    q = quote
    return sorted(f'{{"a":{q}{a}{q},"b":{q}{b}{q},"c":{q}{c}{q}}}' for a, b, c in VALUES)


def inserts():
    return "INSERT INTO t VALUES " + ",".join(f"({a}, {b}, {c})" for a, b, c in VALUES)


@pytest.mark.parametrize("name", ["mysql", "mariadb"])
def test_of_mysql_and_mariadb(name, request):
    server = request.getfixturevalue(f"{name}_server")
    my.fresh_database(server, "decimals", f"CREATE TABLE t ({COLUMNS})")
    source = my.source_of(server, "decimals", decimal="number")
    position = source.head()
    my.sql.execute(server, inserts(), database="decimals")
    stream = my.streamed(source, position, lambda f: len(f) >= 3)
    snapshot = my.events(my.copied(source))
    for found in (stream, snapshot):
        assert sorted(event["after"].decode() for event in found) == expected()
        keys = [event["key"] for event in found]
        assert b'{"a":-99999999.99}' in keys
    plain = my.source_of(server, "decimals")
    rows = [event["after"].decode() for event in my.events(my.copied(plain))]
    assert sorted(rows) == expected('"')
    parsed = json.loads(stream[0]["after"], parse_float=Decimal)
    assert [*parsed.values()] == [Decimal(text) for text in VALUES[0]]


def test_of_postgres(postgres_server):
    made = COLUMNS.replace("decimal(65,30)", "numeric")
    pg.fresh_database(
        postgres_server,
        "decimals",
        "CREATE DOMAIN price AS numeric(10,2)",
        f"CREATE TABLE t ({made}, d numeric[], e price, f money)",
    )
    source = pg.source_of(postgres_server, "decimals", decimal="number")
    pg.begun(source).close()
    position = source.head()
    values = ",".join(
        f"({a}, {b}, {c}, '{{1.10,NaN,NULL}}', 2, 3)" for a, b, c in VALUES
    ) + ",(7, 7, 'NaN', '{}', NULL, NULL), (8, 8, '-0.0', NULL, NULL, NULL)"  # fmt: skip
    pg_stream.execute(postgres_server, f"INSERT INTO t VALUES {values}", database="decimals")
    rest = ',"d":[1.10,"NaN",null],"e":2.00,"f":"$3.00"}'
    wanted = [row[:-1] + rest for row in expected()]
    wanted += ['{"a":7.00,"b":7.00,"c":"NaN","d":[],"e":null,"f":null}']
    wanted += ['{"a":8.00,"b":8.00,"c":0.0,"d":null,"e":null,"f":null}']
    stream = pg_stream.rows(source, position)
    snapshot = pg_stream.events(pg.copied(source))
    for found in (stream, snapshot):
        assert sorted(event["after"].decode() for event in found) == sorted(wanted)
        assert b'{"a":-99999999.99}' in [event["key"] for event in found]
    plain = pg.source_of(postgres_server, "decimals")
    assert b'{"a":"1.10","b":"-0.50"' in b"".join(
        event["after"] for event in pg_stream.events(pg.copied(plain))
    )
    pg_stream.drop_slots(postgres_server, "decimals")
