"""The binlog stream against real servers."""

import json
import pickle
from typing import Any

import orjson
import pytest

from airflow_provider_deltaforge.errors import (
    AccessError,
    FatalError,
    PositionLostError,
    SchemaError,
)
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, Position
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql import type_matrix
from tests.sources.mysql.stream_reading import batches, rows, shape, source_of


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def database(request: pytest.FixtureRequest, server: Server) -> str:
    name = "s_" + request.node.originalname.removeprefix("test_")[:40]
    sql.execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    return name


def without_gtids(position: Position) -> Position:
    return {k: v for k, v in position.items() if k not in ("gtid_set", "gtid_pos")}


def run(server: Server, database: str, *statements: str) -> list[tuple[Any, ...]]:
    return sql.execute(
        server, "SET sql_mode='', time_zone='+00:00'", *statements, database=database
    )


def test_every_type_prints_as_the_matrix_says(server: Server, database: str) -> None:
    source = source_of(server, database)
    start = source.head()
    tables = [t for t in type_matrix.TABLES if t.only in ("", server.name)]
    for table in tables:
        run(server, database, *table.statements())
    found: dict[str, list[str]] = {}
    for row in rows(source, start):
        assert orjson.loads(row["after"] or b"{}") is not None
        if row["op"] == "c":
            found.setdefault(row["table"], []).append(row["after"].decode())
    for table in tables:
        assert len(found[table.name]) == len(table.rows), table.name
        assert tuple(found[table.name][: len(table.expected)]) == table.expected


def test_insert_update_and_delete_carry_images_and_keys(server: Server, database: str) -> None:
    source = source_of(server, database)
    start = source.head()
    run(
        server,
        database,
        "CREATE TABLE t (b int, id int, v varchar(9), PRIMARY KEY (id, b))",
        "INSERT INTO t VALUES (1, 2, 'x')",
        "UPDATE t SET id = 3, v = NULL",
        "DELETE FROM t",
    )
    found = [shape(row) for row in rows(source, start)]
    assert [row[0] for row in found] == ["ddl", "c", "u", "d"]
    first_image, second_image = '{"b":1,"id":2,"v":"x"}', '{"b":1,"id":3,"v":null}'
    assert found[1] == ("c", "t", None, first_image, '{"id":2,"b":1}')
    assert found[2] == ("u", "t", first_image, second_image, '{"id":3,"b":1}')
    assert found[3] == ("d", "t", second_image, None, '{"id":3,"b":1}')


def test_rows_nobody_captures_are_counted_and_left_out(server: Server, database: str) -> None:
    source = source_of(server, database, tables=[f"{database}.kept_%"])
    run(
        server,
        database,
        "CREATE TABLE kept_a (id int primary key)",
        "CREATE TABLE other (id int primary key, t text, e enum('a'))",
    )
    start = source.head()
    run(
        server,
        database,
        "BEGIN",
        "INSERT INTO other VALUES (1, 'x', 'a'), (2, NULL, NULL)",
        "INSERT INTO kept_a VALUES (1), (2)",
        "INSERT INTO other VALUES (3, 'x', 'a')",
        "INSERT INTO kept_a VALUES (3)",
        "INSERT INTO other VALUES (4, 'x', 'a')",
        "COMMIT",
    )
    found = rows(source, start)
    assert [row["row"] for row in found] == [2, 3, 5]
    assert [row["tx_end"] for row in found] == [False, False, True]
    assert len({row["tx_id"] for row in found}) == 1


def test_event_ids_are_the_same_on_every_replay(server: Server, database: str) -> None:
    source = source_of(server, database)
    start = source.head()
    run(server, database, "CREATE TABLE t (id int primary key)")
    for i in range(5):
        run(server, database, f"INSERT INTO t VALUES ({2 * i}), ({2 * i + 1})")
    end = source.head()
    first = [row["event_id"] for row in rows(source, start, end)]
    assert first == [row["event_id"] for row in rows(source, start, end)]
    assert len(set(first)) == len(first) == 11
    other = source.model_copy(update={"id": "another"})
    assert not set(first) & {row["event_id"] for row in rows(other, start, end)}


def test_resuming_after_any_transaction_gives_exactly_the_rest(
    server: Server, database: str
) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key)")
    start = source.head()
    run(server, database, *(f"INSERT INTO t VALUES ({i})" for i in range(12)), "FLUSH BINARY LOGS")
    run(server, database, *(f"INSERT INTO t VALUES ({i})" for i in range(12, 20)))
    end = source.head()
    seen = []
    for batch in batches(source, start, end):
        assert batch.rows.schema == CHANGE_SCHEMA
        for row in batch.rows.to_pylist():
            seen.append(row["key"])
            rest = [r["key"] for r in rows(source, batch.positions.after(row["tx"]), end)]
            assert seen + rest == [b'{"id":%d}' % i for i in range(20)]


