"""Statements of sessions that write texts and names in other quotes than most."""

import pytest

from airflow_provider_deltaforge.errors import FatalError, TableError
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, source_of

NAME, OTHER = "sql_modes", "sql_modes_other"

LABELS = [
    ("", r"""'a\\b', 'c\_d', 'e\%f', "it''s", 'g''h', 'i""j', "k""l", 'm\'n', 'o\qp', 'r\ns'"""),
    ("ANSI_QUOTES", r"""'a\\b', 'c\_d', 'g''h', 'i""j', 'k"l'"""),
    ("NO_BACKSLASH_ESCAPES", r"""'a\b', 'c\\d', 'f\n', 'h''i', "j'k", "l""m", 'o'"""),
    ("NO_BACKSLASH_ESCAPES", r"""'a\', 'b\\', "c\", 'd'"""),
    ("ANSI_QUOTES,NO_BACKSLASH_ESCAPES", r"""'a\b', 'e\', 'f\n'"""),
]


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    for name in (NAME, OTHER):
        sql.execute(found, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    return found


@pytest.mark.parametrize(("mode", "labels"), LABELS)
def test_labels_are_what_the_session_wrote(server: Server, mode: str, labels: str) -> None:
    """Without full metadata the statement tells the labels."""
    short = "MINIMAL" if server.name == "mysql" else "NO_LOG"
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {short}")
    try:
        source = source_of(server, NAME)
        start = source.head()
        sql.execute(
            server,
            f"SET sql_mode = '{mode}'",
            f"CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, e enum({labels}))",
            "INSERT INTO t (e) WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n "
            "WHERE i < LENGTH('0123456789')) SELECT i FROM n WHERE i <= "
            f"{labels.count(', ') + 1}",
            database=NAME,
        )
        streamed = [row["after"] for row in rows(source, start) if row["op"] == "c"]
    finally:
        sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")
    assert len(streamed) == labels.count(", ") + 1
    assert streamed == [row["after"] for row in events(copied(source))]


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("concurrent", "INSERT INTO {0} VALUES (2)"),
        ("local", "INSERT {0} VALUES (2)"),
        ("quick", "REPLACE {0} SET x = 2"),
        ("local", "UPDATE {0} SET x = 2"),
        ("quick", "DELETE FROM {0}"),
        ("quick", "DELETE QUICK FROM {0}"),
        ("concurrent", "DELETE {0} FROM {0}"),
    ],
)
def test_a_table_called_like_a_modifier_is_written_as_any(
    server: Server, name: str, statement: str
) -> None:
    sql.execute(server, f"CREATE TABLE {name} (x int)", database=NAME)
    sql.execute(server, f"INSERT INTO {name} VALUES (1)", database=NAME)
    source = source_of(server, NAME, tables=[f"{NAME}.{name}"])
    start = source.head()
    sql.execute(server, "SET binlog_format = STATEMENT", statement.format(name), database=NAME)
    with pytest.raises(TableError, match=rf"sql_modes\.{name}: .* was logged as a statement"):
        rows(source, start)


def test_a_text_ends_where_its_session_ends_it(server: Server) -> None:
    sql.execute(server, "CREATE TABLE t (x varchar(9))", "INSERT INTO t VALUES ('')", database=NAME)
    source = source_of(server, NAME, tables=[f"{NAME}.t"])
    start = source.head()
    sql.execute(
        server,
        "SET binlog_format = STATEMENT, sql_mode = 'NO_BACKSLASH_ESCAPES'",
        r"UPDATE (SELECT '\' AS y) q JOIN t SET t.x = ''",
        database=NAME,
    )
    with pytest.raises(TableError, match=r"sql_modes\.t: .* was logged as a statement"):
        rows(source, start)


@pytest.mark.parametrize(
    ("mode", "body"),
    [
        ("ANSI_QUOTES", f'INSERT INTO "{NAME}"."t" VALUES (NEW.x)'),
        ("NO_BACKSLASH_ESCAPES", rf"INSERT INTO {NAME}.t SELECT '\' UNION SELECT ''"),
    ],
)
def test_a_trigger_is_read_in_its_own_mode(server: Server, mode: str, body: str) -> None:
    sql.execute(server, "CREATE TABLE t (x varchar(9))", database=NAME)
    sql.execute(
        server,
        "CREATE TABLE o (x varchar(9))",
        f"SET sql_mode = '{mode}'",
        f"CREATE TRIGGER g BEFORE INSERT ON o FOR EACH ROW {body}",
        "GRANT TRIGGER, SELECT ON *.* TO 'df'@'%'",
        database=OTHER,
    )
    source = source_of(server, NAME, tables=[f"{NAME}.t"])
    start = source.head()
    sql.execute(
        server, "SET binlog_format = STATEMENT", "INSERT INTO o VALUES ('v')", database=OTHER
    )
    with pytest.raises(FatalError, match="trigger g"):
        rows(source, start)
