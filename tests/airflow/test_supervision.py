"""What ends a stream task, and what a user's act on it does to the stream."""

import os
import signal
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowSkipException,
    AirflowTaskTimeout,
)

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import RestartDecision
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.pipeline import give_up
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.driver_logs import DriverLogs, LogTail
from airflow_provider_deltaforge.triggers import killed
from airflow_provider_deltaforge.triggers.stream import StreamTrigger
from tests.airflow.bench import airflow_says, context, deferred, fired, travelled
from tests.control.bench import DOCUMENT, job_of, wait_until

pytestmark = pytest.mark.usefixtures("connection")


def stream(document, **more):
    asked = {"task_id": "stream", "poll_interval": timedelta(seconds=0.1), **more}
    return DeltaForgeStreamOperator(document=document, **asked)


@pytest.fixture
def supervised(document, store, backend):
    """A stream that runs, and the trigger that watches it, as a triggerer has it."""
    told = context()
    trigger = travelled(deferred(lambda: stream(document).execute(told)))
    trigger.task_instance = told["ti"]
    wait_until(lambda: status(store, "orders", backend).status == "running")
    return trigger


@pytest.mark.parametrize(
    ("state", "over"),
    [
        *((state, True) for state in ("failed", "success", "skipped", "removed", "deleted")),
        *((state, False) for state in (None, "scheduled", "queued", "running", "deferred")),
        *((state, False) for state in ("restarting", "up_for_retry", "up_for_reschedule")),
    ],
)
def test_only_a_task_that_nobody_goes_on_with_is_over(monkeypatch, state, over):
    airflow_says(monkeypatch, state)

    assert killed.is_over(context()["ti"]) is over


def test_outside_airflow_nobody_knows():
    assert killed.is_over(None) is None
    assert killed.is_over(context()["ti"]) is None


@pytest.mark.parametrize(
    "state", ["failed", "deleted", pytest.param("skipped", id="dagrun_timeout")]
)
def test_a_task_that_has_ended_stops_its_stream(supervised, store, backend, monkeypatch, state):
    airflow_says(monkeypatch, state)
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__KILL_GRACE_SECONDS", "3600")

    supervised.stop_if_still_owner()

    assert status(store, "orders", backend).status == "stopped"


@pytest.mark.parametrize("state", [None, "deferred"])
def test_a_task_that_goes_on_leaves_its_stream_to_the_next_attempt(
    supervised, store, backend, monkeypatch, state
):
    """Cleared, or its trigger moved to another triggerer: slow, but on its way."""
    airflow_says(monkeypatch, state)
    monkeypatch.setattr(killed, "PATIENCE_S", 0.3)
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__KILL_GRACE_SECONDS", "0")

    supervised.stop_if_still_owner()

    assert status(store, "orders", backend).status == "running"


@pytest.mark.parametrize(
    ("answers", "desired"),
    [
        pytest.param([None, "running", "failed"], "running", id="cleared, its document is wrong"),
        pytest.param([RuntimeError("away"), "failed"], "stopped", id="marked failed"),
    ],
)
def test_a_task_that_was_cleared_leaves_its_stream_however_the_next_attempt_ends(
    supervised, store, monkeypatch, answers, desired
):
    monkeypatch.setenv("AIRFLOW__DELTAFORGE__KILL_GRACE_SECONDS", "3600")
    airflow_says(monkeypatch, *answers)

    supervised.stop_if_still_owner()

    assert Control(store, "orders").read().desired == desired


@pytest.mark.parametrize(
    "error",
    [
        RetryableError("connection refused"),
        AirflowNotFoundException("The conn_id `deltaforge_default` isn't defined"),
    ],
)
def test_a_store_that_is_away_does_not_lose_the_stop(
    supervised, store, backend, monkeypatch, error
):
    airflow_says(monkeypatch, "failed")
    whole, away = DeltaForgeHook.store, iter([True, True])

    def sometimes(hook):
        if next(away, False):
            raise error
        return whole(hook)

    monkeypatch.setattr(DeltaForgeHook, "store", sometimes)
    supervised.stop_if_still_owner()

    assert status(store, "orders", backend).status == "stopped"


@pytest.mark.parametrize(
    ("state", "policy", "desired"),
    [
        pytest.param("failed", "stop", "stopped", id="marked failed"),
        pytest.param("failed", "leave", "running", id="marked failed, leave"),
        pytest.param("running", "stop", "running", id="worker drained"),
        pytest.param(None, "stop", "running", id="cleared"),
    ],
)
def test_a_worker_asks_why_it_is_killed(document, store, monkeypatch, state, policy, desired):
    airflow_says(monkeypatch, state)
    operator = stream(document, on_kill=policy)
    deferred(lambda: operator.execute(context()))

    operator.on_kill()

    assert Control(store, "orders").read().desired == desired


