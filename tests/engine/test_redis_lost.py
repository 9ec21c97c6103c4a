"""A Redis that loses what it held, under a pipeline that delivers into it exactly once."""

import shutil
from collections import Counter

import pytest
import redis

from airflow_provider_deltaforge.control import pipelines, sinks
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.engine.exact_run import exact_run
from tests.engine.scripted_run import NAME
from tests.servers import redis as servers
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def server(tmp_path):
    server = servers.start(tmp_path / "redis")
    yield server
    server.stop()


@pytest.fixture
def run(server, tmp_path):
    # A log without an end: however late a driver starts, entries are still to come.
    run = exact_run("redis", server.dsn("0"), tmp_path, transactions=0, rate=150)
    run.begin_at(0)
    return run


def entries(server):
    """Return how many entries its one stream holds."""
    client = redis.Redis(host=server.host, port=server.port)
    return sum(client.xlen(name) for name in client.keys("exact-*"))


def ended(run, driver, said):
    """Wait until the driver has found out and goes on; then let the log end."""
    wait_for(f"{said!r}", lambda: said in run.log.read_text())
    found_at = run.checkpoint()["tx"]
    wait_for("more transactions", lambda: run.checkpoint()["tx"] > found_at + 50)
    assert run.stop(driver) == 0
    run.close_log()


def test_entries_that_are_lost_are_written_again_and_no_other(run, server, tmp_path):
    driver = run.start()
    wait_for("some entries", lambda: entries(server) > 150)
    server.stop()  # As a replica is that has not got what comes now.
    shutil.copytree(server.directory / "data", tmp_path / "older")
    server.start_again()
    older = entries(server)
    wait_for("more entries", lambda: entries(server) > older + 150)
    server.kill()
    shutil.rmtree(server.directory / "data")
    shutil.move(tmp_path / "older", server.directory / "data")
    server.start_again()

    ended(run, driver, "has lost what it held")

    assert run.judge({"tx": 0}) == []


def test_a_server_with_data_from_before_the_stream_gets_all_of_it(run, server):
    """Its disk never held a position, while the store knows of entries."""
    keep(server)
    driver = run.start()
    wait_for("some entries", lambda: entries(server) > 150)
    server.kill()
    server.start_again()

    ended(run, driver, "has lost what it held")

    assert run.judge({"tx": 0}) == []


def keep(server):
    """Let the disk hold what the server holds now, and nothing that comes later."""
    client = redis.Redis(host=server.host, port=server.port)
    client.config_set("appendonly", "no")
    client.config_set("save", "")
    client.save()


def test_rows_of_a_snapshot_are_known_to_be_there_or_the_pipeline_stops(server, tmp_path):
    run = exact_run(
        "redis", server.dsn("0"), tmp_path, transactions=0, rate=150, snapshot="initial"
    )
    driver = run.start()
    wait_for("the stream", lambda: run.checkpoint() and run.checkpoint()["tx"] > 20)
    keep(server)
    driver_at = run.checkpoint()["tx"]
    wait_for("more", lambda: run.checkpoint()["tx"] > driver_at + 50)
    server.kill()
    server.start_again()
    wait_for("what it lost", lambda: "has lost what it held" in run.log.read_text())
    found_at = run.checkpoint()["tx"]
    wait_for("more transactions", lambda: run.checkpoint()["tx"] > found_at + 50)

    redis.Redis(host=server.host, port=server.port).flushall()

    assert driver.wait(PATIENCE_S) != 0
    progress = run.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "position_lost")
    assert f"deltaforge sinks resume {NAME} out" in progress.reason
    assert f"deltaforge reset {NAME} --confirm {NAME}" in progress.reason


def test_an_emptied_server_gets_each_event_once(run, server):
    driver = run.start()
    wait_for("some entries", lambda: entries(server) > 150)
    redis.Redis(host=server.host, port=server.port).flushall()

    ended(run, driver, "has lost what it held")

    assert run.judge({"tx": 0}) == []


@pytest.mark.parametrize(
    "lost_at", [CrashPoint.CHUNK_WRITTEN, CrashPoint.CHUNK_STORED], ids=["answered", "marked"]
)
def test_rows_that_a_server_lost_while_it_was_copied_to_are_copied_again(lost_at, server, tmp_path):
    run = exact_run(
        "redis", server.dsn("0"), tmp_path, transactions=200, rate=0, snapshot="initial"
    )
    # One chunk after the other, so that what is lost is known.
    parallel = "intra_table_parallel: "
    pipelines.apply(run.store, run.document.replace(f"{parallel}true", f"{parallel}false"))
    run.want("running")
    keep(server)
    driver = run.start(hold=(lost_at, 2))
    run.wait_held(driver)
    server.kill()
    server.start_again()
    run.let_go()
    run.wait_delivered(driver)

    assert run.stop(driver) == 0
    assert "the rows of 2 chunks of the snapshot; they are copied again" in run.log.read_text()
    copies = Counter(event.key for event in run.seen() if event.name is None)
    assert copies == dict.fromkeys([("script.rows", key) for key in range(1, 61)], 1)


def test_rows_that_a_server_lost_behind_a_copy_stop_the_pipeline(server, tmp_path):
    run = exact_run(
        "redis", server.dsn("0"), tmp_path, transactions=200, rate=0, snapshot="initial"
    )
    keep(server)
    driver = run.start(hold=(CrashPoint.SNAPSHOT_FINISHED, 1))
    run.wait_held(driver)
    server.kill()
    server.start_again()
    run.let_go()

    assert driver.wait(PATIENCE_S) != 0
    progress = run.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "position_lost")
    assert "of a snapshot are gone" in progress.reason

    sinks.want(run.store, NAME, "out", "resume", "a person")
    run.held.unlink()
    driver = run.start()
    run.wait_delivered(driver)
    assert run.stop(driver) == 0
