from dataclasses import replace
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.operators.control import DeltaForgeControlOperator
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.airflow.bench import context, deferred, fired, travelled
from tests.control.bench import DOCUMENT, job_of, wait_until

pytestmark = pytest.mark.usefixtures("connection")


def control(action, **more):
    named = {} if "document" in more else {"pipeline": "orders"}
    return DeltaForgeControlOperator(task_id="control", action=action, **named, **more)


def settled(operator):
    """Return what the operator returns when it has waited, in its own process or not."""
    if not operator.deferrable:
        return operator.execute(context())
    trigger = deferred(lambda: operator.execute(context()))
    return operator.execute_complete({}, fired(travelled(trigger)))


@pytest.mark.parametrize("deferrable", [True, False])
def test_the_actions_wait_until_it_is_so(running, deferrable):
    def settle(action):
        return settled(control(action, deferrable=deferrable))["status"]

    assert [settle(action) for action in ("pause", "pause", "resume", "stop", "stop")] == [
        *("paused", "paused", "running", "stopped", "stopped")
    ]


def test_asking_is_enough_without_waiting(running, document):
    operator = DeltaForgeControlOperator(task_id="c", action="pause", document=document, wait=False)

    assert operator.execute(context()) is None
    assert Control(running, "orders").read().desired == "paused"


# They wait in one way; each takes the five seconds of a connection that is refused.
@pytest.mark.parametrize(
    ("action", "deferrable"),
    [
        ("pause", True),
        ("reset_checkpoint", False),
        *(
            pytest.param(*others, marks=pytest.mark.long)
            for others in [
                ("stop", True),
                ("reset_checkpoint", True),
                ("pause", False),
                ("stop", False),
            ]
        ),
    ],
)
def test_a_store_that_stays_away_is_waited_for_as_long_as_the_task_may(
    running, store_away, action, deferrable
):
    more = {"confirm": "orders"} if action == "reset_checkpoint" else {}
    operator = control(action, timeout=timedelta(seconds=1), deferrable=deferrable, **more)
    with store_away(), pytest.raises(RetryableError, match="Connection refused"):
        settled(operator)


@pytest.mark.parametrize("deferrable", [True, False])
def test_a_deaf_driver_is_ended_when_the_time_is_up(store, backend, dsn, monkeypatch, deferrable):
    backend = replace(backend, term_grace_s=0.5)
    monkeypatch.setattr(DeltaForgeHook, "backend", lambda *_: backend)
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn, "deaf"), backend, "test")
    wait_until(lambda: status(store, "orders", backend).status == "running")
    operator = control("stop", timeout=timedelta(seconds=0.2), deferrable=deferrable)
    told = settled(operator)

    assert not status(store, "orders", backend).alive
    assert told["desired"] == "stopped"


def test_a_pause_that_cannot_happen_fails_with_the_reason(store, backend, dsn):
    pipelines.apply(store, DOCUMENT)
    start(store, job_of(dsn, "fail:access"), backend, "test")
    wait_until(lambda: status(store, "orders", backend).status == "failed")
    operator = control("pause")
    trigger = deferred(lambda: operator.execute(context()))

    with pytest.raises(AirflowFailException, match="pause of orders: failed, binlog"):
        operator.execute_complete({}, fired(travelled(trigger)))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param({"action": "halt"}, "action must be one of pause", id="action"),
        pytest.param({"action": "resume"}, "is stopped; start it", id="stopped"),
        pytest.param({"action": "reset_checkpoint"}, "confirm with its name", id="no confirm"),
        pytest.param(
            {"action": "reset_checkpoint", "confirm": "other"}, "confirm with", id="confirm"
        ),
    ],
)
def test_what_cannot_be_done_is_refused_without_a_retry(store, arguments, told):
    pipelines.apply(store, DOCUMENT)

    with pytest.raises(AirflowFailException, match=told):
        control(**arguments).execute(context())


def test_checkpoints_are_reset_only_when_the_pipeline_is_stopped(running, backend):
    operator = control("reset_checkpoint", confirm="orders")
    with pytest.raises(AirflowFailException, match="not stopped"):
        operator.execute(context())
    pipelines.stop(running, "orders", backend)
    checkpoints = Checkpoints(running, "orders", "shop-db")
    running.transact([checkpoints.put("files", {"tx": 4})])

    operator.execute(context())
    operator.execute(context())

    assert checkpoints.load() == {}
