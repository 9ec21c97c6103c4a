"""A rewind in which its sink is given up: what is kept of it, and how the sink goes on."""

import time

import pytest

from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.exact_memory import change
from tests.engine.lagging import (
    end,
    held_where_a_sink_is_given_up,
    last,
    pipeline,
    rewind,
    stood,
)
from tests.engine.running import RunningLane
from tests.waiting import wait_until


@pytest.mark.parametrize("others", [("main",), ()], ids=["beside another", "alone"])
def test_a_log_that_is_purged_meanwhile_leaves_a_gap_and_stops_who_needs_the_sink(others):
    sinks = (*others, "side")
    made = pipeline(sinks=sinks, source="", transactions=200, optional=())
    made.begin_at(**dict.fromkeys(sinks, 200))
    made.log("side").hold()
    running = RunningLane(made)
    rewind(made, "side", 50)
    wait_until(lambda: last(made, "side") is not None)
    end(made, running)
    made.log("side").let_go()
    change(made, "transactions: 200", "transactions: 200, purged_before: 150")
    outcome = RunningLane(made).end()
    assert outcome.error_class == "position_lost"
    assert "sinks resume" in outcome.reason
    assert last(made, "side").state == "failed"
    gaps = Gaps(made.store, made.name)
    assert gaps.open()["side"].start["tx"] < 150
    made.store.transact([gaps.wish("side", "resume", "a test")])
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "running" and not gaps.open())
    end(made, running)
    [gap] = gaps.all()
    assert gap.end == {"tx": 200}


def test_a_rewind_that_has_failed_stays_so_whatever_the_lane_stores_behind_it(
    tmp_path, monkeypatch
):
    growing = f"rate: 60, started_ms: {int(time.time() * 1000)}, "
    made = pipeline(sinks=("side",), source=growing, optional=())
    made.begin_at(side=5)
    made.log("side").hold()
    rewind(made, "side", 0)
    gaps = Gaps(made.store, made.name)

    def lane():
        return last(made, "side").lane["tx"]

    with held_where_a_sink_is_given_up(tmp_path / "held", monkeypatch) as held:
        running = RunningLane(made)
        wait_until(lambda: last(made, "side") is not None and last(made, "side").lane)
        made.store.transact([gaps.wish("side", "give_up", "a test")])
        wait_until(held.exists)
        here = lane()
        wait_until(lambda: lane() > here + 20)
        assert last(made, "side").state == "failed"
        held.write_text("go")
        assert running.end().error_class is not None
    made.log("side").let_go()
    made.store.transact([gaps.wish("side", "resume", "a test")])
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "running" and not gaps.open())
    end(made, running)
    [gap] = gaps.all()
    assert (last(made, "side").state, gap.end["tx"] > here) == ("failed", True)