def test_file_and_offset_resume_where_there_are_no_gtids(server: Server, database: str) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key)")
    start = without_gtids(source.head())
    run(server, database, *(f"INSERT INTO t VALUES ({i})" for i in range(5)), "FLUSH BINARY LOGS")
    run(server, database, *(f"INSERT INTO t VALUES ({i})" for i in range(5, 10)))
    found = list(batches(source, start, without_gtids(source.head())))
    assert not {"gtid_set", "gtid_pos"} & set(found[-1].end)
    keys = [row["key"] for batch in found for row in batch.rows.to_pylist()]
    assert keys == [b'{"id":%d}' % i for i in range(10)]


def test_a_log_that_only_rotates_moves_file_and_offset(server: Server, database: str) -> None:
    """Else the position of an idle database stays in a file that the server deletes one day.

    It reaches what the server calls the end of its log, which lies behind events of its own: a
    file's head, and what MariaDB writes some time later.
    """
    source = source_of(server, database)
    start = without_gtids(source.head())
    run(server, database, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    end = without_gtids(source.head())

    found = list(batches(source, start, end, timeout_s=20))

    assert not sum(batch.rows.num_rows for batch in found)
    at = found[-1].end
    assert at["file"] == end["file"]
    assert at["pos"] >= end["pos"] > 4
    run(server, database, f"PURGE BINARY LOGS TO '{end['file']}'", "CREATE TABLE t (id int)")
    assert [row["op"] for row in rows(source, at)] == ["ddl"]


def test_schema_changes_of_captured_tables_are_events_in_their_place(
    server: Server, database: str
) -> None:
    source = source_of(server, database, tables=[f"{database}.t"])
    start = source.head()
    run(
        server,
        database,
        "CREATE TABLE t (id int primary key)",
        "CREATE TABLE uncaptured (id int primary key)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD COLUMN `v` int DEFAULT 7 -- t2",
        "INSERT INTO t VALUES (2, 3)",
        "ALTER TABLE t DROP COLUMN v, RENAME TO t2",
        "RENAME TABLE t2 TO t",
        "TRUNCATE t",
        "INSERT INTO t VALUES (4)",
        "DROP TABLE IF EXISTS uncaptured, t",
    )
    found = rows(source, start)
    assert [row["op"] for row in found] == ["ddl", "c", "ddl", "c", "ddl", "ddl", "t", "c", "ddl"]
    assert [row["after"] for row in found if row["op"] == "c"] == [
        b'{"id":1}',
        b'{"id":2,"v":3}',
        b'{"id":4}',
    ]
    truncated = found[6]
    assert (truncated["db"], truncated["table"]) == (database, "t")
    assert all(row["table"] == "_ddl" for row in found if row["op"] == "ddl")
    ddl = json.loads(found[4]["ddl"])
    assert ddl["database"] == database
    assert ddl["tables"] == [f"{database}.t", f"{database}.t2"]
    assert "RENAME TO t2" in ddl["sql"]


def test_a_transaction_larger_than_a_segment_is_cut_and_ends_once(
    server: Server, database: str
) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key, v longtext)")
    start = source.head()
    count = 40
    values = ",".join(f"({i}, REPEAT('x', 500000))" for i in range(count))
    run(server, database, "SET max_statement_time=0" if server.name == "mariadb" else "SET @a=1")
    run(server, database, f"INSERT INTO t VALUES {values}", "INSERT INTO t VALUES (1000, 'end')")
    end = source.head()
    parts = list(batches(source, start, end))
    assert len(parts) > 2
    assert parts[0].open_tx
    assert not parts[0].continues
    assert parts[1].continues
    assert source.compare(parts[0].end, start) == 0
    found = [row for part in parts for row in part.rows.to_pylist()]
    assert [row["key"] for row in found] == [b'{"id":%d}' % i for i in [*range(count), 1000]]
    assert [row["row"] for row in found] == [*range(count), 0]
    assert [i for i, row in enumerate(found) if row["tx_end"]] == [count - 1, count]
    assert len({row["event_id"] for row in found}) == count + 1


def test_a_row_larger_than_a_packet_arrives_whole(server: Server, database: str) -> None:
    source = source_of(server, database)
    run(server, database, "SET GLOBAL max_allowed_packet = 64 << 20")
    run(server, database, "CREATE TABLE t (id int primary key, v longtext)")
    start = source.head()
    run(server, database, "INSERT INTO t VALUES (1, REPEAT('ab\"', 7000000))")
    run(server, database, "INSERT INTO t VALUES (2, 'small')")
    found = rows(source, start)
    assert len(json.loads(found[0]["after"])["v"]) == 21_000_000
    assert found[1]["after"] == b'{"id":2,"v":"small"}'


