"""A log that was begun anew has the old one's names and GTIDs, and is not followed as the old one.

Both servers' RESET does that, and so does a server that is restored with its own identity.
"""

from collections.abc import Iterator

import pytest

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import mariadb, mysql, sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import rows, source_of

DATABASE = "shop"
RESET = {"mysql": "RESET BINARY LOGS AND GTIDS", "mariadb": "RESET MASTER"}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, str]]:
    """Return a server whose log may be reset, with a table, and the statement that does it."""
    module = {"mysql": mysql, "mariadb": mariadb}[request.param]
    server = module.start(tmp_path_factory.mktemp("anew"))
    sql.execute(server, f"CREATE DATABASE {DATABASE}")
    sql.execute(server, "CREATE TABLE t (id int primary key, v text)", database=DATABASE)
    yield server, RESET[request.param]
    server.discard()


def refused(source: MySqlSource, position: Position) -> None:
    for follow in (source.reach, source.open):
        with pytest.raises(PositionLostError, match=r"log was read up to .* begun anew") as lost:
            follow(position)
        assert f"{position['file']}:{position['pos']}" in str(lost.value)


def written(server: Server, transactions: int, size: int = 1) -> None:
    """Commit rows, a transaction each."""
    replace = f"REPLACE INTO t VALUES (1, CONCAT(UUID(), REPEAT('x', {size})))"
    sql.execute(server, *[replace] * transactions, database=DATABASE)


def test_a_log_whose_gtids_count_past_the_position_in_an_earlier_file_is_lost(
    server: tuple[Server, str],
) -> None:
    at, reset = server
    source = source_of(at, DATABASE)
    sql.execute(at, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS", reset, "FLUSH BINARY LOGS")
    written(at, 2)
    position = source.head()
    source.reach(position)
    sql.execute(at, reset)
    written(at, 9)
    refused(source, position)


def test_a_log_whose_gtids_count_past_the_position_in_a_shorter_file_is_lost(
    server: tuple[Server, str],
) -> None:
    at, reset = server
    source = source_of(at, DATABASE)
    sql.execute(at, reset)
    written(at, 2, size=20_000)
    position = source.head()
    sql.execute(at, reset)
    written(at, 9)
    refused(source, position)
    sql.execute(at, "FLUSH BINARY LOGS")
    written(at, 1)
    refused(source, position)


def test_a_log_that_goes_on_in_more_files_is_followed(server: tuple[Server, str]) -> None:
    at, _ = server
    source = source_of(at, DATABASE)
    position = source.head()
    sql.execute(at, "FLUSH BINARY LOGS")
    written(at, 1)
    assert [row["op"] for row in rows(source, position)] == ["u"]


REPLICATED = {
    "mysql": "SET gtid_next = '3e11fa47-71ca-11e1-9e33-c80aa9429562:{}'",
    "mariadb": "SET SESSION server_id = 77, SESSION gtid_seq_no = {}",
}
SEEDED = {
    "mysql": "SET GLOBAL gtid_purged = '{}'",
    "mariadb": "SET GLOBAL gtid_binlog_state = '{}'",
}


def test_a_replica_that_was_seeded_anew_is_followed(server: tuple[Server, str]) -> None:
    """What replication brings has its GTID from elsewhere, and what was purged no file has."""
    at, reset = server
    kind = at.name
    source = source_of(at, DATABASE)

    def apply(*numbers: int) -> None:
        for number in numbers:
            insert = f"REPLACE INTO t VALUES ({number}, UUID())"
            gtid = REPLICATED[kind].format(number)
            sql.execute(at, gtid, insert, database=DATABASE)

    sql.execute(at, reset, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    apply(1, 2, 3)
    position = source.head()
    sql.execute(at, reset)
    apply(1, 2, 3, 4)
    assert [row["key"] for row in rows(source, position)] == [b'{"id":4}']

    sql.execute(at, reset, "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    written(at, 3)
    position = source.head()
    sql.execute(at, reset, SEEDED[kind].format(position.get("gtid_set", position.get("gtid_pos"))))
    sql.execute(at, *["FLUSH BINARY LOGS"] * (kind == "mariadb"))
    written(at, 1)
    assert len(rows(source, position)) == 1
