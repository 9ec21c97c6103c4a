"""What servers set for every session changes nothing of what a snapshot reads."""

import contextlib
import json

import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql import session
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import sql
from tests.servers.wire import Wire
from tests.sources.mysql.reading import copied, events, fresh_database, source_of
from tests.waiting import wait_until

ROWS = 500

HOSTILE = {
    "sql_select_limit": "200",
    "max_join_size": "10",
    "sql_big_selects": "0",
    "sql_safe_updates": "1",
    "sql_auto_is_null": "1",
    "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH'",
    "time_zone": "'+05:00'",
    "group_concat_max_len": "4",
    "max_sort_length": "64",
    "div_precision_increment": "0",
    "default_week_format": "3",
    "lc_time_names": "'de_DE'",
    "completion_type": "CHAIN",
    "character_set_results": "latin1",
    "net_write_timeout": "1",
}
ONLY = {
    "mysql": {"show_gipk_in_create_table_and_information_schema": "OFF", "max_execution_time": "1"},
    "mariadb": {"max_statement_time": "0.001", "idle_transaction_timeout": "1"},
}
TABLES = (
    "CREATE TABLE t (id int primary key, c char(9), v varchar(20) character set utf8mb4, "
    "s timestamp(3) null, e enum('a','😀') character set utf8mb4, f float, d decimal(20,5), "
    "j json)",
    "INSERT INTO t SELECT n, concat('c', n), 'ä😀\\\\', '2024-02-29 12:00:00.125', 2, n / 7, "
    "n / 7, '[1]' FROM (WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r "
    f"WHERE n < {ROWS}) SELECT n FROM r) numbers",
    "CREATE TABLE k (a varchar(300) primary key, b int)",
    "INSERT INTO k SELECT repeat(concat('x\\\\', id), 40), id FROM t WHERE id < 60",
)  # fmt: skip


@pytest.fixture
def wire(server):
    found = Wire(server)
    yield found
    found.close()


def through(wire, server, *tables):
    """Return a source that reaches the server by a wire, which could not read TLS."""
    dsn = server.dsn("").replace(str(server.port), str(wire.port))
    return MySqlSource(id="shop", dsn=dsn, tables=list(tables), ssl_mode="disabled")


@contextlib.contextmanager
def defaults(server, **settings):
    """Set global variables; put back what they were."""
    names = ", ".join(f"@@GLOBAL.{name}" for name in settings)
    # One session for both ends: none of the limits holds for it.
    with contextlib.closing(sql.connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {names}")
        before = cursor.fetchone()
        try:
            for name, value in settings.items():
                cursor.execute(f"SET GLOBAL {name} = {value}")
            yield
        finally:
            for name, value in zip(settings, before, strict=True):
                cursor.execute(f"SET GLOBAL {name} = {session_literal(value)}")


def session_literal(value):
    return str(value) if isinstance(value, (int, float)) or value == "DEFAULT" else f"'{value}'"


def rows_of(source, chunk_rows=100):
    return sorted((e["table"], e["after"]) for e in events(copied(source, chunk_rows)))


def test_defaults_of_a_server_change_nothing(server):
    fresh_database(server, "pinned", *TABLES)
    expected = rows_of(source_of(server, "pinned"))
    assert len(expected) == ROWS + 59
    with defaults(server, **HOSTILE, **ONLY[server.name]):
        assert rows_of(source_of(server, "pinned")) == expected


def test_what_the_server_does_for_every_connection_changes_nothing(server):
    fresh_database(server, "pinned", *TABLES)
    expected = rows_of(source_of(server, "pinned"))
    # The server runs it for everybody without special rights.
    statement = "'SET NAMES latin1, sql_select_limit = 100, timestamp = 1'"
    with defaults(server, init_connect=statement):
        found = events(copied(source_of(server, "pinned"), 100))
    assert sorted((e["table"], e["after"]) for e in found) == expected
    assert min(e["ts_ms"] for e in found) > 1_000_000


def test_conditions_are_read_alike(server):
    fresh_database(server, "pinned", *TABLES)
    with defaults(server, **HOSTILE, **ONLY[server.name]):
        snapshotter = source_of(server, "pinned").open_snapshot()
        where = r"""v = "ä😀\\" AND c = 'c7' AND s = '2024-02-29 12:00:00.125'"""
        (chunk,) = snapshotter.plan(1000, ["pinned.t"], where)
        found = events(snapshotter.read(chunk, "run"))
        snapshotter.close()
    assert [json.loads(e["after"])["id"] for e in found] == [7]


def test_old_rows_are_not_taken_for_those_of_now(mariadb_server):
    make = "CREATE TABLE t (id int primary key, a int) WITH SYSTEM VERSIONING"
    fresh_database(mariadb_server, "pinned", make, "SET timestamp = 1000000000")
    sql.execute(mariadb_server, "INSERT INTO t VALUES (1, 1)", database="pinned")
    with defaults(mariadb_server, system_versioning_asof="'2020-01-01 00:00:00'"):
        assert len(rows_of(source_of(mariadb_server, "pinned"))) == 1


def test_an_invisible_key_is_captured_whether_shown_or_not(mysql_server):
    make = "SET sql_generate_invisible_primary_key = ON", "CREATE TABLE t (a int)"
    fresh_database(mysql_server, "pinned", *make, "INSERT INTO t VALUES (5)")
    with defaults(mysql_server, show_gipk_in_create_table_and_information_schema="OFF"):
        ((_, row),) = rows_of(source_of(mysql_server, "pinned"))
    assert json.loads(row) == {"my_row_id": 1, "a": 5}


def test_a_copy_that_is_cut_is_an_error(server, wire):
    """A proxy has a limit of its own, and makes up what it is asked about it."""
    fresh_database(server, "pinned", *TABLES)
    wire.questions = {
        b"sql_select_limit = 18446744073709551615": b"sql_select_limit = DEFAULT             ",
        b"@@SESSION.sql_select_limit": b"18446744073709551615      ",
        b"'sql_select_limit'": b"'sql_select_xxxxx'",
    }
    source = through(wire, server, "pinned.t")
    refused = pytest.raises(FatalError, match="200 rows of a chunk arrived, but the server found")
    with defaults(server, sql_select_limit="200"), refused:
        copied(source)


def test_a_session_that_is_not_as_set_is_an_error(server):
    connection = source_of(server, "pinned").connect()
    session.check_pinned(connection)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_select_limit = 5")
    with pytest.raises(FatalError, match="sql_select_limit is '5'"):
        session.check_pinned(connection)
    connection.close()


def test_a_limit_of_time_that_ends_its_own_lifting_is_tried_again(mariadb_server):
    source = source_of(mariadb_server, "pinned")
    with defaults(mariadb_server, max_statement_time="0.0001"):
        for _ in range(200):
            source.connect().close()


def test_a_session_that_cannot_be_pinned_is_closed(server, wire):
    wire.questions = {b"lc_time_names = 'en_US'": b"lc_time_names = 'xx_XX'"}
    source = through(wire, server)
    counted = "SELECT count(*) FROM information_schema.processlist WHERE user = 'df'"
    ((before,),) = sql.execute(server, counted)
    kept = []  # An error keeps what its frames hold, as whoever tries again keeps it.
    for _ in range(3):
        with pytest.raises(FatalError, match="xx_XX") as refused:
            source.connect()
        kept.append(refused)
    wait_until(lambda: sql.execute(server, counted) == [(before,)], 20)
