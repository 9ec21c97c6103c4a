"""A second server takes over: ahead, behind, diverged, purged; each ends as it should."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import (
    AccessError,
    FatalError,
    PositionLostError,
    RetryableError,
)
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.plugins import SOURCES
from airflow_provider_deltaforge.schemas.drift import deltas
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.mysql import failover
from airflow_provider_deltaforge.sources.mysql.connection import server_info
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import mysql, sql
from tests.servers.process import Server
from tests.sources.failover_run import FailoverRun
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import batches, rows, source_of, tuned
from tests.sources.mysql.type_matrix import tables_for

DATABASE = "shop"
HastySource = tuned(settling_s=0.3, replica_s=3.0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """Return a primary and its replica, with one table."""
    primary = mysql.start(tmp_path_factory.mktemp("primary"), server_id=1)
    try:
        replica = mysql.start(tmp_path_factory.mktemp("replica"), server_id=2)
        try:
            follow(primary, replica)
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


def follow(primary: Server, replica: Server) -> None:
    """Make one server the other's replica."""
    sql.execute(
        replica,
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{primary.host}', "
        f"SOURCE_PORT = {primary.port}, SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, "
        "GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1",
        "START REPLICA",
    )


def in_step(primary: Server, replica: Server) -> None:
    """Wait until the replica has applied everything."""
    done = executed(primary)
    sql.execute(replica, f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{done}', 60)")
    assert done <= executed(replica)


def executed(server: Server) -> GtidSet:
    return GtidSet.parse(str(sql.execute(server, "SELECT @@GLOBAL.gtid_executed")[0][0]))


def write(server: Server, *ids: int, tag: str = "", database: str = DATABASE) -> None:
    """Insert rows, a transaction each."""
    named = [f"SET gtid_next = 'AUTOMATIC:{tag}'"] if tag else []
    inserts = [f"INSERT INTO t VALUES ({i}, {i * 10})" for i in ids]
    sql.execute(server, *named, *inserts, database=database)


def source(server: Server, **settings: Any) -> MySqlSource:
    return source_of(server, DATABASE, HastySource, **settings)


def seen(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["op"], row["key"].decode()) for row in found]


