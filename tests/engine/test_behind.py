"""A sink that the pipeline goes on without: left, caught up, and taken in again without a hole."""

import threading
import time

import pytest

from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats, held_up
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.driving import Driving
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.lagging import (
    AWAY,
    MODES,
    THREE,
    at,
    delivered,
    each_in_turn,
    end,
    pipeline,
    stood,
    whole,
)
from tests.engine.running import RunningLane
from tests.waiting import PATIENCE_S, wait_until


def test_the_pipeline_goes_on_without_an_optional_sink_that_is_then_caught_up():
    made = pipeline()
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "side")
    wait_until(lambda: at(made, "main") > here + 200)
    assert made.status() == ("running", None)
    told = made.control.progress().sinks["side"]
    assert (told.error_class, told.reason) == ("retryable", "away")
    assert told.lag_ms > 0
    assert at(made, "side") == here

    made.log("side").heal()
    wait_until(lambda: stood(made, "side") == "running")
    joined = at(made, "side")
    wait_until(lambda: at(made, "side") > joined + 50)
    ends = end(made, running)
    assert whole(made, "main", ends["main"]) == []
    assert whole(made, "side", ends["side"]) == []


def test_a_blip_of_an_optional_sink_needs_no_second_reader():
    made = pipeline(transactions=30, source="")
    made.log("side").fail_next(2, AWAY)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 30)
    end(made, running)
    assert delivered(made, "side") == delivered(made, "main")


@MODES
def test_each_sink_stopped_and_started_in_turn_ends_without_a_hole(policy, optional):
    made = pipeline(policy, THREE, optional)
    each_in_turn(
        made,
        policy,
        away=lambda sink: made.log(sink).fail_next(10**6, AWAY),
        back=lambda sink: made.log(sink).heal(),
    )


def test_a_quorum_that_is_lost_blocks_until_one_that_is_caught_up_restores_it():
    made = pipeline("commit_policy: {mode: quorum, quorum: 2}", ("one", "two", "three"), ())
    running = RunningLane(made)
    made.log("three").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "three") == "behind")
    here = at(made, "one")
    wait_until(lambda: at(made, "one") > here + 40)
    made.log("two").fail_next(10**6, AWAY)
    wait_until(lambda: made.status()[0] == "blocked")
    made.log("three").heal()
    wait_until(lambda: stood(made, "two") == "behind" and made.status()[0] == "running")
    made.log("two").heal()
    wait_until(lambda: stood(made, "two") == "running")
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], [], []]


def test_a_sink_that_hangs_is_left_after_the_deadline_of_the_document():
    made = pipeline("sink_batch_deadline_secs: 1")
    made.log("side").hold()
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    assert "backpressure" in made.control.progress().sinks["side"].reason
    here = at(made, "main")
    wait_until(lambda: at(made, "main") > here + 40)
    made.log("side").let_go()
    wait_until(lambda: stood(made, "side") == "running")
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], []]


def test_refused_access_stops_a_required_sink_and_leaves_an_optional_one():
    made = pipeline(tuning=Tuning(refused_sink_s=0.5))
    made.log("side").fail_next(1, AccessError("the password has expired"))
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "side")
    wait_until(lambda: stood(made, "side") == "running" and at(made, "side") > here)
    made.log("main").fail_next(1, AccessError("the password has expired"))
    assert running.end().error_class == "access"
    assert whole(made, "side", at(made, "side")) == []


def test_refused_access_stops_the_pipeline_although_another_sink_is_away():
    made = pipeline()
    made.log("side").fail_next(10**6, AWAY)
    made.log("main").fail_next(1, AccessError("the password has expired"))
    assert RunningLane(made).end().error_class == "access"


def test_a_quorum_waits_for_a_sink_that_is_away_and_says_that_another_refuses_it():
    made = pipeline("commit_policy: {mode: quorum, quorum: 2}", THREE, ())
    made.log("one").fail_next(1, AccessError("the password has expired"))
    made.log("three").fail_next(10**6, AWAY)
    running = RunningLane(made)
    wait_until(lambda: made.status() == ("blocked", "access"))
    assert made.control.progress().reason == "sink one: the password has expired"
    made.log("three").heal()
    wait_until(lambda: made.status()[0] == "running" and at(made, "three") > 40)
    end(made, running)


