"""Two tables whose names are equal when they are written one behind the other: a.b.c is both."""

import pytest

from tests.servers.wire import Wire
from tests.sources.postgres.copying import copied, source_of
from tests.sources.postgres.stream_reading import execute
from tests.sources.postgres.table_run import PostgresTableRun
from tests.waiting import wait_for

TABLE = 'CREATE SCHEMA "a.b"'
TABLES = (
    "CREATE SCHEMA a",
    'CREATE TABLE "a.b".c (id int PRIMARY KEY, x int)',
    'CREATE TABLE a."b.c" (id int PRIMARY KEY, x int)',
)
FIRST, SECOND = '"a.b".c', 'a."b.c"'


@pytest.fixture
def sql(postgres_server, database):
    return lambda *statements: execute(postgres_server, *statements, database=database)


@pytest.fixture
def wire(postgres_server):
    found = Wire(postgres_server)
    yield found
    found.close()


@pytest.fixture
def run(postgres_server, database, wire):
    found = PostgresTableRun(postgres_server, database, port=wire.port, tables='["*.*"]')
    yield found
    if found.driving is not None:
        found.stop()


def test_one_of_them_stops_is_counted_and_copied_alone(run, wire, sql):
    sql(*TABLES)
    wire.answers = {b"770077": b"77,077"}
    run.start()
    for table in (FIRST, SECOND):
        sql(f"INSERT INTO {table} VALUES (1, 10)")
    run.wait_row("c", {"id": 1, "x": 10})
    run.wait_row("b.c", {"id": 1, "x": 10})
    sql(f"INSERT INTO {FIRST} VALUES (2, 770077)", f"INSERT INTO {SECOND} VALUES (2, 2)")
    wait_for("the stop", lambda: run.status().stopped_tables or run.ended())
    sql(f"INSERT INTO {FIRST} VALUES (3, 3)", f"INSERT INTO {SECOND} VALUES (3, 3)")
    run.wait_row("b.c", {"id": 3, "x": 3})

    assert run.rows("b.c") == [("c", {"id": n, "x": x}) for n, x in ((1, 10), (2, 2), (3, 3))]
    assert run.rows("c") == [("c", {"id": 1, "x": 10})]
    wait_for("the counts", lambda: run.status().tables[SECOND].events == {"c": 3})
    assert {name: counts.events for name, counts in run.status().tables.items()} == {
        FIRST: {"c": 1},
        SECOND: {"c": 3},
    }
    assert [*run.status().stopped_tables] == [FIRST]
    command = run.status().stopped_tables[FIRST]["reason"].rpartition(": ")[2]
    assert command == """deltaforge snapshot FILE --tables '"a.b".c'"""

    wire.answers = {}
    assert run.ask(FIRST).state == "done"
    assert run.status().stopped_tables == {}
    assert {row["id"]: row["x"] for op, row in run.rows("c") if op == "r"} == {
        1: 10,
        2: 770077,
        3: 3,
    }
    assert [row for op, row in run.rows("b.c") if op == "r"] == []


def test_each_is_copied_in_chunks_and_events_of_its_own(postgres_server, database, sql):
    sql(*TABLES)
    for table in (FIRST, SECOND):
        sql(f"INSERT INTO {table} SELECT n, n FROM generate_series(1, 3) n")
    source = source_of(postgres_server, database, "*.*")
    batches = copied(source)
    snapshotter = source.open_snapshot()
    chunks = [*snapshotter.plan(1000)]
    snapshotter.close()

    assert len({chunk.id for chunk in chunks}) == len(chunks) == 2
    ids = [event for batch in batches for event in batch.rows["event_id"].to_pylist()]
    assert len(set(ids)) == len(ids) == 6


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.b.c", ["b.c", "c"]),
        ('"a.b".c', ["c"]),
        ('"a.b".*', ["c"]),
        ('a."b.c"', ["b.c"]),
    ],
)
def test_quotes_in_a_pattern_name_one_of_them(postgres_server, database, sql, pattern, names):
    sql(*TABLES)
    found = source_of(postgres_server, database, pattern).describe()

    assert sorted(schema.table for schema in found) == names
