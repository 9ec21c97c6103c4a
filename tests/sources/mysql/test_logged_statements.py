"""Statements in the log in place of rows, judged by what they write."""

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import FatalError, TableError
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import tokens_of
from airflow_provider_deltaforge.sources.mysql.ddl.written_tables import writes_of
from tests.servers import mariadb, mysql, sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import rows, shape, source_of
from tests.sources.mysql.table_run import TableRun

NAME, OTHER = "logged", "logged_other"


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("INSERT INTO a.t (x) SELECT y FROM b.u", {("a", "t")}),
        ("INSERT LOW_PRIORITY IGNORE `a`.`t` VALUES (1)", {("a", "t")}),
        ("REPLACE t SET x = 1", {(None, "t")}),
        ("UPDATE LOW_PRIORITY IGNORE t SET x = (SELECT 1 FROM b.u)", {(None, "t")}),
        ("UPDATE a.t AS x JOIN b.u USING (id) JOIN c ON (x.i = c.i) SET u.x = 1",
         {("a", "t"), ("b", "u"), (None, "c")}),
        ("UPDATE (t, (SELECT 1 FROM z) d) SET t.x = 1", {(None, "t")}),
        ("DELETE QUICK FROM t PARTITION (p0) WHERE x = CONVERT(y USING utf8mb4)", {(None, "t")}),
        ("DELETE x.*, c.u FROM a.t AS x, c.u JOIN z USING (id)", {("a", "t"), ("c", "u")}),
        ("DELETE FROM x USING z JOIN y USING (id) JOIN a.t x", {("a", "t")}),
        ("WITH q (z) AS (SELECT 1), r AS (SELECT 2) DELETE FROM t WHERE x IN (SELECT z FROM q)",
         {(None, "t")}),
        ("LOAD DATA LOCAL INFILE 'INTO TABLE b.u' REPLACE INTO TABLE `a`.t", {("a", "t")}),
        ("SET STATEMENT max_statement_time=10 FOR INSERT INTO t(x) VALUES (3)", {(None, "t")}),
        ("ANALYZE UPDATE t SET x = 1", {(None, "t")}),
        ("/* INSERT INTO b.u */ insert into t values ('INTO b.u')", {(None, "t")}),
        ("SELECT 1", set()),
        ("GRANT SELECT ON a.t TO x", set()),
        ("CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW INSERT INTO u VALUES (f())", set()),
    ],
)  # fmt: skip
def test_the_tables_that_statements_write_are_found(statement: str, tables: set[Any]) -> None:
    found = writes_of(tokens_of(statement))
    assert set(found.tables) == tables
    assert not found.names


@pytest.mark.parametrize(
    ("statement", "calls"),
    [
        ("INSERT INTO t (x) VALUES (f(1), `d`.`g` (2))", {(None, "f"), ("d", "`g`")}),
        ("SELECT `st`.`f`()", {("st", "`f`")}),
        ("DO f ()", {(None, "f")}),
        ("WITH q (z) AS (SELECT f()) DELETE FROM t", {(None, "f")}),
    ],
)
def test_calls_are_found(statement: str, calls: set[Any]) -> None:
    assert calls <= set(writes_of(tokens_of(statement)).calls)


