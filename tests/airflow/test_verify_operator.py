"""A task that verifies, and one that waits for that."""

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_deltaforge.operators.verify import DeltaForgeVerifyOperator
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeVerifySensor
from tests.airflow.bench import context
from tests.control.held_rows import hold, tamper

pytestmark = pytest.mark.usefixtures("connection")


def verify(document, **more):
    task = DeltaForgeVerifyOperator(task_id="verify", document=document, **more)
    return task.execute(context())


def wait_for_it(since, **more):
    task = DeltaForgeVerifySensor(task_id="wait", pipeline="orders", since=since, **more)
    return task.execute(context())


def test_a_task_verifies_and_another_waits_for_it(store, document, tmp_path):
    path = hold(store, tmp_path)
    with pytest.raises(TaskDeferred):
        wait_for_it("ever")
    assert verify(document)["verdict"] == "equal"
    assert wait_for_it("ever")["verdict"] == "equal"
    later = datetime.now(timezone.utc) + timedelta(hours=1)
    with pytest.raises(TaskDeferred):
        wait_for_it(later)
    tamper(path)
    with pytest.raises(AirflowFailException, match="1 missing, 1 extra, 1 different"):
        verify(document, tables="rows")
    with pytest.raises(AirflowFailException, match="1 missing"):
        wait_for_it("ever")
    assert verify(document, fail_on="never")["differences"] == 3
    with pytest.raises(AirflowFailException, match="no sink has the id"):
        verify(document, sinks=["none"])
    with pytest.raises(AirflowFailException, match="fail_on must be one of"):
        verify(document, fail_on="always")


def test_a_task_that_is_ended_before_it_verifies_does_not(store, document, tmp_path):
    hold(store, tmp_path)
    task = DeltaForgeVerifyOperator(task_id="verify", document=document)
    task.on_kill()
    with pytest.raises(RuntimeError, match="cancelled"):
        task.execute(context())


def test_a_run_counts_only_what_ended_since(store, document, tmp_path):
    hold(store, tmp_path)
    verify(document)
    began = datetime.now(timezone.utc)
    run = SimpleNamespace(start_date=began, run_after=began)
    task = DeltaForgeVerifySensor(task_id="wait", pipeline="orders")
    with pytest.raises(TaskDeferred):
        task.execute({**context(), "dag_run": run})
