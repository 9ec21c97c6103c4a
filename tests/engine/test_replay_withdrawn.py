"""A replay of dead letters that is not wanted any more while it cannot go on."""

import threading

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.render import render_stage
from airflow_provider_deltaforge.engine.replay.requests import replay_here
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.engine import exact_memory
from tests.engine.driving import Driving
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.planted import WORKS, keeping, plant, refusing
from tests.engine.running import begun, events, run_to_the_end
from tests.waiting import PATIENCE_S, wait_until

STAY = ("refused", "dropped", "overtaken", "behind", "away", "unfit")


def entries(pipeline):
    return list(DeadLetterRecords(pipeline.store, pipeline.name).read())


def test_it_is_not_waited_for_while_a_sink_is_away(monkeypatch):
    plant(monkeypatch, picky=refusing(lambda text: b'"id":1,' in text))
    picky = "{type: planted, id: picky}"
    tuning = Tuning(beat_s=0.05, cancelled_s=0.05)
    pipeline = begun(
        sinks=("out", "other"), processors=picky, journal="enabled: true", tuning=tuning
    )
    run_to_the_end(pipeline)
    before = entries(pipeline)
    monkeypatch.setitem(WORKS, "picky", keeping(lambda _: True))
    pipeline.log("other").fail_next(10**6, RetryableError("away"))
    pipeline.want("running")
    ticket = replays.request(pipeline.store, pipeline.name, DeadLetterFilter(), "send", "a test")
    driving = Driving(pipeline)
    wait_until(lambda: (told := pipeline.control.progress()) and told.status == "blocked")
    assert [event["after"]["id"] for event in events(pipeline)][-1:] == [1]
    replays.cancel(pipeline.store, pipeline.name, ticket, "changed my mind")
    wait_until(lambda: pipeline.control.read().replays == [])
    pipeline.want("stopped")
    assert driving.end().why == "stopped"

    told = replays.replay(pipeline.store, pipeline.name, ticket)
    assert (told.state, told.reason, told.sent) == ("cancelled", "changed my mind", 0)
    assert not any(getattr(told, what) for what in STAY)
    # What a sink holds already is not sent to it again by the next one.
    assert [one.meta.delivered for one in entries(pipeline)[:2]] == [["out"], []]
    assert len(entries(pipeline)) == len(before)


def test_it_is_not_waited_for_while_processors_and_encodings_do_not_open(monkeypatch):
    pipeline = begun(journal="enabled: true")
    pipeline.want("stopped")
    ticket = replays.request(pipeline.store, pipeline.name, DeadLetterFilter(), "skip", "a test")
    tried = []

    def away(rendering):
        tried.append(1)
        if len(tried) > 3:
            raise FatalError("it is tried on and on")
        replays.cancel(pipeline.store, pipeline.name, ticket, "changed my mind")
        raise RetryableError("away")

    monkeypatch.setattr(render_stage.RenderStage, "open", away)
    where, ending = pipeline.location, threading.Event()
    tuning = Tuning(cancelled_s=0.0)
    told = replay_here(pipeline.name, where, ticket, lambda *_: None, ending, tuning)
    assert (told.state, told.reason) == ("cancelled", "changed my mind")
    assert len(tried) == 1


def test_asked_to_end_it_does_not_wait_for_the_position_of_a_sink(monkeypatch):
    pipeline = exact_pipeline(monkeypatch, journal="enabled: true")
    pipeline.begin_at(out=0)
    held(pipeline).refuses = lambda value: b'"id":1,' in value
    run_to_the_end(pipeline)
    before = entries(pipeline)
    pipeline.want("stopped")
    ticket = replays.request(pipeline.store, pipeline.name, DeadLetterFilter(), "skip", "a test")
    ending, abandoned, seen = threading.Event(), threading.Event(), []

    def recover(writer):
        ending.set()
        seen.append(abandoned.wait(PATIENCE_S))
        raise RetryableError("asked to end")

    monkeypatch.setattr(exact_memory._Writer, "recover", recover)
    monkeypatch.setattr(exact_memory._Writer, "abandon", lambda _: abandoned.set(), raising=False)
    where = pipeline.location
    assert replay_here(pipeline.name, where, ticket, lambda *_: None, ending) is None
    assert seen == [True]
    assert entries(pipeline) == before
