"""Rendering ahead, and where it is left to the sink's own thread."""

import threading

import pytest

from airflow_provider_deltaforge.encodings.contract import UnaskedError
from airflow_provider_deltaforge.engine.render.render_queue import RenderQueue
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sinks.memory import MemorySink
from tests.envelopes.changes import ORIGIN
from tests.waiting import PATIENCE_S


class Busy:
    """A lock that says when somebody is about to wait for it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.asked = threading.Event()

    def acquire(self, blocking=True, timeout=-1):
        self.asked.set()
        return self._lock.acquire(blocking, timeout)

    def release(self):
        self._lock.release()

    def __enter__(self):
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


class Numbers:
    """Renders numbers: the first not at once, the second slowly."""

    def __init__(self):
        self.busy = Busy()
        self.away = True
        self.slow = threading.Event()

    def render(self, number, *, asks):
        if number == 1 and self.away:
            raise RetryableError("away")
        if number == 2:
            self.slow.set()
            assert self.busy.asked.wait(PATIENCE_S)
        return number, []


def test_what_follows_is_rendered_ahead_again_although_the_sink_is_at_the_batch_before():
    renderer = Numbers()
    queue = RenderQueue(renderer, PATIENCE_S)
    first, second = queue.ahead(1, wanted=True), queue.ahead(2, wanted=True)
    with pytest.raises(RetryableError, match="away"):
        first.make()
    renderer.away = False
    first.make()
    assert (first.made, second.made) == ((1, []), None)
    renderer.busy.asked.clear()
    thread = threading.Thread(target=second.make)
    thread.start()
    assert renderer.slow.wait(PATIENCE_S)
    third = queue.ahead(3, wanted=True)
    renderer.busy.asked.set()
    thread.join(PATIENCE_S)
    assert (second.made, third.made) == ((2, []), (3, []))


class Asking:
    """Renders numbers for which a server has to be asked once."""

    def __init__(self):
        self.busy = threading.Lock()
        self.knows = False

    def render(self, number, *, asks):
        if not (asks or self.knows):
            raise UnaskedError("not known yet")
        self.knows = True
        return number, []


def test_a_server_is_asked_by_the_sinks_thread_alone_which_is_no_trouble():
    queue = RenderQueue(Asking())
    first, second = queue.ahead(1, wanted=True), queue.ahead(2, wanted=True)
    assert (first.made, second.made) == (None, None)
    first.make()
    third = queue.ahead(3, wanted=True)
    assert [one.made for one in (first, second, third)] == [(1, []), (2, []), (3, [])]


def test_nothing_is_opened_again_for_a_lane_that_has_ended():
    renderer = Renderer(MemorySink(), ORIGIN)
    renderer.open()
    renderer.close()
    with pytest.raises(RetryableError, match="lane ended"):
        renderer.open()
