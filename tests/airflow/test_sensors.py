import asyncio
import json
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowNotFoundException,
    AirflowRescheduleException,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_deltaforge.control import conditions, pipelines, snapshots
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.sensors.deltaforge import (
    DeltaForgeCheckpointSensor,
    DeltaForgeLagSensor,
    DeltaForgeSnapshotSensor,
    DeltaForgeStatusSensor,
)
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from tests.airflow.bench import context, deferred, fired, travelled
from tests.control.bench import DOCUMENT, job_of, wait_until

pytestmark = pytest.mark.usefixtures("connection")


@pytest.fixture
def applied(store):
    pipelines.apply(store, DOCUMENT)
    return store


def hold(store, tx):
    store.transact([Checkpoints(store, "orders", "shop-db").put("files", {"tx": tx})])


def checkpoint_sensor(**more):
    return DeltaForgeCheckpointSensor(
        **{"task_id": "held", "pipeline": "orders", "poke_interval": 0.05, **more}
    )


def test_what_is_so_already_needs_no_triggerer(applied):
    hold(applied, 10)

    assert checkpoint_sensor(position={"tx": 9}).execute(context()) == {"files": {"tx": 10}}


def test_a_sensor_waits_in_the_triggerer_until_it_is_so(applied):
    sensor = checkpoint_sensor(position={"tx": 9}, timeout=timedelta(minutes=3))
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(context())
    hold(applied, 9)
    event = fired(travelled(caught.value.trigger))

    assert caught.value.timeout == timedelta(minutes=3)
    assert sensor.execute_complete({}, event) == {"files": {"tx": 9}}


def test_a_sensor_waits_in_its_own_process(applied, monkeypatch):
    import time

    sensor = checkpoint_sensor(position={"tx": 9}, deferrable=False)
    monkeypatch.setattr(time, "sleep", lambda _: hold(applied, 9))

    assert sensor.execute(context()) == {"files": {"tx": 9}}


def test_a_sensor_is_rescheduled(applied):
    sensor = checkpoint_sensor(position={"tx": 9}, deferrable=False, mode="reschedule")
    told = context()
    told["ti"].get_first_reschedule_date = lambda _: None

    with pytest.raises(AirflowRescheduleException):
        sensor.execute(told)


class Storage:
    def __init__(self):
        self.held = {}

    def get(self, key, default=None):
        return self.held.get(key, default)

    def set(self, key, value, **_):
        self.held[key] = json.loads(json.dumps(value))


def test_the_head_is_the_one_of_the_first_look(applied, monkeypatch):
    from airflow_provider_deltaforge.sources.scripted import ScriptedSource

    heads = iter(({"tx": 4}, {"tx": 8}))
    monkeypatch.setattr(ScriptedSource, "head", lambda _: next(heads))
    told = {**context(), "task_state_store": Storage()}
    told["ti"].get_first_reschedule_date = lambda _: None
    asked = {"deferrable": False, "mode": "reschedule"}
    with pytest.raises(AirflowRescheduleException):
        checkpoint_sensor(**asked).execute(told)
    hold(applied, 4)

    assert checkpoint_sensor(**asked).execute(told) == {"files": {"tx": 4}}


def test_the_head_travels_with_the_trigger(applied):
    trigger = travelled(deferred(lambda: checkpoint_sensor().execute(context())))

    assert trigger.condition == conditions.checkpoint_past({"tx": 10})


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param({"position": "tail"}, "'head' or a position", id="position"),
        pytest.param({"sink": "flies"}, "no sink 'flies'", id="sink"),
        pytest.param({"document": "orders.yaml"}, "either `pipeline`", id="both names"),
    ],
)
@pytest.mark.parametrize("deferrable", [True, False])
def test_a_wrong_argument_fails_at_once(applied, arguments, told, deferrable):
    with pytest.raises(AirflowFailException, match=told):
        checkpoint_sensor(deferrable=deferrable, **arguments).execute(context())


def test_the_pipeline_can_be_named_by_its_document(applied, document):
    hold(applied, 10)

    assert checkpoint_sensor(pipeline=None, document=document).execute(context())


def test_the_snapshot_sensor_returns_the_counts(applied):
    sensor = DeltaForgeSnapshotSensor(task_id="copied", pipeline="orders")
    trigger = deferred(lambda: sensor.execute(context()))
    records = Snapshots(applied, "orders")
    run = SnapshotRecord(
        id="r1", generation=1, started_at_ms=1, start_position={"tx": 4}, chunk_count=0, tables={}
    )
    applied.transact([*records.begin(run, []), *records.finish(run)])
    event = fired(travelled(trigger))

    assert sensor.execute_complete({}, event)["finished"] is True


