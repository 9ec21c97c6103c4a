"""Whether the source still keeps the log that a pipeline needs, asked of real servers."""

import json
import time
from datetime import timedelta

import psycopg
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeRetentionSensor
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control, Progress
from tests.airflow.bench import context, deferred, fired, travelled
from tests.servers import sql
from tests.sources.mysql.reading import fresh_database, source_of

pytestmark = pytest.mark.usefixtures("connection")

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: orders, tenant: acme}}
spec:
  source:
    type: {type}
    config: {{id: shop, dsn: "${{SHOP}}", tables: ["{table}"]{more}}}
  sinks:
    - {{type: file, config: {{id: files, path: "/tmp/x.jsonl"}}}}
"""


def apply(store, **words):
    pipelines.apply(store, DOCUMENT.format(**{"more": "", **words}))


def hold(store, position, commit_ms=None):
    """Let a driver that has gone have delivered everything up to a position."""
    gone = Progress(
        status="stopped",
        since_ms=1,
        epoch=1,
        generation=1,
        heartbeat_at_ms=1,
        last_commit_ms=commit_ms,
    )
    at = Checkpoints(store, "orders", "shop").put("files", position)
    store.transact([at, Control(store, "orders").put_progress(gone)])


@pytest.fixture
def shop(monkeypatch):
    """Have the source's address come from an Airflow connection."""

    def place(server, conn_type, database):
        monkeypatch.setenv(
            "AIRFLOW_CONN_SHOP",
            json.dumps({"conn_type": conn_type, "extra": {}, **_address(server, database)}),
        )

    return place


def _address(server, database):
    info = psycopg.conninfo.conninfo_to_dict(server.dsn(database).replace("mysql:", "postgresql:"))
    login = {"login": info["user"], "password": info.get("password", "")}
    return {"host": server.host, "port": server.port, "schema": database, **login}


def sensor(**more):
    named = {"pipeline": "orders", "connections": {"SHOP": "shop"}, "poke_interval": 0.05}
    return DeltaForgeRetentionSensor(task_id="kept", **{**named, **more})


@pytest.fixture
def mysql(mysql_server, store, shop):
    """A pipeline that stands before the last file of the log, which is kept for an hour."""
    fresh_database(mysql_server, "kept", "CREATE TABLE t (id int PRIMARY KEY)")
    sql.execute(mysql_server, "SET GLOBAL binlog_expire_logs_seconds = 3600")
    shop(mysql_server, "mysql", "kept")
    apply(store, type="mysql", table="kept.t")
    head = source_of(mysql_server, "kept").head()
    sql.execute(mysql_server, "FLUSH BINARY LOGS")
    yield head
    sql.execute(mysql_server, "SET GLOBAL binlog_expire_logs_seconds = DEFAULT")


def test_a_log_kept_for_a_time(mysql, mysql_server, store):
    assert sensor(below=1).execute(context()) is None  # Nothing was delivered.
    hold(store, mysql, int(time.time() * 1000) - 3_000_000)

    left = sensor(below=timedelta(minutes=5), below_bytes=10**9).execute(context())
    assert left == pytest.approx(600, abs=30)
    with pytest.raises(AirflowFailException, match=r"seconds .* are left, limit 1,200"):
        sensor(below="1200").execute(context())
    assert sensor(below=1200, when_low="succeed").execute(context()) == pytest.approx(600, abs=30)
    with pytest.raises(AirflowFailException, match="log by time: give `below`"):
        sensor(below_bytes=1).execute(context())

    waits = sensor(below=300, when_low="succeed")
    trigger = travelled(deferred(lambda: waits.execute(context())))
    assert trigger.answer().met is False
    hold(store, mysql, int(time.time() * 1000) - 3_400_000)
    assert waits.execute_complete({}, fired(trigger)) == pytest.approx(200, abs=30)

    hold(store, mysql, None)
    unknown = travelled(deferred(lambda: sensor(below=1).execute(context())))
    assert "does not tell" in unknown.answer().words
    sql.execute(mysql_server, "SET GLOBAL binlog_expire_logs_seconds = 0")
    assert unknown.answer().met is True
    assert "without a limit" in unknown.answer().words


def test_a_log_that_is_gone_counts_as_too_little(mysql, mysql_server, store):
    sql.execute(mysql_server, "INSERT INTO t VALUES (1)", "FLUSH BINARY LOGS", database="kept")
    last = source_of(mysql_server, "kept").head()["file"]
    sql.execute(mysql_server, f"PURGE BINARY LOGS TO '{last}'")
    without_gtids = {key: value for key, value in mysql.items() if not key.startswith("gtid")}
    for position in (mysql, without_gtids):
        hold(store, position, int(time.time() * 1000))
        with pytest.raises(AirflowFailException, match="no longer has the log: position lost"):
            sensor(below=1).execute(context())
        assert sensor(below=1, when_low="succeed").execute(context()) == 0


def test_a_source_that_is_away_is_asked_again(mysql, store, monkeypatch):
    hold(store, mysql, int(time.time() * 1000))
    away = {"conn_type": "mysql", "host": "127.0.0.1", "port": 9, "schema": "x", "login": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(away))
    trigger = deferred(lambda: sensor(below=1).execute(context()))

    assert trigger.answer().met is False
    assert "looking again" in trigger.answer().words


def test_a_slot_is_limited_by_size(postgres_server, store, shop):
    database = "kept_by_size"
    with psycopg.connect(postgres_server.dsn("postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {database}")
        connection.execute(f"CREATE DATABASE {database}")
    shop(postgres_server, "postgres", database)
    more = ", slot: kept_by_size, publication: kept"
    apply(store, type="postgres", table="public.t", more=more)
    with psycopg.connect(postgres_server.dsn(database), autocommit=True) as connection:
        slot = "pg_create_logical_replication_slot('kept_by_size', 'pgoutput')"
        ((lsn,),) = connection.execute(f"SELECT lsn FROM {slot}").fetchall()
        hold(store, {"lsn": lsn})
        try:
            assert sensor(below_bytes=1).execute(context()) is None
            _limit(connection, "'64MB'")
            assert 1 < sensor(below_bytes="1000").execute(context()) <= 128 << 20
            with pytest.raises(AirflowFailException, match="bytes of the log's retention are left"):
                sensor(below_bytes=1 << 40).execute(context())
            with pytest.raises(AirflowFailException, match="by size: give `below_bytes`"):
                sensor(below=1).execute(context())
        finally:
            _limit(connection, "DEFAULT")
            connection.execute("SELECT pg_drop_replication_slot('kept_by_size')")


def _limit(connection, size):
    connection.execute(f"ALTER SYSTEM SET max_slot_wal_keep_size = {size}")
    connection.execute("SELECT pg_reload_conf()")
    wanted = size == "DEFAULT"
    while (connection.execute("SHOW max_slot_wal_keep_size").fetchone()[0] == "-1") is not wanted:
        time.sleep(0.05)


def test_what_cannot_be_answered_fails_at_once(store, document):
    from tests.control.bench import DOCUMENT as SCRIPTED

    pipelines.apply(store, SCRIPTED)
    with pytest.raises(AirflowFailException, match="of type scripted does not say"):
        sensor(below=1, connections=None).execute(context())
    with pytest.raises(AirflowFailException, match="give `below`, a time"):
        sensor().execute(context())
