"""Chunks hold every key once, whatever the key is made of."""

import json

import pytest

from tests.servers import sql
from tests.sources.mysql.reading import copied, events, fresh_database, source_of

KEYS = {
    "dense": ("id int primary key", [f"({i})" for i in range(1, 501)]),
    "sparse": ("id bigint primary key", [f"({i * i * i * 7_000_003})" for i in range(200)]),
    "negative": ("id int primary key", [f"({i * 37})" for i in range(-150, 150)]),
    "unsigned": (
        "id bigint unsigned primary key",
        [f"({2**64 - 1 - i * 12_345})" for i in range(200)] + ["(0)", "(9223372036854775808)"],
    ),
    "composite": (
        "a int, b varchar(20) collate utf8mb4_general_ci, c date, primary key (a, b, c)",
        [f"({i % 5}, 'k{i // 5 % 7}', '2024-01-{1 + i // 35:02d}')" for i in range(5 * 7 * 28)],
    ),
    "caseless": (
        "k varchar(40) collate utf8mb4_general_ci primary key",
        [f"('{word}{i}')" for i in range(60) for word in ("a", "B", "ä x", "Zebra", "_", "o''n")]
        + ["('')", "('back\\\\\\\\slash')"],
    ),
    "latin1": (
        "k varchar(40) character set latin1 primary key",
        [f"('é{i}')" for i in range(100)] + [f"('E{i}x')" for i in range(100)],
    ),
    "binary": ("k binary(3) primary key", [f"(X'{i * 4099 % 16777216:06X}')" for i in range(400)]),
    "decimal": (
        "k decimal(30,10) primary key",
        [f"({i}.{i:010d})" for i in range(-99, 0)] + [f"({i}.5000000001)" for i in range(100)],
    ),
    "moments": (
        "k datetime(6) primary key",
        [f"('2024-01-01 00:00:{i % 60:02d}.{i:06d}')" for i in range(300)],
    ),
    "timestamps": (
        "k timestamp(3) primary key",
        [f"('2024-01-01 00:00:{i % 60:02d}.{i:03d}')" for i in range(300)],
    ),
    "times": ("k time primary key", [f"('{i - 100}:00:01')" for i in range(200)]),
    "enum": ("k enum('z','y','x','w') primary key", ["('z')", "('y')", "('x')", "('w')"]),
    "int_then_enum": (
        "a int, k enum('z','a') , primary key (a, k)",
        [f"({i}, '{k}')" for i in range(100) for k in "za"],
    ),
    "float": ("k float primary key", [f"({i}.1)" for i in range(100)]),
    "no_key": ("k int, v int", [f"({i}, {i})" for i in range(100)]),
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request):
    server = request.getfixturevalue(f"{request.param}_server")
    statements = []
    for name, (columns, values) in KEYS.items():
        statements.append(f"CREATE TABLE k_{name} ({columns}) DEFAULT CHARSET=utf8mb4")
        statements.append(f"INSERT INTO k_{name} VALUES {', '.join(values)}")
    fresh_database(server, "chunked", *statements)
    return server


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("chunk_rows", [29, 100_000])
def test_chunks_hold_every_row_once(server, name, chunk_rows):
    source = source_of(server, "chunked", f"k_{name}")
    rows = [event["after"] for event in events(copied(source, chunk_rows))]
    assert len(rows) == len(KEYS[name][1])
    (count,) = sql.execute(server, f"SELECT COUNT(*) FROM chunked.k_{name}")[0]
    assert len(set(rows)) == count


def test_a_small_table_is_cut_into_the_rows_asked_for(server):
    batches = copied(source_of(server, "chunked", "k_sparse"), 50)
    assert [batch.rows.num_rows for batch in batches] == [50, 50, 50, 50, 0]


def test_bounds_survive_json_and_keep_their_ids(server):
    snapshotter = source_of(server, "chunked").open_snapshot()
    first, second = list(snapshotter.plan(20)), list(snapshotter.plan(20))
    snapshotter.close()
    assert [chunk.id for chunk in first] == [chunk.id for chunk in second]
    assert len({chunk.id for chunk in first}) == len(first)
    for chunk in first:
        assert json.loads(json.dumps(chunk.bounds)) == chunk.bounds


def test_rows_inserted_while_planning_fall_into_some_chunk(server):
    fresh_database(
        server,
        "growing",
        "CREATE TABLE t (id int primary key)",
        f"INSERT INTO t VALUES {', '.join(f'({i})' for i in range(100, 200))}",
    )
    snapshotter = source_of(server, "growing").open_snapshot()
    plan = snapshotter.plan(10)
    chunks = [next(plan)]
    sql.execute(server, "INSERT INTO growing.t VALUES (1), (150000), (-5)")
    chunks += list(plan)
    keys = [
        json.loads(event["after"])["id"]
        for chunk in chunks
        for event in events(snapshotter.read(chunk, "run"))
    ]
    snapshotter.close()
    assert keys == [-5, 1, *range(100, 200), 150_000]


def test_range_reads_use_the_primary_index(server):
    from airflow_provider_deltaforge.sources.mysql.catalog import load_table
    from airflow_provider_deltaforge.sources.mysql.snapshot.key_ranges import select_rows

    # Of a table that it believes to hold next to nothing MySQL reads the whole index. It counts new
    # rows some time later, on a busy machine much later.
    sql.execute(server, "ANALYZE TABLE k_composite", database="chunked")
    snapshotter = source_of(server, "chunked", "k_composite").open_snapshot()
    chunk = list(snapshotter.plan(100))[3]
    connection = sql.connect(server, "chunked")
    schema = load_table(connection, "chunked", "k_composite")
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN FORMAT=JSON " + select_rows(schema, chunk, "a, b, c"))
        (plan,) = cursor.fetchone()
    connection.close()
    snapshotter.close()
    assert "PRIMARY" in plan
    assert "index_range_scan" in plan or '"access_type": "range"' in plan


def test_an_empty_table_gives_one_empty_chunk(server):
    fresh_database(server, "nothing", "CREATE TABLE t (id int primary key)")
    batches = copied(source_of(server, "nothing"))
    assert [batch.rows.num_rows for batch in batches] == [0]
    assert batches[0].end["file"]
