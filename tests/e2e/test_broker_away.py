"""Kafka away for half a minute, and frozen: the pipeline waits, says so, and goes on alone."""

import time

import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.e2e import shop
from tests.e2e.pipeline_run import run_in
from tests.servers import kafka

AWAY_S = 30.0
PROMPT_S = 3.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    server = kafka.start(tmp_path_factory.mktemp("broker"))
    yield server
    server.stop()


def test_a_stopped_broker_blocks_the_pipeline_until_it_is_back(tmp_path, mysql_server, broker):
    run = run_in(tmp_path, mysql_server, broker, "stopped_broker", send_timeout_s=4)
    with shop.Writers(mysql_server, "stopped_broker"):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(300)
        broker.stop()
        gone = time.monotonic()
        # A batch that waits for its acknowledgement is no trouble before its time is over.
        blocked = run.wait_status("blocked")
        assert "127.0.0.1" in blocked.reason
        assert blocked.reason.startswith("sink kafka: ")
        assert blocked.error_class == "retryable"

        check_that_it_beats_and_tells_the_truth(run, blocked)
        check_that_it_pauses_and_goes_on(run)
        # Ended and started again while the broker is still away.
        asked = time.monotonic()
        assert run.stop(driver) == 0
        assert time.monotonic() - asked < PROMPT_S
        assert run.status().status == "stopped"
        driver = run.start()
        run.wait_status("blocked")

        time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
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
    time.sleep(2.5)
    later = run.progress()
    assert later.status == "blocked"
    assert later.since_ms == blocked.since_ms
    assert later.heartbeat_at_ms - blocked.heartbeat_at_ms > 1500
    assert time.time() * 1000 - later.heartbeat_at_ms < 2000
    told = run.status()
    assert (told.status, told.reason, told.sinks["kafka"]["status"]) == (
        "blocked",
        later.reason,
        "blocked",
    )
    assert told.sinks["kafka"]["retries"] > 0
    assert run.healthy()


def check_that_it_pauses_and_goes_on(run):
    asked = time.monotonic()
    pipelines.pause(run.store, run.name)
    run.wait_status("paused")
    assert time.monotonic() - asked < PROMPT_S
    pipelines.resume(run.store, run.name)
    run.wait_status("blocked")
