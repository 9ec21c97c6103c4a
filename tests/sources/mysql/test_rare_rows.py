"""Values that servers log in rare forms, and tables that nobody captures."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_deltaforge.errors import TableError
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, shape, source_of

NAME, OTHER = "rare_rows", "rare_other"
UTC = "SET sql_mode = '', time_zone = '+00:00'"


@pytest.fixture
def mysql(mysql_server: Server) -> Server:
    return fresh(mysql_server)


@pytest.fixture
def mariadb(mariadb_server: Server) -> Server:
    return fresh(mariadb_server)


def fresh(server: Server) -> Server:
    for name in (NAME, OTHER):
        sql.execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    return server


def run(server: Server, *statements: str, database: str = NAME) -> None:
    sql.execute(server, UTC, *statements, database=database)


def same_in_snapshot_and_stream(server: Server, start: Any) -> list[bytes]:
    """Return the last image of every row, which must be what a snapshot reads."""
    source = source_of(server, NAME)
    last: dict[bytes, bytes] = {}
    for row in rows(source, start):
        if row["op"] == "d":
            del last[row["key"]]
        elif row["op"] in "cu":
            last[row["key"]] = row["after"]
    read = {row["key"]: row["after"] for row in events(copied(source))}
    assert last == read
    return [last[key] for key in sorted(last)]


# A document, a change that MySQL logs as a difference, and whether it does.
CHANGES = [
    "JSON_SET(j, '$.a', 2)",
    "JSON_SET(j, '$.list[1]', JSON_OBJECT('deep', JSON_ARRAY(1, 2.5, 'x')))",
    "JSON_REMOVE(j, '$.list[0]')",
    "JSON_ARRAY_INSERT(j, '$.list[0]', 'first')",
    "JSON_SET(j, '$.\"odd key.[0]\"', NOW(6))",
    "JSON_SET(j, '$.\"ключ\"', CAST(1.23 AS DECIMAL(5,2)))",
    "JSON_REPLACE(j, '$.list', CAST('[]' AS JSON))",
    'JSON_SET(j, \'$.new\', CAST(\'{"x": {"y": null, "t": true}}\' AS JSON))',
    "JSON_SET(j, '$.new.x.y', REPEAT('z', 70000))",
    "JSON_SET(j, '$.big', 18446744073709551615, '$.small', -9223372036854775808)",
    "JSON_REMOVE(j, '$.new', '$.a')",
    "JSON_SET(j, '$', CAST('{\"only\": 1}' AS JSON))",
]


def test_json_changed_in_part_arrives_whole(mysql: Server) -> None:
    start = source_of(mysql, NAME).head()
    run(
        mysql,
        "CREATE TABLE t (id int PRIMARY KEY, k json, j json, v int)",
        'INSERT INTO t VALUES (1, \'{"k": "kept"}\', \'{"a": 1, "list": [1, 2, 3], "pad": "'
        + "p" * 300
        + "\"}', 1), (2, NULL, '[1, 2]', 1), (3, '{}', NULL, 1)",
        "SET binlog_row_value_options = PARTIAL_JSON",
        *(f"UPDATE t SET j = {change}, v = v + 1" for change in CHANGES),
        "UPDATE t SET k = JSON_SET(k, '$.z', id), j = JSON_SET(j, '$.again', v)",
    )
    assert b'"only":1' in same_in_snapshot_and_stream(mysql, start)[0]


FROM_THE_END = [
    "JSON_SET(j, '$.list[last]', 'long enough')",
    "JSON_ARRAY_INSERT(j, '$.list[last]', 4.5)",
    "JSON_ARRAY_INSERT(j, '$.list[last-9]', 'in front')",
    "JSON_REMOVE(j, '$.list[last-2][last]')",
    "JSON_SET(j, '$.list[last-2][last-1]', 2.5, '$.list[last-20]', 0)",
    "JSON_REMOVE(j, '$.list[0]', '$.list[last]')",
]


def test_places_counted_from_an_array_s_end_are_found(mysql: Server) -> None:
    document = {"list": [1, [2, 3, 4], 5], "pad": "p" * 300}
    run(mysql, "CREATE TABLE t (id int PRIMARY KEY, j json)")
    with sql.connect(mysql, NAME) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t VALUES (1, %s)", (json.dumps(document),))
        cursor.execute("COMMIT")
        start = source_of(mysql, NAME).head()
        cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
        expected = []
        for change in FROM_THE_END:
            cursor.execute(f"UPDATE t SET j = {change}")
            cursor.execute("SELECT j FROM t")
            expected += [json.loads(text) for (text,) in cursor.fetchall()]
        cursor.execute("COMMIT")

    found = rows(source_of(mysql, NAME), start)

    assert [json.loads(row["after"])["j"] for row in found] == expected


_SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20)
_DOCUMENTS = st.recursive(
    _SCALARS.filter(lambda value: not isinstance(value, str) or "\0" not in value),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


def test_random_json_changed_in_part_arrives_whole(mysql: Server) -> None:
    run(mysql, "CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, j json)")
    connection = sql.connect(mysql, NAME)
    cursor = connection.cursor()
    cursor.execute("SET binlog_row_value_options = PARTIAL_JSON")
    source = source_of(mysql, NAME)

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(_DOCUMENTS, _DOCUMENTS, st.integers(0, 3)), min_size=4, max_size=12))
    def check(cases: list[tuple[Any, Any, int]]) -> None:
        cursor.execute("DELETE FROM t")
        start = source.head()
        for document, change, place in cases:
            whole = {"pad": "p" * 200, "list": [document, 1], "it": document}
            cursor.execute("INSERT INTO t (j) VALUES (%s)", (json.dumps(whole),))
            change_text = json.dumps(change)
            cursor.execute(
                [
                    "UPDATE t SET j = JSON_SET(j, '$.it', CAST(%s AS JSON)) WHERE id = %s",
                    "UPDATE t SET j = JSON_SET(j, '$.list[0]', CAST(%s AS JSON)) WHERE id = %s",
                    "UPDATE t SET j = JSON_ARRAY_INSERT(j, '$.list[1]', CAST(%s AS JSON)) "
                    "WHERE id = %s",
                    "UPDATE t SET j = JSON_REMOVE(JSON_SET(j, '$.more', CAST(%s AS JSON)), "
                    "'$.list') WHERE id = %s",
                ][place],
                (change_text, cursor.lastrowid),
            )
        same_in_snapshot_and_stream(mysql, start)

    check()
    connection.close()


def test_a_difference_without_its_document_stops_the_table(mysql: Server) -> None:
    document = '\'{"a": 1, "pad": "' + "p" * 300 + "\"}'"
    run(
        mysql,
        "CREATE TABLE t (id int PRIMARY KEY, j json)",
        f"INSERT INTO t VALUES (1, {document})",
    )
    start = source_of(mysql, NAME).head()
    run(
        mysql,
        "SET binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL",
        "UPDATE t SET j = JSON_SET(j, '$.a', 2)",
    )
    with pytest.raises(TableError, match=r"rare_rows\.t: column j: .*binlog_row_value_options=''"):
        rows(source_of(mysql, NAME), start)


COMPRESSED = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(255) CHARACTER SET latin1 COMPRESSED, "
    "w varchar(300) COMPRESSED, t text COMPRESSED, b blob COMPRESSED, x varbinary(300) COMPRESSED, "
    "l longtext CHARACTER SET utf16 COMPRESSED, y tinyblob COMPRESSED, plain text)"
)


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_compressed_columns_arrive_as_they_were_written(mariadb: Server, metadata: str) -> None:
    values = [
        "(1, '', '', '', '', '', '', '', '')",
        "(2, REPEAT('é', 250), REPEAT('ü', 290), REPEAT('b', 60000), REPEAT(X'00FF', 9000), "
        "REPEAT('d', 300), REPEAT('€', 90000), REPEAT('y', 254), 'p')",
        "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "(4, 'ä', 'b', 'c', 'd', 'e', 'f', 'g', 'h')",
    ]
    try:
        sql.execute(mariadb, f"SET GLOBAL binlog_row_metadata = {metadata}")
        start = source_of(mariadb, NAME).head()
        run(
            mariadb,
            COMPRESSED,
            f"INSERT INTO t VALUES {values[0]}, {values[1]}",
            "SET GLOBAL column_compression_zlib_wrap = ON",
            f"INSERT INTO t VALUES {values[2]}, {values[3]}",
            "UPDATE t SET t = REPEAT('w', 5000), plain = 'q' WHERE id = 4",
            "SET GLOBAL column_compression_zlib_wrap = OFF",
            "UPDATE t SET w = REPEAT('x', 299)",
        )
        assert len(same_in_snapshot_and_stream(mariadb, start)) == 4
    finally:
        sql.execute(mariadb, "SET GLOBAL binlog_row_metadata = FULL")


def test_times_of_old_servers_arrive(mariadb: Server) -> None:
    columns = "id int PRIMARY KEY, a timestamp NULL, b datetime, c time"
    try:
        sql.execute(mariadb, "SET GLOBAL mysql56_temporal_format = OFF")
        start = source_of(mariadb, NAME).head()
        run(
            mariadb,
            f"CREATE TABLE t ({columns})",
            "INSERT INTO t VALUES (1, '2038-01-19 03:14:07', '9999-12-31 23:59:59', '838:59:59'), "
            "(2, '1970-01-01 00:00:01', '0000-00-00', '-838:59:59'), (3, 0, '2020-00-00', 0), "
            "(4, NULL, NULL, NULL), (5, '2020-02-29 12:00:00', '1000-01-01 10:20:30', '-00:00:01')",
        )
        assert len(same_in_snapshot_and_stream(mariadb, start)) == 5
        run(mariadb, "CREATE TABLE u (id int PRIMARY KEY, a datetime(3))")
        start = source_of(mariadb, NAME).head()
        run(mariadb, "INSERT INTO u VALUES (1, '2020-01-01 00:00:00.123')")
        with pytest.raises(TableError, match=r"rare_rows\.u, column a: .*ALTER TABLE … FORCE"):
            rows(source_of(mariadb, NAME), start)
        left_out = source_of(mariadb, NAME, tables=[f"{NAME}.t"])
        assert rows(left_out, start) == []
    finally:
        sql.execute(mariadb, "SET GLOBAL mysql56_temporal_format = ON")


def test_what_nobody_captures_ends_nothing_and_keeps_the_ids(
    request: pytest.FixtureRequest,
) -> None:
    """A row's id counts all rows of its transaction, of other tables too."""
    for name in ("mysql", "mariadb"):
        server = request.getfixturevalue(name)
        mysql = name == "mysql"
        run(server, "CREATE TABLE t (id int PRIMARY KEY)")
        run(
            server,
            f"CREATE TABLE o (id int PRIMARY KEY, j {'json' if mysql else 'text COMPRESSED'}, "
            f"w varchar(300) {'' if mysql else 'COMPRESSED'}, d int DEFAULT 1)",
            database=OTHER,
        )
        start = source_of(server, NAME).head()
        document = '\'{"a": 1, "pad": "' + "p" * 300 + "\"}'"
        change = "JSON_SET(j, '$.a', 2)" if mysql else "'changed'"
        option = "SET binlog_row_value_options = PARTIAL_JSON" if mysql else "SET @a = 1"
        run(
            server,
            option,
            "SET binlog_row_image = MINIMAL",
            "BEGIN",
            f"INSERT INTO {OTHER}.o VALUES (1, {document}, 'w', 1), (2, {document}, 'w', 2)",
            f"UPDATE {OTHER}.o SET j = {change}",
            "INSERT INTO t VALUES (1)",
            f"INSERT INTO {OTHER}.o (id) VALUES (3)",
            f"DELETE FROM {OTHER}.o",
            "INSERT INTO t VALUES (2)",
            "COMMIT",
        )
        found = rows(source_of(server, NAME), start)
        assert [shape(row)[:2] for row in found] == [("c", "t"), ("c", "t")]
        assert [row["row"] for row in found] == [4, 9]
