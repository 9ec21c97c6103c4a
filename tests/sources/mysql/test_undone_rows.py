"""Rows that MariaDB logs although their transaction took them back."""

import json
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import FatalError
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import batches, rows, source_of

NAME = "undone_rows"
SCRATCH = "CREATE TEMPORARY TABLE scratch (i int)"
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY)",
    "CREATE TABLE kept (id int PRIMARY KEY) ENGINE=MyISAM",
)


def add(*numbers: int, table: str = "t") -> str:
    # Not to be logged as a statement, whatever the format.
    return f"INSERT INTO {table} VALUES {', '.join(f'({n} + (UUID() IS NULL))' for n in numbers)}"


def read(server: Server, *work: str, before: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """Return what a session's work left in the tables, and what the log gives."""
    fresh_database(server, NAME, *TABLES, *before)
    source = source_of(server, NAME, tables=[f"{NAME}.t", f"{NAME}.kept"])
    start = source.head()
    with sql.connect(server, NAME) as connection, connection.cursor() as cursor:
        for statement in work:
            cursor.execute(statement)
        left = {}
        for table in ("t", "kept"):
            cursor.execute(f"SELECT id FROM {table} ORDER BY id")
            left[table] = [number for (number,) in cursor.fetchall()]
    found: dict[str, list[int]] = {"t": [], "kept": []}
    changes = rows(source, start)
    for row in changes:
        found[row["table"]].append(json.loads(row["after"])["id"])
    last = {row["tx_id"]: row["tx_end"] for row in changes}
    assert all(last.values())
    return left, found


@pytest.mark.parametrize("log_format", ["ROW", "MIXED"])
@pytest.mark.parametrize(
    "work",
    [
        ("BEGIN", add(1), SCRATCH, "ROLLBACK"),
        ("BEGIN", SCRATCH, add(1), add(7, table="kept"), add(2, 3), "ROLLBACK", add(4)),
        ("BEGIN", add(1), "SAVEPOINT s", SCRATCH, add(2), "ROLLBACK TO S", add(3), "COMMIT"),
        (SCRATCH, "BEGIN", add(1), "SAVEPOINT s", add(2, 3), "DROP TEMPORARY TABLE scratch",
         "ROLLBACK TO s", "COMMIT"),
        ("BEGIN", SCRATCH, add(1), "SAVEPOINT `x y`", add(2), "SAVEPOINT s", add(3),
         "ROLLBACK WORK TO SAVEPOINT `x y`", add(4), "SAVEPOINT s", add(5), "ROLLBACK TO s",
         add(6), "COMMIT"),
        ("BEGIN", SCRATCH, "SAVEPOINT s", add(1), "ROLLBACK TO s", add(2), "COMMIT"),
        ("SET sql_mode = ANSI_QUOTES", "BEGIN", SCRATCH, add(1), 'SAVEPOINT "to"', add(2),
         'ROLLBACK TO "to"', "COMMIT"),
        ("BEGIN", SCRATCH, add(1), "SAVEPOINT s", add(2), "ROLLBACK TO s", add(3), "ROLLBACK"),
    ],
)  # fmt: skip
def test_rows_that_were_rolled_back_are_left_out(
    mariadb_server: Server, log_format: str, work: tuple[str, ...]
) -> None:
    left, found = read(mariadb_server, f"SET binlog_format = {log_format}", *work)
    assert found == left


def test_a_session_that_ends_rolls_back(mariadb_server: Server) -> None:
    fresh_database(mariadb_server, NAME, *TABLES)
    source = source_of(mariadb_server, NAME)
    start = source.head()
    connection = sql.connect(mariadb_server, NAME)
    for statement in ("BEGIN", add(1), SCRATCH):
        connection.cursor().execute(statement)
    connection.close()
    while source.compare(source.head(), start) == 0:
        pass
    sql.execute(mariadb_server, add(2), database=NAME)
    end = source.head()

    parts = list(batches(source, start, end))

    assert [json.loads(row["after"]) for p in parts for row in p.rows.to_pylist()] == [{"id": 2}]
    assert source.compare(parts[-1].end, end) == 0


@pytest.mark.parametrize(
    ("reason", "before", "work"),
    [
        ("more than one savepoint s", (),
         (add(1), "SAVEPOINT s", add(2), "SAVEPOINT s", add(3), "ROLLBACK TO s", "COMMIT")),
        ("other letters than ASCII", (),
         (add(1), "SAVEPOINT ä", add(2), "SAVEPOINT s", add(3), "ROLLBACK TO s", "COMMIT")),
        ("more than one savepoint s",
         ("CREATE TABLE u (id int)",
          f"CREATE TRIGGER g AFTER INSERT ON u FOR EACH ROW BEGIN {add(8)}; SAVEPOINT s; END"),
         (add(1), "SAVEPOINT s", add(2), add(3, table="u"), add(4), "ROLLBACK TO s", "COMMIT")),
    ],
)  # fmt: skip
def test_a_savepoint_that_is_not_certain_stops_the_pipeline(
    mariadb_server: Server, reason: str, before: tuple[str, ...], work: tuple[str, ...]
) -> None:
    with pytest.raises(FatalError, match=f"which of its rows stayed .*{reason}"):
        read(mariadb_server, "BEGIN", SCRATCH, *work, before=before)


def test_an_engine_that_is_not_known_to_undo_stops_the_pipeline(mariadb_server: Server) -> None:
    with pytest.raises(FatalError, match=rf"the engine of {NAME}\.t does not undo them"):
        read(mariadb_server, "BEGIN", add(1), SCRATCH, "ROLLBACK", "ALTER TABLE t ENGINE = Aria")
