"""Where a lane begins to read, by where its sinks stand."""

import threading

import pytest

from airflow_provider_deltaforge.engine.archive.lane_archive import LaneArchive
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.catch_up.rejoin_point import RejoinPoint
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.start_positions import (
    StartPositions,
    find_start_positions,
)
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.in_process import InProcess
from tests.engine.running import RunningLane, events
from tests.waiting import wait_until

QUORUM = "commit_policy: {mode: quorum, quorum: 2}"
ANY, BOTH = RequiredSinks(frozenset(), 1), RequiredSinks(frozenset({"one", "two"}), 2)


def polled(**tables):
    return FilePosition("polling", tables=tables).as_json()


@pytest.mark.parametrize(("policy", "start"), [(ANY, 7), (BOTH, 3)], ids=["any", "both"])
def test_it_is_the_furthest_place_that_enough_sinks_have_reached(policy, start):
    stands = {"one": {"tx": 3}, "two": {"tx": 7}}
    assert policy.start(ScriptedSource(), stands) == {"tx": start}


@pytest.mark.parametrize("policy", [ANY, BOTH], ids=["any", "both"])
def test_sinks_that_are_each_ahead_in_a_table_of_their_own_lack_nothing_from_there_on(policy):
    source = TursoSource.model_construct(id="polled")
    stands = {"one": polled(a=7, b=3), "two": polled(a=5, b=6)}
    start = policy.start(source, stands)
    if policy is BOTH:
        assert start == polled(a=5, b=3)
    else:
        assert start in stands.values()


@pytest.mark.parametrize(
    ("former", "given_up", "start"),
    [
        pytest.param({"main": 80, "side": 20}, ["side"], 80, id="all but the one given up"),
        pytest.param({"main": 80, "more": 60, "side": 20}, ["side"], 60, id="two of three"),
        pytest.param({"main": 80, "gone": 20, "side": 30}, ["gone", "side"], 80, id="one leaves"),
        pytest.param({"main": 80, "side": 20}, ["main", "side"], 20, id="nobody was well"),
        pytest.param({"main": 80, "side": 20}, [], 20, id="one goes on"),
    ],
)
def test_sinks_that_replace_all_that_were_well_begin_where_those_were(former, given_up, start):
    pipeline = InProcess(sinks=("new", "side"), optional=("side",))
    pipeline.begin_at(**former)
    gaps = Gaps(pipeline.store, pipeline.name)
    pipeline.store.transact(
        [gaps.give_up(name, {"tx": former[name]}, "its log is gone", "lost") for name in given_up]
    )
    spec = pipeline.context().pipeline
    positions = find_start_positions(pipeline.store, spec, RequiredSinks.of(spec.spec))
    assert (positions.start, positions.known["new"]) == ({"tx": start}, {"tx": start})
    assert set(positions.given_up) == {"side"} & {*given_up}


def test_a_lane_whose_sink_is_replaced_goes_on_although_one_that_was_given_up_lacks_a_lost_log():
    pipeline = InProcess(
        transactions=100, sinks=("new", "side"), optional=("side",), source="purged_before: 60,"
    )
    pipeline.begin_at(main=80, side=20)
    gap = Gaps(pipeline.store, pipeline.name).give_up("side", {"tx": 20}, "its log is gone", "lost")
    pipeline.store.transact([gap])
    running = RunningLane(pipeline)
    wait_until(lambda: running.has_ended or pipeline.checkpoints().load().get("new") == {"tx": 100})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    assert {event["after"]["tx"] for event in events(pipeline, "new")} == {*range(81, 101)}
    assert pipeline.checkpoints().load() == {"new": {"tx": 100}, "side": {"tx": 20}}


@pytest.fixture
def delivery():
    """Return what delivers for ``one`` and ``two``; ``three`` stays behind, at 7."""
    pipeline = InProcess(sinks=("one", "two", "three"), policy=QUORUM)
    pipeline.begin_at(one=7, two=7, three=7)
    pipeline.log("three").fail_next(10**6, RetryableError("away"))
    context, checkpoints = pipeline.context(), pipeline.checkpoints()
    known, over = checkpoints.load(), threading.Event()
    source, stats = context.pipeline.spec.source, LaneStats({name: SinkStats() for name in known})
    heartbeat = Heartbeat(context, stats, 60, "running")
    shared = CatchUpContext(
        context,
        stats,
        RejoinPoint(source, {"tx": 7}),
        over.is_set,
        heartbeat.confirm,
        threading.Lock(),
        lambda call: call(),
    )
    made = Delivery(
        shared,
        SkipList(source, list(known)),
        checkpoints,
        DeadLetterQueue(context, stats.dead_letters, stats.report_error, over, heartbeat.confirm),
        heartbeat,
        LaneArchive(context, stats, heartbeat),
    )
    made.begin(StartPositions(known, {"tx": 7}, behind=["three"]))
    yield made
    over.set()
    made.close()


def test_a_sink_that_is_behind_no_more_counts_although_it_has_not_joined(delivery):
    assert delivery.is_enough(["one"], {"tx": 7})
    assert not delivery.is_enough(["one"], {"tx": 8})


def test_one_that_is_further_than_all_whole_transactions_holds_the_open_one(delivery):
    assert delivery.is_enough(["one"], None, {"tx": 6})
    assert not delivery.is_enough(["one"], None, {"tx": 7})
    assert not delivery.is_enough(["one"], None)