def test_the_snapshot_sensor_waits_for_a_requested_copy(applied, backend):
    sensor = DeltaForgeSnapshotSensor(task_id="copied", pipeline="orders", request="mine")
    trigger = deferred(lambda: sensor.execute(context()))
    wish = snapshots.CopySelection(("script.rows",))
    snapshots.request(applied, "orders", wish, "mine", "test")
    assert trigger.answer() == conditions.ConditionResult.not_yet(
        "the copy 'mine' is pending, 0 rows so far"
    )
    snapshots.cancel(applied, "orders", "mine", "not needed")

    with pytest.raises(AirflowFailException, match="'mine' was cancelled: not needed"):
        sensor.execute_complete({}, fired(travelled(trigger)))


def lag_sensor(below):
    return DeltaForgeLagSensor(task_id="fresh", pipeline="orders", below=below)


@pytest.mark.parametrize("below", [timedelta(milliseconds=13), 0.013, "0.013"])
def test_the_lag_sensor_takes_a_timedelta_or_seconds(applied, backend, dsn, below):
    start(applied, job_of(dsn), backend, "test")
    wait_until(lambda: status(applied, "orders", backend).status == "running")

    assert lag_sensor(below).execute(context()) == 12
    assert deferred(lambda: lag_sensor(0.012).execute(context())).condition["limit_ms"] == 12


def test_the_lag_must_be_a_number(applied):
    with pytest.raises(AirflowFailException, match="below must be"):
        lag_sensor("soon").execute(context())


def test_the_status_sensor_fails_on_a_status_from_which_it_cannot_come(
    applied, backend, dsn, monkeypatch
):
    sensor = DeltaForgeStatusSensor(task_id="runs", pipeline="orders", poke_interval=0.1)
    trigger = deferred(lambda: sensor.execute(context()))
    start(applied, job_of(dsn, "fail:position_lost"), backend, "test")
    event = fired(travelled(trigger))

    with pytest.raises(AirflowFailException, match=r"failed, binlog\.000002 is gone"):
        sensor.execute_complete({}, event)


@pytest.mark.parametrize("deferrable", [True, False])
@pytest.mark.parametrize("asked", [{"soft_fail": True}, {"never_fail": True}])
def test_what_cannot_come_any_more_at_the_first_look_skips_a_sensor_that_is_to_be_skipped(
    applied, backend, dsn, asked, deferrable
):
    start(applied, job_of(dsn, "fail:position_lost"), backend, "test")
    wait_until(lambda: status(applied, "orders", backend).status == "failed")
    sensor = DeltaForgeStatusSensor(
        task_id="runs", pipeline="orders", deferrable=deferrable, **asked
    )

    with pytest.raises(AirflowSkipException, match=next(iter(asked))):
        sensor.execute(context())


@pytest.mark.parametrize("deferrable", [True, False])
def test_an_error_at_the_first_look_skips_only_a_sensor_that_never_fails(
    applied, monkeypatch, deferrable
):
    monkeypatch.delenv("AIRFLOW_CONN_DELTAFORGE_DEFAULT")
    with pytest.raises(AirflowSkipException):
        checkpoint_sensor(deferrable=deferrable, never_fail=True).execute(context())
    with pytest.raises(AirflowNotFoundException):
        checkpoint_sensor(deferrable=deferrable, soft_fail=True).execute(context())


def test_statuses_may_be_a_rendered_text(applied):
    sensor = DeltaForgeStatusSensor(task_id="s", pipeline="orders", statuses="stopped, pending")

    assert sensor.execute(context())["status"] == "pending"


def test_a_store_that_is_away_is_not_an_answer(applied, monkeypatch):
    trigger = ConditionTrigger("deltaforge_default", "orders", conditions.at_rest())

    def away(_):
        raise RetryableError("connection refused")

    monkeypatch.setattr(DeltaForgeHook, "store", away)

    assert trigger.answer() == conditions.ConditionResult.not_yet(
        "unknown, the state store is away: connection refused"
    )


def test_a_condition_whose_time_is_up_says_what_it_saw(applied):
    trigger = ConditionTrigger(
        "deltaforge_default", "orders", conditions.snapshot_finished(), until_ms=1
    )

    async def first():
        return (await anext(trigger.run())).payload

    assert asyncio.run(first()) == {
        "pipeline": "orders",
        "met": False,
        "words": "no snapshot was begun yet",
        "value": None,
    }