def test_compressed_logs_read_the_same(server: Server, database: str) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key, v text)")
    start = source.head()
    connection = sql.connect(server, database)
    with connection.cursor() as cursor:
        if server.name == "mysql":
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
        else:
            cursor.execute("SET GLOBAL log_bin_compress = ON")
        try:
            for i in range(3):
                text = f"REPEAT('z{i}', 3000)"
                cursor.execute(f"INSERT INTO t VALUES ({2 * i}, {text}), ({2 * i + 1}, 'ü')")
            cursor.execute("UPDATE t SET v = CONCAT(v, '!')")
            cursor.execute("ALTER TABLE t ADD COLUMN n int COMMENT '" + "c" * 900 + "'")
            cursor.execute("DELETE FROM t")
        finally:
            if server.name == "mariadb":
                cursor.execute("SET GLOBAL log_bin_compress = OFF")
    connection.close()
    found = rows(source, start)
    assert [row["op"] for row in found] == ["c"] * 6 + ["u"] * 6 + ["ddl"] + ["d"] * 6
    assert found[0]["after"] == b'{"id":0,"v":"%s"}' % (b"z0" * 3000)
    assert found[7]["after"] == b'{"id":1,"v":"\xc3\xbc!"}'


def test_a_segment_survives_pickling(server: Server, database: str) -> None:
    source = source_of(server, database)
    start = source.head()
    run(server, database, "CREATE TABLE t (id int primary key, e enum('ä'))")
    run(server, database, "INSERT INTO t VALUES (1, 'ä')")
    reader = pickle.loads(pickle.dumps(source)).open(start)
    segment = None
    while segment is None:
        segment = reader.read(1)
    again = pickle.loads(pickle.dumps(segment))
    assert reader.decode(again).rows.equals(reader.decode(segment).rows)
    reader.close()


def test_a_purged_position_is_named(server: Server, database: str) -> None:
    source = source_of(server, database)
    start = source.head()
    for _ in range(2):
        run(server, database, "CREATE TABLE IF NOT EXISTS t (id int)", "FLUSH BINARY LOGS")
    run(server, database, "CREATE TABLE t2 (id int)")
    end = source.head()
    run(server, database, f"PURGE BINARY LOGS TO '{end['file']}'")
    with pytest.raises(PositionLostError, match="snapshot"):
        rows(source, start, end)


def test_a_wrong_password_is_refused_without_being_shown(server: Server) -> None:
    dsn = f"mysql://df:wr0ng-word@{server.host}:{server.port}/x"
    with pytest.raises(AccessError) as refused:
        source_of(server, "x", dsn=dsn).head()
    assert "wr0ng-word" not in str(refused.value)
    assert "wr0ng-word" not in repr(source_of(server, "x", dsn=dsn))


def test_statements_instead_of_rows_are_refused(server: Server, database: str) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key)")
    start = source.head()
    run(server, database, "SET binlog_format = STATEMENT", "INSERT INTO t VALUES (1)")
    with pytest.raises(FatalError, match="binlog_format=ROW"):
        rows(source, start)


def test_a_prepared_xa_transaction_is_refused(server: Server, database: str) -> None:
    source = source_of(server, database)
    run(server, database, "CREATE TABLE t (id int primary key)")
    start = source.head()
    run(
        server, database, "XA START 'x'", "INSERT INTO t VALUES (1)", "XA END 'x'", "XA PREPARE 'x'"
    )
    run(server, database, "XA COMMIT 'x'")
    with pytest.raises(FatalError, match="XA"):
        rows(source, start)


def test_tagged_gtids_are_read_and_resumed(mysql_server: Server) -> None:
    database = "s_tagged"
    sql.execute(mysql_server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
    source = source_of(mysql_server, database)
    run(mysql_server, database, "CREATE TABLE t (id int primary key)")
    start = source.head()
    run(
        mysql_server,
        database,
        "SET gtid_next = 'AUTOMATIC:blue'",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES (2)",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO t VALUES (3)",
    )
    end = source.head()
    first = next(iter(batches(source, start, end)))
    found = rows(source, start, end)
    assert [row["key"] for row in found] == [b'{"id":%d}' % i for i in (1, 2, 3)]
    assert ":blue:" in found[0]["tx_id"]
    after = first.positions.after(0)
    assert ":blue:" in after["gtid_set"]
    assert [row["key"] for row in rows(source, after, end)] == [b'{"id":2}', b'{"id":3}']


def test_without_full_metadata_the_catalog_names_the_columns(server: Server, database: str) -> None:
    source = source_of(server, database)
    full = run(server, database, "SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    minimal = "MINIMAL" if server.name == "mysql" else "NO_LOG"
    run(server, database, f"SET GLOBAL binlog_row_metadata = {minimal}")
    try:
        run(
            server,
            database,
            "CREATE TABLE t (id bigint unsigned primary key, n varchar(9) character set latin1, "
            "e enum('x','y'), b varbinary(3), y year, u int unsigned)",
        )
        start = source.head()
        run(
            server,
            database,
            "INSERT INTO t VALUES (18446744073709551615, 'é', 'y', 'abc', 2024, 4294967295)",
        )
        middle = source.head()
        assert [row["after"].decode() for row in rows(source, start, middle)] == [
            '{"id":18446744073709551615,"n":"é","e":"y","b":{"_base64":"YWJj"},"y":2024,'
            '"u":4294967295}'
        ]
        run(server, database, "ALTER TABLE t ADD COLUMN late int")
        with pytest.raises(SchemaError, match="ALTER TABLE t ADD COLUMN late"):
            rows(source, start, middle)
    finally:
        run(server, database, f"SET GLOBAL binlog_row_metadata = {full}")