def test_a_copy_that_a_sink_refuses_fails_although_another_sink_is_away():
    made = pipeline(source="", transactions=40, optional=(), snapshot="always")
    made.log("side").fail_next(10**6, AWAY)
    made.log("main").fail_next(1, AccessError("the password has expired"))
    assert Driving(made, drive_snapshot).end().error_class == "access"


def test_a_lane_does_not_begin_where_a_sink_refuses_access_although_another_is_away(monkeypatch):
    made = exact_pipeline(monkeypatch, sinks=("main", "side"))
    made.begin_at(main=0, side=0)
    held(made, "main").untold = AWAY
    held(made, "side").untold = AccessError("the password has expired")
    assert RunningLane(made).end().error_class == "access"


def test_a_lane_begins_where_enough_sinks_stand_and_catches_the_others_up():
    made = pipeline(source="", transactions=200)
    made.begin_at(main=120, side=3)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 200)
    wait_until(lambda: stood(made, "side") == "running")
    end(made, running)
    assert min(delivered(made, "main")) == (121, 0)
    assert delivered(made, "side")[0] == (4, 0)
    assert {tx for tx, _ in delivered(made, "side")} == set(range(4, 201))


@pytest.mark.parametrize(("start", "first"), [("earliest", 51), ("latest", 201), ("{tx: 77}", 78)])
def test_a_sink_that_is_added_begins_where_the_document_says(start, first):
    made = pipeline(source="", transactions=200, optional=(), sink=f"start: {start}, ")
    made.store.delete("checkpoints", f"{made.name}/{made.name}-source::sink::side")
    made.begin_at(main=50, gone=7)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 200)
    end(made, running)
    assert {tx for tx, _ in delivered(made, "side")} == set(range(first, 201))
    assert set(made.checkpoints().load()) == {"main", "side"}


def test_a_sink_cannot_begin_before_what_is_kept_of_the_log():
    made = pipeline(source="", transactions=200, optional=(), sink="start: {tx: 3}, ")
    made.store.delete("checkpoints", f"{made.name}/{made.name}-source::sink::side")
    made.begin_at(main=50)
    outcome = RunningLane(made).end()
    assert outcome.error_class == "spec"
    assert "lies before {'tx': 50}" in outcome.reason


@pytest.mark.parametrize(
    ("start", "why"),
    [("{tx: 1000000}", "behind the end of the log"), ("{lsn: 0/4}", "not a position of this")],
)
def test_a_sink_cannot_begin_where_the_log_has_no_place(start, why):
    made = pipeline(source="", transactions=200, optional=(), sink=f"start: {start}, ")
    made.store.delete("checkpoints", f"{made.name}/{made.name}-source::sink::side")
    made.begin_at(main=50)
    outcome = RunningLane(made).end()
    assert outcome.error_class == "spec"
    assert "sink side: start: " in outcome.reason
    assert why in outcome.reason


def test_a_sink_that_lacks_changes_for_too_long_is_given_up_and_resumed_from_then():
    made = pipeline(sink="lag_limit_secs: 1, ")
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "given_up")
    (gap,) = Gaps(made.store, made.name).all()
    assert (gap.sink, gap.start["tx"], gap.end) == ("side", at(made, "side"), None)
    assert "lag_limit_secs" in gap.why
    assert made.status() == ("running", None)

    made.log("side").heal()
    made.want("paused")
    assert running.end().why == "paused"
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up")
    wait_until(lambda: made.control.progress().sinks["side"].position == gap.start)
    here = at(made, "main")
    wait_until(lambda: at(made, "main") > here + 40)
    made.store.transact([Gaps(made.store, made.name).wish("side", "resume", "a test")])
    wait_until(lambda: stood(made, "side") == "running")
    ends = end(made, running)
    (closed,) = Gaps(made.store, made.name).all()
    lacking = set(range(closed.start["tx"] + 1, closed.end["tx"] + 1))
    seen = {tx for tx, _ in delivered(made, "side")}
    assert set(range(1, ends["side"] + 1)) - seen <= lacking
    assert set(range(closed.end["tx"] + 1, ends["side"] + 1)) <= seen
    assert here < closed.end["tx"]


