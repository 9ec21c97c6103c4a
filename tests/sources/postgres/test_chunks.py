"""Chunks hold every row once, whatever the key is made of."""

import json

import pytest

from airflow_provider_deltaforge.errors import SchemaError
from tests.sources.postgres.copying import begun, copied, fresh_database, source_of
from tests.sources.postgres.stream_reading import connect, drop_slots, events, execute

SERIES = "SELECT {} FROM generate_series(1, 300) AS i"
KEYS = {
    "dense": ("id int PRIMARY KEY", "i"),
    "sparse": ("id bigint PRIMARY KEY", "i::bigint * i * i * 7000003"),
    "negative": ("id int PRIMARY KEY", "(i - 150) * 37"),
    "composite": (
        'a int, b text COLLATE "C", c date, PRIMARY KEY (a, b, c)',
        "i % 5, 'k' || i % 7, date '2024-01-01' + i",
    ),
    "backwards": ("v int, b int, a text, PRIMARY KEY (a, b)", "i, i % 3, 'x' || i"),
    "texts": ("k text PRIMARY KEY", "chr(32 + i % 90) || i"),
    "quotes": ("k text PRIMARY KEY", r"E'o''n\\\\ \t' || i || '%s'"),
    "caseless": ("k text COLLATE caseless PRIMARY KEY", "chr(97 + i % 26) || 'Äß' || i"),
    "swedish": ('k text COLLATE "sv-x-icu" PRIMARY KEY', "chr(224 + i % 30) || i"),
    "fixed": ("k char(8) PRIMARY KEY", "i::text"),
    "uuid": ("k uuid PRIMARY KEY", "md5(i::text)::uuid"),
    "bytes": ("k bytea PRIMARY KEY", "decode(md5(i::text), 'hex')"),
    "numeric": ("k numeric PRIMARY KEY", "i * 1.50000000000000000001 - 200"),
    "float": ("k double precision PRIMARY KEY", "sin(i)"),
    "nan": (
        "k real PRIMARY KEY",
        "CASE i WHEN 1 THEN 'NaN'::real WHEN 2 THEN '-Infinity' ELSE i END",
    ),
    "moments": (
        "k timestamptz PRIMARY KEY",
        "timestamptz '2024-03-31 00:00+02' + i * interval '17 min'",
    ),
    "spans": ("k interval PRIMARY KEY", "i * interval '1 day 3 hours'"),
    "enum": ("k size, n int, PRIMARY KEY (k, n)", "(enum_range(NULL::size))[1 + i % 3], i"),
    "domain": ("k code PRIMARY KEY", "('c' || i)::code"),
    "composite_type": ("k pair PRIMARY KEY", "ROW(i % 7, 'x' || i)::pair"),
    "range": ("k int4range PRIMARY KEY", "int4range(i, i + 5)"),
    "array": ("k text[] PRIMARY KEY", "ARRAY[i % 9, i]::text[]"),
    "inet": ("k inet PRIMARY KEY", "'10.0.0.0'::inet + i * 7"),
    "quoted_names": ('"Key ""1""" int PRIMARY KEY, "order" int', "i, i"),
    "unique_index": ("a int NOT NULL UNIQUE, b int", "i, i"),
    "nullable_unique": ("a int UNIQUE, b int", "nullif(i % 300, 7), i"),
    "no_key": ("a int, b int", "i % 10, 1"),
    "partitioned": ("a int, b int, PRIMARY KEY (a, b)) PARTITION BY LIST (b", "i, i % 3"),
}
WITHOUT_KEY = {"nullable_unique", "no_key"}
BEFORE = (
    "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "CREATE TYPE size AS ENUM ('small', 'large', 'medium')",
    "CREATE TYPE pair AS (a int, b text)",
    "CREATE DOMAIN code AS text COLLATE \"C\" CHECK (value <> '')",
)


@pytest.fixture(scope="module")
def server(either):
    statements = list(BEFORE)
    for name, (columns, values) in KEYS.items():
        statements.append(f"CREATE TABLE k_{name} ({columns})")
        if name == "partitioned":
            statements += [
                f"CREATE TABLE part_{b} PARTITION OF k_partitioned FOR VALUES IN ({b})"
                for b in range(3)
            ]
        statements.append(f"INSERT INTO k_{name} {SERIES.format(values)}")
    fresh_database(either, "chunked", *statements)
    yield either
    drop_slots(either, "chunked")


@pytest.fixture(scope="module")
def snapshotter(server):
    snapshotter = begun(source_of(server, "chunked", "k_*"))
    yield snapshotter
    snapshotter.close()


@pytest.mark.parametrize("chunk_rows", [23, 1000])
@pytest.mark.parametrize("name", KEYS)
def test_chunks_hold_every_row_once(server, snapshotter, name, chunk_rows):
    chunks = list(snapshotter.plan(chunk_rows, tables=[f"k_{name}"]))
    batches = [list(snapshotter.read(chunk, "run")) for chunk in chunks]
    found = [event["after"] for chunk in batches for event in events(chunk)]
    (different,) = execute(
        server, f"SELECT count(DISTINCT t::text) FROM k_{name} t", database="chunked"
    )[0]
    assert len(found) == 300
    assert len(set(found)) == different
    assert len({event["event_id"] for chunk in batches for event in events(chunk)}) == 300
    if name not in WITHOUT_KEY:
        assert len(chunks) == 300 // chunk_rows + 1
        assert max(len(events(chunk)) for chunk in batches) <= chunk_rows
    else:
        assert len(chunks) == 1


