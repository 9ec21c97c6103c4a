"""Bounds that are looked for, not counted out: chunks of one size that hold every row once."""

import random
import re
import uuid
from contextlib import closing

import pytest

from airflow_provider_deltaforge.sources.mysql.catalog import captured_facts
from airflow_provider_deltaforge.sources.mysql.snapshot.key_ranges import range_condition
from airflow_provider_deltaforge.sources.mysql.snapshot.table_chunks import plan_table
from airflow_provider_deltaforge.sources.mysql.tuning import MySqlTuning
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database, source_of
from tests.sources.splitting import split

ROWS = 6000
CHUNK_ROWS = 100
_random = random.Random(7)
_words = ["a", "B", "c", "Ä", "Zebra", "zeal", "_x", "0 y", "o''n"]

SHAPES = {
    "dense": ("k int primary key", lambda i: i - 500),
    "signed": ("k bigint primary key", lambda i: _random.randrange(-(2**63), 2**63)),
    "unsigned": ("k bigint unsigned primary key", lambda i: _random.randrange(2**64)),
    "skewed": ("k bigint unsigned primary key", lambda i: i if i % 2 else i**4 * 14_000),
    "uuid_text": (
        "k char(36) character set ascii primary key",
        lambda i: f"'{uuid.UUID(int=_random.getrandbits(128))}'",
    ),
    "uuid_bytes": ("k binary(16) primary key", lambda i: f"X'{_random.getrandbits(128):032X}'"),
    "words": (
        "k varchar(60) collate utf8mb4_general_ci primary key",
        lambda i: f"'{_random.choice(_words)}{i}{'é' * (i % 3)}'",
    ),
    "tenants": ("t int, k bigint, primary key (t, k)", lambda i: f"{int(i**0.2)}, {i * 37}"),
    "ties": (
        "n varchar(9) collate utf8mb4_general_ci, k int, primary key (n, k)",
        lambda i: f"'{'aAbBé '[i % 6] + ' ' * (i % 2)}', {i}",
    ),
    "moments": (
        "k datetime(6) primary key",
        lambda i: f"'2024-01-01' + interval {i * i} second + interval {i} microsecond",
    ),
    "decimals": ("k decimal(30,10) primary key", lambda i: f"{(i - 3000) ** 3}.{i:010d}"),
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request):
    server = request.getfixturevalue(f"{request.param}_server")
    statements = []
    for name, (columns, value) in SHAPES.items():
        statements.append(f"CREATE TABLE t_{name} ({columns}) DEFAULT CHARSET=utf8mb4")
        values = ", ".join(f"({value(i)})" for i in range(ROWS))
        statements.append(f"INSERT INTO t_{name} VALUES {values}")
    fresh_database(
        server, "sampled", *statements, "ANALYZE TABLE " + ", ".join(f"t_{name}" for name in SHAPES)
    )
    return server


@pytest.fixture
def connection(server):
    connection = sql.connect(server, "sampled")
    yield connection
    connection.close()


@pytest.mark.parametrize("name", SHAPES)
def test_chunks_are_of_one_size_and_hold_every_row_once(server, connection, name):
    matcher = TableMatcher((f"sampled.t_{name}",), "sampled", ())
    (facts,) = captured_facts(connection, matcher)
    before = _rows_read(connection)
    chunks = list(plan_table(connection, facts, CHUNK_ROWS, tuning=MySqlTuning(sampled_rows=1000)))
    read = _rows_read(connection) - before
    columns = ", ".join(f"HEX({column})" for column in facts.schema.primary_key)
    found = sql.execute(
        server,
        " UNION ALL ".join(
            f"SELECT {at}, {columns} FROM t_{name} WHERE {range_condition(chunk.bounds)}"
            for at, chunk in enumerate(chunks)
        ),
        database="sampled",
    )
    sizes = sorted(sum(at == row[0] for row in found) for at in range(len(chunks)))
    assert len(found) == len({row[1:] for row in found}) == ROWS
    assert sizes[-1] <= 1.8 * CHUNK_ROWS
    assert sizes[3] >= 0.6 * CHUNK_ROWS
    # A few chunks are counted, for scale, and those where guesses lead nowhere.
    assert read < ROWS / 2 or name in ("words", "tenants", "ties")


@pytest.mark.parametrize("name", ["words", "tenants"])
def test_a_chunk_is_split_into_parts_of_one_size(server, name):
    source = source_of(server, "sampled", f"t_{name}", user="root", ssl_mode="disabled")
    with closing(source.open_snapshot()) as snapshotter:
        first, second, *_, last = snapshotter.plan(130)
        for chunk in (first, second):
            *_, part = split(snapshotter, chunk, 70)
            split(snapshotter, part, 7)
        split(snapshotter, last, 7)


def test_a_chunk_of_one_tenant_reads_no_other_rows_of_it(server, connection):
    (facts,) = captured_facts(connection, TableMatcher(("sampled.t_tenants",), "sampled", ()))
    chunks = list(plan_table(connection, facts, CHUNK_ROWS))
    inside = [
        chunk
        for chunk in chunks
        if chunk.bounds.get("upto")
        and chunk.bounds.get("after", [None])[0] == chunk.bounds["upto"][0]
    ]
    before = _rows_read(connection)
    with connection.cursor() as cursor:
        for chunk in inside:
            condition = range_condition(chunk.bounds)
            cursor.execute(
                f"SELECT COUNT(*) FROM t_tenants FORCE INDEX (PRIMARY) WHERE {condition}"
            )
    assert len(inside) > 20
    assert _rows_read(connection) - before <= (len(inside) + 1) * (CHUNK_ROWS + 2)


def test_texts_that_are_equal_to_the_server_end_a_chunk_like_one():
    bounds = {"columns": ["n", "k"], "after": [{"hex": "61"}, 1], "upto": [{"hex": "41"}, 5]}
    condition = range_condition(bounds)
    assert "(`n` = X'61' AND `n` = X'41' AND `k` > 1 AND `k` <= 5)" in condition
    assert re.search(r"\(`n` = X'61' AND `n` < X'41' AND `k` > 1\)", condition)


def _rows_read(connection):
    with connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
        return sum(int(value) for name, value in cursor.fetchall() if "rnd" not in name)
