"""One table stops and the others go on; tables appear and bring their rows."""

import json

import pytest

from airflow_provider_deltaforge.control import rewind
from airflow_provider_deltaforge.control.metrics import Observed, families
from airflow_provider_deltaforge.control.rewind import RewindSelection
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.table_run import TableRun
from tests.waiting import wait_for

NAME = "apart"
LOSES_NAMES = (
    f"ALTER TABLE {NAME}.a CONVERT TO CHARACTER SET DEFAULT, RENAME COLUMN x TO y, "
    "RENAME COLUMN y TO x"
)


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def server(request):
    """A server whose log does not name columns."""
    server = request.getfixturevalue(f"{request.param}_server")
    silent = "MINIMAL" if request.param == "mysql" else "NO_LOG"
    fresh_database(
        server,
        NAME,
        "CREATE TABLE a (id int PRIMARY KEY, x int, y int)",
        "CREATE TABLE b (id int PRIMARY KEY, x int)",
    )
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {silent}")
    yield server
    sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture
def pipeline(server):
    runs = []

    def begin(*tables, **settings):
        runs.append(TableRun(server, list(tables) or [f"{NAME}.*"], **settings))
        return runs[-1]

    yield begin
    for run in runs:
        if run.driving is not None:
            run.stop()


def run_sql(server, *statements):
    sql.execute(server, *statements, database=NAME)


def unseen_change(server, run):
    """Write rows and change their table twice while nobody reads, so that nobody can name them."""
    run.stop()
    run_sql(
        server,
        "INSERT INTO b VALUES (2, 2)",
        LOSES_NAMES,
        "INSERT INTO a VALUES (2, 20, 21)",
        LOSES_NAMES,
        "INSERT INTO b VALUES (3, 3)",
    )
    run.start()


def test_a_table_stops_alone_and_streams_again_from_its_copy_on(server, pipeline):
    run = pipeline().start()
    run_sql(server, "INSERT INTO a VALUES (1, 10, 11)", "INSERT INTO b VALUES (1, 1)")
    run.wait_row("b", {"id": 1, "x": 1})
    unseen_change(server, run)
    run.wait_row("b", {"id": 3, "x": 3})

    assert run.rows("a") == [("c", {"id": 1, "x": 10, "y": 11})]
    stopped = run.status().stopped_tables[f"{NAME}.a"]
    assert "RENAME COLUMN x TO y" in stopped["reason"]
    assert f"deltaforge snapshot FILE --tables {NAME}.a" in stopped["reason"]
    wait_for("the status", lambda: run.status().status == "running")
    assert run.status().reason == f"degraded, 1 table stopped: {NAME}.a"
    (gauge,) = [
        f for f in families([Observed(run.status())]) if f.name == "deltaforge_tables_stopped"
    ]
    assert gauge.samples[0].value == 1

    assert run.ask(f"{NAME}.a").state == "done"
    run_sql(server, "UPDATE a SET x = 5 WHERE id = 1", "INSERT INTO b VALUES (4, 4)")
    run.wait_row("b", {"id": 4, "x": 4})
    assert run.status().stopped_tables == {}
    rows = run.rows("a")
    assert ("r", {"id": 2, "x": 20, "y": 21}) in rows
    assert rows[-1] == ("u", {"id": 1, "x": 5, "y": 11})


def test_a_stopped_table_stays_stopped_over_a_restart(server, pipeline):
    run = pipeline().start()
    unseen_change(server, run)
    run.wait_row("b", {"id": 3, "x": 3})
    run.stop()
    run.start()
    run_sql(server, "INSERT INTO a VALUES (9, 9, 9)", "INSERT INTO b VALUES (9, 9)")
    run.wait_row("b", {"id": 9, "x": 9})
    assert run.rows("a") == []
    assert list(run.status().stopped_tables) == [f"{NAME}.a"]


def test_a_statement_about_the_database_leaves_its_tables_known(server, pipeline):
    run = pipeline().start()
    run_sql(server, "INSERT INTO a VALUES (1, 10, 11)")
    run.wait_row("a", {"id": 1, "x": 10, "y": 11})
    run.stop()
    run_sql(
        server,
        "INSERT INTO a VALUES (4, 40, 41)",
        f"CREATE DATABASE IF NOT EXISTS {NAME}",
        f"ALTER DATABASE {NAME} CHARACTER SET latin1",
        "INSERT INTO a VALUES (2, 20, 21)",
        "ALTER TABLE a RENAME COLUMN x TO z",
        "INSERT INTO a VALUES (3, 30, 31)",
    )
    run.start()
    run.wait_row("a", {"id": 3, "z": 30, "y": 31})
    assert ("c", {"id": 2, "x": 20, "y": 21}) in run.rows("a")
    assert run.status().stopped_tables == {}


