"""The archive of real servers' logs: it outlives them, and they keep theirs until it has it."""

import json
import uuid

import psycopg
import pytest

from airflow_provider_deltaforge.engine.archive.reader import Archive
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.real_run import RealRun
from tests.servers import sql
from tests.waiting import wait_for


def archived_run(server, tmp_path):
    more = {"archive": {"directory": str(tmp_path / "archive"), "flush_secs": 1}}
    return RealRun(server, tmp_path, more=more)


def pipeline_of(run):
    return load(run.control.document() or "")


def archived_events(run, position):
    reader = Archive.of(pipeline_of(run)).open(position)
    events = []
    while (segment := reader.read(0)) is not None:
        events += reader.decode(segment).rows.to_pylist()
    return [event for event in events if event["op"] != "ddl"]


def delivered_events(run):
    lines = map(json.loads, run.path().read_text().splitlines())
    return [line for line in lines if line["op"] != "ddl"]


def begun(run):
    run.start()
    stored = Checkpoints(run.store, run.name, run.name).load
    wait_for("the start", stored)
    return stored()["out"]


def purged(server, upto):
    """Purge the log, once the server knows that nobody reads it."""
    sql.execute(server, f"PURGE BINARY LOGS TO '{upto}'")
    return sql.execute(server, "SHOW BINARY LOGS")[0][0] == upto


@pytest.mark.parametrize("name", ["mysql", pytest.param("mariadb", marks=pytest.mark.long)])
def test_a_log_that_the_server_has_purged_is_still_read(name, request, tmp_path):
    server = request.getfixturevalue(f"{name}_server")
    run = archived_run(server, tmp_path)
    start = begun(run)
    run.insert(*range(5))
    run.execute(
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
        "INSERT INTO t VALUES (5, 'ü', 8)",
        "UPDATE t SET v = NULL WHERE id < 3",
        "DELETE FROM t WHERE id = 4",
    )
    wait_for("delivery", lambda: run.path().exists() and len(delivered_events(run)) == 10)
    assert run.stop().why == "stopped"
    sql.execute(server, "FLUSH BINARY LOGS")
    source = pipeline_of(run).spec.source
    wait_for("the purge", lambda: purged(server, source.head()["file"]))

    with pytest.raises(PositionLostError):
        source.reach(start)
    events = archived_events(run, start)
    delivered = delivered_events(run)
    assert [str(uuid.UUID(bytes=event["event_id"])) for event in events] == [
        event["event_id"] for event in delivered
    ]
    images = [json.loads(event["after"] or "null") for event in events]
    assert images == [event["after"] for event in delivered]


def test_postgres_keeps_its_log_until_the_archive_has_it(postgres_server, tmp_path):
    run = archived_run(postgres_server, tmp_path)
    start = begun(run)
    run.insert(1)
    wait_for("the archive", lambda: run.status().archive.rows == 1)
    place, elsewhere = tmp_path / "archive", tmp_path / "elsewhere"
    place.rename(elsewhere)
    place.write_text("no folder")
    run.insert(2, 3)

    wait_for("delivery", lambda: run.rows() == [1, 2, 3])
    wait_for("the reason", lambda: run.status().archive.reason)
    archived = run.status().archive
    assert "spec.archive.directory" in archived.reason
    assert run.status().status == "running"
    wait_for("the checkpoint", lambda: _lsn(run.status().position) > _lsn(archived.position))
    assert _confirmed(run) <= _lsn(archived.position)

    run.stop()  # What it did not archive is read again, although the sink has it.
    place.unlink()
    elsewhere.rename(place)
    run.start()
    wait_for("the archive", lambda: (run.status().archive or archived).rows == 2)
    wait_for("the slot", lambda: _confirmed(run) > _lsn(archived.position))
    run.stop()
    assert [json.loads(e["after"])["id"] for e in archived_events(run, start)] == [1, 2, 3]
    assert run.rows() == [1, 2, 3]


def _lsn(position):
    high, _, low = position["lsn"].partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def _confirmed(run):
    query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
    with psycopg.connect(run.server.dsn("postgres"), autocommit=True) as connection:
        return int(connection.execute(query, [run.name]).fetchone()[0])
