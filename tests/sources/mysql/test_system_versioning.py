"""MariaDB's system-versioned tables: only current rows are delivered, the same as a snapshot's."""

import json
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import TableError
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import LogColumn, TableMap
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import period_of
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, source_of
from tests.sources.mysql.table_run import TableRun

NAME = "versioned"
PERIOD = (
    "since timestamp(6) GENERATED ALWAYS AS ROW START {0}, "
    "til timestamp(6) GENERATED ALWAYS AS ROW END {0}, PERIOD FOR SYSTEM_TIME (since, til)"
)
FORMS = {
    "implicit": ("", "WITH SYSTEM VERSIONING"),
    "explicit": (PERIOD.format(""), "WITH SYSTEM VERSIONING"),
    "invisible": (PERIOD.format("INVISIBLE"), "WITH SYSTEM VERSIONING"),
    "partitioned": ("", "WITH SYSTEM VERSIONING PARTITION BY SYSTEM_TIME LIMIT 3 PARTITIONS 3"),
}
CHANGES = [
    "INSERT INTO t (id, v, w) VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
    "UPDATE t SET v = CONCAT(v, '!') WHERE id < 3",
    "DELETE FROM t WHERE id = 1",
    "UPDATE t SET id = 9 WHERE id = 3",
    "REPLACE INTO t (id, v, w) VALUES (2, 'r', 7), (4, 'd', 8)",
    "INSERT INTO t (id, v, w) VALUES (4, 'x', 1) ON DUPLICATE KEY UPDATE w = 100",
    "INSERT INTO t (id, v, w) VALUES (1, 'again', 0)",
    "UPDATE t SET w = w + 1 WHERE id = 1",
    "DELETE HISTORY FROM t",
    "BEGIN",
    "UPDATE t SET v = 'in', w = 5 WHERE id = 9",
    "UPDATE t SET v = 'out' WHERE id = 9",
    "DELETE FROM t WHERE id = 4",
    "COMMIT",
]
OPS = [
    ("c", 1), ("c", 2), ("c", 3), ("u", 1), ("u", 2), ("d", 1), ("u", 9), ("d", 2), ("c", 2),
    ("c", 4), ("u", 4), ("c", 1), ("u", 1), ("u", 9), ("u", 9), ("d", 4),
]  # fmt: skip


@pytest.fixture(params=["FULL", "NO_LOG"])
def server(request: pytest.FixtureRequest, mariadb_server: Server) -> Any:
    fresh(mariadb_server)
    sql.execute(mariadb_server, f"SET GLOBAL binlog_row_metadata = {request.param}")
    yield mariadb_server
    sql.execute(mariadb_server, "SET GLOBAL binlog_row_metadata = FULL")


