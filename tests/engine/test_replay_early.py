"""Dead letters that are stored before a sink holds what lies in front of them."""

import threading
from collections import defaultdict

import pytest

from airflow_provider_deltaforge.control import replays
from airflow_provider_deltaforge.engine.replay.requests import replay_here
from airflow_provider_deltaforge.errors import AccessError
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)
from tests.engine import exact_memory
from tests.engine.exact_memory import exact_pipeline, held
from tests.engine.running import RunningLane, run_to_the_end

HOLDS = "enabled: true, dlq: {hold_keys: true}"


def count(pipeline):
    return DeadLetterRecords(pipeline.store, pipeline.name).count()


def refuses_the_last(pipeline):
    """Let the sink refuse the last event of row 1."""
    source = pipeline.context().pipeline.spec.source
    last = max(place[:2] for place in source.events(1, 20) if place[2] == 1)
    text = b'{"id":1,"tx":%d,"row":%d}' % last
    held(pipeline).refuses = lambda value: text in value


def takes_all(pipeline):
    held(pipeline).refuses = lambda _: False


def replayed(pipeline):
    pipeline.want("stopped")
    ticket = replays.request(pipeline.store, pipeline.name, DeadLetterFilter(), "skip", "a test")
    where, ending = pipeline.location, threading.Event()
    told = replay_here(pipeline.name, where, ticket, lambda *_: None, ending)
    return told.state, told.sent, told.away


@pytest.fixture
def killed(request, monkeypatch):
    """A pipeline that ended between the refusal of an event and the rest of its batch."""
    journal = getattr(request, "param", "enabled: true")
    pipeline = exact_pipeline(monkeypatch, journal=journal)
    pipeline.begin_at(out=0)
    refuses_the_last(pipeline)
    real = exact_memory._Writer.write_once

    def end(writer, *given):
        if count(pipeline):
            raise AccessError("as if it were killed here")
        return real(writer, *given)

    with monkeypatch.context() as patched:
        patched.setattr(exact_memory._Writer, "write_once", end)
        assert RunningLane(pipeline).end().why != "stopped"
    assert count(pipeline) == 1
    return pipeline


def test_they_are_sent_once_behind_what_is_older(killed):
    takes_all(killed)
    before = len(held(killed).ids)
    assert replayed(killed) == ("done", 0, 1)
    assert len(held(killed).ids) == before

    refuses_the_last(killed)
    killed.want("running")
    run_to_the_end(killed)
    takes_all(killed)
    assert (count(killed), len(held(killed).ids)) == (1, 59)
    assert replayed(killed) == ("done", 1, 0)
    assert len(set(held(killed).ids)) == len(held(killed).ids) == 60


def test_a_dry_run_says_what_they_wait_for(killed):
    [one] = replays.foresee(killed.store, killed.name, DeadLetterFilter(), "skip")
    assert (one.action, one.why) == (
        "away",
        "out lacks older events; let the pipeline deliver them",
    )


@pytest.mark.parametrize("killed", ["enabled: true", HOLDS], indirect=True)
def test_one_that_the_sink_takes_with_its_batch_after_all_is_not_sent_again(killed):
    takes_all(killed)
    killed.want("running")
    run_to_the_end(killed)
    assert len(held(killed).ids) == 60
    [one] = replays.foresee(killed.store, killed.name, DeadLetterFilter(), "skip")
    assert (one.action, one.why) == ("overtaken", "out has this event or a newer one of its row")
    assert replayed(killed) == ("done", 0, 0)
    assert len(held(killed).ids) == 60


@pytest.mark.parametrize("ahead", [{}, {"main": 20}], ids=["with the lane", "behind it"])
def test_what_is_held_beside_a_refusal_has_overtaken_nothing(ahead, monkeypatch):
    sinks = {"sinks": (*ahead, "out"), "optional": ("out",) if ahead else ()}
    pipeline = exact_pipeline(monkeypatch, journal=HOLDS, batch="max_bytes: 500, ", **sinks)
    pipeline.begin_at(out=0, **ahead)
    rows = defaultdict(list)
    for tx, row, key in pipeline.context().pipeline.spec.source.events(1, 20):
        rows[key].append(b'{"id":%d,"tx":%d,"row":%d}' % (key, tx, row))
    refused = [rows[key][0 if key <= 10 else -1] for key in range(1, 21)]
    held(pipeline).refuses = lambda value: any(text in value for text in refused)
    run_to_the_end(pipeline)
    takes_all(pipeline)
    letters = list(DeadLetterRecords(pipeline.store, pipeline.name).read())
    assert [letter.meta.overtaken for letter in letters] == [[]] * 30
    assert replayed(pipeline) == ("done", 30, 0)
    values = [value for _, value in held(pipeline).values]
    for texts in rows.values():
        assert [text for value in values for text in texts if text in value] == texts
