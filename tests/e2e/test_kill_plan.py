"""Twenty seeds of a chain of kills show every crash point and every victim, and can be played."""

import itertools

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.e2e.exact_sources import SHOPS
from tests.e2e.kill_plan import BORDERS, OF_REQUESTS, OF_SNAPSHOTS, SEEDS, cells, planned, shown
from tests.engine.lagging_crash_points import (
    OF_ARCHIVES,
    OF_LAGGING,
    OF_PARTS,
    OF_REPLAYS,
    OF_REWINDS,
)
from tests.engine.spark_kills import IN_APPLICATION, Victim, possible

ELSEWHERE = {
    *OF_LAGGING,
    *OF_REPLAYS,
    *OF_REWINDS,
    *OF_ARCHIVES,
    *OF_PARTS,
    CrashPoint.DEAD_LETTERS_STORED,
}
RESTARTS = {Victim.PROCESS, Victim.JVM, Victim.APPLICATION}

plans = pytest.mark.parametrize(
    ("source", "place", "seed"),
    [(s, place, seed) for s in SHOPS for place in ("process", "spark") for seed in range(SEEDS)],
)


def test_every_crash_point_that_a_plain_pipeline_reaches_is_asked_for():
    assert {*BORDERS, *ELSEWHERE} == set(CrashPoint)


@pytest.mark.parametrize("place", ["process", "spark"])
@pytest.mark.parametrize("source", SHOPS)
def test_twenty_seeds_show_every_cell(source, place):
    seen = set()
    for seed in range(SEEDS):
        seen |= shown([str(kill) for kill in planned(source, place, seed).kills])

    assert seen == cells(place)


@plans
def test_a_plan_is_the_same_at_every_time(source, place, seed):
    assert planned(source, place, seed) == planned(source, place, seed)


@plans
def test_every_kill_is_possible_where_it_stands(source, place, seed):
    plan = planned(source, place, seed)
    kills = plan.kills

    assert [kill for kill in kills if not possible(kill.crash_point, kill.victim)] == []
    early = [kill for kill in kills if kill.crash_point in {*OF_SNAPSHOTS, BORDERS[0]}]
    assert kills[: len(early)] == early
    assert plan.snapshot is not (kills[0].crash_point is CrashPoint.START_POSITION_STORED)
    for former, kill in itertools.pairwise(kills):
        if kill.crash_point in IN_APPLICATION:
            assert former.victim in RESTARTS, "an application reads its hold when it starts"
    order = [OF_SNAPSHOTS.index(kill.crash_point) for kill in early if plan.snapshot]
    assert order == sorted(order)
    assert sum(kill.crash_point in OF_REQUESTS for kill in kills) <= 1


def test_spark_starts_rarely():
    plans = [planned("mysql", "spark", seed) for seed in range(SEEDS)]
    starts = [1 + sum(kill.victim in RESTARTS for kill in plan.kills) for plan in plans]

    assert max(starts) <= 4
    assert sum(starts) <= 2.5 * SEEDS
