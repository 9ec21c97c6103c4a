"""Rows that a rename brings under a captured name are copied: the log does not tell of it."""

import pytest

from airflow_provider_deltaforge.plugins import SOURCES
from tests.sources.postgres.stream_reading import execute, tuned
from tests.sources.postgres.table_run import PostgresTableRun
from tests.waiting import wait_for

HastySource = tuned(look_s=0.1)
TABLE = "CREATE TABLE a (id int PRIMARY KEY, x text)"
TABLES = (
    "CREATE TABLE b (id int PRIMARY KEY, x text)",
    "INSERT INTO a VALUES (1, 'from a'), (2, 'from a')",
    "INSERT INTO b VALUES (2, 'from b'), (3, 'from b')",
)
SWAP = (
    "BEGIN; ALTER TABLE a RENAME TO tmp; ALTER TABLE b RENAME TO a; ALTER TABLE tmp RENAME TO b;"
    "COMMIT"
)


@pytest.fixture
def sql(postgres_server, database):
    return lambda *statements: execute(postgres_server, *statements, database=database)


@pytest.fixture
def pipeline(postgres_server, database, monkeypatch):
    monkeypatch.setitem(SOURCES.shipped, "postgres", f"{__name__}:HastySource")
    runs = []

    def begin(**settings):
        runs.append(PostgresTableRun(postgres_server, database, **settings))
        return runs[-1]

    yield begin
    for run in runs:
        if run.driving is not None:
            run.stop()


def copied(run):
    """Return the tables whose copies are done, in order."""
    return sorted(one.tables[0] for one in run.requests() if one.state == "done")


def last(run, table):
    """Return the last state of each row of a table."""
    return {row["id"]: row["x"] for op, row in run.rows(table) if op != "d"}


@pytest.mark.parametrize("when", ["while it runs", "while it is stopped"])
def test_tables_that_swap_their_names_are_copied(pipeline, sql, when):
    sql(*TABLES)
    run = pipeline().start()
    sql("INSERT INTO a VALUES (4, 'a runs')")
    run.wait_row("a", {"id": 4, "x": "a runs"})
    if when == "while it is stopped":
        run.stop()
    sql("UPDATE a SET x = 'late' WHERE id = 2", SWAP)
    if when == "while it is stopped":
        run.start()
    wait_for("the copies", lambda: copied(run) == ["public.a", "public.b"])
    sql("UPDATE a SET x = 'then' WHERE id = 3")
    run.wait_row("a", {"id": 3, "x": "then"})

    assert last(run, "a").items() >= {2: "from b", 3: "then"}.items()
    assert last(run, "b") == {1: "from a", 2: "late", 4: "a runs"}
    assert len(run.requests()) == 2


def test_a_table_swapped_in_from_outside_is_copied_and_others_are_not(pipeline, sql):
    sql(*TABLES, "CREATE PUBLICATION df FOR ALL TABLES", "CREATE TABLE c (id int PRIMARY KEY)")
    run = pipeline(tables='["a", "late"]').start()
    sql("INSERT INTO a VALUES (4, 'a runs')")
    run.wait_row("a", {"id": 4, "x": "a runs"})
    sql("BEGIN; ALTER TABLE a RENAME TO a_old; ALTER TABLE b RENAME TO a; COMMIT")
    wait_for("the copy", lambda: copied(run) == ["public.a"])
    sql("ALTER TABLE c RENAME TO d")
    sql("ALTER TABLE a_old RENAME TO late")
    wait_for("the other copy", lambda: copied(run) == ["public.a", "public.late"])

    assert last(run, "a").items() >= {2: "from b", 3: "from b"}.items()
    assert last(run, "late") == {1: "from a", 2: "from a", 4: "a runs"}
    assert len(run.requests()) == 2


def test_a_new_table_and_a_captured_one_with_a_free_name_are_not_copied(pipeline, sql):
    sql(*TABLES, "CREATE PUBLICATION df FOR ALL TABLES")
    run = pipeline().start()
    sql("CREATE TABLE c (id int PRIMARY KEY, x text)", "ALTER TABLE b RENAME TO e")
    run.wait_until_named("public.c", "public.e")
    sql("INSERT INTO c VALUES (1, 'new')", "INSERT INTO e VALUES (9, 'moved')")
    run.wait_row("c", {"id": 1, "x": "new"})
    run.wait_row("e", {"id": 9, "x": "moved"})

    assert run.requests() == []


@pytest.mark.parametrize("pattern", ["a.b.*", "*.b.t", "a*.t", "a.b.t"])
def test_a_table_of_a_schema_with_a_dot_is_captured_under_its_name(pipeline, sql, pattern):
    sql(
        'CREATE SCHEMA "a.b"',
        'CREATE TABLE "a.b".t (id int PRIMARY KEY, x text)',
        'CREATE TABLE "a.b".swapped (id int PRIMARY KEY, x text)',
        """INSERT INTO "a.b".swapped VALUES (2, 'swapped in')""",
        "CREATE PUBLICATION df FOR ALL TABLES",
    )
    run = pipeline(tables=f'["{pattern}"]').start()
    sql("""INSERT INTO "a.b".t VALUES (4, 'it runs')""")
    run.wait_row("t", {"id": 4, "x": "it runs"})
    sql(
        'BEGIN; ALTER TABLE "a.b".t RENAME TO old; ALTER TABLE "a.b".swapped RENAME TO t; COMMIT',
    )
    wait_for("the copy", lambda: copied(run) == ['"a.b".t'], 30)
    assert last(run, "t").items() >= {2: "swapped in"}.items()
