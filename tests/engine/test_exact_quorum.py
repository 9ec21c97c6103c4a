"""A quorum of sinks that hold the position themselves, with one of them caught up beside it."""

import pytest

from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from tests.engine.exact_memory import change, exact_pipeline, held
from tests.engine.running import RunningLane
from tests.waiting import wait_until

TRANSACTIONS = 40
AWAY = [0] * 10**5


@pytest.fixture
def quorum(monkeypatch):
    """Return a pipeline of two sinks of three, whose batches end inside transactions.

    ``three`` is behind, and ``two`` goes away behind the first part of a transaction.
    """
    pipeline = exact_pipeline(
        monkeypatch,
        transactions=TRANSACTIONS,
        rows=20,
        sinks=("one", "two", "three"),
        policy="commit_policy: {mode: quorum, quorum: 2}",
        batch="respect_source_tx: false, ",
    )
    change(pipeline, "max_events: 30", "max_events: 5")
    pipeline.begin_at(one=10, two=10, three=0)
    held(pipeline, "three").fail_after = AWAY
    held(pipeline, "two").fail_after = [None, *AWAY]
    running = RunningLane(pipeline)
    wait_until(lambda: pipeline.status()[0] == "blocked")
    return pipeline, running


def come_back(quorum, *sinks):
    """Let sinks come back, and look at what all of them hold in the end."""
    pipeline, running = quorum
    for sink in sinks:
        held(pipeline, sink).fail_after = []
    for sink in ("one", "two", "three"):
        wait_until(lambda s=sink: pipeline.checkpoints().load()[s] == {"tx": TRANSACTIONS})
    pipeline.want("stopped")
    assert running.end().why == "stopped"
    source, log = ScriptedSource(id=f"{pipeline.name}-source"), range(1, TRANSACTIONS + 1)
    every = [source.event_id(tx, row) for tx in log for row in range(20)]
    assert held(pipeline, "three").ids == every
    assert held(pipeline, "one").ids == held(pipeline, "two").ids == every[10 * 20 :]


def test_a_quorum_with_one_that_is_caught_up_goes_on_inside_a_transaction(quorum):
    """It cannot join there, where it holds all of the transaction and the lane a part."""
    pipeline, _ = quorum
    held(pipeline, "three").fail_after = []
    for sink in ("one", "three"):
        wait_until(lambda s=sink: pipeline.checkpoints().load()[s] == {"tx": TRANSACTIONS})
    come_back(quorum, "two")


def test_a_quorum_that_waits_for_sinks_that_are_behind_is_blocked_by_them(quorum):
    pipeline, _ = quorum
    held(pipeline, "three").fail_after = [None] * 100 + AWAY
    waits = "sink three, two: behind, and commit_policy waits until enough of them have caught up"
    wait_until(lambda: (pipeline.control.progress().reason or "").startswith(waits))
    progress = pipeline.control.progress()
    assert (progress.status, progress.error_class) == ("blocked", "retryable")
    assert progress.reason.endswith("(three: away; two: away)")
    come_back(quorum, "two", "three")