@pytest.mark.parametrize(
    ("attempt", "policy", "desired"),
    [
        pytest.param(3, "stop", "stopped", id="the last attempt"),
        pytest.param(2, "stop", "running", id="another attempt follows"),
        pytest.param(3, "leave", "running", id="leave"),
    ],
)
def test_an_execution_timeout_stops_the_stream_when_no_attempt_is_left(
    document, store, monkeypatch, attempt, policy, desired
):
    def times_out(_):
        raise AirflowTaskTimeout("execution_timeout")

    airflow_says(monkeypatch, "running")
    monkeypatch.setattr(StreamTrigger, "look", times_out)
    hours = [timedelta(hours=count) for count in (1, 2)]
    operator = stream(
        document, on_kill=policy, deferrable=False, window=hours[0], execution_timeout=hours[1]
    )
    told = context(try_number=attempt)
    told["ti"].max_tries = 2
    try:  # As Airflow does.
        operator.execute(told)
    except AirflowTaskTimeout:
        operator.on_kill()

    assert Control(store, "orders").read().desired == desired


@pytest.mark.parametrize("window", [timedelta(hours=1), None])
def test_an_execution_timeout_that_ends_every_window_is_refused_when_the_dag_is_parsed(
    document, window
):
    asked = {"window": window, "execution_timeout": timedelta(hours=1)}
    with pytest.raises(ValueError, match=r"execution_timeout.*window.*deferrable"):
        stream(document, deferrable=False, **asked)

    assert stream(document, **asked)  # Airflow counts the time on a worker only.


def test_a_kill_before_anything_was_started_stops_what_is_started_behind_it(
    document, store, monkeypatch
):
    airflow_says(monkeypatch, "failed")
    operator = stream(document)
    operator.on_kill()
    deferred(lambda: operator.execute(context()))

    assert Control(store, "orders").read().desired == "stopped"


def test_a_stream_that_is_being_stopped_does_not_end_its_window_green(supervised, document, store):
    trigger = StreamTrigger(
        supervised.deltaforge_conn_id, {**supervised.watch, "window_end_ms": 1}, poll_s=0.1
    )
    pipelines.ask_to_stop(store, "orders")
    event = fired(trigger)

    assert event["event"] == "ended"
    with pytest.raises(AirflowSkipException, match="stopped by request"):
        stream(document).execute_complete({}, event)


def test_no_success_when_the_stop_came_after_the_event(supervised, document, store):
    event = {**supervised.watch, "event": "window_over"}
    pipelines.ask_to_stop(store, "orders")

    with pytest.raises(AirflowSkipException, match="being stopped"):
        stream(document).execute_complete({}, event)


def test_a_pause_by_a_person_is_kept_and_shown(supervised, document, store, backend):
    pipelines.pause(store, "orders")
    wait_until(lambda: status(store, "orders", backend).status == "paused")
    event = {**supervised.watch, "event": "window_over"}
    summary = stream(document).execute_complete({}, event)
    deferred(lambda: stream(document).execute(context()))

    assert summary["status"] == "paused"
    assert Control(store, "orders").read().desired == "paused"


def delete(store, backend, dsn):
    Control(store, "orders").delete()


def start_elsewhere(store, backend, dsn):
    pipelines.apply(store, DOCUMENT.replace("rows: 3", "rows: 4"))
    start(store, job_of(dsn), backend, "cli:somebody")


def adopt_elsewhere(store, backend, dsn):
    start(store, job_of(dsn), backend, "cli:somebody")


@pytest.mark.parametrize(
    ("act", "told"),
    [
        pytest.param(delete, "the pipeline was deleted", id="deleted"),
        pytest.param(start_elsewhere, "taken over by cli:somebody", id="started elsewhere"),
        pytest.param(adopt_elsewhere, "taken over by cli:somebody", id="adopted elsewhere"),
    ],
)
def test_a_record_changed_by_a_person_fails_the_task(
    supervised, document, store, backend, dsn, act, told
):
    act(store, backend, dsn)
    event = fired(supervised)

    with pytest.raises(AirflowFailException, match=told):
        stream(document).execute_complete({}, event)


@pytest.mark.parametrize("event", ["ended", "resubmit", "window_over"])
def test_a_pipeline_that_is_deleted_behind_the_event_is_not_made_anew(
    supervised, document, store, backend, event
):
    pipelines.stop(store, "orders", backend, 30)
    Control(store, "orders").delete()
    happened = {"event": event, "exit_code": 0, "reason": None}

    with pytest.raises(AirflowFailException, match="orders: the pipeline was deleted"):
        stream(document).execute_complete({}, {**supervised.watch, **happened})
    assert Control(store, "orders").read() is None


