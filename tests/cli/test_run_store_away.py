"""``deltaforge run`` decides nothing while the state store is away, and stays."""

import threading

from airflow_provider_deltaforge.cli import run
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.supervise import RETRYABLE, RestartDecision
from airflow_provider_deltaforge.engine.driver import local
from airflow_provider_deltaforge.errors import RetryableError

DSN = "memory://away"


def away_first(answer):
    """Return a call that finds the store away once, and then answers."""
    answers = iter([RetryableError("the store is away"), answer])

    def call(*_):
        told = next(answers)
        if isinstance(told, Exception):
            raise told
        return told

    return call


def test_a_standby_waits_for_the_store_as_for_the_driver(monkeypatch):
    monkeypatch.setattr(run.starting, "holder", away_first(None))
    assert run._wait_for_turn(None, "orders", None, threading.Event())


def test_a_standby_that_is_asked_to_leave_does_not_wait_for_the_store(monkeypatch):
    stopping = threading.Event()

    def away(*_):
        stopping.set()
        raise RetryableError("the store is away")

    monkeypatch.setattr(run.starting, "holder", away)
    assert not run._wait_for_turn(None, "orders", None, stopping)


def test_a_driver_in_this_process_that_the_store_ended_is_judged_when_it_is_back(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(run.starting, "take_generation", lambda *_, **__: 1)
    monkeypatch.setattr(local, "run_local", lambda *_: RETRYABLE)
    given_up = RestartDecision("give_up", "enough")
    monkeypatch.setattr(run, "settle", away_first(given_up))
    backend = LaunchBackends(LocalBackend(tmp_path))
    assert run._run_lane(None, DSN, "orders", backend, threading.Event()) == given_up
