"""Rows that the log holds in part only: MINIMAL and NOBLOB images."""

import json
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import TableError
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, shape, source_of
from tests.sources.mysql.table_run import TableRun

NAME = "row_images"
MARK = '{"_unchanged":true}'


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    sql.execute(found, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    return found


def run(server: Server, image: str, *statements: str) -> None:
    pinned = f"SET sql_mode = '', binlog_row_image = {image}"
    sql.execute(server, pinned, *statements, database=NAME)


def streamed(server: Server, start: Any, **settings: Any) -> list[tuple[Any, ...]]:
    return [shape(row) for row in rows(source_of(server, NAME, **settings), start)]


def test_minimal_images_mark_what_the_log_lacks(server: Server) -> None:
    run(server, "FULL", "CREATE TABLE t (v int, id int PRIMARY KEY, n text, w varchar(9))")
    run(server, "FULL", "INSERT INTO t VALUES (1, 1, 'long', 'x'), (2, 2, NULL, NULL)")
    start = source_of(server, NAME).head()
    run(
        server,
        "MINIMAL",
        "INSERT INTO t (v, id, n, w) VALUES (3, 3, 'three', '')",
        "UPDATE t SET v = v + 10 WHERE id < 3 ORDER BY id",
        "UPDATE t SET id = 4, w = NULL WHERE id = 3",
        "DELETE FROM t WHERE id = 4",
    )
    assert streamed(server, start) == [
        ("c", "t", None, '{"v":3,"id":3,"n":"three","w":""}', '{"id":3}'),
        ("u", "t", '{"id":1}', f'{{"v":11,"id":1,"n":{MARK},"w":{MARK}}}', '{"id":1}'),
        ("u", "t", '{"id":2}', f'{{"v":12,"id":2,"n":{MARK},"w":{MARK}}}', '{"id":2}'),
        ("u", "t", '{"id":3}', f'{{"v":{MARK},"id":4,"n":{MARK},"w":null}}', '{"id":4}'),
        ("d", "t", '{"id":4}', None, '{"id":4}'),
    ]


def test_partial_images_name_what_they_lack(server: Server) -> None:
    """A value of JSON that reads like the mark is not named, and is not written like it."""
    same = """'{"_unchanged": true}'"""
    run(server, "FULL", 'CREATE TABLE t (id int PRIMARY KEY, `n "m` text, j json, v int)')
    run(server, "FULL", f"INSERT INTO t VALUES (1, 'n', {same}, 1), (2, 'n', {same}, 1)")
    start = source_of(server, NAME).head()
    run(server, "MINIMAL", f"UPDATE t SET v = 2, j = JSON_OBJECT('_unchanged', {same} = 'x')")
    run(server, "FULL", "UPDATE t SET v = 3", "INSERT INTO t (id) VALUES (3)")
    run(server, "NOBLOB", f"UPDATE t SET v = 4, j = {same} WHERE id < 3", "ALTER TABLE t ADD a int")
    run(server, "MINIMAL", "UPDATE t SET a = 1 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    found = rows(source_of(server, NAME), start)
    listed = [row["unchanged"] and json.loads(row["unchanged"]) for row in found]
    name = 'n "m'
    assert listed == [
        *[[name]] * 2,
        *[None] * 3,
        *[[name]] * 2,
        None,
        [name, "j", "v"],
        None,
    ]
    marks = [row["after"].count(MARK.encode()) if row["after"] else 0 for row in found]
    assert marks == [len(names or ()) for names in listed]


def test_noblob_images_mark_only_texts_that_did_not_change(server: Server) -> None:
    run(server, "FULL", "CREATE TABLE t (a int, b int, n text, j blob, PRIMARY KEY (b, a))")
    run(server, "FULL", "INSERT INTO t VALUES (1, 2, 'n', 'j')")
    start = source_of(server, NAME).head()
    run(
        server,
        "NOBLOB",
        "UPDATE t SET a = 5",
        "UPDATE t SET n = 'm'",
        "DELETE FROM t",
    )
    assert streamed(server, start) == [
        ("u", "t", '{"a":1,"b":2}', f'{{"a":5,"b":2,"n":{MARK},"j":{MARK}}}', '{"b":2,"a":5}'),
        ("u", "t", '{"a":5,"b":2}', f'{{"a":5,"b":2,"n":"m","j":{MARK}}}', '{"b":2,"a":5}'),
        ("d", "t", '{"a":5,"b":2}', None, '{"b":2,"a":5}'),
    ]


def test_without_a_key_only_whole_rows_are_served(server: Server) -> None:
    run(server, "FULL", "CREATE TABLE t (a int, n text)", "INSERT INTO t VALUES (1, 'n')")
    start = source_of(server, NAME).head()
    run(server, "MINIMAL", "UPDATE t SET a = 2")
    assert streamed(server, start) == [
        ("u", "t", '{"a":1,"n":"n"}', '{"a":2,"n":"n"}', None),
    ]


def test_a_unique_index_in_the_place_of_the_key_names_the_row(server: Server) -> None:
    silent = "MINIMAL" if server.name == "mysql" else "NO_LOG"
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {silent}")
    try:
        run(server, "FULL", "CREATE TABLE t (a int NOT NULL UNIQUE, n text, c int)")
        run(server, "FULL", "INSERT INTO t VALUES (1, 'n', 1)")
        start = source_of(server, NAME).head()
        run(server, "MINIMAL", "UPDATE t SET c = 2")
        after = f'{{"a":1,"n":{MARK},"c":2}}'
        assert streamed(server, start) == [("u", "t", '{"a":1}', after, '{"a":1}')]
    finally:
        sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_an_insert_that_leaves_values_to_the_server_stops_its_table_alone(
    server: Server, image: str
) -> None:
    run(
        server,
        "FULL",
        "CREATE TABLE a (id int PRIMARY KEY, n text, m text NOT NULL)",
        "CREATE TABLE b (id int PRIMARY KEY)",
    )
    pipeline = TableRun(server, [f"{NAME}.*"]).start()
    try:
        run(server, image, "INSERT INTO a VALUES (1, 'n', 'm')", "INSERT INTO b VALUES (1)")
        pipeline.wait_row("b", {"id": 1})
        run(server, image, "INSERT INTO a (id, n) VALUES (2, 'n')", "INSERT INTO b VALUES (2)")
        pipeline.wait_row("b", {"id": 2})
        stopped = pipeline.status().stopped_tables
        assert list(stopped) == [f"{NAME}.a"]
        assert "without its column m" in stopped[f"{NAME}.a"]["reason"]
        assert "binlog_row_image=FULL" in stopped[f"{NAME}.a"]["reason"]
        assert pipeline.rows("a") == [("c", {"id": 1, "n": "n", "m": "m"})]
    finally:
        pipeline.stop()


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_texts_that_an_insert_leaves_out_are_null(mysql_server: Server, image: str) -> None:
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    run(
        mysql_server,
        "FULL",
        "CREATE TABLE t (id int PRIMARY KEY, n text, e text DEFAULT ('said'), j json, b blob, "
        "d json DEFAULT (JSON_ARRAY()), g geometry)",
    )
    start = source_of(mysql_server, NAME).head()
    run(
        mysql_server, image, "INSERT INTO t (id) VALUES (1)", "INSERT INTO t (id, j) SELECT 2, '{}'"
    )
    found = {row[4]: row[3] for row in streamed(mysql_server, start)}
    source = source_of(mysql_server, NAME)
    assert found == {r["key"].decode(): r["after"].decode() for r in events(copied(source))}


def test_a_virtual_column_that_the_log_lacks_stops_its_table(mariadb_server: Server) -> None:
    sql.execute(mariadb_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    run(mariadb_server, "FULL", "CREATE TABLE t (id int PRIMARY KEY, a int, v int AS (a + 1))")
    run(mariadb_server, "FULL", "INSERT INTO t (id, a) VALUES (1, 1)")
    start = source_of(mariadb_server, NAME).head()
    run(mariadb_server, "MINIMAL", "UPDATE t SET a = 5")
    with pytest.raises(TableError, match="without its column v"):
        streamed(mariadb_server, start)


def test_mysql_logs_a_virtual_column_that_changed(mysql_server: Server) -> None:
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    run(
        mysql_server,
        "FULL",
        "CREATE TABLE t (id int PRIMARY KEY, a int, v int AS (a + 1), w int)",
        "INSERT INTO t (id, a) VALUES (1, 1)",
    )
    start = source_of(mysql_server, NAME).head()
    run(mysql_server, "MINIMAL", "UPDATE t SET a = 5", "UPDATE t SET w = 6")
    assert [row[3] for row in streamed(mysql_server, start)] == [
        f'{{"id":1,"a":5,"v":6,"w":{MARK}}}',
        f'{{"id":1,"a":{MARK},"v":{MARK},"w":6}}',
    ]


def test_partial_rows_of_a_large_transaction_keep_their_numbers(server: Server) -> None:
    """Segments are cut inside it, also after rows that are there in part only."""
    run(server, "FULL", "CREATE TABLE t (id int PRIMARY KEY, n mediumtext, v int)")
    values = ",".join(f"({i}, REPEAT('x', 300000), 0)" for i in range(30))
    run(server, "FULL", f"INSERT INTO t VALUES {values}")
    source = source_of(server, NAME)
    start = source.head()
    run(server, "MINIMAL", "UPDATE t SET n = REPEAT('y', 300000), v = 1 ORDER BY id")
    found = rows(source, start)
    assert [row["row"] for row in found] == list(range(30))
    assert [json.loads(row["after"])["v"] for row in found] == [1] * 30
    assert [row["tx_end"] for row in found] == [False] * 29 + [True]
