"""Bounds drawn from some pages: chunks of about one size that hold every row once."""

from contextlib import closing

import pytest

from airflow_provider_deltaforge.sources.postgres.snapshot.table_chunks import (
    plan_table,
    range_conditions,
)
from airflow_provider_deltaforge.sources.postgres.tables import table_named
from tests.sources.postgres.copying import fresh_database, source_of
from tests.sources.postgres.stream_reading import connect
from tests.sources.splitting import split

ROWS = 30_000
CHUNK_ROWS = 5_000
SERIES = f"SELECT {{}} FROM generate_series(1, {ROWS}) AS i"
# Always the same scatter of i over 32 bits.
SCATTERED = "((i::bigint * 2654435761) % 4294967296)"
SHAPES = {
    "dense": ("k int PRIMARY KEY", "i"),
    "backwards": ("k int PRIMARY KEY", "-i"),
    "scattered": ("k bigint PRIMARY KEY", f"{SCATTERED} * 2147483647 - 4611686018427387904"),
    "uuid": ("k uuid PRIMARY KEY", "md5(i::text)::uuid"),
    "bytes": ("k bytea PRIMARY KEY", "sha256(i::text::bytea)"),
    "caseless": ("k text COLLATE caseless PRIMARY KEY", "chr(65 + i % 26) || md5(i::text) || ' '"),
    "tenants": ("t int, k bigint, PRIMARY KEY (t, k)", f"(i ^ 0.2)::int, {SCATTERED}"),
    "skewed": ("k numeric PRIMARY KEY", "CASE WHEN i % 2 = 0 THEN i ELSE i::numeric ^ 9 END"),
    "infinite": (
        "k double precision PRIMARY KEY",
        "CASE i WHEN 1 THEN '-0'::float8 WHEN 2 THEN 'NaN' WHEN 3 THEN '-Infinity' "
        f"WHEN 4 THEN 'Infinity' ELSE tan({SCATTERED}) END",
    ),
    "shuffled": (
        "k bigint PRIMARY KEY",
        f"({SCATTERED.replace('i:', '(i / 100):')} % 30000) * 100000 + i",
    ),
    "partitioned": ("k int PRIMARY KEY) PARTITION BY HASH (k", "i"),
}


@pytest.fixture(scope="module")
def connection(postgres_server):
    statements = [
        "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', "
        "deterministic = false)"
    ]
    for name, (columns, values) in SHAPES.items():
        statements.append(f"CREATE UNLOGGED TABLE {name} ({columns})")
        if name == "partitioned":
            statements += [
                f"CREATE TABLE part_{at} PARTITION OF partitioned "
                f"FOR VALUES WITH (MODULUS 2, REMAINDER {at})"
                for at in range(2)
            ]
        statements.append(f"INSERT INTO {name} {SERIES.format(values)}")
    fresh_database(postgres_server, "sampled", *statements)
    with connect(postgres_server, "sampled") as connection:
        yield connection


@pytest.mark.parametrize("name", ["caseless", "tenants", "skewed"])
def test_a_chunk_is_split_into_parts_of_one_size(postgres_server, connection, name):
    columns, values = SHAPES[name]
    few = SERIES.format(values).replace(f"{ROWS})", "950)")
    connection.execute(f"CREATE TABLE logged_{name} ({columns})")
    connection.execute(f"INSERT INTO logged_{name} {few}")
    source = source_of(postgres_server, "sampled", f"public.logged_{name}")
    with closing(source.open_snapshot()) as snapshotter:
        snapshotter.begin()
        first, second, *_, last = snapshotter.plan(200)
        for chunk in (first, second, last):
            *_, part = split(snapshotter, chunk, 70)
            split(snapshotter, part, 7)


@pytest.mark.parametrize("name", SHAPES)
def test_chunks_are_of_one_size_and_hold_every_row_once(connection, name):
    facts = table_named(connection, "public", name)
    chunks = list(plan_table(connection, "sampled", facts, CHUNK_ROWS, sampled_blocks=50))
    columns = ", ".join(column.name for column in facts.key)
    found = connection.execute(
        " UNION ALL ".join(
            f"SELECT {at}, format('%s', row({columns})) FROM {name} WHERE "
            + " AND ".join(range_conditions(facts.key, chunk.bounds))
            for at, chunk in enumerate(chunks)
        )
    ).fetchall()
    sizes = [sum(at == row[0] for row in found) for at in range(len(chunks))]
    assert len(found) == len({key for _, key in found}) == ROWS
    # Whose pages' order says nothing, which its sample shows: it is counted out.
    counted = sizes == [CHUNK_ROWS] * 6 + [0]
    assert counted == (name == "shuffled") or name == "skewed"
    assert counted or min(sizes) > 0.6 * CHUNK_ROWS
    assert max(sizes) < 1.5 * CHUNK_ROWS
