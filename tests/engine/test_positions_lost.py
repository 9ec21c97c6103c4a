"""Kafka's positions and NATS's stream go away under a pipeline that delivers exactly once."""

import pytest
from confluent_kafka.admin import AdminClient

from airflow_provider_deltaforge.control import sinks
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.exact_run import exact_run
from tests.engine.scripted_run import NAME
from tests.sinks import nats_reader
from tests.waiting import PATIENCE_S, wait_for


def delivered(run, more=50):
    """Start a driver, and stop it when it has delivered something."""
    at = run.checkpoint()["tx"]
    driver = run.start()
    wait_for("transactions", lambda: run.checkpoint()["tx"] > at + more)
    assert run.stop(driver) == 0
    run.want("running")


@pytest.fixture
def begun(request, tmp_path):
    def begin(kind):
        server = request.getfixturevalue(f"{kind}_server").dsn()
        run = exact_run(kind, server, tmp_path, transactions=0, rate=400)
        run.begin_at(0)
        delivered(run)
        return run, server

    return begin


def test_positions_in_kafka_that_were_deleted_stop_the_pipeline_until_somebody_says_how(begun):
    run, server = begun("kafka")
    admin = AdminClient({"bootstrap.servers": server})
    topic = f"_deltaforge.{NAME}.positions"
    admin.delete_topics([topic])[topic].result(timeout=PATIENCE_S)

    assert run.start().wait(PATIENCE_S) != 0
    progress = run.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "position_lost")
    assert f"`deltaforge sinks resume {NAME} out`" in progress.reason

    sinks.want(run.store, NAME, "out", "resume", "a person")
    delivered(run)
    delivered(run)
    run.close_log()
    assert run.judge({"tx": 0}) == []


def test_a_stream_of_nats_that_was_made_anew_gets_all_of_the_log(begun):
    run, server = begun("nats")
    nats_reader.remove_stream(server, run.place.name)
    nats_reader.add_stream(server, run.place.name, f"{run.place.name}.>")

    delivered(run)
    run.close_log()
    assert run.judge({"tx": 0}) == []


def test_a_stream_of_nats_that_was_purged_goes_on_at_the_checkpoint(begun):
    run, server = begun("nats")
    at = run.checkpoint()
    nats_reader.purge_stream(server, run.place.name)

    delivered(run)
    run.close_log()
    assert run.judge(at) == []


def test_a_stream_of_nats_that_lost_rows_of_a_snapshot_stops_the_pipeline(nats_server, tmp_path):
    server = nats_server.dsn()
    run = exact_run("nats", server, tmp_path, transactions=200, rate=0, snapshot="initial")
    driver = run.start(hold=(CrashPoint.SNAPSHOT_FINISHED, 1))
    run.wait_held(driver)
    nats_reader.remove_stream(server, run.place.name)
    nats_reader.add_stream(server, run.place.name, f"{run.place.name}.>")
    run.let_go()

    assert driver.wait(PATIENCE_S) != 0
    progress = run.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "position_lost")
    assert "of a snapshot are gone" in progress.reason
