"""A task that sends dead letters again, and waits until that is done."""

import asyncio
from datetime import timedelta

import orjson
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.operators.replay import DeltaForgeReplayOperator
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeDeadLetterSensor
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from tests.airflow.bench import airflow_says, context, deferred, fired, travelled
from tests.engine.driving import Driving
from tests.engine.running import begun, run_to_the_end

pytestmark = pytest.mark.usefixtures("connection")


class Kept(dict):
    """The state store of a task."""

    def set(self, key, value, **_):
        self[key] = value


class Unwritable(Kept):
    """One that cannot be written for a moment."""

    def set(self, key, value, **_):
        raise ConnectionError(f"503, {key} is not written")


@pytest.fixture
def pipeline(dsn):
    """A stopped pipeline with one dead letter, whose sink would take it now."""
    made = begun(dsn=dsn, journal="enabled: true", transactions=5)
    made.log().refuses = lambda value: orjson.loads(value)["after"]["tx"] == 2
    run_to_the_end(made, tx=5)
    made.log().refuses = None
    yield made
    made.store.close()


def replay(pipeline, **more):
    return DeltaForgeReplayOperator(task_id="again", pipeline=pipeline.name, **more)


def left(pipeline):
    return DeadLetterRecords(pipeline.store, pipeline.name).count()


def drive(pipeline):
    pipeline.want("running")
    return Driving(pipeline)


def end(pipeline, driving):
    pipeline.want("stopped")
    assert driving.end().why == "stopped"


@pytest.mark.parametrize("deferrable", [True, False])
def test_it_waits_until_the_sink_has_what_it_refused(pipeline, deferrable):
    count, driving = left(pipeline), drive(pipeline)
    operator = replay(pipeline, deferrable=deferrable, only={"sink": "out", "table": ""})
    if deferrable:
        trigger = travelled(deferred(lambda: operator.execute(context())))
        result = operator.execute_complete({}, fired(trigger))
    else:
        result = operator.execute(context())
    end(pipeline, driving)

    assert count == 3
    assert (result["state"], result["sent"], left(pipeline)) == ("done", count, 0)


def test_what_cannot_be_sent_fails_the_task(pipeline):
    pipeline.log().refuses = lambda value: orjson.loads(value)["after"]["tx"] == 2
    driving, operator = drive(pipeline), replay(pipeline, overtaken="send")
    trigger = travelled(deferred(lambda: operator.execute(context())))
    with pytest.raises(AirflowFailException, match="3 entries could not be sent"):
        operator.execute_complete({}, fired(trigger))
    end(pipeline, driving)


def test_a_retry_waits_for_the_same_replay_and_gives_up_when_the_time_is_up(pipeline):
    kept = {**context(), "task_state_store": Kept()}
    for _ in range(2):
        operator = replay(pipeline, timeout=timedelta(seconds=0.2))
        trigger = travelled(deferred(lambda op=operator: op.execute(kept)))
    [request] = pipeline.control.read().replays
    with pytest.raises(AirflowFailException, match="no driver has begun; stopped"):
        operator.execute_complete(kept, fired(trigger))

    [withdrawn] = pipeline.control.read().replays
    assert request.cancelled is None
    assert withdrawn.ticket == request.ticket
    assert withdrawn.cancelled == "its task did not wait any longer"
    assert left(pipeline) == 3
    deferred(lambda: replay(pipeline).execute(kept))  # Cleared: it asks again.
    assert [each.cancelled is None for each in pipeline.control.read().replays] == [False, True]


@pytest.mark.parametrize("store", [None, Unwritable()], ids=["no store", "unwritable"])
def test_a_replay_is_withdrawn_when_the_time_is_up_though_its_ticket_was_not_kept(pipeline, store):
    given = {**context(), "task_state_store": store}
    trigger = travelled(
        deferred(lambda: replay(pipeline, timeout=timedelta(seconds=0.2)).execute(given))
    )
    with pytest.raises(AirflowFailException, match="no driver has begun; stopped"):
        replay(pipeline).execute_complete(given, fired(trigger))

    [withdrawn] = pipeline.control.read().replays
    assert withdrawn.cancelled == "its task did not wait any longer"