def test_the_document_can_ask_for_the_whole_pipeline_to_stop(server, pipeline):
    run = pipeline(policy="halt").start()
    unseen_change(server, run)
    wait_for("the end", run.ended)
    assert (run.driving.outcome.why, run.driving.outcome.error_class) == ("failed", "schema")
    assert "RENAME COLUMN x TO y" in run.driving.outcome.reason
    assert f"--tables {NAME}.a" in run.driving.outcome.reason


def test_a_table_renamed_in_brings_its_rows_once(server, pipeline):
    run = pipeline(f"{NAME}.a", f"{NAME}.c").start()
    run_sql(server, "CREATE TABLE outside (id int PRIMARY KEY, z int)")
    run_sql(server, "INSERT INTO outside VALUES (1, 1), (2, 2)", "RENAME TABLE outside TO c")
    run_sql(server, "INSERT INTO c VALUES (3, 3)")
    run.wait_row("c", {"id": 3, "z": 3})
    run.wait_row("c", {"id": 2, "z": 2}, op="r")
    wait_for("the request's end", lambda: all(r.settled for r in run.requests()))
    assert [(r.tables, r.state) for r in run.requests()] == [((f"{NAME}.c",), "done")]
    run.stop()
    run.start()
    run_sql(server, "INSERT INTO a VALUES (7, 7, 7)")
    run.wait_row("a", {"id": 7, "x": 7, "y": 7})
    assert len(run.requests()) == 1


def test_a_tool_s_swap_is_a_change_of_columns_and_another_swap_a_copy(server, pipeline):
    run = pipeline(f"{NAME}.a").start()
    run_sql(server, "INSERT INTO a VALUES (1, 10, 11)")
    run.wait_row("a", {"id": 1, "x": 10, "y": 11})
    run_sql(
        server,
        "CREATE TABLE _a_gho LIKE a",
        "ALTER TABLE _a_gho ADD w int DEFAULT 3",
        "INSERT INTO _a_gho (id, x, y) SELECT * FROM a",
        "RENAME TABLE a TO _a_del, _a_gho TO a",
        "INSERT INTO a VALUES (2, 20, 21, 22)",
    )
    run.wait_row("a", {"id": 2, "x": 20, "y": 21, "w": 22})
    assert run.requests() == []
    assert not any(op == "r" for op, _ in run.rows("a"))
    run_sql(
        server,
        "CREATE TABLE made (id int PRIMARY KEY, new int)",
        "INSERT INTO made VALUES (5, 50)",
        "UPDATE a SET x = 1 WHERE id = 2",
        "RENAME TABLE a TO a_before, made TO a",
    )
    run.wait_row("a", {"id": 5, "new": 50}, op="r")
    assert run.rows("a")[-1] == ("r", {"id": 5, "new": 50}), "an older state came after the copy"


def test_a_partition_brings_rows_in(server, pipeline):
    run = pipeline(f"{NAME}.parts").start()
    run_sql(
        server,
        "CREATE TABLE parts (id int PRIMARY KEY, v int) PARTITION BY RANGE (id) "
        "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)",
        "CREATE TABLE plain (id int PRIMARY KEY, v int)",
        "INSERT INTO plain VALUES (1, 1)",
        "ALTER TABLE parts EXCHANGE PARTITION p0 WITH TABLE plain",
    )
    run.wait_row("parts", {"id": 1, "v": 1}, op="r")
    run_sql(server, "ALTER TABLE parts TRUNCATE PARTITION p0", "INSERT INTO parts VALUES (2, 2)")
    run.wait_row("parts", {"id": 2, "v": 2})
    changes = [event["ddl"] for event in run.events() if event.get("ddl")]
    assert changes[-2]["copies"] == [f"{NAME}.parts"]
    assert changes[-1]["lost"] == [f"{NAME}.parts"]


@pytest.mark.long
def test_the_log_is_delivered_again_over_what_stopped_a_table(server, pipeline):
    run = pipeline().start()
    begun = run.checkpoint()
    run_sql(server, "INSERT INTO a VALUES (1, 10, 11)", "INSERT INTO b VALUES (1, 1)")
    run.wait_row("b", {"id": 1, "x": 1})
    unseen_change(server, run)
    run.wait_row("b", {"id": 3, "x": 3})

    def again():
        """Return the rows of both tables that come again, from the beginning on."""
        selection = RewindSelection(json.dumps(begun))
        rewind.request(run.store, run.name, rewind.plan(run.store, run.name, selection), "me")
        rewinds = Rewinds(run.store, run.name)
        wait_for("the rewind", lambda: "out" in rewinds.all() and not rewinds.running())
        assert rewinds.all()["out"].state == "done"
        return [[after for _, after in run.rows(name)] for name in "ab"]

    a, b = again()
    assert b[-3:] == [{"id": number, "x": number} for number in (1, 2, 3)]
    assert 2 not in [row["id"] for row in a]
    assert f"{NAME}.a" in run.status().stopped_tables

    assert run.ask(f"{NAME}.a").state == "done"
    assert again()[1][-3:] == [{"id": number, "x": number} for number in (1, 2, 3)]
    assert run.status().stopped_tables == {}
