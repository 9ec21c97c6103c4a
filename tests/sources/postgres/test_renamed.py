"""Rows that come under a captured name without the log are copied: renamed, or published late."""

import pytest

from airflow_provider_deltaforge.plugins import SOURCES
from tests.sources.postgres.stream_reading import execute, source_of, tuned
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


EVERYTHING = "CREATE PUBLICATION df FOR ALL TABLES WITH (publish_via_partition_root = true)"
A_SCHEMA = "CREATE PUBLICATION df FOR TABLES IN SCHEMA public"
LATE = {
    "an unlogged table becomes a logged one": (
        EVERYTHING,
        ["CREATE UNLOGGED TABLE t (id int PRIMARY KEY, x text)"],
        "ALTER TABLE t SET LOGGED",
    ),
    "a partition becomes a table of its own": (
        EVERYTHING,
        [
            "CREATE TABLE r (id int PRIMARY KEY, x text) PARTITION BY RANGE (id)",
            "CREATE TABLE t PARTITION OF r FOR VALUES FROM (0) TO (100)",
        ],
        "ALTER TABLE r DETACH PARTITION t",
    ),
    "a table moves into a published schema": (
        A_SCHEMA,
        [
            "CREATE SCHEMA staging",
            "CREATE TABLE staging.t (id int PRIMARY KEY, x text)",
            "ALTER ROLE postgres IN DATABASE {database} SET search_path = public, staging",
        ],
        "ALTER TABLE staging.t SET SCHEMA public",
    ),
    "its owner publishes a table by hand": (
        "CREATE PUBLICATION df FOR TABLE a",
        ["CREATE TABLE t (id int PRIMARY KEY, x text)"],
        "ALTER PUBLICATION df ADD TABLE t",
    ),
}


@pytest.mark.parametrize("when", ["while it runs", "while it is stopped"])
@pytest.mark.parametrize("how", LATE)
def test_a_table_with_rows_that_is_published_late_is_copied_once(
    pipeline, sql, database, how, when
):
    publication, made, enter = LATE[how]
    sql(*(statement.format(database=database) for statement in made))
    sql("INSERT INTO t VALUES (1, 'before')", publication)
    run = pipeline(create="false").start()
    sql("INSERT INTO a VALUES (1, 'a runs')")
    run.wait_row("a", {"id": 1, "x": "a runs"})
    if when == "while it is stopped":
        run.stop()
    sql(enter, "INSERT INTO t VALUES (2, 'streamed')")
    if when == "while it is stopped":
        run.start()
    wait_for("the copy", lambda: copied(run) == ["public.t"])
    sql("UPDATE t SET x = 'then' WHERE id = 2")
    run.wait_row("t", {"id": 2, "x": "then"})

    assert last(run, "t") == {1: "before", 2: "then"}
    assert len(run.requests()) == 1


def test_a_table_that_was_logged_between_two_looks_is_copied(pipeline, sql):
    sql(EVERYTHING)
    run = pipeline().start()
    sql(
        "BEGIN; CREATE UNLOGGED TABLE t (id int PRIMARY KEY, x text);"
        "INSERT INTO t VALUES (1, 'before'); ALTER TABLE t SET LOGGED; COMMIT"
    )
    wait_for("the copy", lambda: copied(run) == ["public.t"])
    assert last(run, "t") == {1: "before"}


def test_a_table_that_the_pipeline_publishes_itself_is_copied_once(pipeline, sql):
    sql("CREATE PUBLICATION df FOR TABLE a")
    run = pipeline().start()
    sql("INSERT INTO a VALUES (1, 'a runs')")
    run.wait_row("a", {"id": 1, "x": "a runs"})
    sql("BEGIN; CREATE TABLE t (id int PRIMARY KEY, x text); INSERT INTO t VALUES (1, 'b'); COMMIT")
    wait_for("the copy", lambda: copied(run) == ["public.t"])
    sql("CREATE TABLE u (id int PRIMARY KEY, x text)")
    run.wait_until_named("public.t", "public.u")
    wait_for("the other copy", lambda: copied(run) == ["public.t", "public.u"])

    assert len(run.requests()) == 2


@pytest.mark.parametrize("takes_in", [False, True])
def test_tables_are_remembered_that_may_be_published_one_day(
    postgres_server, database, sql, takes_in
):
    sql("CREATE SCHEMA other", "CREATE TABLE b ()", "CREATE TABLE other.scratch ()")
    of_schema = "TABLES IN SCHEMA public" if takes_in else "TABLE a"
    sql(f"CREATE PUBLICATION mine FOR {of_schema}")
    publication = {"name": "mine", "create": False}
    source = source_of(postgres_server, database, publication=publication, tables=["public.*"])

    names = source.named_tables().tables

    assert names.keys() == {"public.a", "public.b"} | ({"other.scratch"} if takes_in else set())
    source = source_of(postgres_server, database, publication=publication, tables=["public.a"])
    assert ("public.b" in source.named_tables().tables) == takes_in


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
