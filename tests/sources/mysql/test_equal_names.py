"""Two tables whose names are equal when they are written one behind the other: eq.a.b is both."""

import pytest

from tests.servers import sql
from tests.sources.mysql.table_run import TableRun
from tests.waiting import wait_for

TABLES = ("`eq.a`.b", "eq.`a.b`")
FIRST, SECOND = '"eq.a".b', 'eq."a.b"'
LOSES_NAMES = (
    "ALTER TABLE `eq.a`.b CONVERT TO CHARACTER SET DEFAULT, RENAME COLUMN x TO y, "
    "RENAME COLUMN y TO x"
)


@pytest.fixture
def server(mysql_server):
    """A server whose log does not name columns."""
    for name in ("eq.a", "eq"):
        sql.execute(mysql_server, f"DROP DATABASE IF EXISTS `{name}`", f"CREATE DATABASE `{name}`")
    for table in TABLES:
        sql.execute(mysql_server, f"CREATE TABLE {table} (id int PRIMARY KEY, x int, y int)")
    sql.execute(mysql_server, "SET GLOBAL binlog_row_metadata = MINIMAL")
    yield mysql_server
    sql.execute(mysql_server, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.fixture
def run(server):
    found = TableRun(server, ["eq.*", '"eq.a".b'])
    yield found
    if found.driving is not None:
        found.stop()


def test_one_of_them_stops_is_counted_and_copied_alone(server, run):
    run.start()
    for table in TABLES:
        sql.execute(server, f"INSERT INTO {table} VALUES (1, 10, 11)")
    run.wait_row("a.b", {"id": 1, "x": 10, "y": 11})
    run.wait_row("b", {"id": 1, "x": 10, "y": 11})
    wait_for("the counts", lambda: {*run.status().tables} == {FIRST, SECOND}, 30)
    run.stop()
    sql.execute(server, LOSES_NAMES, "INSERT INTO `eq.a`.b VALUES (2, 2, 2)", LOSES_NAMES)
    sql.execute(server, "INSERT INTO eq.`a.b` VALUES (2, 2, 2)")
    run.start()
    run.wait_row("a.b", {"id": 2, "x": 2, "y": 2})

    assert [*run.status().stopped_tables] == [FIRST]
    assert run.rows("b") == [("c", {"id": 1, "x": 10, "y": 11})]
    assert run.ask(FIRST).state == "done"
    assert run.status().stopped_tables == {}
    assert len([row for op, row in run.rows("b") if op == "r"]) == 2
    assert [row for op, row in run.rows("a.b") if op == "r"] == []
