"""A sink's thread ends with its lane: what it still held is never sent behind newer messages."""

import threading

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.deliver.sink_group import DeliveryRules, SinkGroup
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkBatch, SinkThread
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.message import Messages
from tests.waiting import PATIENCE_S


def messages():
    return Messages(
        topics=pa.array(["topic"]).dictionary_encode(),
        keys=pa.array([b"key"], pa.binary()),
        values=pa.array([b"value"], pa.binary()),
        headers=None,
        event_ids=pa.array([bytes(16)], pa.binary(16)),
        event_rows=pa.array([0], pa.int32()),
    )


class Watcher:
    measured = LaneMeasurements()

    def report_sink_error(self, sink_id, error):
        pass


class Away:
    """A sink and its writer in one; ``slow_open`` waits in ``open``, else in ``write``."""

    id = "away"
    holds_position = False

    def __init__(self, *, slow_open):
        self.slow_open = slow_open
        self.inside = threading.Event()
        self.back = threading.Event()
        self.closed = threading.Event()
        self.written = 0

    def open(self, pipeline):
        if self.slow_open:
            self.inside.set()
            self.back.wait(PATIENCE_S)
        return self

    def write(self, batch):
        if not self.slow_open:
            self.inside.set()
            if self.back.wait(PATIENCE_S):
                raise RetryableError("asked to end")
        self.written += 1
        return []

    def abandon(self):
        if not self.slow_open:
            self.back.set()

    def close(self):
        self.closed.set()


def end_while_away(sink):
    """Give up a batch that waits in the sink, as a lane does; close its sinks."""
    ending = threading.Event()
    group = SinkGroup([sink], "pipeline", Watcher(), ending)
    assert group.deliver({"away": SinkBatch(messages())}, DeliveryRules(sink.inside.is_set)) is None
    ending.set()
    group.close()


def test_a_write_under_way_is_abandoned_when_its_lane_ends():
    sink = Away(slow_open=False)

    end_while_away(sink)
    assert sink.closed.wait(PATIENCE_S)
    assert sink.written == 0


def test_a_sink_that_opens_after_its_lane_has_ended_sends_nothing():
    sink = Away(slow_open=True)

    end_while_away(sink)
    # Nobody waits for a connection that is still being made.
    assert not sink.closed.is_set()
    sink.back.set()
    assert sink.closed.wait(PATIENCE_S)
    assert sink.written == 0


def test_a_sink_closed_right_behind_a_batch_it_has_not_begun_lets_go(monkeypatch):
    sink = Away(slow_open=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: None)
        thread = SinkThread(sink, "pipeline", Watcher(), threading.Event())
    thread.submit(SinkBatch(messages()))
    thread.has_ended()
    thread._thread.start()
    thread._thread.join(PATIENCE_S)
    assert thread.has_ended()
    assert sink.written == 0


class Taking:
    """A sink and its writer in one, which takes everything."""

    holds_position = False

    def __init__(self, sink_id):
        self.id = sink_id
        self.written = threading.Event()

    def open(self, pipeline):
        return self

    def write(self, batch):
        self.written.set()
        return []

    def close(self):
        pass


def test_sinks_that_will_not_do_wait_for_one_that_joins():
    first, second = Taking("first"), Taking("second")
    group = SinkGroup([first, second], "pipeline", Watcher(), threading.Event())
    asked = []

    def joining():
        asked.append(first.written.is_set())
        comes = asked.count(True) == 3
        return {"second": SinkBatch(messages())} if comes else {}

    rules = DeliveryRules(lambda: False, lambda taken: len(taken) == 2, joining)
    outcomes = group.deliver({"first": SinkBatch(messages())}, rules)
    group.close()
    assert outcomes is not None
    assert set(outcomes) == {"first", "second"}


def test_nobody_is_waited_for_where_no_sink_is_given_a_batch(monkeypatch):
    group = SinkGroup([Taking("first")], "pipeline", Watcher(), threading.Event())
    monkeypatch.setattr(group._news, "wait", lambda _: pytest.fail("it waits"))

    assert group.deliver({}, DeliveryRules(lambda: False)) == {}
    group.close()
