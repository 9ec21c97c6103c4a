"""A sink whose messages cannot be encoded is left like one that cannot be written to."""

import random
import threading
import time
from functools import partial

import orjson
import pytest

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.replay.requests import replay_here
from airflow_provider_deltaforge.errors import AccessError
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.driving import Driving
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.gated import SINK, gates
from tests.engine.in_process import DRIVER
from tests.engine.lagging import (
    AWAY,
    MODES,
    ROWS,
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
from tests.waiting import wait_for, wait_until

DENIED = AccessError("the registry answers 401")


@pytest.fixture
def gate(monkeypatch):
    return gates(monkeypatch)


def growing(*given, **settings):
    """Return a pipeline whose sinks have an encoding that can be away; its log grows slowly."""
    slowly = f"rate: 80, started_ms: {int(time.time() * 1000)}, "
    return pipeline(*given, **{"sink": SINK, "source": slowly, **settings})


def test_an_optional_sink_whose_encoding_is_away_is_left_and_then_caught_up(gate):
    made = growing()
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") > 20)
    gate["side"].error = AWAY
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "side")
    wait_until(lambda: at(made, "main") > here + 40)
    assert made.status() == ("running", None)
    told = made.control.progress().sinks["side"]
    assert (told.status, told.error_class, told.reason) == ("behind", "retryable", "away")
    assert told.lag_ms > 0
    assert at(made, "side") == here
    tried = {tx for tx, _ in gate["side"].asked if tx > here}
    assert len(tried) == 1, "nothing is rendered for a sink that is behind but what it tries"

    gate["side"].error = None
    wait_until(lambda: stood(made, "side") == "running")
    joined = at(made, "side")
    wait_until(lambda: at(made, "side") > joined + 20)
    wait_for("rendering ahead again", lambda: gate["side"].asked[-1][1] == "decoder")
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], []]
    assert gate["side"].in_order(), "a registry is told of schemas in their order"


def test_a_server_that_an_encoding_asks_and_that_answers_slowly_holds_up_its_sink_alone(gate):
    made = growing("sink_batch_deadline_secs: 1")
    gate["side"].slow = slow = threading.Event()
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind" and at(made, "main") > 40)
    slow.set()
    wait_until(lambda: stood(made, "side") == "running")
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], []]
    assert gate["side"].in_order()


def test_a_required_sink_whose_encoding_is_away_blocks_until_it_is_back(gate):
    made = growing()
    gate["main"].error = AWAY
    running = RunningLane(made)
    wait_until(lambda: made.status() == ("blocked", "retryable"))
    assert "sink main: away" in made.control.progress().reason
    assert (at(made, "main"), delivered(made, "main")) == (0, [])
    gate["main"].error = None
    wait_until(lambda: at(made, "side") > 40 and made.status()[0] == "running")
    ends = end(made, running)
    assert [whole(made, name, ends[name]) for name in made.sinks] == [[], []]


def test_refused_access_of_an_encoding_concerns_its_sink_alone(gate):
    made = growing(tuning=Tuning(refused_sink_s=0.5))
    gate["side"].error = DENIED
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind" and at(made, "main") > 40)
    asked = len(gate["side"].asked)
    wait_until(lambda: len(gate["side"].asked) > asked + 1)
    told = made.control.progress().sinks["side"]
    assert (told.error_class, at(made, "side")) == ("access", 0)
    gate["side"].error = None
    wait_until(lambda: stood(made, "side") == "running")
    gate["main"].error = DENIED
    assert running.end().error_class == "access"
    assert whole(made, "side", at(made, "side")) == []


def test_what_nobody_has_foreseen_of_an_encoding_is_logged_once_with_its_way(gate, caplog):
    made = growing(tuning=Tuning(refused_sink_s=0.1))
    gate["side"].error = KeyError("password: s3cret")
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    asked = len(gate["side"].asked)
    wait_until(lambda: len(gate["side"].asked) > asked + 2)
    gate["side"].error = None
    wait_until(lambda: stood(made, "side") == "running")
    end(made, running)
    (told,) = [text for text in caplog.messages if "Traceback" in text]
    assert told.startswith("sink side: ")
    assert "gated.py" in told
    assert "s3cret" not in told