def test_bounds_survive_json_and_keep_their_ids(snapshotter):
    first, second = list(snapshotter.plan(20)), list(snapshotter.plan(20))
    assert [chunk.id for chunk in first] == [chunk.id for chunk in second]
    assert len({chunk.id for chunk in first}) == len(first)
    for chunk in first:
        assert json.loads(json.dumps(chunk.bounds)) == chunk.bounds


def test_range_reads_use_the_index(server, snapshotter):
    from airflow_provider_deltaforge.sources.postgres.snapshot.table_chunks import select_rows
    from airflow_provider_deltaforge.sources.postgres.tables import table_named

    chunk = list(snapshotter.plan(100, tables=["k_composite"]))[1]
    with connect(server, "chunked") as connection:
        connection.execute("SET enable_seqscan = off")
        facts = table_named(connection, "public", "k_composite")
        plan = connection.execute("EXPLAIN " + select_rows(facts, chunk, "a, b, c")).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert "Index Cond: ((ROW(a, b, c) > ROW" in text
    assert "ROW(a, b, c) <= ROW" in text
    assert "Filter" not in text


def test_rows_inserted_after_planning_fall_into_some_chunk(either):
    fresh_database(
        either,
        "cut",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t SELECT generate_series(100, 199)",
    )
    snapshotter = begun(source_of(either, "cut"))
    chunks = list(snapshotter.plan(10))
    execute(either, "INSERT INTO t VALUES (1), (150000), (-5)", database="cut")
    keys = [
        json.loads(event["after"])["id"]
        for chunk in chunks
        for event in events(snapshotter.read(chunk, "run"))
    ]
    snapshotter.close()
    drop_slots(either, "cut")
    assert keys == [-5, 1, *range(100, 200), 150_000]


def test_a_row_is_found_by_its_key_or_said_to_need_its_whole_table(either):
    """One that is passed over is taken for one that is gone, and a repair deletes it."""
    values = ("NaN", "Infinity", "-1.50", "10.0::numeric ^ 1500", "10.0::numeric ^ -1200")
    written = ", ".join(f"({value if '^' in value else repr(value)})" for value in values)
    fresh_database(
        either, "cut", "CREATE TABLE t (k numeric PRIMARY KEY)", f"INSERT INTO t VALUES {written}"
    )
    source = source_of(either, "cut")
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(10)
    (batch,) = snapshotter.read(chunk, "run")
    (table,) = batch.schemas
    found = {}
    for key in batch.rows["key"].to_pylist():
        part = source.chunk_of_keys(chunk, table, [json.loads(key), {"k": "1"}])
        rows = None if part is None else events(snapshotter.read(part, "run"))
        found[key] = rows is None or [row["key"] for row in rows]
    snapshotter.close()
    drop_slots(either, "cut")
    assert found == {key: [key] if b"Inf" not in key else True for key in found}
    assert len(found) == len(values)


def test_an_empty_table_gives_one_empty_chunk(either):
    fresh_database(either, "cut", "CREATE TABLE t (id int PRIMARY KEY)")
    (batch,) = copied(source_of(either, "cut"))
    drop_slots(either, "cut")
    assert batch.rows.num_rows == 0
    assert batch.end["snapshot"]


def test_nulls_that_a_not_null_not_valid_leaves_are_copied(postgres18_server):
    fresh_database(
        postgres18_server,
        "cut",
        "CREATE TABLE t (v int UNIQUE, w int)",
        "INSERT INTO t SELECT nullif(greatest(i, 0), 0) FROM generate_series(-2, 30) i",
        "ALTER TABLE t ADD CONSTRAINT later NOT NULL v NOT VALID",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    snapshotter = begun(source_of(postgres18_server, "cut"))
    (chunk,) = snapshotter.plan(10)
    (batch,) = snapshotter.read(chunk, "run")
    assert batch.rows.num_rows == 33
    assert [column.nullable for column in batch.schemas[0].columns] == [True, True]

    remedy = ("DELETE FROM t WHERE v IS NULL", "ALTER TABLE t VALIDATE CONSTRAINT later")
    execute(postgres18_server, *remedy, database="cut")
    batches = [b for chunk in snapshotter.plan(10) for b in snapshotter.read(chunk, "run")]
    snapshotter.close()
    drop_slots(postgres18_server, "cut")
    assert [batch.rows.num_rows for batch in batches] == [10, 10, 10, 0]
    assert [column.nullable for column in batches[0].schemas[0].columns] == [False, True]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)",
        "ALTER TABLE t ALTER id TYPE text",
        'ALTER TABLE t ALTER name TYPE text COLLATE "en-x-icu"',
    ],
)
def test_a_changed_key_asks_for_a_new_run(either, change):
    fresh_database(
        either,
        "cut",
        'CREATE TABLE t (id int, name text COLLATE "C", a int, PRIMARY KEY (id, name))',
        "INSERT INTO t SELECT i, i, i FROM generate_series(1, 30) i",
    )
    snapshotter = begun(source_of(either, "cut"))
    before, chunk, *_ = snapshotter.plan(10)
    assert len(events(snapshotter.read(before, "run"))) == 10
    execute(either, change, database="cut")
    with pytest.raises(SchemaError, match="key changed"):
        list(snapshotter.read(chunk, "run"))
    snapshotter.close()
    drop_slots(either, "cut")
