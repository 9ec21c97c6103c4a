"""A table that appears is copied once, also when the driver dies before it could ask for it."""

import os
import signal

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.e2e import postgres_run
from tests.e2e.pipeline_run import run_in
from tests.servers import sql
from tests.sources.postgres.stream_reading import execute


def test_a_driver_killed_behind_the_checkpoint_leaves_the_copy_to_the_next(
    tmp_path, mysql_server, kafka_server
):
    run = run_in(tmp_path, mysql_server, kafka_server, "appearing", snapshot="never")
    sql.execute(mysql_server, "INSERT INTO elsewhere.noise (text) VALUES ('a'), ('b'), ('c')")
    driver = run.start(hold=(CrashPoint.CHECKPOINT_STORED, 1))
    # The stream begins at the head that it has stored.
    run.wait(lambda: Checkpoints(run.store, run.name, run.name).load())
    sql.execute(mysql_server, "RENAME TABLE elsewhere.noise TO appearing.noise")
    os.kill(run.wait_held(), signal.SIGKILL)
    driver.wait()
    # The checkpoint has passed the statement, and nobody has asked yet.
    assert [one.table for one in TableRecords(run.store, run.name).arrivals()] == [
        "appearing.noise"
    ]
    assert snapshots.requests(run.store, run.name) == []

    driver = run.start(again=True)
    run.wait(lambda: [r.state for r in snapshots.requests(run.store, run.name)] == ["done"])
    sql.execute(mysql_server, "UPDATE appearing.noise SET text = 'd' WHERE id = 3")
    run.wait_caught_up()
    assert run.stop(driver) == 0
    texts = [event.state["text"] for event in run.seen() if event.key[0] == "appearing.noise"]
    assert texts == ["a", "b", "c", "d"]
    assert TableRecords(run.store, run.name).arrivals() == []


@pytest.mark.parametrize("server", ["mysql_server", "mariadb_server"])
@pytest.mark.parametrize(
    ("statements", "name"),
    [
        (["RENAME TABLE orders TO purchases"], "purchases"),
        (["RENAME TABLE orders TO purchases", "RENAME TABLE purchases TO sales"], "sales"),
        (
            ["RENAME TABLE orders TO purchases", "CREATE TABLE orders LIKE purchases"],
            "purchases",
        ),
    ],
    ids=["renamed", "renamed_twice", "replaced"],
)
def test_a_table_renamed_within_its_first_copy_is_copied_under_its_new_name(
    request, tmp_path, kafka_server, server, statements, name
):
    server = request.getfixturevalue(server)
    run = run_in(tmp_path, server, kafka_server, "renamed", parallel=False)
    driver = run.start(hold=(CrashPoint.CHUNK_STORED, 8))  # Of twelve, of two tables.
    run.wait_held()
    sql.execute(server, *statements, database="renamed")
    run.let_go()
    run.wait_status("running")
    sql.execute(server, f"UPDATE renamed.{name} SET note = 'later' WHERE id = 600")
    run.wait_caught_up()
    run.wait(lambda: copied(run, f"renamed.{name}"))
    assert run.stop(driver) == 0
    seen = [event for event in run.seen() if event.key[0] == f"renamed.{name}"]
    last = {event.key[1]: event.state for event in seen}
    assert len(last) == 600
    assert last[max(last)]["note"] == "later"


def test_so_is_a_table_of_postgresql(tmp_path, postgres_server, kafka_server):
    name = "pg_renamed"
    with postgres_run.run_in(tmp_path, postgres_server, kafka_server, name, parallel=False) as run:
        driver = run.start(hold=(CrashPoint.CHUNK_STORED, 14))
        run.wait_held()
        copy = Snapshots(run.store, run.name).current()
        done = [chunk.table for chunk in Snapshots(run.store, run.name).done(copy.id).values()]
        unread = next(t for t, counts in copy.tables.items() if done.count(t) < counts["chunks"])
        execute(postgres_server, f"ALTER TABLE {unread} RENAME TO renamed", database=name)
        run.let_go()
        run.wait_status("running")
        run.wait(lambda: copied(run, "public.renamed"))
        run.wait_caught_up()
        assert run.stop(driver) == 0
        seen = {event.key[1] for event in run.seen() if event.key[0] == f"{name}.public.renamed"}
        ((rows,),) = execute(postgres_server, "SELECT count(*) FROM renamed", database=name)
    assert len(seen) == rows > 0


def copied(run, table):
    """Return whether a table that appeared was copied."""
    return any(
        r.state == "done" and table in r.tables for r in snapshots.requests(run.store, run.name)
    )
