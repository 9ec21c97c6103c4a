"""A secret in every setting of a document: in nothing that Airflow stores or shows of its DAG."""

import json

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_deltaforge.operators.pipeline_dag import pipeline_dag
from tests.canary import planted


@pytest.mark.parametrize("name", sorted(planted().documents))
def test_a_dag_shows_no_secret_of_its_document(name, tmp_path, monkeypatch):
    canary = planted()
    for variable, value in canary.environment.items():
        monkeypatch.setenv(variable, value)
    (tmp_path / f"{name}.yaml").write_text(json.dumps(canary.documents[name]))

    dag = pipeline_dag(tmp_path / f"{name}.yaml")

    stored = json.dumps(DagSerialization.to_dict(dag))
    rendered = [repr(getattr(task, field)) for task in dag.tasks for field in task.template_fields]
    assert name in stored
    assert rendered
    assert canary.found_in(f"{stored} {dag.doc_md} {rendered}") == []
