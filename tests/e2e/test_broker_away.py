"""Kafka away for a while, and frozen: the pipeline waits, says so, and goes on alone."""

import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.e2e import shop
from tests.e2e.pipeline_run import run_in
from tests.servers.process import ServerError

RETRIES = 3
"""Deliveries that fail before the broker comes back."""


@pytest.fixture
def broker(kafka_server):
    yield kafka_server
    # A test that failed half-way leaves the next one a broker all the same.
    try:
        kafka_server.resume()
    except ServerError:
        kafka_server.start_again()


@pytest.mark.long
def test_a_stopped_broker_blocks_the_pipeline_until_it_is_back(tmp_path, mysql_server, broker):
    run = run_in(tmp_path, mysql_server, broker, "stopped_broker", send_timeout_s=2)
    with shop.Writers(mysql_server, "stopped_broker"):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(300)
        broker.stop()
        # A batch that waits for its acknowledgement is no trouble before its time is over.
        blocked = run.wait_status("blocked")
        assert "127.0.0.1" in blocked.reason
        assert blocked.reason.startswith("sink kafka: ")
        assert blocked.error_class == "retryable"

        check_that_it_beats_and_tells_the_truth(run, blocked)
        check_that_it_pauses_and_goes_on(run)
        # Ended and started again while the broker is still away.
        assert run.stop(driver) == 0
        assert run.status().status == "stopped"
        driver = run.start()
        blocked = run.wait_status("blocked")
        wait_retries(run, blocked, RETRIES)

        broker.start_again()
        run.wait_status("running")
        run.wait_events(300)
    shop.settle()
    run.wait_caught_up()

    assert run.stop(driver) == 0
    assert run.judge() == []


def test_a_frozen_broker_blocks_the_pipeline_until_it_goes_on(tmp_path, mysql_server, broker):
    run = run_in(tmp_path, mysql_server, broker, "frozen_broker", send_timeout_s=2)
    with shop.Writers(mysql_server, "frozen_broker"):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(300)
        broker.pause()
        try:
            blocked = run.wait_status("blocked")
            check_that_it_beats_and_tells_the_truth(run, blocked)
            check_that_it_pauses_and_goes_on(run)
        finally:
            broker.resume()
        run.wait_status("running")
        run.wait_events(300)
    shop.settle()
    run.wait_caught_up()

    assert run.stop(driver) == 0
    assert run.judge() == []


def check_that_it_beats_and_tells_the_truth(run, blocked):
    wait_retries(run, blocked, 1)
    before = run.progress()
    run.wait(lambda: run.progress().heartbeat_at_ms > before.heartbeat_at_ms)
    later = run.progress()
    assert later.status == "blocked"
    assert later.since_ms == before.since_ms
    told = run.status()
    assert (told.status, told.reason, told.sinks["kafka"].status) == (
        "blocked",
        later.reason,
        "blocked",
    )
    assert told.sinks["kafka"].retries > 0
    assert run.healthy()


def check_that_it_pauses_and_goes_on(run):
    # The broker is still away: what it has not taken keeps nobody waiting.
    pipelines.pause(run.store, run.name)
    run.wait_status("paused")
    pipelines.resume(run.store, run.name)
    run.wait_status("blocked")


def wait_retries(run, since, more):
    wanted = since.sinks["kafka"].retries + more
    run.wait(lambda: run.progress().sinks["kafka"].retries >= wanted)
