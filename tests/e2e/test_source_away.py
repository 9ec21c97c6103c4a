"""MySQL killed, and its connections cut, under a running stream."""

import itertools

import pytest

from airflow_provider_deltaforge.control import pipelines
from tests.e2e import shop
from tests.e2e.pipeline_run import run_in
from tests.servers import mysql, sql


@pytest.fixture(scope="module")
def own_server(tmp_path_factory):
    server = mysql.start(tmp_path_factory.mktemp("own_mysql"))
    yield server
    server.discard()


def test_a_killed_server_is_found_again(tmp_path, own_server, kafka_server):
    run = run_in(tmp_path, own_server, kafka_server, "killed_mysql")
    with shop.Writers(own_server, run.name):
        driver = run.start()
        run.wait_status("running")
        run.wait_events(300)
        own_server.kill()
    blocked = run.wait_status("blocked")
    assert blocked.reason.startswith("source: ")
    assert run.healthy()
    pipelines.pause(run.store, run.name)
    run.wait_status("paused")
    pipelines.resume(run.store, run.name)
    run.wait_status("blocked")
    own_server.start_again()

    with shop.Writers(own_server, run.name):
        run.wait_status("running")
        run.wait_events(300)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert run.judge() == []


def test_a_stop_is_heard_while_the_server_is_away(tmp_path, own_server, kafka_server):
    run = run_in(tmp_path, own_server, kafka_server, "stopped_away", snapshot="never")
    driver = run.start()
    run.wait_status("running")
    own_server.kill()
    try:
        run.wait_status("blocked")
        assert run.stop(driver) == 0
        assert run.status().status == "stopped"
    finally:
        own_server.start_again()


@pytest.mark.long
def test_connections_that_are_killed_again_and_again_lose_nothing(
    tmp_path, own_server, kafka_server
):
    run = run_in(tmp_path, own_server, kafka_server, "cut")
    with shop.Writers(own_server, run.name):
        driver = run.start()
        run.wait_status("running")
        for _ in range(4):
            run.wait_events(150)
            cut_dump(own_server)
        run.wait_events(150)
    shop.settle()
    run.wait_caught_up()
    assert run.stop(driver) == 0
    assert run.judge() == []


@pytest.mark.long
def test_counters_never_fall_when_a_driver_of_one_generation_is_killed(
    tmp_path, own_server, kafka_server
):
    run = run_in(tmp_path, own_server, kafka_server, "counted")
    heights = []
    with shop.Writers(own_server, run.name):
        driver = run.start()
        for _ in range(2):
            run.wait_status("running")
            run.wait_events(200)
            driver.kill()
            driver.wait()
            heights.append(height(run))
            driver = run.start(again=True)
            run.wait(lambda: run.progress().pid == driver.pid)  # noqa: B023
            heights.append(height(run))
        run.wait_status("running")
        run.wait_events(200)
        heights.append(height(run))
    assert run.stop(driver) == 0
    heights.append(height(run))

    assert run.control.read().generation == 1
    for before, after in itertools.pairwise(heights):
        assert all(after[name] >= count for name, count in before.items()), heights


def height(run):
    told = run.progress()
    counted = {"events": told.events, "bytes": told.bytes, "batches": told.batches}
    for table, counts in told.tables.items():
        counted |= {f"{table}.{op}": count for op, count in counts.events.items()}
    return counted | {f"sink.{name}": sink.events for name, sink in told.sinks.items()}


def cut_dump(server):
    for row in sql.execute(server, "SHOW PROCESSLIST"):
        if str(row[4]).startswith("Binlog Dump"):
            sql.execute(server, f"KILL {row[0]}")
