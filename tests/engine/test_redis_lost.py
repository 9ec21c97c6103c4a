"""A Redis that loses what it held, under a pipeline that delivers into it exactly once."""

import shutil

import pytest
import redis

from tests.engine.exact_run import exact_run
from tests.oracle.verdict import judge
from tests.servers import redis as servers
from tests.waiting import wait_for


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


def test_an_emptied_server_gets_each_event_from_the_checkpoint_on_once(run, server):
    driver = run.start()
    wait_for("some entries", lambda: entries(server) > 150)
    redis.Redis(host=server.host, port=server.port).flushall()

    ended(run, driver, "holds no position any more")

    seen = run.seen()
    first = min(event.name for event in seen)
    rest = [change for change in run.history({"tx": 0}) if change.name >= first]
    assert judge(rest, seen, exactly_once=True) == []
    assert len(rest) < len(run.history({"tx": 0}))
