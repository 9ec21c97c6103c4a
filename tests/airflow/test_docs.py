import json
import re
from pathlib import Path

import pytest
from airflow.sdk import DAG

from airflow_provider_deltaforge.operators.control import _AWAITED
from airflow_provider_deltaforge.provider_info import get_provider_info
from airflow_provider_deltaforge.triggers.arrival import DeltaForgeArrivalTrigger

PAGE = (Path(__file__).parents[2] / "docs" / "airflow.md").read_text()


@pytest.fixture(scope="module")
def names():
    """What the blocks define, one after the other, as a reader would put them into one file."""
    found = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/airflow.md", "exec"), found)
    return found


def test_the_code_on_the_page_makes_the_dags_it_shows(names):
    shown = set(re.findall(r'with DAG\(\s*"(\w+)"', PAGE))

    assert shown >= {"orders", "orders_pause_at_night", "orders_report", "orders_recover"}
    assert "orders_arrived" in shown
    assert names["lag_of"].__annotations__["pipeline"] is str
    assert isinstance(names["stream"].dag, DAG)
    assert names["copy"].dag.dag_id == "orders_recover"
    assert names["copy"].upstream_task_ids == {"forget"}


def test_airflow_can_store_what_the_page_shows(names):
    from airflow.serialization.serialized_objects import DagSerialization

    dags = [names[task].dag for task in ("stream", "complete", "copy")]
    stored = {dag.dag_id: DagSerialization.to_dict(dag) for dag in dags}
    read = {name: DagSerialization.from_dict(dag) for name, dag in stored.items()}
    watchers = json.dumps(stored["orders_recover"]["dag"]["timetable"])

    assert read["orders"].get_task("stream").extra_links == ["DeltaForge pipeline"]
    assert read["orders_report"].get_task("complete").extra_links == ["DeltaForge pipeline"]
    assert "DeltaForgeFailureTrigger" in watchers
    assert "position_lost" in watchers
    assert isinstance(names["arrived_orders"].watchers[0].trigger, DeltaForgeArrivalTrigger)


def test_the_page_names_every_operator_sensor_and_option():
    import importlib

    info = get_provider_info()
    modules = [
        module
        for room in ("operators", "sensors")
        for entry in info[room]
        for module in entry["python-modules"]
    ]
    classes = [
        name
        for module in modules
        for name, found in vars(importlib.import_module(module)).items()
        if name.startswith("DeltaForge") and getattr(found, "__module__", "") == module
    ]
    options = [name for section in info["config"].values() for name in section["options"]]

    assert len(classes) >= 8
    assert [name for name in (*classes, *options, *_AWAITED) if f"{name}`" not in PAGE] == []


def test_the_page_names_every_error_class():
    from airflow_provider_deltaforge.control.supervise import HOPELESS

    missing = {name for name in HOPELESS - {"fatal"} if f"| `{name}` |" not in PAGE}

    assert missing == set()
