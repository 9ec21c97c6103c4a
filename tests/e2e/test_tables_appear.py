"""A table that appears is copied once, also when the driver dies before it could ask for it."""

import os
import signal

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.e2e.pipeline_run import run_in
from tests.servers import sql


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
