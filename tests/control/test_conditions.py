import json
import os
import signal

import pytest

from airflow_provider_deltaforge.control import conditions, pipelines
from airflow_provider_deltaforge.control.conditions import look
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT, wait_until

TWO_SINKS = (
    DOCUMENT
    + """
    - type: file
      config: {id: more, path: "${OUTPUT}/more-${source.table}.jsonl"}
"""
)


@pytest.fixture
def applied(store):
    pipelines.apply(store, TWO_SINKS)
    return store


def checkpoint(store, **held):
    checkpoints = Checkpoints(store, "orders", "shop-db")
    store.transact([checkpoints.put(sink, {"tx": tx}) for sink, tx in held.items()])


def test_a_pipeline_that_is_not_there_may_still_come(store):
    answer = look(store, "orders", conditions.snapshot_finished())

    assert answer.met is False
    assert "no pipeline 'orders' yet" in answer.words


def test_every_sink_must_hold_the_position(applied):
    asked = conditions.checkpoint_past({"tx": 5})
    seen = []
    for held in ({}, {"files": 5}, {"more": 4}, {"more": 5}):
        checkpoint(applied, **held)
        answer = look(applied, "orders", asked)
        seen.append((answer.met, answer.words))

    assert seen == [
        (False, "behind the position: files, more"),
        (False, "behind the position: more"),
        (False, "behind the position: more"),
        (True, "the position is durable"),
    ]


def test_one_sink_is_enough_when_it_is_named(applied):
    checkpoint(applied, files=7)

    assert look(applied, "orders", conditions.checkpoint_past({"tx": 7}, "files")).met is True
    assert look(applied, "orders", conditions.checkpoint_past({"tx": 8}, "files")).met is False


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        pytest.param(
            conditions.checkpoint_past({"tx": 7}, "flies"), "no sink 'flies'", id="unknown sink"
        ),
        pytest.param(
            conditions.checkpoint_past({"pos": 7}), "not a position of this source", id="position"
        ),
    ],
)
def test_what_can_never_hold_is_reported_at_once(applied, asked, told):
    checkpoint(applied, files=7)
    answer = look(applied, "orders", asked)

    assert answer.met is None
    assert told in answer.words


def test_the_lag_counts_only_while_the_stream_runs(running, backend):
    assert look(running, "orders", conditions.lag_below(13), backend).met is True
    assert look(running, "orders", conditions.lag_below(12), backend).met is False

    os.killpg(Control(running, "orders").read().handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(running, "orders", backend).status == "lost")

    answer = look(running, "orders", conditions.lag_below(13), backend)
    assert answer.met is False
    assert answer.words.startswith("lost")


def test_a_failing_status_ends_the_waiting(running, backend):
    asked = conditions.status_in(("paused",), ("running",))

    assert look(running, "orders", asked, backend).met is None


def test_a_wish_that_somebody_changed_ends_the_waiting(running, backend):
    answer = look(running, "orders", conditions.status_in(("paused",), desired="paused"), backend)

    assert (answer.met, answer.words) == (None, "somebody asked for 'running' meanwhile")


def test_at_rest_means_that_nothing_of_the_driver_lives(running, backend):
    pipelines.ask_to_stop(running, "orders")
    wait_until(lambda: look(running, "orders", conditions.at_rest(), backend).met)

    assert not pipelines.existing(running, "orders").alive()
    assert look(running, "orders", conditions.at_rest(), backend).value["status"] == "stopped"


def test_a_status_that_does_not_exist_is_refused():
    with pytest.raises(SpecError, match="no status is called runing"):
        conditions.status_in(("runing",))


def test_the_head_is_asked_from_the_source_in_the_document(applied):
    assert conditions.head_of(applied, "orders", {"OUTPUT": "/nowhere"}) == {"tx": 10}


@pytest.mark.parametrize(
    "condition",
    [
        conditions.snapshot_finished(),
        conditions.lag_below(1.5),
        conditions.checkpoint_past({"file": "b.1", "pos": 4}, "files"),
        conditions.status_in(("running",), ("failed",), "running"),
        conditions.at_rest(),
    ],
)
def test_conditions_are_plain_data(condition):
    assert json.loads(json.dumps(condition)) == condition