@MODES
def test_encodings_that_fail_now_and_then_leave_no_hole(gate, policy, optional):
    made = growing(policy, ("one", "two", "three"), optional, transactions=100, source="")
    for after, sink in enumerate(made.sinks):
        gate[sink].errors = [*[None] * after, AWAY, AWAY, None, AWAY]
    running = RunningLane(made)
    wait_until(lambda: {at(made, name) for name in made.sinks} == {100})
    end(made, running)
    assert [whole(made, name, 100) for name in made.sinks] == [[], [], []]
    assert [gate[name].in_order() for name in made.sinks] == [True, True, True]
    if "all" in policy:
        assert {len(delivered(made, name)) for name in made.sinks} == {200}


@pytest.mark.long
@MODES
def test_each_encoding_away_in_turn_ends_without_a_hole(gate, policy, optional):
    each_in_turn(
        growing(policy, THREE, optional),
        policy,
        away=lambda sink: setattr(gate[sink], "error", AWAY),
        back=lambda sink: setattr(gate[sink], "error", None),
        more=10,
    )
    assert [gate[name].in_order() for name in THREE] == [True, True, True]


def test_the_next_lane_renders_nothing_for_a_sink_that_is_behind_until_it_is_given_up(gate):
    made = growing(sink=SINK + "lag_limit_secs: 1, ")
    made.begin_at(main=100, side=3)
    gate["side"].error = AWAY
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "given_up")
    (gap,) = Gaps(made.store, made.name).all()
    assert (gap.start, "lag_limit_secs" in gap.why) == ({"tx": 3}, True)
    here = at(made, "main")
    asked = len(gate["side"].asked)
    assert all(tx <= 100 for tx, _ in gate["side"].asked)
    wait_until(lambda: at(made, "main") > here + 40)
    assert len(gate["side"].asked) == asked
    end(made, running)


def test_a_copy_is_made_without_the_encoding_of_a_sink_that_was_given_up(gate):
    made = growing(transactions=40, source="", snapshot="initial")
    made.store.transact([Gaps(made.store, made.name).give_up("side", {"tx": 0}, "gone", "x")])
    made.begin_at(main=40)
    gate["side"].error = AWAY
    state = made.request_copy()
    driving = Driving(made)
    wait_until(lambda: state().settled)
    made.want("stopped")
    driving.end()
    assert state().state == "done"
    assert (bool(delivered(made, "main")), gate["side"].asked) == (True, [])


@pytest.mark.parametrize(
    "batch",
    ["respect_source_tx: false, ", pytest.param("", marks=pytest.mark.long)],
    ids=["in parts", "whole"],
)
def test_a_sink_that_holds_the_position_is_given_nothing_twice(gate, monkeypatch, batch):
    settings = {"rows": 7, "transactions": 100, "sinks": ("main", "side"), "batch": batch}
    fast = f"rate: 400, started_ms: {int(time.time() * 1000)}, "
    made = exact_pipeline(monkeypatch, optional=("side",), source=fast, sink=SINK, **settings)
    made.begin_at(main=0, side=0)
    dice = random.Random(7)
    for name, often in (("main", 0.2), ("side", 0.4)):
        gate[name].errors = [AWAY if dice.random() < often else None for _ in range(12)]
    held(made, "side").fail_after = [None, 0, None, 3, None, 2]
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 100)
    end(made, running)
    assert len(held(made, "main").ids) == len(set(held(made, "main").ids)) == 100 * 7
    assert held(made, "side").ids == held(made, "main").ids
    assert [gate[name].in_order() for name in made.sinks] == [True, True]


def tries_a_part_of_8(made, gate):
    return at(made, "side") == 6 and gate.asked[-1][0] == 8


def about_to_hold_a_part(gate, monkeypatch):
    """Return a running pipeline whose side sink stands at 6 and tries a part of 8; main is at 3.

    Batches of 30 events end inside the second transaction, behind the third one, and so on. Now and
    then the side joins main at 3 before it is away: then another pipeline is tried.
    """
    settings = {"rows": 20, "sinks": ("main", "side"), "batch": "respect_source_tx: false, "}
    for _ in range(10):
        made = exact_pipeline(
            monkeypatch, optional=("side",), transactions=12, sink=SINK, **settings
        )
        made.begin_at(main=3, side=0)
        gate["main"].error_behind, gate["main"].error = 5, AWAY
        gate["side"].error_behind, gate["side"].error = 6, AWAY
        running = RunningLane(made)
        try:
            wait_until(partial(tries_a_part_of_8, made, gate["side"]), 10)
        except AssertionError:
            end(made, running)
        else:
            return made, running
    pytest.fail("the side sink never was where the test begins")


