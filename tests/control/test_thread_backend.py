"""Drivers as threads of one process: found, ended and given up without touching each other."""

import logging
import os
import threading
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control.fleet_keeper import is_gone
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import JobState, LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.threads import NAME, SCRIPT, ThreadBackend
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage.distress import Distress, write
from airflow_provider_deltaforge.telemetry import logs
from tests.waiting import wait_until


@pytest.fixture
def process(tmp_path):
    """A process whose drivers wait until they are asked to leave, or as long as they like."""
    holding = threading.Event()
    logs.configure({"process": "whole"})

    def drive(job, leaving):
        logging.getLogger("airflow_provider_deltaforge.test").warning("here")
        if job.pipeline == "hangs":
            holding.wait()
            return 0
        if job.pipeline == "breaks":
            raise ValueError("password=hidden-4711")
        leaving.wait()
        return 0

    yield ThreadBackend(tmp_path, drive, term_grace_s=0.2)
    holding.set()


def job(name, generation=1):
    return LaunchSpec(name, generation, SCRIPT, "sqlite:////nowhere/state.db")


def other_process(tmp_path):
    """What another process of this machine finds of the drivers."""
    return replace(LaunchBackends(LocalBackend(tmp_path)), chosen=NAME)


def test_a_driver_is_found_by_others_and_ends_alone(process, tmp_path):
    first, second = process.submit(job("one")), process.submit(job("two"))
    assert process.submit(job("one")) == first
    finder = other_process(tmp_path)
    assert finder.status(first).state is JobState.RUNNING
    finder.stop(first, 0.0)
    assert (finder.status(first).state, finder.status(first).exit_code) == (JobState.ENDED, 0)
    assert finder.status(second).state is JobState.RUNNING
    process.leave(10)
    assert finder.status(second).state is JobState.ENDED


def test_no_process_is_ended_for_a_driver_that_hangs(process, tmp_path):
    hanging = process.submit(job("hangs"))
    finder = ThreadBackend(tmp_path, term_grace_s=0.1)
    with pytest.raises(RetryableError, match="the other pipelines would end with it"):
        finder.stop(hanging, 0.0)
    assert finder.status(hanging).state is JobState.RUNNING


def test_one_that_hangs_is_given_up_and_may_have_a_successor(process):
    hanging = process.submit(job("hangs"))
    process.stop(hanging, 0.0)
    assert process.status(hanging).state is JobState.ENDED
    again = process.submit(job("hangs"))
    assert process.status(again).state is JobState.RUNNING
    process.stop(again, 0.0)


def test_an_error_ends_its_own_driver_only(process):
    flowing = process.submit(job("one"))
    broken = process.submit(job("breaks"))
    wait_until(lambda: process.status(broken).state is JobState.ENDED)
    assert process.status(broken).exit_code == 3
    log = process.logs_tail(broken)
    assert "ValueError" in log
    assert "hidden-4711" not in log
    assert process.status(flowing).state is JobState.RUNNING


def test_each_driver_has_its_own_log_and_says_its_own_distress(process, tmp_path):
    logs.configure({"process": "whole"})

    def drive(job, leaving):
        def beneath():
            logging.getLogger("airflow_provider_deltaforge.test").warning("of %s", job.pipeline)
            if job.pipeline == "one":
                write(Distress("the disk is full", 1))

        thread = threading.Thread(target=beneath)
        thread.start()
        thread.join()
        leaving.wait()
        return 0

    drivers = ThreadBackend(tmp_path, drive, term_grace_s=5)
    one, two = (drivers.submit(job(name)) for name in ("one", "two"))
    wait_until(lambda: "of two" in drivers.logs_tail(two) and "of one" in drivers.logs_tail(one))
    assert "of two" not in drivers.logs_tail(one)
    assert "pipeline=one" in drivers.logs_tail(one)
    wait_until(lambda: drivers.status(one).distress is not None)
    assert drivers.status(one).distress.reason == "the disk is full"
    assert drivers.status(two).distress is None
    drivers.leave(10)


def test_a_process_that_runs_none_says_so(tmp_path):
    with pytest.raises(SpecError, match="deltaforge fleet"):
        ThreadBackend(tmp_path).submit(job("one"))


def test_whether_an_owner_is_gone_is_known_of_this_machine_only(monkeypatch):
    here = os.uname().nodename
    own = f"fleet:{here}:{os.getpid()}:aaaaaaaa"
    assert not is_gone(f"fleet:{here}:{os.getppid()}:bbbbbbbb", own)
    assert is_gone(f"fleet:{here}:{2**22 + 7}:bbbbbbbb", own)
    assert is_gone(f"fleet:{here}:{os.getpid()}:bbbbbbbb", own), "of a container begun again"
    assert not is_gone(f"fleet:elsewhere:{2**22 + 7}:bbbbbbbb", own)
    assert not is_gone("airflow:dag/task/run/-1#1@abc", own)
    assert not is_gone(None, own)
