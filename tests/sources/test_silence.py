"""A server that should speak and does not, apart from a reader that does not listen."""

import pytest

from airflow_provider_deltaforge.sources.shared.silence import ServerSilence


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def silence(clock):
    return ServerSilence(10, clock)


def look(silence, clock, seconds, *, comes=False):
    """Read for some time in short looks."""
    until = clock.now + seconds
    while clock.now < until:
        with silence.reading():
            clock.now += 1
            if comes:
                silence.heard()
            else:
                silence.nothing()


def test_a_server_is_silent_since_it_was_heard_last(silence, clock):
    look(silence, clock, 5, comes=True)
    look(silence, clock, 10)
    assert silence.for_s is None
    look(silence, clock, 5)
    assert silence.for_s == 15
    look(silence, clock, 1, comes=True)
    assert silence.for_s is None


def test_a_reader_kept_waiting_by_its_sinks_hears_nothing_and_knows_nothing(silence, clock):
    look(silence, clock, 5, comes=True)
    clock.now += 600
    assert silence.for_s is None
    look(silence, clock, 9)
    assert silence.for_s is None
    look(silence, clock, 9)
    assert silence.for_s == 18


def test_one_that_hangs_inside_a_read_waits_for_its_server(silence, clock):
    with silence.reading():
        clock.now += 60
        assert silence.for_s == 60
    look(silence, clock, 1, comes=True)
    assert silence.for_s is None


def test_a_lost_connection_is_silence_until_something_is_heard(silence, clock):
    look(silence, clock, 5, comes=True)
    silence.broke()
    clock.now += 30
    assert silence.for_s == 30
    look(silence, clock, 3)
    assert silence.for_s == 33
    silence.heard()
    assert silence.for_s is None
