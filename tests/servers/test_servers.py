"""The servers the other tests stand on: they start, fall, come back, and leave nothing behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.servers import cache, kafka, mysql, postgres18, sql
from tests.servers.keeper import lives
from tests.servers.process import Server, ServerError, answers, end, family, free_port, running
from tests.waiting import PATIENCE_S, wait_until


def test_mysql_logs_whole_rows_with_gtids(mysql_server):
    [(version, row_format, metadata, gtid)] = sql.execute(
        mysql_server,
        "SELECT VERSION(), @@binlog_format, @@binlog_row_metadata, @@gtid_mode",
    )

    assert int(version.split(".")[0]) >= 9
    assert (row_format, metadata, gtid) == ("ROW", "FULL", "ON")


def test_mariadb_logs_whole_rows(mariadb_server):
    [(version, row_format, metadata)] = sql.execute(
        mariadb_server, "SELECT VERSION(), @@binlog_format, @@binlog_row_metadata"
    )

    assert "MariaDB" in version
    assert (row_format, metadata) == ("ROW", "FULL")


def test_mariadb_keeps_its_temporary_tables_from_other_servers(mariadb_server):
    """One that starts deletes those of all servers that share its directory for them."""
    [(place,)] = sql.execute(mariadb_server, "SELECT @@tmpdir")

    assert Path(place) == mariadb_server.directory


@pytest.mark.parametrize("name", ["mysql_server", "mariadb_server"])
def test_the_replication_user_reads_and_does_not_write(name, request):
    import pymysql

    server = request.getfixturevalue(name)
    sql.execute(server, "CREATE DATABASE IF NOT EXISTS grants")
    connection = sql.connect(server, "grants", user="df", password="df-secret")

    with connection, connection.cursor() as cursor:
        assert cursor.execute("SHOW BINARY LOGS") > 0
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            cursor.execute("CREATE TABLE t (id INT)")


@pytest.mark.parametrize(("name", "least"), [("postgres_server", 13), ("postgres18_server", 18)])
def test_postgres_decodes_its_log(name, least, request):
    import psycopg

    server = request.getfixturevalue(name)
    with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
        assert connection.info.server_version // 10000 >= least
        make = "SELECT pg_create_logical_replication_slot('decodes', 'test_decoding', true)"
        assert connection.execute(make).fetchone() is not None


def test_postgres_18_runs_from_where_its_user_may_read(tmp_path, monkeypatch):
    closed = tmp_path / "closed"
    (closed / "usr/lib/postgresql/18/bin").mkdir(parents=True)
    (closed / "usr/lib/postgresql/18/bin/postgres").touch(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    assert postgres18._readable(closed, ["true"]) == closed
    copy = postgres18._readable(closed, ["false"])

    assert copy != closed
    assert (copy / "usr/lib/postgresql/18/bin/postgres").exists()
    assert postgres18._readable(closed, ["false"]) == copy


def test_kafka_takes_a_transaction(kafka_server):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka_server.dsn(), "transactional.id": "servers"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("servers.transactions", b"value")
    producer.commit_transaction(PATIENCE_S)

    assert producer.flush(PATIENCE_S) == 0


@pytest.mark.long
def test_kafka_refuses_a_wrong_password(tmp_path):
    from confluent_kafka.admin import AdminClient

    server = kafka.start(tmp_path, sasl_password="right")
    refused = []
    client = AdminClient(
        {
            "bootstrap.servers": server.dsn(),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "df",
            "sasl.password": "wrong",
            "error_cb": refused.append,
        }
    )
    deadline = time.monotonic() + PATIENCE_S
    while not any("_AUTHENTICATION" in error.name() for error in refused):
        assert time.monotonic() < deadline, refused
        client.poll(0.1)
    server.stop()


def test_a_killed_server_comes_back_with_its_data(tmp_path):
    server = mysql.start(tmp_path)
    sql.execute(server, "CREATE DATABASE kept", "CREATE TABLE kept.t (id INT PRIMARY KEY)")
    sql.execute(server, "INSERT INTO kept.t VALUES (1)")

    server.kill()
    with pytest.raises(OSError, match="refused"):
        answers(server.port)
    server.start_again()

    assert sql.execute(server, "SELECT id FROM kept.t") == [(1,)]
    server.stop()


def test_a_paused_server_keeps_silent_until_it_resumes(mariadb_server):
    import pymysql

    mariadb_server.pause()
    try:
        with pytest.raises(pymysql.err.OperationalError):
            sql.connect(mariadb_server, connect_timeout=1, read_timeout=1)
    finally:
        mariadb_server.resume()

    assert sql.execute(mariadb_server, "SELECT 1") == [(1,)]


def test_a_server_dies_with_the_process_that_started_it(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from tests.servers import mariadb;"
        f"server = mariadb.start(Path({str(tmp_path)!r}));"
        "print(server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    checkout = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, cwd=checkout, capture_output=True)
    pid = int(done.stdout)

    wait_until(lambda: not lives(pid))


def test_a_server_that_cannot_start_says_why(tmp_path):
    server = Server(
        name="broken",
        directory=tmp_path,
        port=free_port(),
        command=["sh", "-c", "echo no such disk; exit 3"],
        probe=sql.mysql_probe,
        url="",
    )

    with pytest.raises(ServerError, match=r"broken ended at once(?s:.)*no such disk"):
        server.launch()


def test_a_damaged_download_is_built_again(tmp_path, monkeypatch):
    monkeypatch.setenv("DELTAFORGE_CACHE", str(tmp_path))
    built = []

    def build(directory):
        built.append(directory)
        (directory / "part").write_text("whole")

    path = cache.entry("thing", "k1", build)
    assert cache.entry("thing", "k1", build) == path
    (path / "part").write_text("cut")
    cache.entry("thing", "k1", build)

    assert len(built) == 2
    assert (path / "part").read_text() == "whole"


def test_a_family_includes_children_outside_the_process_group(postgres_server):
    pids = family(postgres_server.pid)

    assert len(pids) > 3
    assert all(lives(pid) for pid in pids[:1])
    assert any(os.getpgid(pid) != os.getpgid(pids[0]) for pid in pids[1:] if lives(pid))


def test_a_kept_server_outlives_its_starter_and_is_found_again(tmp_path):
    script = (
        "from pathlib import Path; from tests.servers import mariadb;"
        f"mariadb.start(Path({str(tmp_path)!r}), keep=True)"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], capture_output=True)

    record = running(tmp_path)
    assert record is not None
    answers(record["port"])
    assert end(tmp_path, signal.SIGTERM)
    assert not lives(record["pid"])
    assert running(tmp_path) is None
    assert not end(tmp_path, signal.SIGTERM)


def test_a_recycled_process_id_is_not_taken_for_a_server(tmp_path):
    record = {"pid": os.getpid(), "started": 1, "port": 1}
    (tmp_path / "server.json").write_text(json.dumps(record))

    assert running(tmp_path) is None
    assert not end(tmp_path, signal.SIGKILL)
