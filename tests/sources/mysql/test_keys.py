"""A row's key is the one the server itself uses, in snapshot and stream, whatever the log says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_deltaforge.events.change import Position
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import copied, events
from tests.sources.mysql.stream_reading import rows, source_of

NAME = "row_keys"

# What stands in the parentheses, a row, and the key.
TABLES = {
    "primary_key": ("a int NOT NULL, b int, UNIQUE KEY (a), PRIMARY KEY (b)", "1, 2", ["b"]),
    "prefixed": ("a varchar(50), b int, PRIMARY KEY (a(10))", "'x', 2", ["a"]),
    "unique_key": ("b int, a int NOT NULL UNIQUE", "1, 2", ["a"]),
    "two": ("a int NOT NULL, b int NOT NULL, UNIQUE z (b), UNIQUE m (a)", "1, 2", ["b"]),
    "inline": ("a int NOT NULL UNIQUE, b int NOT NULL, UNIQUE KEY (b)", "1, 2", ["a"]),
    "inline_last": ("b int NOT NULL, UNIQUE KEY (b), a int NOT NULL UNIQUE", "1, 2", ["b"]),
    "turned": (
        "a int NOT NULL, b int NOT NULL, UNIQUE z (b, a), UNIQUE y (a, b)",
        "1, 2",
        ["b", "a"],
    ),
    "behind_null": (
        "a int NOT NULL, b int, UNIQUE KEY (b), UNIQUE KEY (b, a), UNIQUE KEY x (a)",
        "1, 2",
        ["a"],
    ),
    "behind_prefix": (
        "a varchar(50) NOT NULL, b int NOT NULL, UNIQUE KEY (a(9)), UNIQUE KEY (b)",
        "'x', 2",
        ["b"],
    ),
    "whole_prefix": ("a varchar(9) NOT NULL, b int, UNIQUE KEY (a(9))", "'x', 2", ["a"]),
    "falling": ("a int NOT NULL, b int NOT NULL, UNIQUE d (b DESC, a)", "1, 2", ["b", "a"]),
    "computed": ("a int, b int AS (a + 1) STORED UNIQUE", "1, DEFAULT", []),
    "only_null": ("a int, b int UNIQUE", "1, 2", []),
    "only_prefix": ("a varchar(50) NOT NULL, b int, UNIQUE KEY (a(9))", "'x', 2", []),
    "keyless": ("a int NOT NULL, b int NOT NULL, KEY (a)", "1, 2", []),
    "odd": ("`a``b %s` int NOT NULL, b int, UNIQUE `in``dex` (`a``b %s`)", "1, 2", ["a`b %s"]),
    "numbers": ("a serial, b int", "1, 2", ["a"]),
    "`o``dd %s`": ("b int NOT NULL UNIQUE, a int NOT NULL UNIQUE", "1, 2", ["b"]),
}
MYSQL = {
    "virtual_one": ("a int, b int AS (a + 1) VIRTUAL NOT NULL UNIQUE", "1, DEFAULT", []),
    "kept": ("a int, b int AS (a + 1) STORED NOT NULL UNIQUE", "1, DEFAULT", ["b"]),
    "calculated": (
        "a int NOT NULL, b int NOT NULL, UNIQUE KEY ((a + 1)), UNIQUE KEY (b)",
        "1, 2",
        ["b"],
    ),
}
MARIADB = {
    "hashed": ("a text NOT NULL, b int NOT NULL, UNIQUE KEY (a), UNIQUE KEY (b)", "'x', 2", ["b"]),
    "only_hashed": ("a text NOT NULL, b int, UNIQUE KEY (a)", "'x', 2", []),
}


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    sql.execute(found, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    return found


@pytest.fixture(params=["full", "short"])
def metadata(request: pytest.FixtureRequest, server: Server) -> Iterator[str]:
    short = "MINIMAL" if server.name == "mysql" else "NO_LOG"
    setting = "FULL" if request.param == "full" else short
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {setting}")
    yield setting
    sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")


def listed(key: bytes | None) -> list[str] | None:
    return list(json.loads(key)) if key is not None else None


def streamed_keys(server: Server, start: Position) -> dict[str, list[str] | None]:
    found = rows(source_of(server, NAME), start)
    return {row["table"]: listed(row["key"]) for row in found}


def test_snapshot_and_stream_have_the_key_of_the_server(server: Server, metadata: str) -> None:
    del metadata
    tables = {**TABLES, **(MYSQL if server.name == "mysql" else MARIADB)}
    sql.execute(server, *(f"CREATE TABLE {t} ({d[0]})" for t, d in tables.items()), database=NAME)
    source = source_of(server, NAME)
    start = source.head()
    sql.execute(
        server, *(f"INSERT INTO {t} VALUES ({d[1]})" for t, d in tables.items()), database=NAME
    )
    expected = {t.strip("`").replace("``", "`"): d[2] or None for t, d in tables.items()}
    assert streamed_keys(server, start) == expected
    assert {row["table"]: listed(row["key"]) for row in events(copied(source))} == expected


HASHED = {
    "text_key": ("a text, b int PRIMARY KEY, UNIQUE KEY (a), UNIQUE KEY (a, b)", "'x', 2"),
    "bytes_key": ("a blob NOT NULL, b bigint, UNIQUE KEY (a)", "'x', 2"),
    "wide_key": ("a varchar(1000), b int PRIMARY KEY, UNIQUE KEY (a)", "'x', 2"),
    "asked_for": (
        "a int, b int PRIMARY KEY, DB_ROW_HASH_1 bigint, UNIQUE KEY (a) USING HASH",
        "1, 2, 3",
    ),
    "with_history": ("a text, b int NOT NULL UNIQUE, UNIQUE KEY (a)", "'x', 2"),
    "in_memory": ("a int NOT NULL UNIQUE, b bigint", "1, 2"),
}
OPTIONS = {"with_history": "WITH SYSTEM VERSIONING", "in_memory": "ENGINE=MEMORY"}


@pytest.mark.parametrize("image", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_columns_that_mariadb_adds_for_its_indexes_are_not_delivered(
    mariadb_server: Server, metadata: str, image: str
) -> None:
    server = mariadb_server
    sql.execute(server, f"DROP DATABASE IF EXISTS {NAME}", f"CREATE DATABASE {NAME}")
    sql.execute(server, f"ALTER DATABASE {NAME} CHARACTER SET utf8mb4")
    created = [f"CREATE TABLE {t} ({d[0]}) {OPTIONS.get(t, '')}" for t, d in HASHED.items()]
    sql.execute(server, *created, database=NAME)
    sql.execute(server, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        source = source_of(server, NAME)
        start = source.head()
        written = [
            statement
            for t, d in HASHED.items()
            for statement in (f"INSERT INTO {t} VALUES ({d[1]})", f"UPDATE {t} SET b = 5")
        ]
        sql.execute(server, f"SET binlog_row_image = {image}", *written, database=NAME)
        found = rows(source, start)
        copies = {row["table"]: (row["key"], row["after"], "u") for row in events(copied(source))}
    finally:
        sql.execute(server, "SET GLOBAL binlog_row_metadata = FULL")
    assert [row["op"] for row in found] == ["c", "u"] * len(HASHED)
    last = {row["table"]: (row["key"], row["after"], row["op"]) for row in found}
    assert last.keys() == copies.keys() == HASHED.keys()
    if image == "FULL":
        assert last == copies
    names = {t: list(json.loads(after)) for t, (_, after, _) in last.items()}
    assert names == {t: list(json.loads(after)) for t, (_, after, _) in copies.items()}


CHANGES = [
    "ALTER TABLE t ADD c int",
    "ALTER TABLE t ADD PRIMARY KEY (a)",
    "ALTER TABLE t DROP PRIMARY KEY",
    "ALTER TABLE t ADD UNIQUE KEY first_one (b)",
    "ALTER TABLE t CHANGE b bb int NOT NULL",
    "CREATE UNIQUE INDEX later ON t (a)",
    "DROP INDEX first_one ON t",
    "CREATE INDEX plain ON t (bb)",
    "ALTER TABLE t MODIFY a int NULL",
    "ALTER TABLE t MODIFY a int NOT NULL",
    "RENAME TABLE t TO t2",
    "RENAME TABLE t2 TO t",
    "CREATE TABLE copy LIKE t",
    "ALTER TABLE t DROP KEY later",
    "ALTER TABLE t ADD d int NOT NULL UNIQUE, DROP c",
    "ALTER TABLE t ADD e int FIRST",
    "ALTER TABLE t DROP COLUMN d",
    "ALTER TABLE t ADD CONSTRAINT named UNIQUE (bb)",
    "ALTER TABLE t ADD PRIMARY KEY (a)",
    "DROP INDEX `PRIMARY` ON t",
]
OF_MARIADB = [
    "ALTER TABLE t ADD x text, ADD UNIQUE KEY long_one (x)",
    "ALTER TABLE t ADD y bigint",
    "ALTER TABLE t ADD z text NOT NULL UNIQUE",
    "ALTER TABLE t DROP KEY long_one",
    "ALTER TABLE t ADD last bigint, ADD PRIMARY KEY (a)",
    "ALTER TABLE t DROP COLUMN z",
    "ALTER TABLE t ADD w bigint",
]


def columns_of(server: Server) -> tuple[str, list[str], list[str] | None]:
    """Return the table under change, its columns, and those of its key as the server says."""
    found = sql.execute(
        server,
        "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_KEY FROM information_schema.COLUMNS "
        f"WHERE TABLE_SCHEMA = '{NAME}' AND TABLE_NAME IN ('t', 't2') ORDER BY ORDINAL_POSITION",
    )
    names = [name for _, name, _ in found]
    return found[0][0], names, [name for _, name, key in found if key == "PRI"] or None


def test_the_key_follows_every_statement(server: Server, metadata: str) -> None:
    del metadata
    sql.execute(server, "CREATE TABLE t (a int NOT NULL, b int NOT NULL)", database=NAME)
    source = source_of(server, NAME)
    changes = [*CHANGES, *(OF_MARIADB if server.name == "mariadb" else ())]
    seen, expected = [], []
    reader = source.open(source.head())
    try:
        for n, change in enumerate(changes):
            sql.execute(server, change, database=NAME)
            table, names, key = columns_of(server)
            values = ", ".join(f"`{name}` = {n}" for name in names)
            written = (f"INSERT INTO {table} SET {values}", f"DELETE FROM {table}")
            sql.execute(server, *written, database=NAME)
            found: list[dict[str, Any]] = []
            while not found:
                chunk = reader.read(0.5)
                batch = reader.decode(chunk).rows.to_pylist() if chunk is not None else []
                found = [row for row in batch if row["op"] == "c"]
            (row,) = found
            seen.append((change, list(json.loads(row["after"])), listed(row["key"])))
            expected.append((change, names, key))
    finally:
        reader.close()
    assert seen == expected
