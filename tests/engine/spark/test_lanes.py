"""When the streaming query begins another window."""

import os
import queue
import socket
import threading

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.crash_points import (
    HOLD_VARIABLE,
    CrashPoint,
    arm,
    reach,
)
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.lanes import WindowGate, run_lane
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.spec.variables import INLINE_PREFIX
from airflow_provider_deltaforge.storage.memory import MemoryStore
from tests.engine.in_process import DRIVER, InProcess
from tests.waiting import wait_for


@pytest.fixture
def pipeline():
    made = InProcess()
    made.control.take_epoch(DRIVER)
    return made


def _job(pipeline):
    return DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1)


@pytest.fixture
def gate(pipeline):
    return WindowGate(pipeline.location, threading.Event())


@pytest.mark.parametrize("asked", ["paused", "stopped"])
def test_what_is_asked_for_between_two_windows_comes_with_one_more(pipeline, gate, asked):
    assert gate.passes()
    pipeline.want(asked)
    assert gate.passes()

    assert run_lane(_job(pipeline), 60).why == asked

    assert pipeline.control.progress().status == asked


def test_the_query_of_a_pipeline_that_went_over_to_another_ends_with_its_next_window(
    pipeline, gate
):
    pipeline.control.update(lambda old: old.model_copy(update={"generation": 2}))
    assert gate.passes()
    assert run_lane(_job(pipeline), 60).why in ("superseded", "fenced")


@pytest.mark.parametrize("error", [RetryableError("away"), ValueError("a slip")])
def test_a_lane_that_failed_says_so_and_another_query_begins_again(
    pipeline, gate, monkeypatch, error
):
    def fails(*_):
        raise error

    monkeypatch.setattr(Delivery, "begin", fails)
    assert run_lane(_job(pipeline), 60).why == "failed"
    assert gate.passes()


def test_while_the_store_is_away_no_window_begins_and_no_query_ends(pipeline, gate, monkeypatch):
    tried, passed = threading.Event(), queue.SimpleQueue()

    def away(*_):
        tried.set()
        raise RetryableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "get", away)
        waiting = threading.Thread(target=lambda: passed.put(gate.passes()))
        waiting.start()
        assert tried.wait(10)
        assert passed.empty()
    assert passed.get(timeout=10)
    waiting.join()


def test_a_query_that_is_over_waits_for_no_store(pipeline, monkeypatch):
    over = threading.Event()

    def away(*_):
        over.set()
        raise RetryableError("the store is away")

    monkeypatch.setattr(MemoryStore, "get", away)
    assert not WindowGate(pipeline.location, over).passes()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The file that says where processes are held, read by this one already."""
    path = tmp_path / "asked"
    path.write_text("")
    monkeypatch.setenv(HOLD_VARIABLE, f"@{path}")
    arm()
    yield path
    path.write_text("")
    arm()


def test_a_worker_that_gets_a_lane_is_held_where_that_is_asked_for_then(pipeline, asked, tmp_path):
    held = tmp_path / "held"
    asked.write_text(f"source_acknowledged:1:{held}")
    pipeline.want("stopped")
    run_lane(_job(pipeline), 60)

    reaching = threading.Thread(target=reach, args=(CrashPoint.SOURCE_ACKNOWLEDGED,))
    reaching.start()
    wait_for("the hold", lambda: held.exists() and held.read_text() == str(os.getpid()))
    held.write_text("go")
    reaching.join(60)
    assert not reaching.is_alive()


def test_a_lane_that_cannot_even_be_made_ends_with_its_class(pipeline, monkeypatch):
    def refuse(self, *_):
        raise SpecError("sinks: no such field")

    monkeypatch.setattr(Lane, "__init__", refuse)
    outcome = run_lane(_job(pipeline), 60)
    assert (outcome.why, outcome.error_class) == ("failed", "spec")


@pytest.fixture
def elsewhere(pipeline, monkeypatch):
    """Return the job of a document with a secret in it, where only its driver has the secret."""
    sink = "type: redis, config: {id: r, uri: 'redis://:s3cret@127.0.0.1:9/0', stream: s}"
    text = pipeline.document.replace("  sinks:\n", f"  sinks:\n    - {{{sink}}}\n")
    pipelines.apply(pipeline.store, text)
    for name in [name for name in os.environ if name.startswith(INLINE_PREFIX)]:
        monkeypatch.delenv(name)
    return DriverAssignment(pipeline.control.document(), pipeline.location, DRIVER, 1, "app-1")


@pytest.mark.parametrize("work", ["lane", "copy"])
def test_an_executor_without_the_drivers_variables_says_what_helps(elsewhere, work):
    if work == "lane":
        outcome = run_lane(elsewhere, 60)
    else:
        [copied] = runner.copy_on_executor(elsewhere, "run", [[]])
        outcome = copied.outcome

    assert outcome.error_class == "spec"
    assert socket.gethostname() in outcome.reason
    assert "the environment of its Spark worker" in outcome.reason
    assert "write ${NAME}" in outcome.reason
    assert "sinks[0].config.uri" in outcome.reason
    assert "s3cret" not in outcome.reason
