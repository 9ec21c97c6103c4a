"""Somebody stops, leaves or is killed between two steps of somebody else."""

import contextlib
import os
import signal

import pytest

from airflow_provider_deltaforge.control import pipelines, starting
from airflow_provider_deltaforge.control.attend import Attendance, attend
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import (
    RETRYABLE,
    DriverExit,
    RestartBudget,
    judge,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.control.bench import DOCUMENT, job_of, wait_until


@pytest.fixture
def died(store, dsn, backend):
    """Return the job of a pipeline whose driver just ended with 3."""
    pipelines.apply(store, DOCUMENT)
    started = starting.start(store, job_of(dsn, "exit:3"), backend, "me")
    wait_until(lambda: backend.status(started.handle).state is JobState.ENDED)
    job = job_of(dsn)
    return type(job)(job.pipeline, started.generation, job.script, job.store)


def test_a_pipeline_stopped_during_the_backoff_is_not_started_again(store, backend, died):
    pipelines.stop(store, "orders", backend)
    assert starting.restart(store, died, backend, "me") is None
    record = Control(store, "orders").read()
    assert backend.status(record.handle).state is JobState.ENDED
    assert (record.desired, record.restarts) == ("stopped", [])


def test_a_supervisor_that_leaves_during_the_backoff_starts_nothing(store, backend, died):
    leaving = []
    task = Attendance(store, backend, died, "me", RestartBudget(wait_s=60))
    attend(
        task,
        stopping=lambda: bool(leaving),
        changed=lambda _: None,
        sleep=leaving.append,
    )
    record = Control(store, "orders").read()
    assert backend.status(record.handle).state is JobState.ENDED
    assert record.restarts == []


class _Killed(BaseException):
    pass


class _Dying:
    """A store whose process is killed before its write number ``left`` + 1."""

    def __init__(self, store, left):
        self._store, self._left = store, left

    def __getattr__(self, name):
        real = getattr(self._store, name)
        if name not in ("put", "delete", "swap", "transact"):
            return real

        def write(*args, **kwargs):
            if self._left == 0:
                raise _Killed
            self._left -= 1
            return real(*args, **kwargs)

        return write


@pytest.mark.parametrize("writes", range(3))
def test_a_reset_that_is_killed_never_keeps_the_snapshot_without_its_positions(store, writes):
    pipelines.apply(store, DOCUMENT)
    checkpoint = Checkpoints(store, "orders", "shop-db").put("files", {"tx": 1})
    store.transact([checkpoint, Put(names.SNAPSHOTS, "orders/initial", b"{}")])
    with contextlib.suppress(_Killed):
        pipelines.reset_checkpoint(_Dying(store, writes), "orders", confirm="orders")
    kept = [len(store.items(name, "orders/")) for name in (names.CHECKPOINTS, names.SNAPSHOTS)]
    assert kept in ([1, 1], [0, 0])
    pipelines.reset_checkpoint(store, "orders", confirm="orders")
    assert store.items(names.SNAPSHOTS, "orders/") == []


def test_a_reset_forgets_what_a_driver_writes_at_the_last_moment(store, monkeypatch):
    pipelines.apply(store, DOCUMENT)
    pipelines.ask_to_stop(store, "orders")
    take, checkpoints = Control.take_epoch, Checkpoints(store, "orders", "shop-db")

    def written_just_before(*told):
        store.transact([checkpoints.put("files", {"tx": 1})])
        return take(*told)

    monkeypatch.setattr(Control, "take_epoch", written_just_before)
    pipelines.reset_checkpoint(store, "orders", confirm="orders")

    assert checkpoints.load() == {}


def test_a_reset_waits_for_a_driver_that_just_spoke_unless_it_is_known_to_be_gone(
    store, dsn, backend
):
    pipelines.apply(store, DOCUMENT)
    started = starting.start(store, job_of(dsn, "deaf"), backend, "me")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": 1})])
    pipelines.ask_to_stop(store, "orders")
    with pytest.raises(RetryableError, match="then reset again"):
        pipelines.reset_checkpoint(store, "orders", confirm="orders", backend=backend)
    os.killpg(started.handle["pid"], signal.SIGKILL)
    wait_until(lambda: backend.status(started.handle).state is JobState.ENDED)
    pipelines.reset_checkpoint(store, "orders", confirm="orders", backend=backend)

    assert Checkpoints(store, "orders", "shop-db").load() == {}


@pytest.mark.parametrize("error_class", ["event", "access", "spec"])
def test_an_error_that_no_restart_cures_is_given_up_without_an_exit_code(error_class):
    verdict = judge(
        DriverExit(None, error_class, "why"),
        wanted=True,
        restarted_at_ms=[],
        now_ms=0,
        budget=RestartBudget(),
    )
    assert (verdict.action, verdict.error_class) == ("give_up", error_class)


def test_an_error_that_nobody_foresaw_is_tried_again_until_the_budget_is_spent():
    ending = DriverExit(RETRYABLE, "internal", "ConnectionRefusedError: [Errno 111]")
    first, last = (
        judge(ending, wanted=True, restarted_at_ms=restarts, now_ms=9, budget=RestartBudget())
        for restarts in ([], [1, 2, 3, 4, 5])
    )
    assert first.action == "restart"
    assert (last.action, last.error_class) == ("give_up", "internal")
    assert "ConnectionRefusedError" in last.reason
    assert "5 restarts within 600 s" in last.reason
