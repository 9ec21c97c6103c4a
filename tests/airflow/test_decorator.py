"""Documents that are written in the DAG itself, and the decorator of functions that return one."""

from datetime import datetime, timedelta, timezone

import pytest
import yaml
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.jobs import document_text, pipeline_name
from airflow_provider_deltaforge.operators.control import DeltaForgeControlOperator
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from tests.airflow.bench import context, deferred, travelled
from tests.control.bench import DOCUMENT, wait_until

pytestmark = pytest.mark.usefixtures("connection")

AS_MAP = yaml.safe_load(DOCUMENT)


def supervised(returned, **more):
    """A task of a DAG as Airflow makes it."""
    with DAG("d", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=timezone.utc)) as dag:

        @task.deltaforge(window=timedelta(seconds=0), **more)
        def orders(name="orders", ti=None):
            """Describe the pipeline."""
            assert ti is not None
            return returned(name) if callable(returned) else returned

        orders("orders")
    return dag.get_task("orders")


@pytest.mark.parametrize("returned", [DOCUMENT, AS_MAP])
def test_a_function_returns_the_document_of_its_stream(store, backend, returned):
    operator = supervised(lambda name: returned)
    trigger = travelled(deferred(lambda: operator.execute(context())))
    wait_until(lambda: status(store, "orders", backend).status == "running")
    again = supervised(lambda name: returned)
    ended = again.execute_complete(context(), {**trigger.watch, "event": "window_over"})

    assert ended["status"] == "running"
    assert operator.operator_name == "@task.deltaforge"
    assert "document" not in operator.template_fields


@pytest.mark.parametrize("returned", [None, "", 7, []])
def test_a_function_that_returns_no_document_fails_its_task(returned):
    with pytest.raises(AirflowFailException, match="orders must return a pipeline's document"):
        supervised(returned).execute(context())


def test_airflow_can_store_it():
    from airflow.serialization.serialized_objects import DagSerialization

    stored = DagSerialization.to_dict(supervised(DOCUMENT).dag)
    read = DagSerialization.from_dict(stored)

    assert read.get_task("orders").extra_links == ["DeltaForge pipeline"]


def test_operators_take_documents_that_are_written_in_the_dag(store):
    arguments = {"task_id": "t", "document": AS_MAP}
    assert DeltaForgePreflightOperator(**arguments).execute(context()) is not None
    operator = DeltaForgeSnapshotOperator(**arguments)
    operator.render_template_fields({"params": {}})
    assert operator.execute(context()) is None  # The document has no such block.
    with pytest.raises(AirflowFailException, match="is stopped; start it"):
        DeltaForgeControlOperator(action="resume", **arguments).execute(context())


def test_a_document_is_named_in_errors_but_not_quoted(tmp_path):
    with pytest.raises(SpecError, match=f"{tmp_path}/none.yaml: cannot be read"):
        document_text(f"{tmp_path}/none.yaml")
    with pytest.raises(SpecError, match=r"the inline document: 1 error:\s+line 4: metadata\.name"):
        pipeline_name(None, DOCUMENT.replace("name: orders", "name: 'No name!'"))
    with pytest.raises(SpecError, match="what YAML cannot"):
        document_text({"spec": object()})
