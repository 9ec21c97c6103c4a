"""MariaDB's second server takes over: positions are followed or refused by domain."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.plugins import SOURCES
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import mariadb, sql
from tests.servers.process import Server
from tests.sources.failover_run import FailoverRun
from tests.sources.mysql.stream_reading import rows, source_of, tuned
from tests.waiting import wait_for

pytestmark = pytest.mark.long

DATABASE = "shop"
HastySource = tuned(settling_s=0.3)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Return a primary and its replica, with one table."""
    primary = mariadb.start(tmp_path_factory.mktemp("primary"), server_id=11)
    try:
        args = ["--log-slave-updates=ON"]
        replica = mariadb.start(tmp_path_factory.mktemp("replica"), server_id=12, args=args)
        try:
            sql.execute(
                replica,
                f"CHANGE MASTER TO MASTER_HOST = '{primary.host}', MASTER_PORT = {primary.port}, "
                "MASTER_USER = 'root', MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1",
                "START REPLICA",
            )
            sql.execute(primary, f"CREATE DATABASE {DATABASE}")
            sql.execute(primary, "CREATE TABLE t (id int primary key, n int)", database=DATABASE)
            yield primary, replica
        finally:
            replica.discard()
    finally:
        primary.discard()


@pytest.fixture
def servers(pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch) -> tuple[Server, Server]:
    """Return them in step, with an empty table; nothing that is missing settles later here."""
    primary, replica = pair
    sql.execute(replica, "START REPLICA")
    sql.execute(primary, "DELETE FROM t", database=DATABASE)
    in_step(primary, replica)
    monkeypatch.setitem(SOURCES.shipped, "mysql", f"{__name__}:HastySource")
    return pair


def in_step(primary: Server, replica: Server) -> None:
    """Wait until the replica has applied everything."""
    done = sql.execute(primary, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0]
    assert sql.execute(replica, f"SELECT MASTER_GTID_WAIT('{done}', 60)") == [(0,)]


def write(server: Server, *ids: int, domain: int = 0) -> None:
    """Insert rows, a transaction each."""
    inserts = [f"INSERT INTO t VALUES ({i}, {i * 10})" for i in ids]
    sql.execute(server, f"SET gtid_domain_id = {domain}", *inserts, database=DATABASE)


def source(server: Server, **settings: Any) -> MySqlSource:
    return source_of(server, DATABASE, HastySource, **settings)


def seen(found: list[dict[str, Any]]) -> list[str]:
    return [row["key"].decode() for row in found]


def test_a_server_ahead_is_followed_exactly_in_every_domain(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    start = source(primary).head()
    write(primary, 1, 2)
    write(primary, 3, domain=7)
    middle = source(primary).head()
    before = rows(source(primary), start, middle)
    write(primary, 4)
    write(primary, 5, domain=7)
    in_step(primary, replica)
    sql.execute(replica, "STOP REPLICA")
    source(replica).reach(middle)
    after = rows(source(replica), middle)
    assert seen(before) == [f'{{"id":{i}}}' for i in (1, 2, 3)]
    # Transactions of two domains may be applied in another order; none is missing or repeated.
    assert sorted(seen(after)) == [f'{{"id":{i}}}' for i in (4, 5)]
    assert "7-11-" in middle["gtid_pos"]


def test_a_replica_that_is_behind_is_waited_for(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    with contextlib.closing(sql.connect(replica, DATABASE)) as locking:
        locking.query("LOCK TABLES t READ")
        write(primary, 1)
        position = source(primary).head()
        with pytest.raises(RetryableError, match=r"has not applied 0-11-\d+ yet"):
            source(replica).reach(position)
        locking.query("UNLOCK TABLES")
    in_step(primary, replica)
    source(replica).reach(position)


def test_transactions_purged_before_they_were_read_are_named(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    position = source(primary).head()
    write(primary, 1)
    in_step(primary, replica)
    sql.execute(replica, "STOP REPLICA", "FLUSH BINARY LOGS")
    last = sql.execute(replica, "SHOW BINARY LOGS")[-1][0]
    purged = sql.execute(replica, f"SELECT BINLOG_GTID_POS('{last}', 4)")[0][0]
    wait_for("the purge", lambda: _purged(replica, last))
    named = next(part for part in str(purged).split(",") if part.startswith("0-"))
    with pytest.raises(PositionLostError, match=f"not read yet: {named}"):
        source(replica).reach(position)
    source(replica).reach(source(replica).head())


def _purged(server: Server, upto: str) -> bool:
    sql.execute(server, f"PURGE BINARY LOGS TO '{upto}'")
    return sql.execute(server, "SHOW BINARY LOGS")[0][0] == upto


def test_a_promoted_server_that_lacks_what_was_read_is_refused_by_name(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(replica, "STOP REPLICA")
    write(primary, 1)
    write(primary, 2, domain=9)
    position = source(primary).head()
    with pytest.raises(PositionLostError, match="position lost after failover") as refused:
        source(replica).reach(position)
    text = str(refused.value)
    lost = [part for part in position["gtid_pos"].split(",") if part[:2] in ("0-", "9-")]
    assert f"does not have: {','.join(lost)}." in text
    with pytest.raises(PositionLostError, match="position lost after failover"):
        source(replica).open(position)


def test_a_column_that_nobody_logged_is_drift(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    run = FailoverRun(primary, DATABASE, on_schema_drift="halt")
    driving = run.start()
    write(primary, 1)
    run.wait_for_keys(1)
    assert run.stop(driving).why == "stopped"
    write(primary, 2)
    in_step(primary, replica)
    sql.execute(replica, "SET sql_log_bin = 0", "ALTER TABLE t ADD COLUMN x int", database=DATABASE)

    run.lead_to(replica, DATABASE, on_schema_drift="halt")
    for _ in range(2):
        ended = run.start().end()
        assert (ended.why, ended.error_class) == ("failed", "schema")
        assert "schema drift detected after failover and on_schema_drift=halt" in ended.reason
        assert "shop.t.x: column_added (nothing -> int(11))" in ended.reason
    assert run.keys() == [1, 2]

    run.lead_to(replica, DATABASE, on_schema_drift="adapt")
    driving = run.start()
    write(primary, 3)
    run.wait_for_keys(3)
    assert run.stop(driving).why == "stopped"
    assert [record.state for record in run.settled()] == ["failed", "done"]
    assert run.keys() == [1, 2, 3]
    sql.execute(replica, "SET sql_log_bin = 0", "ALTER TABLE t DROP COLUMN x", database=DATABASE)


# The last one: its primary does not come back.
def test_a_pipeline_goes_on_at_the_server_that_takes_over_its_address(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    run = FailoverRun(primary, DATABASE, on_schema_drift="halt", heartbeat_s=5)
    driving = run.start()
    write(primary, 1, 2, 3)
    run.wait_for_keys(1, 2, 3)
    in_step(primary, replica)
    sql.execute(replica, "STOP REPLICA", "RESET REPLICA ALL")
    primary.kill()
    write(replica, 4, 5)
    replica.stop()
    promoted = mariadb.start(
        replica.directory, primary.port, server_id=12, args=["--log-slave-updates=ON"]
    )
    try:
        run.wait_for_keys(4, 5)
        assert run.stop(driving).why == "stopped"
    finally:
        promoted.stop()
    assert run.keys() == [1, 2, 3, 4, 5]
    (settled,) = run.settled()
    assert (settled.state, settled.drift) == ("done", [])
    assert settled.former == {"type": "maria_db", "server_id": 11}
    assert settled.present == {"type": "maria_db", "server_id": 12}
