"""``lag_limit_secs``: only time counts in which somebody tried to catch the sink up."""

import time

import pytest

from airflow_provider_deltaforge.engine.base import lane_stats, sink_stats
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.catch_up import lag_limit
from airflow_provider_deltaforge.engine.catch_up.lag_limit import LagLimit
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.lagging import AWAY, at, end, pipeline, stood, whole
from tests.engine.running import RunningLane
from tests.waiting import wait_until

UPTO, LIMIT_S = 300, 3600


@pytest.fixture
def clock(monkeypatch):
    """Return what sets the machine's clock forward."""
    now = time.time
    return lambda seconds: monkeypatch.setattr(time, "time", lambda: now() + seconds)


def behind():
    """Return a pipeline whose sink ``side`` is away, and its lane."""
    made = pipeline(source="", transactions=UPTO, sink=f"lag_limit_secs: {LIMIT_S}, ")
    made.log("side").fail_next(10**6, AWAY)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind" and at(made, "main") == UPTO)
    return made, running


def catches_up(made, running):
    wait_until(lambda: stood(made, "side") in ("running", "given_up"))
    ends = end(made, running)
    assert Gaps(made.store, made.name).all() == []
    assert whole(made, "side", ends["side"]) == []


def beat(made):
    """Wait until a whole heartbeat has passed."""
    for _ in range(2):
        stored = made.control.progress().heartbeat_at_ms
        wait_until(lambda s=stored: made.control.progress().heartbeat_at_ms != s)


def test_a_clock_that_is_set_forward_gives_no_sink_up(clock):
    made, running = behind()
    clock(LIMIT_S + 1)
    beat(made)
    made.log("side").heal()
    catches_up(made, running)


def test_time_in_which_the_pipeline_was_paused_does_not_count(clock):
    made, running = behind()
    made.want("paused")
    assert running.end().why == "paused"
    made.log("side").heal()
    clock(LIMIT_S + 1)
    made.want("running")
    catches_up(made, RunningLane(made))


def test_time_behind_is_summed_over_lanes():
    made, running = behind()
    wait_until(lambda: made.control.progress().sinks["side"].behind_s > 0.5)
    made.want("paused")
    assert running.end().why == "paused"
    former_s = made.control.progress().sinks["side"].behind_s
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: made.control.progress().sinks["side"].behind_s > former_s)
    made.log("side").heal()
    wait_until(lambda: stood(made, "side") == "running")
    end(made, running)
    assert made.control.progress().sinks["side"].behind_s is None


class _Clock:
    """Stands in for the module ``time``."""

    now_s = 1_700_000_000.0

    def time(self):
        return self.now_s

    monotonic = time


@pytest.mark.parametrize(
    ("speed", "fails", "is_given_up"),
    [(3.0, False, False), (0.5, False, True), (0.0, False, True), (3.0, True, True)],
    ids=["comes nearer", "falls back", "stands still", "fails"],
)
def test_a_sink_that_lacks_old_changes_is_given_up_unless_it_comes_nearer(
    monkeypatch, speed, fails, is_given_up
):
    clock = _Clock()
    for module in (lag_limit, lane_stats, sink_stats):
        monkeypatch.setattr(module, "time", clock)
    stats, source = LaneStats({"side": SinkStats(former_s=LIMIT_S)}), ScriptedSource(id="s")
    sink = MemorySink(id="side", log="x", lag_limit_secs=LIMIT_S)
    begun_ms = int((clock.now_s - 10 * LIMIT_S) * 1000)
    stats.set_status("side", "behind", begun_ms)
    stats.counts_behind("side")
    stats.report_sink_error("side", AWAY if fails else None)
    limit = LagLimit(sink, source, stats, {"tx": 0}, is_rewound=False)
    why = None
    for second in range(1, 120):
        clock.now_s += 1
        stats.set_status("side", "catching_up", begun_ms + int(second * speed * 1000))
        why = why or limit.exceeded({"tx": int(second * speed)}, {"tx": 10**6})
    assert (why is not None) == is_given_up
