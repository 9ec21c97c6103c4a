"""Drivers beside a worker are refused where Airflow ends the worker with its task."""

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.executors import require_lasting_worker
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from airflow_provider_deltaforge.storage.records.control import Control
from tests.airflow.bench import context

ECS = "airflow.providers.amazon.aws.executors.ecs.ecs_executor.AwsEcsExecutor"


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in ("AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("configured", "own"),
    [
        ("KubernetesExecutor", None),
        ("pods:KubernetesExecutor,LocalExecutor", None),
        (f" {ECS} , LocalExecutor", None),
        ("LocalExecutor,KubernetesExecutor", "KubernetesExecutor"),
        (f"LocalExecutor,fargate:{ECS}", "fargate"),
        (f"=LocalExecutor,{ECS};blue=CeleryExecutor", ECS),
    ],
)
def test_an_executor_that_ends_its_workers_is_refused_by_name(configured, own, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    with pytest.raises(SpecError, match=r"KubernetesExecutor|AwsEcsExecutor") as refused:
        require_lasting_worker(own)
    assert "docs/airflow.md" in str(refused.value)

    monkeypatch.setenv("AIRFLOW__DELTAFORGE__LONG_LIVED_WORKERS", "True")
    require_lasting_worker(own)


@pytest.mark.parametrize(
    ("configured", "own"),
    [
        ("LocalExecutor", None),
        ("CeleryExecutor,KubernetesExecutor", None),
        ("KubernetesExecutor,LocalExecutor", "LocalExecutor"),
        (f"{ECS},here:LocalExecutor", "here"),
        ("CeleryExecutor;blue=KubernetesExecutor", None),
        ("airflow.providers.edge3.executors.EdgeExecutor", None),
    ],
)
def test_an_executor_whose_workers_stay_is_taken(configured, own, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", configured)
    require_lasting_worker(own)


@pytest.mark.parametrize("mark", ["AIRFLOW_IS_K8S_EXECUTOR_POD", "AIRFLOW_IS_EXECUTOR_CONTAINER"])
def test_a_task_in_a_pod_knows_it_whatever_the_pods_template_says(mark, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    monkeypatch.setenv(mark, "True")
    with pytest.raises(SpecError, match="the worker ends with its task"):
        require_lasting_worker(None)


@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize(
    "operator",
    [DeltaForgePreflightOperator, DeltaForgeSnapshotOperator, DeltaForgeStreamOperator],
)
def test_operators_refuse_before_anything_is_stored_or_started(
    operator, document, store, monkeypatch
):
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor,KubernetesExecutor")
    task = operator(task_id="t", document=document, executor="KubernetesExecutor")
    with pytest.raises(AirflowFailException, match="`local` is refused"):
        task.execute(context())
    task = operator(task_id="y", document=document, master="k8s://https://api:6443")
    with pytest.raises(AirflowFailException, match="does not launch drivers on Kubernetes"):
        task.execute(context())
    assert Control(store, "orders").read() is None