def test_what_is_not_understood_is_named_as_a_whole() -> None:
    assert ("a", "t") in writes_of(tokens_of("FROBNICATE a.t BY 3")).names


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    for name in (NAME, OTHER):
        sql.execute(found, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
        sql.execute(found, "CREATE TABLE t (id int PRIMARY KEY, x int)", database=name)
    sql.execute(found, "SET GLOBAL log_bin_trust_function_creators = ON")
    return found


def captured(server: Server) -> Any:
    return source_of(server, NAME, tables=[f"{NAME}.t"])


def run(server: Server, *statements: str, database: str = OTHER) -> None:
    sql.execute(server, "SET binlog_format = STATEMENT", *statements, database=database)


@pytest.mark.parametrize(
    ("database", "statement"),
    [
        (OTHER, f"INSERT INTO {NAME}.t VALUES (1, 1)"),
        (OTHER, f"UPDATE t o JOIN {NAME}.t c ON o.id = c.id SET c.x = 5"),
        (OTHER, f"DELETE c FROM t o, {NAME}.t c WHERE o.id = c.id"),
        (OTHER, f"CREATE TABLE {NAME}.u SELECT 1"),
        (NAME, "INSERT INTO t SELECT * FROM logged_other.t"),
        (NAME, f"REPLACE INTO `{NAME}`.`t` VALUES (1, 2)"),
    ],
)
def test_a_statement_that_writes_a_captured_table_is_named(
    server: Server, database: str, statement: str
) -> None:
    start = captured(server).head()
    run(server, statement, database=database)
    if statement.startswith("CREATE"):
        source = source_of(server, NAME)
        (found,) = [row for row in rows(source, start) if row["op"] == "ddl"]
        assert json.loads(found["ddl"])["copies"] == [f"{NAME}.u"]
        return
    with pytest.raises(TableError, match=r"logged\.t: .*binlog_format=ROW") as stopped:
        rows(captured(server), start)
    assert stopped.value.table == f"{NAME}.t"


def test_a_statement_with_a_common_table_is_named(mysql_server: Server) -> None:
    for name in (NAME, OTHER):
        sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    sql.execute(mysql_server, "CREATE TABLE t (id int PRIMARY KEY)", database=NAME)
    start = captured(mysql_server).head()
    run(
        mysql_server,
        f"WITH q AS (SELECT 1 AS z) DELETE FROM {NAME}.t WHERE id IN (SELECT z FROM q)",
    )
    with pytest.raises(TableError, match="DELETE was logged as a statement"):
        rows(captured(mysql_server), start)


def test_statements_about_other_tables_pass(server: Server, caplog: Any) -> None:
    start = captured(server).head()
    run(
        server,
        "INSERT INTO logged_other.t VALUES (1, ABS(-1)), (2, COALESCE(NULL, 2))",
        f"INSERT INTO logged_other.t SELECT id + 10, x FROM {NAME}.t",
        "UPDATE logged_other.t SET x = IF(x IN (1, 2), 3, x) WHERE (x > 0)",
        "ANALYZE TABLE t",
        "CREATE VIEW v AS SELECT 1 AS one",
        database=NAME,
    )
    sql.execute(server, "INSERT INTO t VALUES (1, 1)", database=NAME)
    found = [shape(row)[:2] for row in rows(captured(server), start)]
    assert found == [("c", "t")]
    passed = [r.message for r in caplog.records if "logged as a statement" in r.message]
    assert len(passed) == 1
    assert f"{OTHER}.t" in passed[0]


def test_names_are_read_in_the_client_s_character_set(server: Server) -> None:
    table = "gärten"
    sql.execute(server, f"CREATE TABLE `{table}` (id int PRIMARY KEY)", database=NAME)
    source = source_of(server, NAME, tables=[f"{NAME}.{table}"])
    connection = sql.connect(server, OTHER, charset="latin1")
    cursor = connection.cursor()
    start = source.head()
    cursor.execute(f"ALTER TABLE {NAME}.{table} ADD COLUMN größe int")
    (changed,) = rows(source, start)
    assert json.loads(changed["ddl"])["tables"] == [f"{NAME}.{table}"]
    start = source.head()
    cursor.execute("SET binlog_format = STATEMENT")
    cursor.execute(f"INSERT INTO {NAME}.{table} VALUES (1, 1)")
    connection.close()
    with pytest.raises(TableError, match="INSERT was logged as a statement"):
        rows(source, start)


def test_temporary_tables_are_not_captured(server: Server) -> None:
    source = source_of(server, NAME)
    start = source.head()
    connection, other = sql.connect(server, NAME), sql.connect(server, NAME)
    cursor = connection.cursor()
    for statement in (
        "SET binlog_format = STATEMENT",
        f"CREATE TEMPORARY TABLE IF NOT EXISTS t SELECT * FROM {OTHER}.t",
        "CREATE TEMPORARY TABLE `scratch` (id int, KEY k (id))",
        "INSERT INTO t VALUES (1, 1)",
        f"UPDATE scratch JOIN {NAME}.t ON t.id = scratch.id SET scratch.id = 2",
        f"DROP TEMPORARY TABLE {NAME}.t",
    ):
        cursor.execute(statement)
    other.cursor().execute("INSERT INTO t VALUES (2, 2)")
    assert [shape(row)[:2] for row in rows(source, start)] == [("c", "t")]
    cursor.execute("INSERT INTO t VALUES (3, 3)")
    connection.close()
    other.close()
    with pytest.raises(TableError, match=r"logged\.t: .* INSERT was logged as a statement"):
        rows(source, start)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_temporary_tables_end_with_the_server(kind: str, tmp_path: Path) -> None:
    server = {"mysql": mysql, "mariadb": mariadb}[kind].start(tmp_path / kind)
    try:
        sql.execute(server, f"CREATE DATABASE {NAME}")
        sql.execute(server, "CREATE TABLE t (id int PRIMARY KEY)", database=NAME)
        source = source_of(server, NAME)
        start = source.head()
        connection = _session(server, 100)
        cursor = connection.cursor()
        cursor.execute("SET binlog_format = STATEMENT")
        cursor.execute("CREATE TEMPORARY TABLE t (id int)")
        cursor.execute("INSERT INTO t VALUES (1)")
        server.kill()
        server.start_again()
        connection = _session(server, 100)
        cursor = connection.cursor()
        cursor.execute("SET binlog_format = STATEMENT")
        cursor.execute("INSERT INTO t VALUES (2)")
        connection.close()
        with pytest.raises(TableError, match=r"logged\.t: .* INSERT was logged as a statement"):
            rows(source, start)
    finally:
        server.stop()


def _session(server: Server, number: int) -> Any:
    """Return the session of this number."""
    while True:
        connection = sql.connect(server, NAME)
        reached = connection.thread_id()
        assert reached <= number
        if reached == number:
            return connection
        connection.close()


@pytest.mark.parametrize("way", ["function", "argument", "trigger", "view"])
def test_what_may_write_a_captured_table_stops_the_pipeline(server: Server, way: str) -> None:
    writes = f"INSERT INTO {NAME}.t (id) VALUES (7)"
    sql.execute(
        server,
        f"CREATE FUNCTION f() RETURNS int MODIFIES SQL DATA BEGIN {writes}; RETURN 1; END",
        f"CREATE VIEW v AS SELECT * FROM {NAME}.t",
        "CREATE TABLE u (id int)",
        f"CREATE TRIGGER g AFTER INSERT ON u FOR EACH ROW {writes}",
        "GRANT TRIGGER, SELECT ON *.* TO 'df'@'%'",
        database=OTHER,
    )
    start = captured(server).head()
    statement, reason = {
        "function": ("SELECT f()", "stored function `?f`?"),
        "argument": ("INSERT INTO u2 VALUES (f())", "stored function f"),
        "trigger": ("INSERT INTO u VALUES (1)", "the trigger g of logged_other.u"),
        "view": ("INSERT INTO v VALUES (8, 8)", "logged_other.v is a view"),
    }[way]
    run(server, "CREATE TABLE u2 (id int)", statement)
    with pytest.raises(FatalError, match=f"{reason}.*binlog_format=ROW.*new snapshot") as stopped:
        rows(captured(server), start)
    assert not isinstance(stopped.value, TableError)


def test_a_load_is_a_statement_too(mysql_server: Server, tmp_path: Any) -> None:
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    sql.execute(mysql_server, "CREATE TABLE t (id int PRIMARY KEY)", database=NAME)
    path = tmp_path / "rows"
    path.write_text("1\n2\n")
    sql.execute(mysql_server, "SET GLOBAL local_infile = ON")
    start = captured(mysql_server).head()
    connection = sql.connect(mysql_server, OTHER, local_infile=True)
    cursor = connection.cursor()
    cursor.execute("SET binlog_format = STATEMENT")
    cursor.execute(f"LOAD DATA LOCAL INFILE '{path}' INTO TABLE {NAME}.t")
    connection.commit()
    connection.close()
    with pytest.raises(TableError, match="LOAD was logged as a statement"):
        rows(captured(mysql_server), start)


def test_the_table_stops_alone_and_its_copy_repairs_it(server: Server) -> None:
    sql.execute(server, "CREATE TABLE b (id int PRIMARY KEY)", database=NAME)
    pipeline = TableRun(server, [f"{NAME}.*"]).start()
    try:
        run(server, f"INSERT INTO {NAME}.t VALUES (1, 1)")
        sql.execute(server, "INSERT INTO b VALUES (1)", database=NAME)
        pipeline.wait_row("b", {"id": 1})
        assert list(pipeline.status().stopped_tables) == [f"{NAME}.t"]
        pipeline.ask(f"{NAME}.t")
        sql.execute(server, "UPDATE t SET x = 2", database=NAME)
        pipeline.wait_row("t", {"id": 1, "x": 2})
        assert pipeline.status().stopped_tables == {}
    finally:
        pipeline.stop()