def fresh(server: Server) -> None:
    sql.execute(server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")


def run(server: Server, *statements: str) -> None:
    pinned = "SET sql_mode = '', time_zone = '+00:00', system_versioning_alter_history = KEEP"
    sql.execute(server, pinned, *statements, database=NAME)


def table(form: str, key: str = "id int PRIMARY KEY") -> str:
    columns, options = FORMS[form]
    parts = [key, "v varchar(20)", columns, "w int WITHOUT SYSTEM VERSIONING"]
    return f"CREATE TABLE t ({', '.join(part for part in parts if part)}) {options}"


def current(found: list[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    """Return what a consumer holds in the end, by key."""
    held = {}
    for row in found:
        if row["op"] == "d":
            del held[row["key"]]
        elif row["op"] in "cu":
            if row["op"] == "u" and (old := json.loads(row["before"])):
                held.pop(json.dumps({"id": old["id"]}, separators=(",", ":")).encode())
            held[row["key"]] = row["after"]
    return held


def snapshot(server: Server) -> dict[bytes, bytes]:
    return {row["key"]: row["after"] for row in events(copied(source_of(server, NAME)))}


@pytest.mark.parametrize("form", FORMS)
def test_only_current_rows_arrive(server: Server, form: str) -> None:
    source = source_of(server, NAME)
    start = source.head()
    run(server, table(form), *CHANGES)
    found = [row for row in rows(source, start) if row["op"] != "ddl"]
    ops = [(row["op"], json.loads(row["key"])["id"]) for row in found]
    assert sorted(ops) == sorted([*OPS]) if form == "partitioned" else ops == OPS
    assert all(list(json.loads(row["key"])) == ["id"] for row in found)
    assert current(found) == snapshot(server)
    names = set(json.loads(found[0]["after"]))
    listed = {"since", "til"} if form in ("explicit", "invisible") else set()
    assert names == {"id", "v", "w"} | listed


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_partial_images_of_a_history_are_distinguished(server: Server, image: str) -> None:
    run(server, table("implicit"))
    start = source_of(server, NAME).head()
    run(server, f"SET binlog_row_image = {image}", *CHANGES[:-5])
    found = rows(source_of(server, NAME), start)
    assert [(row["op"], json.loads(row["key"])["id"]) for row in found] == OPS[:13]
    assert current(found) == snapshot(server)


def test_versioning_added_and_dropped_amid_the_log(server: Server) -> None:
    source = source_of(server, NAME)
    start = source.head()
    steps = [
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) DEFAULT CHARSET=utf8mb4",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "ALTER TABLE t ADD SYSTEM VERSIONING",
        "UPDATE t SET v = 'versioned' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "ALTER TABLE t ADD COLUMN z int DEFAULT 5 AFTER id",
        "UPDATE t SET v = 'later' WHERE id = 1",
        "ALTER TABLE t DROP SYSTEM VERSIONING",
        "UPDATE t SET v = 'plain' WHERE id = 1",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t ADD SYSTEM VERSIONING",
        "INSERT INTO t VALUES (4, 4, 'd')",
        "DELETE FROM t WHERE id = 4",
    ]
    run(server, *steps)
    found = [row for row in rows(source, start) if row["op"] != "ddl"]
    assert [(row["op"], json.loads(row["key"])["id"]) for row in found] == [
        ("c", 1), ("c", 2), ("c", 3), ("u", 1), ("d", 2), ("u", 1), ("u", 1), ("d", 3), ("c", 4),
        ("d", 4),
    ]  # fmt: skip
    assert json.loads(found[6]["after"]) == {"id": 1, "z": 5, "v": "plain"}
    assert current(found) == snapshot(server)


def test_a_table_without_a_key_is_known_by_the_catalog_only(mariadb_server: Server) -> None:
    fresh(mariadb_server)
    source = source_of(mariadb_server, NAME)
    run(mariadb_server, "CREATE TABLE t (id int) WITH SYSTEM VERSIONING")
    start = source.head()
    run(
        mariadb_server,
        "INSERT INTO t VALUES (1), (1)",
        "UPDATE t SET id = 2",
        "CREATE TABLE plain (x int, row_start timestamp(6) NOT NULL, "
        "row_end timestamp(6) NOT NULL)",
        "INSERT INTO plain VALUES (1, NOW(), NOW())",
    )
    found = [row["op"] for row in rows(source, start)]
    assert found == ["c", "c", "u", "u", "ddl", "c"]
    run(mariadb_server, "DROP TABLE t")
    with pytest.raises(TableError, match=r"versioned\.t: .*row_start and row_end"):
        rows(source, start)


def test_a_transaction_whose_last_row_is_of_the_past_has_an_end(mariadb_server: Server) -> None:
    """It is cut, so that some segments hold nothing but rows of the past."""
    fresh(mariadb_server)
    run(mariadb_server, "CREATE TABLE t (id int PRIMARY KEY, v mediumtext) WITH SYSTEM VERSIONING")
    values = ",".join(f"({i}, REPEAT('x', 700000))" for i in range(12))
    run(mariadb_server, f"INSERT INTO t VALUES {values}")
    source = source_of(mariadb_server, NAME)
    start = source.head()
    run(mariadb_server, "UPDATE t SET v = REPEAT('y', 700000) ORDER BY id")
    found = rows(source, start)
    assert [row["op"] for row in found] == ["u"] * 12
    assert [row["row"] for row in found] == list(range(0, 24, 2))
    assert [row["tx_end"] for row in found] == [False] * 11 + [True]


def test_a_history_of_transactions_stops_its_table_alone(mariadb_server: Server) -> None:
    fresh(mariadb_server)
    period = PERIOD.format("").replace("timestamp(6)", "bigint unsigned")
    run(
        mariadb_server,
        f"CREATE TABLE a (id int PRIMARY KEY, {period}) WITH SYSTEM VERSIONING",
        "CREATE TABLE b (id int PRIMARY KEY)",
    )
    pipeline = TableRun(mariadb_server, [f"{NAME}.*"]).start()
    try:
        run(mariadb_server, "INSERT INTO a (id) VALUES (1)", "INSERT INTO b VALUES (1)")
        pipeline.wait_row("b", {"id": 1})
        stopped = pipeline.status().stopped_tables
        assert list(stopped) == [f"{NAME}.a"]
        assert "logged as a statement" in stopped[f"{NAME}.a"]["reason"]
    finally:
        pipeline.stop()


def test_both_ends_of_time_are_current() -> None:
    """Servers from 11.5 on end time in 2106 instead of 2038; tables keep what they were made of."""
    moment = LogColumn(17, 6, name="row_end", nullable=False)
    start = LogColumn(17, 6, name="row_start", nullable=False)
    other = LogColumn(3, 0, name="id", nullable=False)
    map_ = TableMap("d", "t", (other, start, moment), (0, 2))
    period = period_of(map_, None)
    assert period is not None
    assert (period.start, period.end, period.hidden) == (1, 2, True)
    assert period_of(TableMap("d", "t", (other, start, moment), (0,)), None) is None
