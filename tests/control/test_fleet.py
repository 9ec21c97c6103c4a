"""Many pipelines kept by one process: what it does when a start, a driver or it itself fails."""

import errno
import os
import signal
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.fleet import Fleet
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT, job_of, wait_until


class _Full:
    """A backend that has no room for the first few drivers."""

    def __init__(self, backend, refusals):
        self._backend = backend
        self.refusals = refusals

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def submit(self, job):
        if self.refusals:
            self.refusals -= 1
            raise RetryableError("no room for a driver")
        return self._backend.submit(job)


class _Lacking:
    """A backend that once has no file descriptor left: at its second call of a kind."""

    def __init__(self, backend, call):
        self._backend, self._call, self.calls = backend, call, 0

    def __getattr__(self, name):
        real = getattr(self._backend, name)
        if name != self._call:
            return real

        def call(*args):
            self.calls += 1
            if self.calls == 2:
                raise OSError(errno.EMFILE, "too many open files")
            return real(*args)

        return call


class _RefusedOnce:
    """The address of a store that refuses once to be opened."""

    def __init__(self, location):
        self._location, self.refused = location, False

    def __getattr__(self, name):
        return getattr(self._location, name)

    def open(self):
        if not self.refused:
            self.refused = True
            raise AccessError("too many open files")
        return self._location.open()


@pytest.fixture
def fleet(dsn, store, backend):
    made = []

    def fleet(backend=backend, behaviour="run", location=None):
        job = LaunchSpec("", 0, "stream_job.py", dsn, environment={"FAKE_DRIVER": behaviour})
        made.append(Fleet(location or StoreLocation.from_dsn(dsn), backend, job))
        return made[-1]

    pipelines.apply(store, DOCUMENT)
    yield fleet
    for each in made:
        each.close(5)


def test_a_driver_for_which_there_was_no_room_is_started_when_there_is(fleet, store, backend):
    kept = fleet(_Full(backend, 2))
    with pytest.raises(RetryableError, match="no room"):
        kept.start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "running")


def test_one_that_was_stopped_meanwhile_is_not(fleet, store, backend):
    full = _Full(backend, 10**9)
    with pytest.raises(RetryableError):
        fleet(full).start(store, "orders")
    generation = Control(store, "orders").read().generation
    pipelines.ask_to_stop(store, "orders")
    full.refusals = 0
    with pytest.raises(AssertionError):
        wait_until(lambda: status(store, "orders", backend).alive, 5)
    assert Control(store, "orders").read().generation == generation


def test_a_driver_that_failed_for_good_is_left_and_may_be_started_again(fleet, store, backend):
    kept = fleet(behaviour="fail:position_lost")
    kept.start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "failed")
    assert status(store, "orders", backend).restarts == 0
    fleet().start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "running")


def test_a_driver_is_watched_although_the_store_could_not_be_opened_for_a_moment(fleet, store, dsn):
    location = _RefusedOnce(StoreLocation.from_dsn(dsn))
    kept = fleet(behaviour="fail:position_lost", location=location)
    kept.start(store, "orders")
    wait_until(lambda: kept.given_up() == ["orders"])
    assert location.refused


@pytest.mark.parametrize("call", ["status", "submit"])
def test_a_machine_that_lacks_something_for_a_moment_ends_no_supervision(
    fleet, store, backend, call
):
    lacking = _Lacking(backend, call)
    fleet(LaunchBackends(lacking)).start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    wait_until(lambda: call == "submit" or lacking.calls > 2)
    os.killpg(Control(store, "orders").read().handle["pid"], signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).restarts == 1)
    wait_until(lambda: status(store, "orders", backend).status == "running")


def test_of_two_fleets_the_one_that_came_last_keeps_the_pipeline(fleet, store, backend):
    first, second = fleet(), fleet()
    began = first.start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    adopted = second.start(store, "orders")
    assert (adopted.adopted, adopted.generation) == (True, began.generation)
    assert first.close(5) == []
    assert status(store, "orders", backend).alive, "ended by a fleet that had lost it"
    assert second.close(5) == []
    assert not status(store, "orders", backend).alive


def test_a_fleet_begins_with_what_a_former_one_kept_and_with_nothing_else(fleet, store, backend):
    pipelines.apply(store, DOCUMENT.replace("orders", "others").replace("shop-db", "other-db"))
    first = fleet(replace(backend, term_grace_s=2))
    first.start(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    first.close(5)

    second = fleet()
    assert second.start_wanted(store) == ["orders"]
    wait_until(lambda: status(store, "orders", backend).status == "running")
    assert status(store, "others", backend).status == "pending"


def test_a_driver_that_has_failed_and_is_not_gone_yet_is_not_adopted(store, backend, dsn):
    pipelines.apply(store, DOCUMENT)
    first = start(store, job_of(dsn, "fails_slowly"), backend, "first")
    wait_until(lambda: status(store, "orders", backend).status == "failed")
    assert backend.status(first.handle).state is JobState.RUNNING

    second = start(store, job_of(dsn), backend, "second", grace_s=0)
    assert (second.adopted, second.generation) == (False, first.generation + 1)
    wait_until(lambda: status(store, "orders", backend).status == "running")
