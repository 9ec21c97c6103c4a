"""A source whose connection stands and says nothing: shown, with a lag that grows."""

import pytest

from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.errors import RetryableError
from tests.engine.real_run import RealRun
from tests.waiting import wait_until

SERVERS = pytest.mark.parametrize(
    ("server", "settings", "missed"),
    [
        ("mysql_server", {"heartbeat_s": 1}, "source: no heartbeat of its log"),
        ("postgres_server", {"read_timeout_s": 6}, "source: no keepalive"),
    ],
)


@SERVERS
def test_a_silent_source_is_reported_and_the_lag_grows_with_the_silence(
    request, tmp_path, server, settings, missed
):
    server = request.getfixturevalue(server)
    run = RealRun(server, tmp_path, settings=settings)
    run.start()
    wait_until(lambda: run.status().status == "running")
    run.insert(1)
    wait_until(lambda: run.rows() == [1])
    wait_until(lambda: run.status().lag_ms is not None)
    server.pause()
    try:
        wait_until(lambda: (run.status().reason or "").startswith(missed))
        shown = run.status()
        assert (shown.status, shown.error_class) == ("blocked", "retryable")
        assert shown.is_ready  # It has run before.
        wait_until(lambda: run.status().lag_ms > shown.lag_ms + 1500)
    finally:
        server.resume()
    wait_until(lambda: run.status().status == "running")
    run.insert(2)
    wait_until(lambda: 2 in run.rows())
    assert run.stop().why == "stopped"


def test_a_pipeline_that_is_blocked_from_its_start_has_a_lag_and_is_not_ready(
    tmp_path, mysql_server
):
    run = RealRun(mysql_server, tmp_path, port=9)
    run.start()
    wait_until(lambda: run.status().status == "blocked")
    wait_until(lambda: run.status().lag_ms > 500)
    assert not run.status().is_ready
    assert run.stop().why == "stopped"


def test_a_sink_that_blocks_from_the_start_makes_a_lag_too():
    stats = LaneStats()
    stats.report_sink_error("out", RetryableError("away"))
    stats.sinks["out"].last_error.since_ms -= 5000
    assert stats.lag_ms() >= 5000


def test_the_lag_of_a_blocked_sink_goes_on_behind_a_restart():
    stats = LaneStats()
    stats.report_sink_error("out", RetryableError("away"))
    stats.counted.last_commit_ms = stats.sinks["out"].last_error.since_ms - 60_000
    again = LaneStats()
    again.resume(stats.report())
    assert again.lag_ms() is None
    again.report_sink_error("out", RetryableError("away"))
    assert again.lag_ms() >= 60_000
