"""A short form of ``./dev.sh prove chaos``: attacks of some seconds, and the judge of all."""

import json

import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from tests.chaos import faults, zombies
from tests.chaos.arena import Arena
from tests.chaos.judge import judge
from tests.chaos.ledger import Entry
from tests.prove import chaos

WRITTEN = [Entry("c", 1, 1), Entry("u", 1, 2), Entry("c", 2, 3), Entry("d", 2, 3)]
TABLE = {1: 2}


def line(op, key, number):
    row = {"id": key, "n": number}
    return json.dumps({"op": op, "before": row, "after": None if op == "d" else row})


def lines(*entries):
    return [line(entry.op, entry.id, entry.number) for entry in entries]


@pytest.fixture
def arena(request, tmp_path):
    opened = []

    def make(source, sink, **settings):
        made = Arena(
            tmp_path / "run",
            source=source,
            source_server=request.getfixturevalue(f"{source}_server"),
            sink=sink,
            sink_server=None if sink == "file" else request.getfixturevalue(f"{sink}_server"),
            **settings,
        )
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.close()


# ---- the judge


def test_what_arrived_whole_is_right():
    assert judge(lines(*WRITTEN), WRITTEN, TABLE, exactly_once=True) == []


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [
        (lines(*WRITTEN[:1], *WRITTEN[2:]), ["never arrived", "differ from the table"]),
        (lines(*WRITTEN, WRITTEN[0]), ["differ from the table", "more than once"]),
        (lines(*WRITTEN, WRITTEN[1]), ["more than once"]),
        (lines(*WRITTEN, Entry("r", 2, 3)), ["differ from the table"]),
        (lines(WRITTEN[1], WRITTEN[0], *WRITTEN[2:]), ["differ from the table", "arrived first"]),
    ],
    ids=["lost", "old one last", "twice", "stale copy", "out of order"],
)
def test_planted_errors_are_found(seen, wrong):
    found = judge(seen, WRITTEN, TABLE, exactly_once=True)

    assert len(found) == len(wrong)
    assert all(words in told for words, told in zip(wrong, found, strict=True))


def test_rows_of_copies_may_come_twice():
    copied = [line("r", 1, 1), line("r", 1, 1), *lines(*WRITTEN)]

    assert judge(copied, WRITTEN, TABLE, exactly_once=True) == []


# ---- what the proof runs


def test_every_crash_point_is_tried_with_every_sink_within_the_seeds():
    every = [case for seed in range(chaos.SEEDS) for case in chaos.cases(seed)]
    asleep = {(c["attack"], c["sink"]) for c in every if c["attack"].startswith("asleep at")}
    crash_points = [*zombies.OF_COPIES, *zombies.OF_STREAMS]

    assert asleep == {(f"asleep at {b.value}", mode) for b in crash_points for mode in chaos.MODES}
    for what in zombies.SILENT:
        name = f"asleep with a {what} in flight"
        assert {c["sink"] for c in every if c["attack"] == name} == set(chaos.MODES)
    for attack in {case["attack"] for case in every}:
        assert {c["source"] for c in every if c["attack"] == attack} == set(chaos.SOURCES)
    restored = {c["sink"] for c in every if c["attack"] == "sink comes back with older data"}
    assert restored == set(chaos.MODES[:3])


# ---- the attacks


@pytest.mark.parametrize(
    ("crash_point", "source", "sink", "exact"),
    [
        (CrashPoint.CHUNK_WRITTEN, "mysql", "redis", True),
        (CrashPoint.SINK_WRITTEN, "postgres", "nats", True),
    ],
    ids=lambda value: value.value if isinstance(value, CrashPoint) else value,
)
def test_a_driver_that_wakes_up_changes_nothing(arena, crash_point, source, sink, exact):
    attacked = arena(source, sink, exact=exact, snapshot="initial")

    assert zombies.frozen_at(attacked, crash_point) == []


def test_a_slow_source_loses_nothing(arena):
    attacked = arena("postgres", "file", proxied=True, snapshot="initial")

    assert faults.slow(attacked, delay_s=0.01) == []
