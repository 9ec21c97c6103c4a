"""Silence is measured by the clock of who listens, and by nothing else."""

import pytest

from airflow_provider_deltaforge.storage.records.heartbeats import Heartbeats, LastHeard


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ear(clock):
    return Heartbeats(clock)


def look(ear, token, driver="driver", where="store/orders"):
    return ear.hear(where, driver, token, ear.now())


def test_a_first_heartbeat_may_be_old(ear):
    assert look(ear, 7) == LastHeard(0.0, is_sure=False)


def test_silence_grows_by_our_clock_until_another_heartbeat_comes(ear, clock):
    look(ear, 7)
    clock.now += 40
    assert look(ear, 7) == LastHeard(40.0, is_sure=False)
    assert look(ear, 8) == LastHeard(0.0, is_sure=True)
    clock.now += 3
    assert look(ear, 8) == LastHeard(3.0, is_sure=True)


def test_a_counter_that_goes_back_is_a_heartbeat_too(ear, clock):
    look(ear, 7)
    clock.now += 40
    assert look(ear, 2).silence_s == 0


def test_two_drivers_and_two_stores_are_distinguished(ear, clock):
    look(ear, 1)
    look(ear, 1, where="another/orders")
    clock.now += 20
    assert look(ear, 2, where="another/orders").silence_s == 0
    assert look(ear, 1).silence_s == 20
    assert look(ear, 1, driver="its successor").silence_s == 0


def test_nobody_is_silent_while_the_store_is_away(ear, clock):
    look(ear, 1)
    look(ear, 1, where="another/orders")
    clock.now += 60
    ear.forget("store/orders")
    assert look(ear, 1) == LastHeard(0.0, is_sure=False)
    assert look(ear, 1, where="another/orders").silence_s == 60


def test_a_listener_that_was_frozen_does_not_take_its_own_absence_for_the_drivers(ear, clock):
    look(ear, 1)
    asked_s = ear.now()
    clock.now += 3600  # Frozen between asking and hearing: what it holds now is an hour old.
    assert ear.hear("store/orders", "driver", 1, asked_s).silence_s == 0
    assert ear.hear("store/orders", "driver", 2, asked_s).silence_s == 0
    assert look(ear, 2).silence_s == 0


def test_what_is_remembered_is_bounded(ear):
    for number in range(10_000):
        look(ear, 1, driver=str(number))
    assert len(ear._latest) < 5_000
