"""Transactions larger than a batch: whole by default, split where a limit says so."""

import json

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.e2e import shop
from tests.e2e.pipeline_run import PipelineRun
from tests.engine.scripted_run import kill
from tests.servers import sql
from tests.sinks.kafka_reader import read_topic

ROWS = 3000
TABLE = "CREATE TABLE parcels (id INT PRIMARY KEY, note VARCHAR(100))"


@pytest.fixture
def pipeline(tmp_path, mysql_server, kafka_server, request):
    name = f"large_{request.node.callspec.id if hasattr(request.node, 'callspec') else 'killed'}"
    sql.execute(
        mysql_server,
        f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name}",
        f"USE {name}",
        TABLE,
    )

    def make(**settings):
        server, brokers = mysql_server, kafka_server.dsn()
        return PipelineRun(tmp_path, name, server, brokers, name, ["parcels"], **settings)

    return make


def insert(run, first, last):
    """Insert rows in one transaction."""
    with shop.connect(run.server, run.database) as connection, connection.cursor() as cursor:
        rows = [(number, "y" * 90) for number in range(first, last)]
        cursor.executemany("INSERT INTO parcels VALUES (%s, %s)", rows)
        connection.commit()


def ends(run):
    """Return the ids of the streamed rows that say their transaction ends there."""
    read = read_topic(run.brokers, f"{run.name}.parcels")
    events = [json.loads(message.value) for message in read]
    return {event["after"]["id"] for event in events if event.get("tx_end")}


@pytest.mark.parametrize(
    ("batch", "splits"),
    [
        pytest.param({"max_events": 100, "max_bytes": 10_000}, False, id="whole"),
        pytest.param({"max_events": 100, "max_transaction_bytes": 50_000}, True, id="limited"),
        pytest.param({"max_events": 100, "respect_source_tx": False}, True, id="disrespected"),
    ],
)
def test_a_transaction_is_split_only_when_the_document_says_so(pipeline, batch, splits):
    run = pipeline(batch=batch)
    driver = run.start()
    run.wait_status("running")
    before = run.progress().batches
    insert(run, 0, ROWS)
    run.wait(lambda: run.progress().events >= ROWS)
    told = run.progress()

    assert run.stop(driver) == 0
    assert (told.transaction_splits > 0) == splits
    assert (told.batches - before > 1) == splits
    assert ends(run) == {ROWS - 1}
    # Each row counts once: its text of 90 bytes, and not several times that.
    assert ROWS * 90 < told.bytes < ROWS * 200
    assert run.judge(at_least=ROWS) == []


@pytest.mark.long
def test_a_kill_inside_a_split_transaction_repeats_it_whole(pipeline):
    run = pipeline(batch={"max_events": 200, "max_transaction_bytes": 20_000})
    driver = run.start()
    run.wait_status("running")
    insert(run, 0, 10)
    run.wait_caught_up()
    assert run.stop(driver) == 0
    checkpoints = Checkpoints(run.store, run.name, run.name)
    before = checkpoints.load()
    insert(run, 10, ROWS)
    driver = run.start(hold=(CrashPoint.SINK_WRITTEN, 3))
    kill(run.wait_held())
    driver.wait()
    # Parts were delivered, but no position lies inside a transaction.
    assert checkpoints.load()["kafka"]["gtid_set"] == before["kafka"]["gtid_set"]

    driver = run.start()
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert ends(run) == {9, ROWS - 1}
    assert run.judge(at_least=ROWS) == []
