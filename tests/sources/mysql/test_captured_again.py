"""A table that is left out for a while is not read by what was known of it before."""

import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.servers import sql
from tests.sources.mysql.table_run import TableRun
from tests.waiting import wait_for

NAME = "captured_again"


@pytest.fixture
def server(mysql_server):
    """A server whose log does not name columns."""
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {NAME}",
        f"CREATE DATABASE {NAME}",
        f"CREATE TABLE {NAME}.t (id INT PRIMARY KEY, a INT, b INT)",
        f"CREATE TABLE {NAME}.other (id INT PRIMARY KEY)",
        "SET GLOBAL binlog_row_metadata = MINIMAL",
    )
    yield mysql_server
    sql.execute(mysql_server, "SET GLOBAL binlog_row_metadata = FULL")


def test_a_table_that_was_altered_while_it_was_left_out(server):
    run = TableRun(server, [f"{NAME}.t", f"{NAME}.other"])
    delivers(server, run, f"INSERT INTO {NAME}.t VALUES (1, 10, 20)")
    captures(run, "other")
    swapped = f"ALTER TABLE {NAME}.t RENAME COLUMN a TO b, RENAME COLUMN b TO a"
    delivers(server, run, swapped, f"INSERT INTO {NAME}.other VALUES (1)")
    captures(run, "t", "other")
    delivers(server, run, f"INSERT INTO {NAME}.t VALUES (2, 10, 20)")
    rows = [e["after"] for e in run.events() if e["op"] == "c" and e["source"]["table"] == "t"]
    assert rows == [{"id": 1, "a": 10, "b": 20}, {"id": 2, "b": 10, "a": 20}]


def captures(run, *tables):
    """Apply the document with other tables; the pipeline is stopped."""
    document = run.control.document()
    head, rest = document.split("tables: [", 1)
    names = ", ".join(f'"{NAME}.{table}"' for table in tables)
    pipelines.apply(run.store, f"{head}tables: [{names}]{rest.partition(']')[2]}")


def delivers(server, run, *statements):
    """Run the pipeline until what the last statement wrote is there."""
    before = len(run.values())
    run.start()
    sql.execute(server, *statements)
    head = run.source().head()
    wait_for("the row", lambda: run.ended() or len(run.values()) > before)
    wait_for("the head", lambda: run.ended() or run.source().compare(run.checkpoint(), head) >= 0)
    assert not run.ended(), run.status()
    run.stop()
