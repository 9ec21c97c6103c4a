"""Copies of tables, and sinks that are resumed: those hold every row of a copy that is done."""

import dataclasses
import time

import orjson
import pytest

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.driving import Driving
from tests.engine.exact_memory import change
from tests.engine.in_process import QUICK
from tests.engine.lagging import AWAY, at, held_where_a_sink_is_given_up, pipeline, stood
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.waiting import wait_until

SLOWLY = "never, max_rows_per_s: 200"
"""A copy lasts for seconds, in which a sink is resumed within milliseconds."""


def want(made, wanted, sink="side"):
    gaps = Gaps(made.store, made.name)
    made.store.transact([gaps.wish(sink, wanted, "a test")])


def given_up(**settings):
    """Return a pipeline that runs without its sink ``side``, which is well, and its driver."""
    growing = f"rate: 40, started_ms: {int(time.time() * 1000) - 10_000}, "
    made = pipeline(source=growing, keys=300, **settings)
    driving = Driving(made)
    wait_until(lambda: made.status()[0] == "running" and at(made, "side") > 20)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "behind")
    want(made, "give_up")
    wait_until(lambda: stood(made, "side") == "given_up")
    made.log("side").heal()
    return made, driving


def copied(made, sink):
    """Return the keys of the rows that a copy brought."""
    events = [orjson.loads(message.value) for message in made.log(sink).messages()]
    return {event["after"]["id"] for event in events if event["op"] == "r"}


def is_resumed(made, others=()):
    gaps = Gaps(made.store, made.name)
    return gaps.open().keys() == {*others} and not gaps.wishes()


def stop(made, driving):
    made.want("stopped")
    assert driving.end().why == "stopped"


def test_a_copy_that_is_asked_for_behind_a_resume_goes_to_that_sink():
    made, driving = given_up(tuning=dataclasses.replace(QUICK, sink_commands_s=2.0))
    want(made, "resume")
    state = made.request_copy()
    wait_until(lambda: state().settled)
    stop(made, driving)
    assert (state().state, is_resumed(made)) == ("done", True)
    assert copied(made, "side") == copied(made, "main") != set()


@pytest.fixture
def held(tmp_path, monkeypatch):
    with held_where_a_sink_is_given_up(tmp_path / "held", monkeypatch) as path:
        yield path


@pytest.mark.parametrize("others", [(), ("third",)], ids=["alone", "beside another"])
def test_a_resume_that_comes_just_as_its_sink_is_given_up_is_carried_out(held, others):
    def passes(transactions=100):
        here = at(made, "main")
        wait_until(lambda: at(made, "main") > here + transactions)

    made = pipeline(sinks=("main", "side", *others), optional=("side", *others))
    driving = Driving(made)
    for sink in ("side", *others):
        wait_until(lambda sink=sink: at(made, sink) > 20)
        made.log(sink).fail_next(10**6, AWAY)
        wait_until(lambda sink=sink: stood(made, sink) == "behind")
        want(made, "give_up", sink)
        wait_until(lambda sink=sink: sink in Gaps(made.store, made.name).open())
    wait_until(held.exists)
    passes()
    made.log("side").heal()
    want(made, "resume")
    passes(800)  # The writer of before pauses between two attempts.
    held.write_text("go")
    wait_until(lambda: is_resumed(made, others) and stood(made, "side") == "running")
    passes()
    assert stood(made, "side") == "running"
    stop(made, driving)


def test_a_copy_begins_anew_for_a_sink_that_is_resumed_in_the_middle():
    made, driving = given_up(snapshot=SLOWLY)
    state = made.request_copy()
    wait_until(lambda: state().rows > 0)
    want(made, "resume")
    wait_until(lambda: is_resumed(made))
    assert not state().settled, "the copy was too short: this proves nothing"
    wait_until(lambda: state().settled)
    stop(made, driving)
    assert state().state == "done"
    assert copied(made, "side") == copied(made, "main") != set()


def test_a_copy_begins_anew_for_a_sink_that_was_given_up_for_a_part_of_it():
    made, driving = given_up(snapshot=SLOWLY)
    want(made, "resume")
    wait_until(lambda: stood(made, "side") == "running")
    state = made.request_copy()
    wait_until(lambda: state().rows > 0)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "behind")
    want(made, "give_up")
    wait_until(lambda: stood(made, "side") == "given_up")
    rows = state().rows
    wait_until(lambda: state().rows > rows)
    made.log("side").heal()
    want(made, "resume")
    wait_until(lambda: is_resumed(made))
    assert not state().settled, "the copy was too short: this proves nothing"
    wait_until(lambda: state().settled)
    stop(made, driving)
    assert state().state == "done"
    assert copied(made, "side") == copied(made, "main") != set()


@pytest.mark.parametrize("own", [False, True], ids=["asked for", "its own"])
def test_a_snapshot_without_a_lane_resumes_a_sink_first(own):
    made, driving = given_up()
    stop(made, driving)
    want(made, "resume")
    if own:
        change(made, "mode: never", "mode: always")
    else:
        made.request_copy()
    made.want("running", generation=2)
    drive = lambda arguments, runner: drive_snapshot(arguments, runner, own=own)  # noqa: E731
    assert Driving(made, drive, generation=2).end().why == "finished"
    assert is_resumed(made)
    (gap,) = Gaps(made.store, made.name).all()
    assert gap.end["tx"] == at(made, "side") == at(made, "main")
    assert copied(made, "side") == copied(made, "main") != set()


def test_a_driver_killed_as_it_resumes_a_sink_for_its_copy_gives_it_every_row(tmp_path):
    settings = f"{{id: side, path: {tmp_path}/side.jsonl, required: false}}"
    side = f"    - {{type: file, config: {settings}}}\n"
    run = ScriptedRun(tmp_path, snapshot="always", more=side)
    run.begin_at(0)
    gaps = Gaps(run.store, NAME)
    run.store.transact([gaps.give_up("side", {"tx": 0}, "gone", "x")])
    run.store.transact([gaps.wish("side", "resume", "a test")])

    run.kill_at(CrashPoint.SINK_RESUMED)
    assert not gaps.open()
    assert not gaps.wishes()
    run.deliver_all()

    def rows(sink):
        lines = map(orjson.loads, (tmp_path / f"{sink}.jsonl").read_bytes().splitlines())
        return {event["after"]["id"] for event in lines if event["op"] == "r"}

    assert rows("side") == rows("out") != set()
    assert run.judge({"tx": 0}) == []
