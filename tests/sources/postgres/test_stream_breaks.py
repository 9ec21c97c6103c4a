"""Connections that break, servers that restart, TLS: nothing is lost, nothing comes twice."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import AccessError, PositionLostError, RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.sources.postgres.wal import replication_connection
from tests.servers import postgres
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import (
    drop,
    events,
    execute,
    fresh,
    read_until,
    rows,
    source_of,
    tuned,
)
from tests.waiting import PATIENCE_S, wait_for

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
BIG = "INSERT INTO t SELECT i, repeat('y', 500) FROM generate_series({}, {}) i"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """PostgreSQL with TLS that may be stopped; its certificate vouches for itself."""
    home = tmp_path_factory.mktemp("own")
    certificate = home / "server.crt"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-keyout", home / "server.key", "-out", certificate, *subject],
        check=True, capture_output=True,
    )  # fmt: skip
    server = postgres.start(home / "pg")
    data = Path(server.attributes["home"]) / "data"
    for name in ("server.crt", "server.key"):
        (data / name).write_bytes((home / name).read_bytes())
        (data / name).chmod(0o600)
        _give(data / name, data)
    execute(server, "ALTER SYSTEM SET ssl = on")
    server.stop()
    server.start_again()
    server.attributes["certificate"] = str(certificate)
    yield server
    server.discard()


def _give(path: Path, like: Path) -> None:
    owner = like.stat()
    os.chown(path, owner.st_uid, owner.st_gid)


def ids(found: list[dict[str, Any]]) -> list[int]:
    return [json.loads(row["after"])["id"] for row in found]


def test_a_transaction_larger_than_chunks_survives_killed_connections(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database, tuned(segment_bytes=1 << 18))
    start = source.beginning()
    execute(
        postgres_server,
        "INSERT INTO t VALUES (0, 'before')",
        BIG.format(1, 8000),
        "INSERT INTO t VALUES (8001, 'behind')",
        database=database,
    )
    stream = source.open(start)
    found: list[Any] = []
    kills = 0
    deadline = time.monotonic() + PATIENCE_S
    try:
        while len(events(found)) < 8002:
            assert time.monotonic() < deadline
            chunk = stream.read(0.5)
            if chunk is None:
                continue
            found.append(stream.decode(chunk))
            if found[-1].open_tx and kills < 3:
                _kill(postgres_server, database)
                kills += 1
    finally:
        stream.close()
    assert kills == 3
    seen = events(found)
    assert ids(seen) == list(range(8002))
    assert [row["row"] for row in seen[1:-1]] == list(range(8000))
    assert [at for at, row in enumerate(seen) if row["tx_end"]] == [0, 8000, 8001]
    assert sum(batch.open_tx for batch in found) > 3
    inside = [batch for batch in found if batch.open_tx]
    assert {batch.end["lsn"] for batch in inside} == {inside[0].end["lsn"]}
    whole = source_of(postgres_server, database)
    assert [row["event_id"] for row in rows(whole, start)] == [row["event_id"] for row in seen]


def _kill(server: Server, slot: str) -> None:
    kill = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = "
    execute(server, f"{kill}'{slot}'")


def test_a_server_that_restarts_is_read_on_from_where_we_stood(own_server: Server) -> None:
    fresh(own_server, "restarted", TABLE)
    source = source_of(own_server, "restarted")
    stream = source.open(source.beginning())
    try:
        execute(own_server, "INSERT INTO t VALUES (1, 'x')", database="restarted")
        found = read_until(stream, events)
        stream.acknowledge(found[-1].end)
        later: list[Any] = []
        execute(own_server, "INSERT INTO t VALUES (2, 'x')", database="restarted")
        own_server.kill()
        with pytest.raises(RetryableError, match="trying again"):
            wait_for("the server to be missed", lambda: _read(stream, later) and False)
        own_server.start_again()
        execute(own_server, "INSERT INTO t VALUES (3, 'x')", database="restarted")
        wait_for("rows after the restart", lambda: _more(stream, later) >= 2)
    finally:
        stream.close()
    assert ids(events(found)) == [1]
    assert ids(events(later)) == [2, 3]
    drop(own_server, "restarted")


def _read(stream: Any, found: list[Any]) -> int:
    chunk = stream.read(0.2)
    if chunk is not None:
        found.append(stream.decode(chunk))
    return len(events(found))


def _more(stream: Any, found: list[Any]) -> int:
    try:
        return _read(stream, found)
    except RetryableError:
        return 0


def test_a_server_that_is_stopped_need_not_wait_for_an_idle_reader(own_server: Server) -> None:
    fresh(own_server, "stopped", TABLE)
    source = source_of(own_server, "stopped")
    stream = source.open(source.beginning())
    execute(own_server, "INSERT INTO t VALUES (1, 'x')", database="stopped")
    try:
        found = read_until(stream, events)
        stream.acknowledge(found[-1].end)
        # It waits until it has told every reader everything, and every reader has taken it.
        stopping = threading.Thread(target=own_server.stop)
        stopping.start()
        with pytest.raises(RetryableError):
            wait_for("the server to end", lambda: _acknowledge_all(stream))
        stopping.join(PATIENCE_S)
        assert "database system is shut down" in own_server.log_tail()
    finally:
        stream.close()
        own_server.start_again()
    assert ids(events(found)) == [1]
    drop(own_server, "stopped")


def _acknowledge_all(stream: Any) -> None:
    """Do as a lane does whose sinks take everything at once."""
    chunk = stream.read(0.2)
    if chunk is not None:
        stream.acknowledge(stream.decode(chunk).end)


def test_tls_carries_the_same_bytes(own_server: Server) -> None:
    fresh(own_server, "encrypted", TABLE)
    plain = source_of(own_server, "encrypted", dsn=own_server.dsn("encrypted") + "?sslmode=disable")
    start = plain.beginning()
    execute(
        own_server, BIG.format(1, 12_000), "INSERT INTO t VALUES (0, 'x')", database="encrypted"
    )
    whole = rows(plain, start)
    checked = f"?sslmode=verify-full&sslrootcert={own_server.attributes['certificate']}"
    secret = source_of(own_server, "encrypted", dsn=own_server.dsn("encrypted") + checked)
    stream = secret.open(start)
    try:
        found = events(read_until(stream, lambda got: len(events(got)) == 12_001))
        assert isinstance(stream._socket, replication_connection.LibpqSocket)
    finally:
        stream.close()
    names = ("event_id", "after", "row", "tx_end", "tx_id", "source_position")
    assert [[row[name] for name in names] for row in found] == [
        [row[name] for name in names] for row in whole
    ]
    assert ids(found) == [*range(1, 12_001), 0]
    drop(own_server, "encrypted")


@pytest.mark.parametrize("mode", ["disable", "require"])
def test_what_came_before_the_server_ended_the_log_is_handed_out(
    own_server: Server, mode: str
) -> None:
    """The slot is gone, so that nothing can be read a second time."""
    fresh(own_server, "ended", TABLE)
    source = source_of(own_server, "ended", dsn=own_server.dsn("ended") + f"?sslmode={mode}")
    stream = source.open(source.beginning())
    try:
        execute(own_server, "INSERT INTO t VALUES (1, 'x')", database="ended")
        assert ids(events(read_until(stream, lambda got: len(events(got)) == 1))) == [1]
        for number in range(2, 22):
            execute(own_server, f"INSERT INTO t VALUES ({number}, 'x')", database="ended")
        head = execute(own_server, "SELECT pg_current_wal_lsn()::text")[0][0]
        sent = f"SELECT 1 FROM pg_stat_replication WHERE sent_lsn >= '{head}'"
        wait_for("the rows to be sent", lambda: execute(own_server, sent))
        slot = f"FROM pg_replication_slots WHERE slot_name = '{source.slot}'"
        execute(own_server, f"SELECT pg_terminate_backend(active_pid) {slot}")
        ended = f"SELECT 1 {slot} AND NOT active"
        wait_for("the reader's session to end", lambda: execute(own_server, ended))
        execute(own_server, f"SELECT pg_drop_replication_slot(slot_name) {slot}")
        found: list[ChangeBatch] = []
        with pytest.raises(PositionLostError):
            read_until(stream, lambda so_far: found.extend(so_far[len(found) :]))
    finally:
        stream.close()
    assert ids(events(found)) == [*range(2, 22)]
    drop(own_server, "ended")


def test_tls_that_cannot_be_trusted_or_had_is_an_access_error(
    own_server: Server, postgres_server: Server, tmp_path: Path
) -> None:
    other = tmp_path / "other.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x",
         "-keyout", tmp_path / "k", "-out", other],
        check=True, capture_output=True,
    )  # fmt: skip
    strict = f"?sslmode=verify-ca&sslrootcert={other}"
    wrong = [own_server.dsn("postgres") + strict, postgres_server.dsn("p") + "?sslmode=require"]
    for dsn in wrong:
        source = PostgresSource(id="s", dsn=dsn, publication="p", slot="s")
        with pytest.raises(AccessError, match="TLS settings"):
            source.head()


def test_a_slot_whose_log_was_removed_is_lost(own_server: Server) -> None:
    fresh(own_server, "removed", TABLE)
    source = source_of(own_server, "removed")
    start = source.beginning()
    execute(
        own_server,
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "SELECT pg_reload_conf()",
        "SELECT pg_switch_wal()",
    )
    status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'removed'"

    def lost() -> bool:
        fill = "SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))"
        execute(own_server, *[fill] * 20, "SELECT pg_switch_wal()", "CHECKPOINT")
        return execute(own_server, status) == [("lost",)]

    wait_for("the slot to be lost", lost)
    lost_text = r"slot 'removed': .*wal_status lost.*pg_drop_replication_slot\('removed'\)"
    with pytest.raises(PositionLostError, match=lost_text):
        source.open(start)
    with pytest.raises(PositionLostError, match=lost_text):
        source.beginning()
    execute(own_server, "ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    drop(own_server, "removed")
