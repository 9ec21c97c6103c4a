"""What a rename says of the rows under captured names."""

import pytest

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.statements import unlogged_rows
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.servers import sql
from tests.sources.mysql.table_run import TableRun
from tests.waiting import wait_for


@pytest.mark.parametrize(
    ("statement", "copies", "renamed"),
    [
        ("RENAME TABLE a TO tmp, b TO a, tmp TO b", ["a", "b"], {}),
        ("RENAME TABLE a TO tmp, b TO a", ["a"], {"a": "tmp"}),
        ("RENAME TABLE a TO tmp, tmp TO a", [], {}),
        ("RENAME TABLE a TO x, x TO y, y TO c", [], {"a": "c"}),
        ("RENAME TABLE a TO _a_del, _a_gho TO a", [], {}),
        ("RENAME TABLE other.n TO tmp, tmp TO c", ["c"], {}),
        ("RENAME TABLE a TO other.n", [], {}),
        ("RENAME TABLE a TO tmp, b TO a, c TO b, tmp TO c", ["a", "b", "c"], {}),
    ],
)
def test_a_name_on_the_way_is_no_name(statement, copies, renamed):
    understood = statements.understand(statement)
    found = unlogged_rows(understood, "shop", lambda db, _: db == "shop")
    assert sorted(found.copies) == [("shop", name) for name in copies]
    assert {old[1]: new[1] for old, new in found.renamed.items()} == renamed


@pytest.mark.parametrize(
    ("statement", "copies", "lost"),
    [
        ("ALTER TABLE a IMPORT PARTITION p0, p1 TABLESPACE", ["a"], []),
        ("ALTER TABLE a IMPORT PARTITION ALL TABLESPACE", ["a"], []),
        ("ALTER TABLE a IMPORT TABLESPACE", ["a"], []),
        ("ALTER TABLE a DISCARD PARTITION p0, p1 TABLESPACE", [], ["a"]),
        ("ALTER TABLE a DISCARD TABLESPACE", [], ["a"]),
        ("ALTER IGNORE TABLE a ADD UNIQUE (x)", [], ["a"]),
        ("ALTER IGNORE TABLE a ADD COLUMN y int", [], []),
    ],
)
def test_rows_that_come_and_go_without_an_event_are_named(statement, copies, lost):
    understood = statements.understand(statement, mariadb="IGNORE" in statement)
    found = unlogged_rows(understood, "shop", lambda db, _: db == "shop")
    assert [name for _, name in found.copies] == copies
    assert [name for _, name in found.lost] == lost


def test_a_swap_through_a_third_name_copies_both_tables_and_no_other(mysql_server, caplog):
    name = "swapping"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.a (id int PRIMARY KEY, x varchar(9))",
        f"CREATE TABLE {name}.b (id int PRIMARY KEY, x varchar(9))",
        f"INSERT INTO {name}.a VALUES (1, 'from a')",
        f"INSERT INTO {name}.b VALUES (2, 'from b')",
    )
    run = TableRun(mysql_server, [f"{name}.%"]).start()
    try:
        sql.execute(mysql_server, f"INSERT INTO {name}.a VALUES (3, 'on')")
        run.wait_row("a", {"id": 3, "x": "on"})
        swap = f"RENAME TABLE {name}.a TO {name}.tmp, {name}.b TO {name}.a, {name}.tmp TO {name}.b"
        sql.execute(mysql_server, swap)
        wait_for("the copies", lambda: [r.state for r in run.requests()] == ["done", "done"])
    finally:
        run.stop()

    assert {request.tables[0] for request in run.requests()} == {f"{name}.a", f"{name}.b"}
    assert ("r", {"id": 2, "x": "from b"}) in run.rows("a")
    assert ("r", {"id": 1, "x": "from a"}) in run.rows("b")
    assert "Traceback" not in caplog.text
    (change,) = [event["ddl"] for event in run.events() if event.get("ddl")]
    assert sorted(change["copies"]) == [f"{name}.a", f"{name}.b"]


def test_a_store_that_is_away_when_a_table_is_renamed_is_waited_for(mysql_server, monkeypatch):
    name = "renamed_away"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.a (id int PRIMARY KEY)",
    )
    run = TableRun(mysql_server, [f"{name}.%"]).start()
    try:
        sql.execute(mysql_server, f"INSERT INTO {name}.a VALUES (1)")
        run.wait_row("a", {"id": 1})
        asked = []
        arrivals = TableRecords.arrivals

        def away_twice(records):
            asked.append(records)
            if len(asked) < 3:
                raise RetryableError("the state store is away")
            return arrivals(records)

        monkeypatch.setattr(TableRecords, "arrivals", away_twice)
        sql.execute(
            mysql_server,
            f"RENAME TABLE {name}.a TO {name}.b",
            f"INSERT INTO {name}.b VALUES (2)",
        )
        run.wait_row("b", {"id": 2})
    finally:
        run.stop()

    assert len(asked) >= 3
    delivered = [event["ddl"] for event in run.events() if event.get("ddl")]
    assert [each["renamed"] for each in delivered] == [{f"{name}.a": f"{name}.b"}]
    assert run.requests() == []