def test_sinks_that_are_resumed_while_the_store_fails_have_no_hole_behind_their_gap(monkeypatch):
    made = pipeline(sinks=("main", "one", "two"), optional=("one", "two"))
    gaps = Gaps(made.store, made.name)
    told = [gaps.give_up(name, {"tx": 0}, "gone", "x") for name in ("one", "two")]
    made.store.transact(told)
    running = RunningLane(made)
    wait_until(lambda: at(made, "main") > 20)
    made.log("main").fail_next(10**6, AWAY)
    wait_until(lambda: made.status()[0] == "blocked")

    failed, transact = [], type(made.store).transact

    def failing(store, writes, *fence):
        if not failed and any("/gap/two/" in write.key for write in writes):
            failed.append(True)
            raise AWAY
        return transact(store, writes, *fence)

    monkeypatch.setattr(type(made.store), "transact", failing)
    made.store.transact([gaps.wish(name, "resume", "a test") for name in ("one", "two")])
    wait_until(lambda: not gaps.open())
    assert failed
    here = at(made, "main")
    made.log("main").heal()
    wait_until(lambda: min(at(made, sink) for sink in made.sinks) > here + 40)
    ends = end(made, running)
    for gap in gaps.all():
        seen = list(dict.fromkeys(tx for tx, _ in delivered(made, gap.sink)))
        expected = list(range(gap.end["tx"] + 1, ends[gap.sink] + 1))
        assert seen[: len(expected)] == expected


def test_a_quorum_that_gives_up_a_second_sink_ends_and_says_what_to_do():
    slowly = f"rate: 60, started_ms: {int(time.time() * 1000)}, "
    made = pipeline("commit_policy: {mode: quorum, quorum: 2}", THREE, (), source=slowly)
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.give_up("three", {"tx": 0}, "gone", "x")])
    running = RunningLane(made)
    wait_until(lambda: at(made, "two") > 60)
    end(made, running)
    made.want("running")
    made.log("two").hold()
    made.store.transact([gaps.rewind("two", {"tx": 5}, (), "a test")])
    running = RunningLane(made)
    wait_until(lambda: stood(made, "two") in ("behind", "catching_up") and at(made, "two") == 5)
    here = at(made, "one")
    wait_until(lambda: at(made, "one") > here + 40)
    made.store.transact([gaps.wish("two", "give_up", "a test")])
    outcome = running.end()
    made.log("two").let_go()
    assert (outcome.why, outcome.error_class) == ("failed", "position_lost")
    assert f"deltaforge sinks resume {made.name} two" in outcome.reason
    assert RunningLane(made).end().error_class == "spec"


def test_a_lane_that_lacks_sinks_for_its_quorum_says_so():
    policy = RequiredSinks(frozenset(), 2)
    stats = LaneStats({name: SinkStats() for name in THREE}, policy=policy)
    stats.set_status("two", "given_up")
    assert stats.blocked_by() is None
    stats.set_status("three", "given_up")
    what, error = stats.blocked_by()
    assert (what, error.error_class) == ("sink three, two", "position_lost")
    stats.set_status("two", "catching_up")
    assert held_up(stats.sinks, policy, None) is None  # It goes on with what the sink holds.
    what, error = held_up(stats.sinks, policy, 5)
    assert (what, error.error_class, error.since_ms) == ("sink two", "retryable", 5)
    assert error.reason == "behind, and commit_policy waits until it has caught up"


@pytest.mark.parametrize("policy", ["", "commit_policy: {mode: quorum, quorum: 2}"])
def test_a_sink_that_was_given_up_and_is_needed_now_is_refused_until_it_is_resumed(policy):
    made = pipeline(policy, optional=("side",) if policy else ())
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.give_up("side", {"tx": 0}, "gone", "x")])
    outcome = RunningLane(made).end()
    assert (outcome.why, outcome.error_class) == ("failed", "spec")
    assert f"deltaforge sinks resume {made.name} side" in outcome.reason
    assert delivered(made, "main") == []

    made.store.transact([gaps.wish("side", "resume", "a test")])
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    end(made, running)
    assert gaps.open() == {}


