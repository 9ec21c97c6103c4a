"""Schema changes of temporary tables, which hide captured tables of the same name."""

import json

import pytest

from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import PLAIN_MODE
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import Recorder
from airflow_provider_deltaforge.sources.mysql.ddl.temporary_tables import TemporaryTables
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import rows, shape, source_of

NAME = "hidden_tables"
HERE = LogPosition("binlog.000001", 4, None, "uuid")
FORMATS = [("mysql", "STATEMENT"), ("mariadb", "STATEMENT"), ("mariadb", "MIXED")]


def run(server: Server, log_format: str, *work: str) -> None:
    sql.execute(server, f"SET binlog_format = {log_format}", *work, database=NAME)


@pytest.mark.parametrize(("kind", "log_format"), FORMATS)
def test_changes_of_a_temporary_table_are_not_the_captured_table_s(
    kind: str, log_format: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    fresh_database(
        server, NAME, "CREATE TABLE t (id int PRIMARY KEY, a int, b int)", "CREATE TABLE u (a int)"
    )
    sql.execute(server, "INSERT INTO t VALUES (1, 10, 20)", database=NAME)
    source = source_of(server, NAME)
    start = source.head()
    run(
        server,
        log_format,
        "CREATE TEMPORARY TABLE t (id int PRIMARY KEY, a int, b int)",
        "ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a",
        "CREATE INDEX i ON t (a)",
        "TRUNCATE TABLE t",
        "ALTER TABLE t RENAME TO u",
        "TRUNCATE TABLE u",
        "DROP TABLE u",
    )
    sql.execute(server, "UPDATE t SET a = 11", database=NAME)

    (found,) = map(shape, rows(source, start))

    assert found[:2] == ("u", "t")
    assert json.loads(found[3]) == {"id": 1, "a": 11, "b": 20}


@pytest.mark.parametrize(("kind", "log_format"), FORMATS)
def test_a_table_that_is_hidden_no_more_changes_again(
    kind: str, log_format: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    fresh_database(server, NAME, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(server, NAME)
    start = source.head()
    other = sql.connect(server, NAME)
    run(server, log_format, "CREATE TEMPORARY TABLE t (id int)", "DROP TABLE t", "TRUNCATE TABLE t")
    run(server, log_format, "CREATE TEMPORARY TABLE t (id int)", "CREATE TEMPORARY TABLE z (i int)")
    other.cursor().execute("TRUNCATE TABLE t")
    run(
        server,
        log_format,
        "CREATE TEMPORARY TABLE t (a int, b int)",
        "CREATE TABLE new LIKE t",
        "ALTER TABLE t ADD c int",
    )
    other.cursor().execute("INSERT INTO new VALUES (1, 2)")
    other.close()

    found = [(row["op"], row["table"]) for row in rows(source, start)]

    assert found == [("t", "t"), ("t", "t"), ("ddl", "_ddl"), ("c", "new")]


def understood(text: str) -> statements.Statement:
    return statements.understand(text, mariadb=True)


def noted(*work: str) -> TemporaryTables:
    temporary = TemporaryTables(mariadb=True)
    for text in work:
        temporary.note_statement(text, "shop", 7, PLAIN_MODE)
    return temporary


def test_one_statement_may_change_temporary_tables_and_others() -> None:
    temporary = noted("CREATE TEMPORARY TABLE a (id int)")
    left = temporary.without(understood("RENAME TABLE a TO b, t TO a"), "shop", 7)
    assert set(left.tables) == {(None, "t"), (None, "a")}
    assert temporary.has((None, "b"), "shop", 7)
    assert not temporary.has((None, "a"), "shop", 7)


def test_mysql_renames_temporary_tables_by_alter_table_only() -> None:
    temporary = TemporaryTables(mariadb=False)
    temporary.note_statement("CREATE TEMPORARY TABLE a (id int)", "shop", 7, PLAIN_MODE)
    rename = understood("RENAME TABLE a TO b")
    assert temporary.without(rename, "shop", 7) == rename


def test_another_session_and_another_database_are_not_hidden() -> None:
    temporary = noted("CREATE TEMPORARY TABLE t (id int)")
    truncate = understood("TRUNCATE TABLE t")
    assert temporary.without(truncate, "shop", 8) == truncate
    assert temporary.without(truncate, "other", 7) == truncate
    assert temporary.without(truncate, "shop", 7).kind == statements.OTHER


def test_names_without_case_are_found() -> None:
    temporary = TemporaryTables(mariadb=True, lower_names=True)
    temporary.note_statement("CREATE TEMPORARY TABLE Orders (id int)", "Shop", 7, PLAIN_MODE)
    assert temporary.has(("shop", "orders"), "", 7)


def test_what_is_read_again_finds_the_tables_of_that_time() -> None:
    temporary = noted("CREATE TEMPORARY TABLE t (id int)")
    temporary.settle()
    temporary.note_statement("DROP TEMPORARY TABLE t", "shop", 7, PLAIN_MODE)
    assert not temporary.has((None, "t"), "shop", 7)
    temporary.rewind()
    assert temporary.has((None, "t"), "shop", 7)


def test_changes_ahead_of_temporary_tables_touch_no_other() -> None:
    temporary = noted("CREATE TEMPORARY TABLE t (id int)")
    temporary.settle()
    recorder = Recorder(temporary.copy())
    key = ("shop", "t")

    def altered() -> bool:
        statement = understood("ALTER TABLE t ADD c int")
        recorder.changed(recorder.without_temporary(statement, "shop", 7), "shop", "")
        return recorder.seen[-1].touches(key)

    assert not altered()
    recorder.passed(HERE)
    recorder.judge("DROP TEMPORARY TABLE t", "shop", "", session=7, mode=PLAIN_MODE)
    assert altered()
    recorder.begin(HERE, lambda: HERE)
    assert not altered()
    recorder.server_restarted()
    assert altered()
