"""A task that has the log delivered again, and waits until the sinks have it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.operators.rewind import DeltaForgeRewindOperator
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from tests.airflow.bench import airflow_says, context, deferred, fired, travelled
from tests.engine.in_process import InProcess
from tests.engine.lagging import at, delivered, end
from tests.engine.running import RunningLane
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("connection")


class Kept(dict):
    """The state store of a task."""

    def set(self, key, value, **_):
        self[key] = value


@pytest.fixture
def pipeline(dsn, tmp_path):
    made = InProcess(dsn=dsn, transactions=200, rows=2, sinks=("main", "side"))
    made.begin_at(main=200, side=200)
    (tmp_path / "document.yaml").write_text(made.document)
    yield made
    made.store.close()


@pytest.fixture
def task(pipeline, tmp_path):
    def of(to, **more):
        document = str(tmp_path / "document.yaml")
        more = {"poll_interval": timedelta(seconds=0.1), **more}
        return DeltaForgeRewindOperator(task_id="again", document=document, to=to, **more)

    return of


@pytest.mark.parametrize("deferrable", [True, False])
def test_it_waits_until_the_sink_has_caught_up(pipeline, task, deferrable):
    running, operator = RunningLane(pipeline), task("150", sink="side", deferrable=deferrable)
    if deferrable:
        trigger = travelled(deferred(lambda: operator.execute(context())))
        value = operator.execute_complete(context(), fired(trigger))
    else:
        value = operator.execute(context())
    assert (value["side"]["state"], value["side"]["to"]) == ("done", {"tx": 150})
    assert value["side"]["by"].startswith("airflow:d/t/r/-1#")
    end(pipeline, running)
    assert delivered(pipeline, "side")[0] == (151, 0)
    assert delivered(pipeline, "main") == []


def test_what_has_not_begun_is_withdrawn_when_the_time_is_up(pipeline, task):
    operator = task("150", timeout=timedelta(seconds=0.2), tables="script.rows")
    event = fired(travelled(deferred(lambda: operator.execute(context()))))
    assert event["met"] is False
    with pytest.raises(AirflowFailException, match=r"main has not begun.*the pipeline is"):
        operator.execute_complete(context(), event)
    assert Gaps(pipeline.store, pipeline.name).wishes() == []


def test_a_retry_waits_for_the_request_of_an_earlier_attempt_and_a_cleared_task_asks_anew(
    pipeline, task
):
    kept, gaps = Kept(), Gaps(pipeline.store, pipeline.name)

    def attempt():
        operator = task("150", sink="side")
        found = {**context(), "task_state_store": kept}
        return operator, found, travelled(deferred(lambda: operator.execute(found)))

    attempt()
    [first] = gaps.wishes()
    operator, found, trigger = attempt()
    assert [wish.by for wish in gaps.wishes()] == [first.by]
    running = RunningLane(pipeline)
    value = operator.execute_complete(found, fired(trigger))
    assert value["side"]["by"] == first.by
    end(pipeline, running)
    assert at(pipeline, "side") == 200
    attempt()
    assert [wish.by == first.by for wish in gaps.wishes()] == [False]


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        pytest.param(["failed"], 0, id="marked failed"),
        pytest.param([None, "failed"], 2, id="cleared"),
        pytest.param([RuntimeError("away"), "success"], 0, id="marked success"),
    ],
)
def test_a_task_that_is_ended_while_it_waits_takes_back_what_has_not_begun(
    pipeline, task, monkeypatch, answers, left
):
    found = context()
    trigger = travelled(deferred(lambda: task("150").execute(found)))
    trigger.task_instance = found["ti"]
    airflow_says(monkeypatch, *answers)
    asyncio.run(trigger.on_kill())
    assert len(Gaps(pipeline.store, pipeline.name).wishes()) == left


def test_a_task_that_is_ended_in_its_own_process_takes_back_what_has_not_begun(
    pipeline, task, monkeypatch
):
    airflow_says(monkeypatch, "failed")
    operator, gaps = task("150", deferrable=False), Gaps(pipeline.store, pipeline.name)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(operator.execute, context())
        wait_until(lambda: len(gaps.wishes()) == 2)
        operator.on_kill()
        with pytest.raises(AirflowFailException, match="withdrawn"):
            waiting.result(PATIENCE_S)
    assert gaps.wishes() == []


@pytest.mark.parametrize(
    ("state", "left"),
    [pytest.param("failed", 0, id="marked failed"), pytest.param("running", 2, id="drained")],
)
def test_a_task_whose_process_is_ended_while_it_asks_withdraws_it_if_a_user_did_that(
    pipeline, task, monkeypatch, state, left
):
    airflow_says(monkeypatch, state)
    operator = task("150")
    operator.on_kill()  # The signal comes when there is nothing to withdraw yet.
    deferred(lambda: operator.execute(context()))
    assert len(Gaps(pipeline.store, pipeline.name).wishes()) == left


@pytest.mark.parametrize(
    ("to", "more", "why"),
    [
        ("200", {}, "nothing behind it was delivered yet"),
        ("tomorrow", {}, "no number of a transaction"),
        ("150", {"sink": "gone"}, "has no sink 'gone'"),
        ("150", {"tables": ["shop.*"]}, "matches no captured table"),
    ],
)
def test_what_cannot_be_done_fails_at_once(task, to, more, why):
    operator = task(to, **more)
    with pytest.raises(AirflowFailException, match=why):
        operator.execute(context())


def test_it_need_not_wait(pipeline, task):
    assert task("150", wait=False).execute(context()) == {"sinks": ["main", "side"]}


def test_a_cleared_task_that_did_not_wait_delivers_the_log_again(pipeline, task):
    kept, gaps = Kept(), Gaps(pipeline.store, pipeline.name)
    found = {**context(), "task_state_store": kept}
    task("150", sink="side", wait=False).execute(found)
    [first] = gaps.wishes()
    running = RunningLane(pipeline)
    wait_until(lambda: at(pipeline, "side") == 200 and gaps.wishes() == [])
    end(pipeline, running)
    task("150", sink="side", wait=False).execute(found)
    assert [wish.by == first.by for wish in gaps.wishes()] == [False]


@pytest.mark.parametrize("more", [{"sink": "main"}, {"sink": "side", "tables": "script.rows"}])
def test_another_selection_is_not_the_request_of_an_earlier_attempt(pipeline, task, more):
    found = {**context(), "task_state_store": Kept()}
    deferred(lambda: task("150", sink="side").execute(found))
    [first] = Gaps(pipeline.store, pipeline.name).wishes()
    deferred(lambda: task("150", **more).execute(found))
    wishes = {wish.sink: wish for wish in Gaps(pipeline.store, pipeline.name).wishes()}
    assert wishes[more["sink"]].by != first.by
    assert list(wishes[more["sink"]].tables) == ([more["tables"]] if "tables" in more else [])


def test_a_request_that_gave_way_to_another_fails_the_task(pipeline, task):
    operator = task("150", sink="side")
    trigger = travelled(deferred(lambda: operator.execute(context())))
    gaps = Gaps(pipeline.store, pipeline.name)
    pipeline.store.transact([gaps.rewind("side", {"tx": 100}, (), "ann")])
    with pytest.raises(AirflowFailException, match="gave way to another"):
        operator.execute_complete(context(), fired(trigger))