def test_a_log_that_is_gone_gives_the_sink_up_and_not_the_pipeline():
    made = pipeline(source="purged_before: 60, ", transactions=200)
    made.begin_at(main=100, side=3)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up" and at(made, "main") == 200)
    (gap,) = Gaps(made.store, made.name).all()
    assert (gap.start, gap.error_class) == ({"tx": 3}, "position_lost")
    end(made, running)


def test_what_a_sink_that_is_behind_refuses_is_set_aside_once():
    """At a pace, and so seldom, that a slow machine catches up as well."""
    slowly = f"rate: 60, started_ms: {int(time.time() * 1000)}, "
    made = pipeline(journal="enabled: true", source=slowly)
    made.log("side").refuses = lambda value: b'0,"row":1' in value
    made.log("side").fail_next(10**6, AWAY)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "main")
    wait_until(lambda: at(made, "main") > here + 40)
    made.log("side").heal()
    wait_until(lambda: stood(made, "side") == "running")
    ends = end(made, running)
    letters = [letter.event["after"] for letter in DeadLetterRecords(made.store, made.name).read()]
    refused = {(one["tx"], one["row"]) for one in letters}
    assert refused == {(tx, 1) for tx in range(10, ends["side"] + 1, 10)}
    every = {(tx, row) for tx in range(1, ends["side"] + 1) for row in (0, 1)}
    assert set(delivered(made, "side")) == every - refused


def test_a_sink_for_which_the_log_cannot_be_opened_is_given_up_in_time(monkeypatch):
    def refused(source, reader):
        raise RetryableError("no slot is free for a second reader")

    monkeypatch.setattr(ScriptedSource, "behind", refused)
    made = pipeline(sink="lag_limit_secs: 1, ")
    made.begin_at(main=100, side=3)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up")
    (gap,) = Gaps(made.store, made.name).all()
    assert (gap.start, "lag_limit_secs" in gap.why) == ({"tx": 3}, True)
    assert end(made, running)["main"] > 100


def test_a_sink_is_given_up_as_asked_although_the_lane_ends_before(monkeypatch):
    reached, let_go = threading.Event(), threading.Event()

    def slow(source, reader):
        reached.set()
        assert let_go.wait(PATIENCE_S)
        raise RetryableError("the source's host does not answer")

    made = pipeline()
    made.begin_at(main=50, side=3)
    with monkeypatch.context() as patched:
        patched.setattr(ScriptedSource, "behind", slow)
        running = RunningLane(made)
        assert reached.wait(PATIENCE_S)
        gaps = Gaps(made.store, made.name)
        made.store.transact([gaps.wish("side", "give_up", "a test")])
        here = at(made, "main")
        wait_until(lambda: at(made, "main") > here + 200)
        made.want("paused")
        assert running.end().why == "paused"
        assert gaps.open() == {}
        let_go.set()
    made.want("running")
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up")
    assert (gaps.open()["side"].why, gaps.wishes()) == ("a test gave it up", [])
    end(made, running)


def test_a_wish_that_came_too_late_does_not_give_a_sink_up_later():
    made = pipeline()
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.wish("side", "give_up", "a test")])
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    assert gaps.wishes() == []
    end(made, running)


def test_a_command_that_comes_when_a_sink_has_caught_up_does_not_give_it_up_later():
    made = pipeline()
    gaps = Gaps(made.store, made.name)
    running = RunningLane(made)
    for times in (3, 3):
        wait_until(lambda: stood(made, "side") == "running" and at(made, "side") > 20)
        made.log("side").fail_next(times, AWAY)
        wait_until(lambda: stood(made, "side") != "running")
        wait_until(lambda: stood(made, "side") == "running")
        here = at(made, "side")
        if not gaps.wishes():
            made.store.transact([gaps.wish("side", "give_up", "a test")])
        wait_until(lambda here=here: at(made, "side") > here + 100)
    ends = end(made, running)
    assert (gaps.all(), whole(made, "side", ends["side"])) == ([], [])
