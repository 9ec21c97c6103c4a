"""A table of PostgreSQL that cannot be decoded stops alone, and the others go on."""

import pytest

from tests.servers.wire import Wire
from tests.sources.postgres.stream_reading import execute
from tests.sources.postgres.table_run import PostgresTableRun
from tests.waiting import wait_for

TABLE = "CREATE TABLE b (id int PRIMARY KEY, x int)"


@pytest.fixture
def wire(postgres_server):
    found = Wire(postgres_server)
    yield found
    found.close()


@pytest.fixture
def pipeline(postgres_server, database, wire):
    runs = []

    def begin(**settings):
        runs.append(PostgresTableRun(postgres_server, database, port=wire.port, **settings))
        return runs[-1]

    yield begin
    for run in runs:
        if run.driving is not None:
            run.stop()


@pytest.fixture
def sql(postgres_server, database):
    return lambda *statements: execute(postgres_server, *statements, database=database)


def test_what_the_wire_breaks_stops_its_tables_alone(pipeline, wire, sql):
    sql("CREATE TABLE a (id int PRIMARY KEY, x int)", "CREATE TABLE c (id int PRIMARY KEY)")
    wire.answers = {b"770077": b"77,077", b"public\0c\0d\0\1": b"public\0c\0d\0\2"}
    run = pipeline().start()
    sql("INSERT INTO a VALUES (1, 10)", "INSERT INTO b VALUES (1, 1)")
    run.wait_row("a", {"id": 1, "x": 10})
    sql("INSERT INTO a VALUES (2, 770077)", "INSERT INTO c VALUES (1)")
    sql("UPDATE a SET x = 11 WHERE id = 1", "INSERT INTO b VALUES (2, 2)")
    run.wait_row("b", {"id": 2, "x": 2})

    assert run.rows("a") == [("c", {"id": 1, "x": 10})]
    assert run.rows("c") == []
    assert run.rows("b") == [("c", {"id": 1, "x": 1}), ("c", {"id": 2, "x": 2})]
    reasons = {name: told["reason"] for name, told in run.status().stopped_tables.items()}
    assert "column 'x' of a row in the log holds no value of type integer" in reasons["public.a"]
    assert "77,077" not in reasons["public.a"]
    assert "description of its columns cannot be read" in reasons["public.c"]
    assert "copy it with: deltaforge snapshot FILE --tables public.a" in reasons["public.a"]
    wait_for("the status", lambda: run.status().status == "running")
    assert run.status().reason == "degraded, 2 tables stopped: public.a, public.c"

    wire.answers = {}
    assert run.ask("public.a").state == "done"
    assert list(run.status().stopped_tables) == ["public.c"]
    sql("UPDATE a SET x = 12 WHERE id = 1", "INSERT INTO c VALUES (2)")
    run.wait_row("a", {"id": 1, "x": 12}, op="u")
    assert ("r", {"id": 2, "x": 770077}) in run.rows("a")
    assert run.rows("c") == []


def while_stopped(run, sql):
    """Let rows wait in the log while their columns' types are dropped."""
    sql("CREATE DOMAIN code AS int", "CREATE TABLE a (id int PRIMARY KEY, x code[])")
    sql("CREATE TYPE mood AS ENUM ('ok')", "CREATE TABLE c (id int PRIMARY KEY, m mood, d code)")
    run.start()
    run.stop()
    sql("INSERT INTO a VALUES (1, '{1}')", "INSERT INTO c VALUES (1, 'ok', 5)", "DROP TABLE c")
    sql("ALTER TABLE a DROP COLUMN x", "DROP DOMAIN code", "DROP TYPE mood")
    sql("INSERT INTO a VALUES (2)", "INSERT INTO b VALUES (1, 1)")
    run.start()


def test_a_dropped_type_stops_its_table_until_it_is_copied(pipeline, sql):
    run = pipeline()
    while_stopped(run, sql)
    run.wait_row("b", {"id": 1, "x": 1})
    assert run.rows("a") == []
    assert run.rows("c") == [("c", {"id": 1, "m": "ok", "d": 5})]
    assert "the columns are 'x'" in run.status().stopped_tables["public.a"]["reason"]
    run.stop()
    run.start()
    assert list(run.status().stopped_tables) == ["public.a"]
    assert run.ask("public.a").state == "done"
    run.wait_row("a", {"id": 1}, op="r")
    assert run.status().stopped_tables == {}


@pytest.mark.long
def test_the_document_can_ask_for_the_whole_pipeline_to_stop(pipeline, sql):
    run = pipeline(policy="halt")
    while_stopped(run, sql)
    wait_for("the end", run.ended)
    assert (run.driving.outcome.why, run.driving.outcome.error_class) == ("failed", "schema")
    assert "the columns are 'x'" in run.driving.outcome.reason
    assert (
        "copy the table: deltaforge snapshot FILE --tables public.a" in run.driving.outcome.reason
    )