# The first one: the others give the replica transactions of its own, which a purge would lose.
def test_transactions_purged_before_they_were_read_are_named(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    position = source(primary).head()
    before = executed(primary)
    write(primary, 1, 2)
    in_step(primary, replica)
    sql.execute(replica, "STOP REPLICA", "FLUSH BINARY LOGS")
    purge(replica)
    lost = executed(primary) - before
    assert len(lost) == 2
    with pytest.raises(PositionLostError, match="position lost after failover") as refused:
        source(replica).reach(position)
    assert f"not read yet: {lost};" in str(refused.value)
    # What was read before the purge is not needed any more.
    source(replica).reach(source(replica).head())


def replicated(primary: Server, replica: Server, **settings: Any) -> MySqlSource:
    """Return a source whose rows are read from the replica."""
    named = source(primary, snapshot={"mode": "initial"}, **settings)
    return named.copied_from(f"{replica.host}:{replica.port}")


def test_rows_are_read_from_a_replica_once_it_has_applied_the_start(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(replica, "STOP REPLICA")
    write(primary, 1, 2)
    snapshotter = replicated(primary, replica).open_snapshot()
    begun = snapshotter.begin()
    started = threading.Timer(0.7, sql.execute, (replica, "START REPLICA"))
    started.start()
    (chunk,) = snapshotter.plan(100)
    started.join()
    write(primary, 3)
    in_step(primary, replica)
    (batch,) = list(snapshotter.read(chunk, "run"))
    snapshotter.guard(begun)
    snapshotter.close()
    assert seen(batch.rows.to_pylist()) == [("r", f'{{"id":{n}}}') for n in (1, 2, 3)]

    # The log is the primary's, and knows what the replica's view contained.
    write(primary, 4)
    reader = source(primary).open(begun)
    found: list[tuple[bytes, bool]] = []
    while len(found) < 2:
        segment = reader.read(1)
        if segment is not None:
            changes = reader.decode(segment)
            keys = [row["key"] for row in changes.rows.to_pylist()]
            found += zip(keys, source(primary).visible(batch.end, changes).tolist(), strict=True)
    reader.close()
    assert found == [(b'{"id":3}', True), (b'{"id":4}', False)]
    assert not replicated(primary, replica).knows_views(begun)


def test_a_replica_that_does_not_follow_is_named_with_what_it_lacks(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(replica, "STOP REPLICA")
    write(primary, 5)
    snapshotter = replicated(primary, replica).open_snapshot()
    with pytest.raises(RetryableError, match=r"snapshot\.dsn: the replica has not applied"):
        list(snapshotter.plan(100))
    snapshotter.close()


def test_a_replica_that_leaves_tables_out_is_refused(servers: tuple[Server, Server]) -> None:
    primary, replica = servers

    def leave_out(tables: str) -> None:
        change = f"CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ({tables})"
        sql.execute(replica, "STOP REPLICA SQL_THREAD", change, "START REPLICA SQL_THREAD")

    leave_out("'shop.ignored%'")
    snapshotter = replicated(primary, replica).open_snapshot()
    try:
        with pytest.raises(FatalError, match=r"snapshot\.dsn: .*Replicate_Wild_Ignore_Table"):
            list(snapshotter.plan(100))
        (found,) = replica_findings(replicated(primary, replica))
        assert (found.verdict, "without filters" in found.message) == ("fail", True)
    finally:
        leave_out("")
        snapshotter.close()


def test_a_table_that_the_replica_does_not_show_is_no_table_without_rows(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(
        primary,
        "CREATE USER IF NOT EXISTS blind@'%' IDENTIFIED BY 'blind-secret'",
        "GRANT REPLICATION CLIENT ON *.* TO blind@'%'",
    )
    in_step(primary, replica)
    dsn = f"mysql://blind:blind-secret@{replica.host}:{replica.port}"
    snapshotter = source(primary, snapshot={"dsn": dsn}).open_snapshot()
    with pytest.raises(AccessError, match=r"snapshot\.dsn: its user sees no shop\.t, .*GRANT"):
        list(snapshotter.plan(100))
    snapshotter.close()


def replica_findings(of: MySqlSource) -> list[Finding]:
    """Return what the preflight finds at the replica."""
    return [found for found in of.preflight() if found.check == "snapshot_replica"]


def test_the_preflight_connects_to_the_replica(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    (found,) = replica_findings(replicated(primary, replica))
    assert found.verdict == "ok"
    assert not replica_findings(source(primary))
    dsns = {
        f"mysql://df:wrong-secret@{replica.host}:{replica.port}/shop": "check user, password",
        "${REPLICA_DSN}": "cannot be read; write mysql://",
    }
    for dsn, text in dsns.items():
        (found,) = replica_findings(source(primary, snapshot={"dsn": dsn}))
        assert found.verdict == "fail"
        assert found.message.startswith("snapshot.dsn: ")
        assert text in found.message
        assert "source.dsn" not in found.message
        assert "wrong-secret" not in str(found)


def test_a_replica_is_verified_as_the_sources_server_is(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    dsn = f"{primary.dsn(DATABASE)}?ssl_mode=verify_identity&ssl_ca={primary.attributes['ca']}"
    snapshot = {"dsn": replica.dsn(DATABASE)}
    (found,) = replica_findings(source_of(primary, DATABASE, dsn=dsn, snapshot=snapshot))
    assert (found.verdict, "TLS failed" in found.message) == ("fail", True)
    # Options of its own address count alone.
    snapshot = {"dsn": f"{replica.dsn(DATABASE)}?ssl_mode=preferred"}
    settings = {"ssl_mode": "verify_ca", "ssl_ca": primary.attributes["ca"], "snapshot": snapshot}
    (found,) = replica_findings(source(primary, **settings))
    assert found.verdict == "ok"


# It gives the replica a transaction of its own, which makes every copy from it fail.
def test_a_replica_with_transactions_of_its_own_is_refused(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(replica, "CREATE DATABASE IF NOT EXISTS its_own", "DROP DATABASE its_own")
    snapshotter = replicated(primary, replica).open_snapshot()
    with pytest.raises(FatalError, match=r"snapshot\.dsn: .* which the source's server has not"):
        list(snapshotter.plan(100))
    snapshotter.close()
    (found,) = replica_findings(replicated(primary, replica))
    assert (found.verdict, "nobody else writes to" in found.message) == ("fail", True)


def test_a_replica_of_mariadb_is_refused_by_name(mariadb_server: Server) -> None:
    fresh_database(mariadb_server, "aside", "CREATE TABLE t (id int primary key)")
    settings = {"mode": "initial", "dsn": mariadb_server.dsn("aside")}
    aside = source_of(mariadb_server, "aside", MySqlSource, snapshot=settings)
    snapshotter = aside.open_snapshot()
    with pytest.raises(FatalError, match=r"snapshot\.dsn: .* is MariaDB"):
        list(snapshotter.plan(100))
    snapshotter.close()


def test_a_server_ahead_is_followed_exactly(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    start = source(primary).head()
    write(primary, 1, 2)
    write(primary, 3, tag="bulk")
    middle = source(primary).head()
    before = rows(source(primary), start, middle)
    write(primary, 4, 5)
    in_step(primary, replica)
    sql.execute(replica, "STOP REPLICA")
    write(replica, 6)
    write(replica, 7, tag="bulk")

    source(replica).reach(middle)
    after = rows(source(replica), middle)

    assert seen(before) == [("c", f'{{"id":{i}}}') for i in (1, 2, 3)]
    assert seen(after) == [("c", f'{{"id":{i}}}') for i in (4, 5, 6, 7)]
    names = [row["tx_id"] for row in [*before, *after]]
    assert len(set(names)) == 7
    # The same events, wherever they are read: consumers see no difference.
    again = rows(source(replica), start)
    assert [row["event_id"] for row in again] == [row["event_id"] for row in [*before, *after]]


def test_positions_read_after_a_failover_belong_to_the_new_server(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    start = source(primary).head()
    write(primary, 1)
    in_step(primary, replica)
    on_replica = source(replica)
    *_, read = batches(on_replica, start, on_replica.head())
    uuid = on_replica.head()["server_uuid"]
    assert read.end["server_uuid"] == uuid != start["server_uuid"]
    # The file is the new server's own: what is read from there goes on without a gap.
    write(primary, 2)
    in_step(primary, replica)
    assert seen(rows(on_replica, read.end)) == [("c", '{"id":2}')]


def test_a_replica_that_is_behind_is_waited_for(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    with contextlib.closing(sql.connect(replica, DATABASE)) as locking:
        locking.query("LOCK TABLES t READ")
        write(primary, 1)
        position = source(primary).head()
        with pytest.raises(RetryableError, match=r"has not applied .*:\d+ yet") as waiting:
            source(replica).reach(position)
        assert position["server_uuid"] in str(waiting.value)
        locking.query("UNLOCK TABLES")
    in_step(primary, replica)
    source(replica).reach(position)


def test_a_promoted_server_that_lacks_what_was_read_is_refused_by_name(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    sql.execute(replica, "STOP REPLICA")
    common = executed(primary)
    write(primary, 1, 2)
    write(replica, 9)
    position = source(primary).head()
    lost = executed(primary) - common
    with pytest.raises(PositionLostError, match="position lost after failover") as refused:
        source(replica).reach(position)
    assert len(lost) == 2
    assert f"does not have: {lost}." in str(refused.value)
    assert "Re-snapshot required" in str(refused.value)
    # Whoever is asked to stop while it may still settle has not lost anything.
    there = source(replica)
    with contextlib.closing(there.connect()) as connection:
        asked = (connection, server_info(connection), LogPosition.from_json(position))
        with pytest.raises(RetryableError, match="asked to stop"):
            failover.check_reach(*asked, stopping=lambda: True)
    # The server itself would say nothing, and go on behind the hole.
    with pytest.raises(PositionLostError, match="position lost after failover"):
        source(replica).open(position)


def test_a_file_and_an_offset_are_no_place_on_another_server(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    position = without_gtids(source(primary).head())
    source(primary).reach(position)
    with pytest.raises(PositionLostError, match="position lost after failover") as refused:
        source(replica).reach(position)
    assert f"{position['file']}:{position['pos']}" in str(refused.value)
    with pytest.raises(PositionLostError, match="without GTIDs"):
        source(replica).open(position)


def test_servers_are_distinguished_by_their_uuid(servers: tuple[Server, Server]) -> None:
    primary, replica = servers
    uuid = str(sql.execute(primary, "SELECT @@server_uuid")[0][0])
    assert source(primary).identity() == {"type": "my_sql", "server_uuid": uuid}
    assert source(replica).identity() != source(primary).identity()


def test_no_type_differs_between_log_and_catalog(servers: tuple[Server, Server]) -> None:
    primary, _ = servers
    everything = source_of(primary, "types")
    sql.execute(primary, "CREATE DATABASE types")
    start = everything.head()
    for table in tables_for("mysql"):
        settings = ("SET sql_mode = ''", "SET time_zone = '+00:00'")
        sql.execute(primary, *settings, *table.statements()[:2], database="types")
    described = {
        s.full_name: s for b in batches(everything, start, everything.head()) for s in b.schemas
    }
    live = everything.catalog(list(described.values()))
    assert len(described) == len(tables_for("mysql"))
    assert [
        delta for name, schema in described.items() for delta in deltas(schema, live[name])
    ] == []
    sql.execute(primary, "ALTER TABLE m_integers DROP PRIMARY KEY", database="types")
    again = everything.catalog([described["types.m_integers"]])
    assert {d.kind for d in deltas(described["types.m_integers"], again["types.m_integers"])} == {
        "primary_key_changed"
    }


# The last one: its primary does not come back.
def test_a_pipeline_goes_on_at_the_server_that_takes_over_its_address(
    servers: tuple[Server, Server],
) -> None:
    primary, replica = servers
    # In a database of its own: what the replica did by itself in other tests was never read.
    database = "takeover"
    create = "CREATE TABLE t (id int primary key, n int)"
    sql.execute(primary, f"CREATE DATABASE {database}", f"USE {database}", create)
    run = FailoverRun(primary, database, on_schema_drift="halt", heartbeat_s=5)
    driving = run.start()
    write(primary, 1, 2, 3, database=database)
    run.wait_for_keys(1, 2, 3)
    in_step(primary, replica)
    # When the pipeline looks the catalog has a column more, and the log says how it came.
    sql.execute(
        replica,
        "STOP REPLICA",
        "RESET REPLICA ALL",
        "ALTER TABLE t ADD COLUMN more int",
        "INSERT INTO t VALUES (4, 40, 400), (5, 50, 500)",
        database=database,
    )
    primary.kill()
    replica.stop()
    promoted = mysql.start(replica.directory, primary.port, server_id=2)
    try:
        run.wait_for_keys(4, 5)
        assert run.stop(driving).why == "stopped"
    finally:
        promoted.stop()
    assert run.keys() == [1, 2, 3, 4, 5]
    assert [event["after"].get("more") for event in run.events() if event["op"] == "c"] == [
        *(None, None, None),
        *(400, 500),
    ]
    (settled,) = run.settled()
    assert (settled.state, settled.drift) == ("done", [])
    assert [change["column"] for change in settled.explained] == ["more"]
    assert settled.former != settled.present == run.records.identity()


def without_gtids(position: Position) -> dict[str, Any]:
    return {key: value for key, value in position.items() if key != "gtid_set"}


def purge(server: Server) -> None:
    """Drop every log but the current one."""
    last = sql.execute(server, "SHOW BINARY LOGS")[-1][0]
    sql.execute(server, f"PURGE BINARY LOGS TO '{last}'")