def test_a_sink_that_holds_a_part_of_a_transaction_does_not_join_in_front_of_it(gate, monkeypatch):
    made, running = about_to_hold_a_part(gate, monkeypatch)
    gate["main"].error_behind = 6
    wait_until(lambda: at(made, "main") == 6)
    gate["side"].error = None
    wait_until(lambda: len(held(made, "side").ids) > 6 * 20)
    gate["main"].error = None
    wait_until(lambda: at(made, "side") == at(made, "main") == 12)
    end(made, running)
    assert len(held(made, "side").ids) == len(set(held(made, "side").ids)) == 12 * 20
    assert len(held(made, "main").ids) == len(set(held(made, "main").ids)) == 9 * 20


def test_what_cannot_be_encoded_for_a_sink_that_was_behind_is_set_aside_once(gate):
    made = growing(transactions=60, source="", journal="enabled: true")
    gate["side"].refuses = lambda row: row["row"] == 1
    gate["side"].error = AWAY
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind" and at(made, "main") == 60)
    gate["side"].error = None
    wait_until(lambda: at(made, "side") == 60)
    end(made, running)
    letters = [letter.event["after"] for letter in DeadLetterRecords(made.store, made.name).read()]
    refused = [one["tx"] for one in letters]
    assert refused == list(range(1, 61))
    assert delivered(made, "side") == [(tx, 0) for tx in refused]


def test_what_took_long_to_encode_is_not_written_if_a_newer_lane_has_started(gate):
    # As of a process that was frozen meanwhile.
    frozen = Tuning(beat_s=3600.0, confirmed_s=0.0)
    made = growing(transactions=20, source="", tuning=frozen)
    gate["main"].error = AWAY
    running = RunningLane(made)
    wait_until(lambda: len(gate["main"].asked) > 2)
    made.control.take_epoch(DRIVER)
    gate["main"].error = None
    assert running.end().why == "fenced"
    assert delivered(made, "main") == []


@pytest.mark.parametrize("refusing", [("main",), ("main", "side")])
def test_dead_letters_are_sent_again_while_the_encoding_of_an_optional_sink_is_away(gate, refusing):
    made = growing(transactions=20, source="", journal="enabled: true")
    for name in refusing:
        made.log(name).refuses = lambda value: orjson.loads(value)["after"]["tx"] == 5
    running = RunningLane(made)
    wait_until(lambda: {at(made, name) for name in made.sinks} == {20})
    end(made, running)
    for name in refusing:
        made.log(name).refuses = None
    gate["side"].error = AWAY
    ticket = replays.request(made.store, made.name, DeadLetterFilter(), "send", "a test")
    ending = threading.Event()
    tell = lambda _, error: ending.set() if error else None  # noqa: E731 - nobody is waited for
    told = replay_here(made.name, made.location, ticket, tell, ending)
    assert told is not None
    assert (told.sent, told.away) == (ROWS, ROWS * (len(refusing) - 1))
    assert sorted(set(delivered(made, "main"))) == [
        (tx, row) for tx in range(1, 21) for row in range(ROWS)
    ]


def test_rows_wait_behind_entries_also_of_a_transaction_whose_rest_is_encoded_late(gate):
    """What the lane has set aside of it is not stored yet as the sink is left."""
    made = growing(
        *("", ("main", "side"), ("side",)),
        transactions=1,
        rows=90,
        source="",
        batch="respect_source_tx: false, ",
        journal="enabled: true, dlq: {hold_keys: true}",
    )
    first = lambda value: orjson.loads(value)["after"]["row"] == 0  # noqa: E731
    made.log("side").refuses = first
    gate["side"].errors, gate["side"].error = [None], AWAY
    gate["main"].errors, gate["main"].error = [None, None], AWAY
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind" and made.status()[0] == "blocked")
    gate["side"].error = None
    wait_until(lambda: len(delivered(made, "side")) > 30)
    gate["main"].error = None
    wait_until(lambda: at(made, "main") == at(made, "side") == 1)
    end(made, running)
    of_row = {row for row in range(90) if row % 30 == 0}
    assert {row for _, row in delivered(made, "side")} == set(range(90)) - of_row
    entries = DeadLetterRecords(made.store, made.name).read()
    assert {letter.event["after"]["row"] for letter in entries} == of_row
