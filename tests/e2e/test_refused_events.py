"""Events that cannot be delivered stop the pipeline, or are set aside; nothing is skipped."""

import pytest

from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.e2e import shop
from tests.e2e.pipeline_run import PATIENCE_S, PipelineRun
from tests.servers import sql

TABLE = "CREATE TABLE parcels (id INT PRIMARY KEY, route VARCHAR(40), note LONGTEXT)"


@pytest.fixture
def parcels(tmp_path, mysql_server, kafka_server, request):
    name = request.node.name.removeprefix("test_")[:20]
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


def insert(run, first, last, route, note="x"):
    """Insert rows, each in a transaction of its own."""
    with shop.connect(run.server, run.database) as connection, connection.cursor() as cursor:
        for number in range(first, last):
            cursor.execute("INSERT INTO parcels VALUES (%s, %s, %s)", (number, route, note))
            connection.commit()


def check_that_it_stopped(run, driver, kind):
    failed = run.wait_status("failed")
    assert failed.error_class == "event"
    assert failed.reason.startswith("sink kafka: 1 of ")
    assert f"of table {run.database}.parcels: {kind}" in failed.reason
    assert "Nothing was skipped" in failed.reason
    assert driver.wait(PATIENCE_S) == 4
    assert not run.healthy()


def check_that_all_arrives(run, wanted):
    driver = run.start()
    run.wait_status("running")
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert run.judge(at_least=wanted) == []


def test_too_large_a_message_stops_the_pipeline(parcels):
    run = parcels(client_conf={"message.max.bytes": 5000})
    driver = run.start()
    run.wait_status("running")
    insert(run, 0, 20, "any")
    insert(run, 20, 21, "any", note="large " * 2000)
    insert(run, 21, 40, "any")
    check_that_it_stopped(run, driver, "message_too_large")
    # Started again without a change it stops again: the event is neither skipped nor lost.
    check_that_it_stopped(run, run.start(), "message_too_large")

    run.apply(journal={"enabled": True})
    driver = run.start()
    run.wait_status("running")
    run.wait_caught_up()
    assert run.stop(driver) == 0
    (letter,) = DeadLetterRecords(run.store, run.name).read()
    assert (letter.event["after"]["id"], letter.event["op"]) == (20, "c")
    assert letter.source_cursor["file"].startswith("binlog")
    assert (letter.meta.sink_id, letter.meta.error_kind) == ("kafka", "message_too_large")
    assert {event.state["id"] for event in run.seen()} == {*range(40)} - {20}
    assert run.status().dlq.entries == 1


def test_an_empty_topic_stops_the_pipeline(parcels):
    run = parcels(topic="${after.route}")
    driver = run.start()
    run.wait_status("running")
    insert(run, 0, 20, f"{run.name}.north")
    insert(run, 20, 21, None)
    insert(run, 21, 40, f"{run.name}.south")
    check_that_it_stopped(run, driver, "routing")
    check_that_it_stopped(run, run.start(), "routing")

    run.apply(topic=f"{run.name}.${{source.table}}")
    check_that_all_arrives(run, 40)
