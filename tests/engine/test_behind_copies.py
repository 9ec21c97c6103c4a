"""What else a sink that is behind concerns: copies, dead letters, and who holds the position."""

import threading
import time

import orjson
import pytest

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.engine.catch_up.start_positions import lagging
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.engine.driving import Driving
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.engine.lagging import AWAY, ROWS, at, delivered, end, pipeline, stood, whole
from tests.engine.running import RunningLane, run_to_the_end
from tests.waiting import wait_until


def test_a_copy_waits_until_the_sink_that_is_behind_has_joined():
    made = pipeline()
    made.log("side").fail_next(10**6, AWAY)
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "behind")
    state = made.request_copy()
    here = at(made, "main")
    wait_until(lambda: at(made, "main") > here + 400)
    told = status(made.store, made.name)
    assert told.reason == (
        "degraded, sink side behind (away); a snapshot waits until it has caught up"
    )
    assert lagging(made.store, load(made.document)) == ["side"]
    made.log("side").heal()
    wait_until(lambda: state().settled)
    end(made, running)
    assert state().state == "done"
    assert lagging(made.store, load(made.document)) == []
    assert whole(made, "side", at(made, "side")) == []


def test_an_optional_sink_that_goes_away_in_a_copy_holds_up_the_copy_and_not_the_log():
    made = pipeline(keys=2000)
    driving = Driving(made)
    wait_until(lambda: at(made, "main") > 0)
    state = made.request_copy()
    wait_until(lambda: state().rows > 0)
    made.log("side").fail_next(10**6, AWAY)
    wait_until(lambda: stood(made, "side") == "behind")
    here = at(made, "main")
    wait_until(lambda: at(made, "main") > here + 400)
    assert not state().settled
    made.log("side").heal()
    wait_until(lambda: state().settled)
    made.want("stopped")
    driving.end()

    assert state().state == "done"
    for sink in ("main", "side"):
        last = {}
        for message in made.log(sink).messages():
            event = orjson.loads(message.value)
            number = (event["after"]["tx"], event["after"]["row"])
            assert number >= last.get(event["after"]["id"], (0, 0))
            last[event["after"]["id"]] = number


def test_a_copy_is_made_without_a_sink_that_was_given_up():
    made = pipeline(source="", transactions=40, snapshot="initial")
    made.store.transact([Gaps(made.store, made.name).give_up("side", {"tx": 0}, "gone", "x")])
    made.begin_at(main=40)
    made.log("side").fail_next(10**6, AWAY)
    state = made.request_copy()
    driving = Driving(made)
    wait_until(lambda: state().settled)
    made.want("stopped")
    driving.end()
    assert state().state == "done"
    assert (bool(delivered(made, "main")), delivered(made, "side")) == (True, [])


@pytest.mark.parametrize("batch", ["", "respect_source_tx: false, "], ids=["whole", "in parts"])
def test_a_sink_that_holds_the_position_is_caught_up_with_nothing_given_twice(
    monkeypatch, caplog, batch
):
    rows = 7 if batch else ROWS
    settings = {"rows": rows, "transactions": 600, "sinks": ("main", "side"), "batch": batch}
    growing = f"rate: 200, started_ms: {int(time.time() * 1000)}, "
    made = exact_pipeline(monkeypatch, optional=("side",), source=growing, **settings)
    made.begin_at(main=0, side=0)
    held(made, "side").fail_after = [0] * 4
    caplog.set_level("INFO")
    running = RunningLane(made)
    # It is behind for less than a second, and its status is stored about once in one.
    wait_until(lambda: "sink side has caught up" in caplog.text)
    wait_until(lambda: at(made, "side") == at(made, "main") == 600)
    end(made, running)
    for sink in made.sinks:
        assert len(held(made, sink).ids) == 600 * rows
        assert len(set(held(made, sink).ids)) == 600 * rows
    assert held(made, "side").ids == held(made, "main").ids


def test_a_store_that_is_away_as_the_sink_takes_its_batch_has_nothing_given_twice(monkeypatch):
    settings = {"sinks": ("main", "side"), "optional": ("side",)}
    made = exact_pipeline(monkeypatch, transactions=60, rows=ROWS, **settings)
    made.begin_at(main=0, side=0)
    held(made, "side").fail_after = [0] * 2
    load, failed = Checkpoints.load, []

    def away_for_a_moment(checkpoints):
        if threading.current_thread().name == "behind-side" and len(failed) < 2:
            failed.append(1)
            raise AWAY
        return load(checkpoints)

    monkeypatch.setattr(Checkpoints, "load", away_for_a_moment)
    running = RunningLane(made)
    wait_until(lambda: at(made, "side") == at(made, "main") == 60)
    end(made, running)
    assert failed
    assert held(made, "side").ids == held(made, "main").ids
    assert len(set(held(made, "side").ids)) == len(held(made, "side").ids)


def test_what_is_refused_of_a_sink_that_is_caught_up_does_not_count_as_delivered(monkeypatch):
    settings = {"sinks": ("main", "side"), "optional": ("side",), "journal": "enabled: true"}
    made = exact_pipeline(monkeypatch, transactions=60, rows=ROWS, **settings)
    made.begin_at(main=60, side=0)
    held(made, "side").refuses = lambda value: b'"row":1' in value
    running = RunningLane(made)
    wait_until(lambda: stood(made, "side") == "running" and at(made, "side") == 60)
    end(made, running)
    assert len(held(made, "side").ids) == 60
    assert made.control.progress().sinks["side"].events == 60


def test_a_batch_that_is_tried_again_overtakes_dead_letters_as_any_other():
    made = pipeline(transactions=20, source="", journal="enabled: true")
    source = made.context().pipeline.spec.source
    last = {key: (tx, row) for tx, row, key in source.events(1, 20)}
    key = next(key for _, _, key in source.events(21, 30) if key in last)
    refused = b'{"id":%d,"tx":%d,"row":%d}' % (key, *last[key])
    made.log("side").refuses = lambda value: refused in value
    run_to_the_end(made, 20)
    queue = DeadLetterRecords(made.store, made.name)
    assert [letter.meta.overtaken for letter in queue.read()] == [[]]

    change(made, "transactions: 20", "transactions: 30")
    made.log("side").fail_next(2, AWAY)
    run_to_the_end(made, 30)
    assert [letter.meta.overtaken for letter in queue.read()] == [["side"]]