def test_what_a_trigger_of_a_former_release_waited_for_is_withdrawn_as_well(pipeline):
    kept = {**context(), "task_state_store": Kept()}
    trigger = deferred(lambda: replay(pipeline, timeout=timedelta(seconds=0.2)).execute(kept))
    event = fired(travelled(trigger))
    del event["withdraw"]
    with pytest.raises(AirflowFailException):
        replay(pipeline).execute_complete(kept, event)

    [withdrawn] = pipeline.control.read().replays
    assert withdrawn.cancelled == "its task did not wait any longer"


@pytest.mark.parametrize(
    ("state", "reason"), [("failed", "its task was ended by a user"), (None, None)]
)
def test_a_task_that_is_ended_while_it_waits_withdraws_the_replay_and_a_cleared_one_does_not(
    pipeline, monkeypatch, state, reason
):
    found = context()
    trigger = travelled(deferred(lambda: replay(pipeline).execute(found)))
    trigger.task_instance = found["ti"]
    airflow_says(monkeypatch, state)
    asyncio.run(trigger.on_kill())

    assert [each.cancelled for each in pipeline.control.read().replays] == [reason]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        pytest.param("failed", "its task was ended by a user", id="marked failed"),
        pytest.param("running", None, id="drained"),
    ],
)
def test_a_task_whose_process_is_ended_withdraws_the_replay_if_a_user_did_that(
    pipeline, monkeypatch, state, reason
):
    airflow_says(monkeypatch, state)
    operators = [replay(pipeline), replay(pipeline)]
    operators[0].on_kill()  # The signal comes when there is nothing to withdraw yet.
    for operator in operators:
        deferred(lambda operator=operator: operator.execute(context()))
    operators[1].on_kill()

    assert [each.cancelled for each in pipeline.control.read().replays] == [reason, reason]


def test_a_trigger_stored_by_a_former_release_is_understood(pipeline):
    trigger = deferred(lambda: replay(pipeline).execute(context()))
    _, arguments = trigger.serialize()
    del arguments["withdraw"]
    asyncio.run(ConditionTrigger(**arguments).on_kill())

    assert [each.cancelled for each in pipeline.control.read().replays] == [None]


def test_it_need_not_wait(pipeline):
    ticket = replay(pipeline, wait=False, only={"last": "7"}).execute(context())["ticket"]

    [request] = pipeline.control.read().replays
    assert (request.ticket, request.which.last) == (ticket, 7)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"overtaken": "never"}, "overtaken must be one of"),
        ({"only": {"topic": "x"}}, "only: topic: nothing of a dead letter"),
        ({"only": {"first": "x"}}, "first and last are sequence numbers"),
        ({"document": "also.yaml"}, "either `pipeline`"),
    ],
)
def test_a_wrong_argument_fails_at_once(pipeline, more, why):
    with pytest.raises(AirflowFailException, match=why):
        replay(pipeline, **more).execute(context())


def sensor(pipeline, **more):
    return DeltaForgeDeadLetterSensor(
        task_id="none", pipeline=pipeline.name, poke_interval=0.05, **more
    )


def test_the_dead_letter_sensor_fails_or_waits(pipeline):
    with pytest.raises(AirflowFailException, match="3 events are set aside, limit 2"):
        sensor(pipeline, at_most=2).execute(context())
    assert sensor(pipeline, at_most="3").execute(context()) == 3
    assert sensor(pipeline, table="shop.other").execute(context()) == 0
    assert sensor(pipeline, when_more="succeed", sink="out").execute(context()) == 3
    waits = sensor(pipeline, at_most=3, when_more="succeed")
    trigger = deferred(lambda: waits.execute(context()))
    assert isinstance(trigger, ConditionTrigger)
    assert trigger.answer().met is False
    for wrong in ({"at_most": "few"}, {"when_more": "stop"}):
        with pytest.raises(AirflowFailException, match=next(iter(wrong))):
            sensor(pipeline, **wrong).execute(context())
