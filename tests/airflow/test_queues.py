"""What docs/airflow.md says of pools, queues and their sizes."""

import re
from datetime import timedelta

import pytest
from airflow.configuration import retrieve_configuration_description
from airflow.sdk import DAG
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.operators.pipeline_dag import pipeline_dag
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.sensors.deltaforge import DeltaForgeLagSensor
from tests.airflow.bench import context
from tests.architecture.probe import CHECKOUT

_TEXT = (CHECKOUT / "docs" / "airflow.md").read_text()
SECTION = _TEXT.partition("### Queues and pools")[2].partition("\n### ")[0]
CHOSEN = {"pool": "deltaforge", "queue": "cdc", "priority_weight": 10}


def test_arguments_of_a_dag_reach_each_of_its_tasks(document):
    tasks = pipeline_dag(document, **CHOSEN).tasks
    with DAG("watch", schedule=None, default_args=CHOSEN) as watch:
        DeltaForgeLagSensor(task_id="fresh", pipeline="orders", below=timedelta(seconds=30))

    for task in (*tasks, *watch.tasks):
        assert {name: getattr(task, name) for name in CHOSEN} == CHOSEN, task.task_id
    assert {task.task_id for task in tasks} == {"preflight", "snapshot", "stream"}


@pytest.mark.usefixtures("connection")
def test_a_stream_that_was_started_ends_the_process_of_its_task(document, store, backend):
    with pytest.raises(TaskDeferred):
        DeltaForgeStreamOperator(task_id="stream", document=document).execute(context())

    assert status(store, "orders", backend).alive


def test_sizes_are_the_defaults_of_airflow():
    from airflow.providers.celery.executors.default_celery import get_default_celery_config

    known = retrieve_configuration_description()
    told = re.findall(r"`\[(\w+)\] (\w+)`[\w\s]*\((\d+)", SECTION)
    assert len(told) == 4
    redis = get_default_celery_config({("celery", "broker_url"): "redis://redis:6379/0"})
    for section, option, number in told:
        default = known[section]["options"][option]["default"]
        if option == "visibility_timeout":
            default = redis["broker_transport_options"][option]
        assert str(default) == number, option
