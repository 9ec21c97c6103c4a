"""``running`` is said once it is durable where a stream begins: whatever follows arrives."""

import time

import pytest

from tests.engine.real_run import RealRun
from tests.waiting import PATIENCE_S, wait_until

SERVERS = pytest.mark.parametrize("server", ["mysql_server", "postgres_server"])


def at_once_when(said):
    """Return the moment something is said; looks without a pause."""
    deadline = time.monotonic() + PATIENCE_S
    while not said():
        assert time.monotonic() < deadline, "it was never said"


@SERVERS
def test_rows_written_the_moment_running_is_seen_arrive(request, tmp_path, server):
    run = RealRun(request.getfixturevalue(server), tmp_path)
    run.start()
    at_once_when(lambda: run.status().status == "running")
    run.insert(*range(5))
    run.insert(99)
    wait_until(lambda: 99 in run.rows())

    assert run.stop().why == "stopped"
    assert run.rows() == [0, 1, 2, 3, 4, 99]


@SERVERS
def test_rows_written_the_moment_an_added_sink_is_seen_running_arrive_there(
    request, tmp_path, server
):
    run = RealRun(request.getfixturevalue(server), tmp_path)
    run.start()
    wait_until(lambda: run.status().status == "running")
    run.stop()
    run.apply("out", "added")
    run.start()
    at_once_when(lambda: getattr(run.status().sinks.get("added"), "status", "") == "running")
    run.insert(*range(5))
    wait_until(lambda: 4 in run.rows("added"))

    assert run.stop().why == "stopped"
    assert run.rows("added") == [0, 1, 2, 3, 4]