def test_a_restart_that_comes_too_late_ends_as_taken_over(
    supervised, document, store, backend, dsn
):
    start_elsewhere(store, backend, dsn)
    event = {**supervised.watch, "event": "resubmit"}
    again = deferred(lambda: stream(document).execute_complete({}, event))

    assert fired(travelled(again))["event"] == "taken_over"


def test_a_hung_driver_does_not_live_on_behind_a_red_task(document, store, backend, monkeypatch):
    monkeypatch.setenv("FAKE_DRIVER", "mute")
    operator = stream(document, restarts_max=0)
    trigger = deferred(lambda: operator.execute(context()))
    event = {**trigger.watch, "event": "ended", "exit_code": None, "reason": "silent"}

    with pytest.raises(AirflowFailException, match="0 restarts"):
        operator.execute_complete({}, event)
    assert backend.status(Control(store, "orders").read().handle).state.value == "ended"


def test_a_restart_names_the_new_driver(supervised, document, store, backend):
    former = Control(store, "orders").read().handle["pid"]
    os.killpg(former, signal.SIGKILL)
    wait_until(lambda: status(store, "orders", backend).status == "lost")
    told = context()
    event = {**supervised.watch, "event": "resubmit"}
    deferred(lambda: stream(document).execute_complete(told, event))

    assert (
        told["pushed"]["driver"]["pid"] == Control(store, "orders").read().handle["pid"] != former
    )


class Kept:
    def __init__(self):
        self.held = {}

    def set(self, key, value, *, retention):
        self.held[key] = (value, retention)


def test_the_handle_is_kept_for_people_and_never_expires(document, store):
    from airflow.sdk import NEVER_EXPIRE

    told = {**context(), "task_state_store": Kept()}
    deferred(lambda: stream(document).execute(told))
    value, retention = told["task_state_store"].held["driver"]

    assert value["pid"] == Control(store, "orders").read().handle["pid"]
    assert retention is NEVER_EXPIRE


def test_a_copy_that_cannot_be_kept_fails_nothing(document):
    class Refusing:
        def set(self, *_, **__):
            raise RuntimeError("the API server does not answer")

    told = {**context(), "task_state_store": Refusing()}

    assert deferred(lambda: stream(document).execute(told))


def test_without_a_triggerer_the_task_supervises_in_its_own_process(
    document, store, backend, monkeypatch
):
    """A driver that dies is started again in the same loop, however often."""
    operator = stream(document, deferrable=False, window=timedelta(seconds=0))
    operator.budget = operator.budget.__class__(20, 600.0, wait_s=0.01)
    died = []

    def look(trigger):
        if len(died) < 5:
            died.append(1)
            backend.stop(Control(store, "orders").read().handle, 0)
            return trigger._event("ended", exit_code=3, reason="died"), "ended"
        return whole(trigger)

    whole = StreamTrigger.look
    monkeypatch.setattr(StreamTrigger, "look", look)
    summary = operator.execute(context())

    assert summary["status"] == "running"
    assert len(Control(store, "orders").read().restarts) == 5


@pytest.mark.parametrize(("owner", "desired"), [("me", "stopped"), ("another", "running")])
def test_a_driver_that_hangs_on_another_host_is_told_to_end(document, store, owner, desired):
    pipelines.apply(store, DOCUMENT)
    handle = {"host": "elsewhere", "directory": "/elsewhere", "generation": 1}
    told = {"generation": 1, "owner": owner, "handle": handle, "desired": "running"}
    Control(store, "orders").update(lambda old: old.model_copy(update=told))
    verdict = RestartDecision("give_up", "no heartbeat", "retryable")
    error = give_up(DeltaForgeHook(), status(store, "orders"), verdict, "me")

    assert "no heartbeat" in str(error)
    assert Control(store, "orders").read().desired == desired


def test_what_a_driver_elsewhere_logs_is_in_the_log_of_its_task(supervised, store, monkeypatch):
    written = []
    monkeypatch.setattr(supervised.log, "info", lambda text, *words: written.append(text % words))
    generation = Control(store, "orders").read().generation
    for at_ms, lines in ((1, ["lane begins"]), (2, ["lane begins", "blocked by kafka"])):
        tail = LogTail(driver="d", generation=generation, host="far", at_ms=at_ms, lines=lines)
        store.transact([DriverLogs(store, "orders").put("lane", tail)])
        supervised.look()

    assert [line for line in written if "lane begins" in line] == ["driver: lane begins"]
    assert written[-1] == "driver: blocked by kafka"


def test_a_log_that_cannot_be_read_ends_no_supervision(supervised, store):
    store.transact([Put(names.LOGS, "orders/lane", b'{"v": 99}')])

    assert supervised.look()[0] is None
