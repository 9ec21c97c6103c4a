"""The example DAGs: read without a server, one for each document, and what their forms ask for."""

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from airflow.sdk import DAG

from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.operators.group import pipeline_params, pipeline_task_group
from airflow_provider_deltaforge.operators.pipeline_dag import pipeline_dag
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import load
from tests.airflow.bench import context, deferred
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DAGS = ROOT / "dags"
DOCUMENTS = sorted([*(DAGS / "pipelines").glob("*.yaml"), *(DAGS / "examples").glob("*.yaml")])

# Reads DAG files as Airflow does, with every way out of the process shut.
READ = """
import importlib, json, runpy, socket, sys
def refuse(*arguments, **named):
    raise AssertionError(f"a DAG file opened a connection: {arguments}")
from airflow.sdk import DAG, BaseHook, Variable  # Airflow's own start is not the DAG's.
from airflow.serialization.serialized_objects import DagSerialization
from airflow_provider_deltaforge import provider_info
before = set(sys.modules)
socket.socket.connect = refuse
socket.create_connection = refuse
BaseHook.get_connection = classmethod(refuse)
Variable.get = refuse

def told(dag):
    DagSerialization.to_dict(dag)
    return {
        "tasks": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
        "schedule": type(dag.timetable).__name__,
        "tags": sorted(dag.tags),
        "description": dag.description,
        "doc": dag.doc_md,
        "params": dict(dag.params.dump()),
        "start": str(dag.start_date),
        "window": str(getattr(dag.task_dict.get("stream"), "window", None)),
    }

found = {
    path: {
        value.dag_id: told(value)
        for name, value in runpy.run_path(path).items()
        if isinstance(value, DAG)
    }
    for path in sys.argv[1:]
}
# What DAGs import, and what every component of Airflow loads.
info = provider_info.get_provider_info()
for room in ("hooks", "operators", "sensors", "triggers"):
    for entry in info[room]:
        for name in entry["python-modules"]:
            importlib.import_module(name)
for name in (*info["notifications"], *(each["class-name"] for each in info["task-decorators"])):
    importlib.import_module(name.rpartition(".")[0])
importlib.import_module("airflow_provider_deltaforge.plugins_airflow.page")
heavy = {"pyarrow", "numpy", "numba", "pandas", "pyspark", "duckdb"}
drivers = {"pymysql", "confluent_kafka", "turso", "psycopg", "redis", "nats", "httpcore"}
used = (heavy | drivers) & set(sys.modules) - before
print("READ", json.dumps({"dags": found, "heavy": sorted(used)}))
"""


def read(home, *paths, **variables):
    """Return the DAGs of some files, by file, and the heavy libraries that were imported."""
    outcome = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)],
        env={"PATH": os.environ["PATH"], "AIRFLOW_HOME": str(home), "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert outcome.returncode == 0, outcome.stderr
    [line] = [line for line in outcome.stdout.splitlines() if line.startswith("READ ")]
    return json.loads(line.removeprefix("READ "))


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """A DAGs folder in which only one of five documents is right."""
    folder = tmp_path_factory.mktemp("dags")
    shutil.copy(DAGS / "pipeline_dags.py", folder)
    (folder / "pipelines").mkdir()
    right = (DAGS / "pipelines" / "orders.yaml").read_text()
    documents = {
        "right": right,
        "the same": right,
        "not_yaml": "metadata: {name: [broken",
        "not_a_map": "- just\n- a list\n",
        "with_a_password": right.replace("name: orders", "name: other").replace(
            "${MYSQL_DSN}", "mysql://df:a@planted-password@db.example.com/shop"
        ),
    }
    for name, text in documents.items():
        (folder / "pipelines" / f"{name}.yaml").write_text(text)
    return folder / "pipeline_dags.py"


@pytest.fixture(scope="module")
def clashing(tmp_path_factory):
    """A DAGs folder in which documents and another file ask for the same DAGs."""
    folder = tmp_path_factory.mktemp("clashing")
    shutil.copy(DAGS / "pipeline_dags.py", folder)
    shutil.copy(DAGS / "orders_resnapshot.py", folder)
    (folder / "pipelines").mkdir()
    right = (DAGS / "pipelines" / "orders.yaml").read_text()
    for stem in ("a b", "a+b", "a_b", "a_b__2", "orders_resnapshot"):
        text = right.replace("name: orders", f"name: orders-{stem.encode().hex()}")
        (folder / "pipelines" / f"{stem}.yaml").write_text(text)
    return folder / "pipeline_dags.py"


@pytest.fixture(scope="module")
def everything(tmp_path_factory, odd, clashing):
    """Every DAG file of ours, the odd ones and those that clash, read once."""
    paths = [*sorted(DAGS.glob("*.py")), odd, clashing]
    return read(tmp_path_factory.mktemp("home"), *paths, DELTAFORGE_EXAMPLE_DAGS="1")


@pytest.fixture(scope="module")
def dags(everything):
    ours = {
        path: found for path, found in everything["dags"].items() if path.startswith(f"{DAGS}/")
    }
    return {name: dag for found in ours.values() for name, dag in found.items()}


def test_no_dag_file_needs_a_connection_a_network_a_driver_or_arrow(everything):
    assert all(everything["dags"].values())
    assert everything["heavy"] == []


def test_examples_are_no_dags_of_a_newcomer(tmp_path):
    [found] = read(tmp_path, DAGS / "pipeline_dags.py")["dags"].values()

    assert found.keys() == {"embedded_shop"}


def test_there_is_one_dag_for_each_document(dags):
    stems = {path.stem for path in DOCUMENTS}

    assert len(stems) > 25
    assert dags.keys() == stems - {"orders"} | {
        *("orders_pipeline", "orders_resnapshot", "orders_arrived"),
    }


@pytest.mark.parametrize("name", ["orders_pipeline", "seed_quickstart"])
def test_a_pipeline_is_checked_copied_and_streamed_in_rolling_windows(dags, name):
    assert dags[name]["tasks"] == {
        "preflight": [],
        "snapshot": ["preflight"],
        "stream": ["snapshot"],
    }
    assert dags[name]["schedule"] == "ContinuousTimetable"
    assert dags[name]["start"] != "None", "a second run would never come"
    assert dags[name]["window"] == "6:00:00"
    assert dags[name]["params"] == {"tables": None, "where": None, "mode": "initial"}


def test_a_dag_shows_its_document(dags):
    for path in DOCUMENTS:
        if path.stem in dags:
            assert path.read_text().splitlines()[0] in dags[path.stem]["doc"]
    assert dags["seed_quickstart"]["description"] == "orders-mysql-to-kafka: mysql to kafka"
    assert dags["seed_quickstart"]["tags"] == ["deltaforge", "tenant:acme"]


def test_a_resnapshot_never_starts_a_stream(dags):
    assert dags["orders_resnapshot"]["tasks"] == {"snapshot": []}
    assert dags["orders_resnapshot"]["schedule"] == "CronDataIntervalTimetable"


def test_a_dag_that_rows_schedule_has_no_timetable_of_its_own(dags):
    assert dags["orders_arrived"]["tasks"] == {"report": []}
    assert dags["orders_arrived"]["schedule"] == "AssetTriggeredTimetable"


def test_a_wrong_document_takes_no_other_away(everything, odd):
    found = everything["dags"][str(odd)]

    assert found.keys() == {"right", "the_same", "not_yaml", "not_a_map", "with_a_password"}
    assert set(found["right"]["tasks"]) == {"preflight", "snapshot", "stream"}
    assert found["right"]["tags"] == ["deltaforge", "team:shop", "tenant:acme"]
    for name, reason in [
        ("not_yaml", "not_yaml.yaml: line 1, column"),
        ("the_same", "the pipeline 'orders' is already in right.yaml"),
    ]:
        assert found[name]["tasks"] == {"preflight": []}
        assert found[name]["tags"] == ["deltaforge", "refused"]
        assert reason in found[name]["doc"]


def test_a_document_whose_dag_another_file_has_is_refused_under_another_name(everything, clashing):
    found = everything["dags"][str(clashing)]
    refused = {name: dag["description"] for name, dag in found.items() if "refused" in dag["tags"]}

    assert found.keys() - refused.keys() == {"a_b", "a_b__2"}
    assert refused.keys() == {"a_b__3", "a_b__4", "orders_resnapshot__2"}
    assert "a+b.yaml: a b.yaml has the DAG 'a_b'" in refused["a_b__3"]
    assert "orders_resnapshot.py has the DAG" in refused["orders_resnapshot__2"]


def test_a_password_in_a_document_is_not_shown(everything, odd):
    told = json.dumps(everything["dags"][str(odd)])

    assert "mysql://df:***@db.example.com/shop" in told
    assert "planted-password" not in told


SECRETS_OF_EVERY_KIND = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: planted, tenant: acme}
spec:
  source: {type: scripted, config: {id: shop}}
  sinks:
    - type: http
      config:
        id: h
        url: https://example.com/x?sig=PLANTED
        headers:
          X-Auth: PLANTED
          Content-Type: text/plain
    - {type: nats, config: {id: n, url: "nats://PLANTED@h:4222", subject: x, stream: s}}
    - {type: nats, config: {id: o, url: "nats://h", nkey_seed: PLANTED, subject: x, stream: s}}
    - {type: kafka, config: {brokers: b, topic: t, client_conf: {ssl.key.pem: PLANTED}}}
"""


def test_the_page_of_a_dag_shows_nothing_that_is_withheld_from_the_store(tmp_path):
    file = tmp_path / "planted.yaml"
    file.write_text(SECRETS_OF_EVERY_KIND)
    withheld = withhold(SECRETS_OF_EVERY_KIND, load(SECRETS_OF_EVERY_KIND, expand=False))
    page = pipeline_dag(file).doc_md

    assert len(withheld.values) == SECRETS_OF_EVERY_KIND.count("PLANTED")
    assert not [value for value in withheld.values.values() if value in page]
    assert "PLANTED" not in page
    assert "url: https://example.com/x?sig=***" in page
    assert "Content-Type: text/plain" in page


def test_a_pinned_window_is_one_run_started_by_hand(tmp_path, odd):
    found = read(tmp_path, odd, DELTAFORGE_WINDOW_S="pinned")["dags"][str(odd)]

    assert found["right"]["schedule"] == "NullTimetable"
    assert found["right"]["window"] == "None"


def rendered(task, **context):
    """Return the snapshot's arguments as its run would see them."""
    task.render_template_fields(context)
    return task.tables, task.where, task.mode


def group_in(params=None, **arguments):
    with DAG("any", schedule=None, params=params or {}):
        group = pipeline_task_group("orders.yaml", **arguments)
    return group, {name.rpartition(".")[2]: task for name, task in group.children.items()}


class TestGroup:
    def test_its_tasks_are_named_after_it(self):
        group, tasks = group_in(group_id="shop")

        assert sorted(group.children) == ["shop.preflight", "shop.snapshot", "shop.stream"]
        assert tasks["stream"].upstream_task_ids == {"shop.snapshot"}
        assert tasks["snapshot"].upstream_task_ids == {"shop.preflight"}

    def test_arguments_go_to_all_or_to_one(self):
        window = datetime.timedelta(hours=1)
        _, tasks = group_in(
            master="local[2]", preflight={"fail_on": "warn"}, stream={"window": window}
        )

        assert {task.master for task in tasks.values()} == {"local[2]"}
        assert (tasks["preflight"].fail_on, tasks["stream"].window) == ("warn", window)

    def test_a_form_that_nobody_touched_copies_once(self):
        _, tasks = group_in(pipeline_params())
        untouched = pipeline_params()
        values = {name: param.value for name, param in untouched.items()}

        assert rendered(tasks["snapshot"], params=values) == ("", "", "initial")

    def test_a_dag_without_params_copies_once(self):
        _, tasks = group_in()

        assert rendered(tasks["snapshot"], params={}) == ("", "", "initial")

    def test_a_filled_form_is_obeyed(self):
        asked = {"tables": ["shop.orders", "shop.items"], "where": None, "mode": "always"}
        _, tasks = group_in(pipeline_params())

        assert rendered(tasks["snapshot"], params=asked) == ("shop.orders,shop.items", "", "always")

    def test_what_the_author_of_the_dag_says_wins(self):
        _, tasks = group_in(pipeline_params(), snapshot={"mode": "never"})

        assert rendered(tasks["snapshot"], params={"mode": "always"})[2] == "never"


@pytest.mark.parametrize(
    ("name", "value"),
    [("tables", "shop.orders"), ("tables", [""]), ("where", 1), ("mode", "sometimes")],
)
def test_the_form_refuses_what_is_no_answer(name, value):
    schema = pipeline_params()[name].schema

    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


@pytest.mark.usefixtures("connection")
def test_a_document_without_a_snapshot_reaches_its_stream_in_every_run(document, store, backend):
    pids = set()
    for number in range(2):
        _, tasks = group_in(pipeline_params())
        told = context()
        told["params"] = {name: param.value for name, param in pipeline_params().items()}
        told["ti"].run_id = f"r{number}"
        for task in tasks.values():
            task.render_template_fields(told)
            task.document = document
        tasks["preflight"].execute(told)
        assert tasks["snapshot"].execute(told) is None
        deferred(lambda told=told, task=tasks["stream"]: task.execute(told))
        wait_until(lambda: status(store, "orders", backend).status == "running")
        pids.add(told["pushed"]["driver"]["pid"])

    assert len(pids) == 1


class TestResnapshot:
    @pytest.fixture
    def snapshot(self, monkeypatch):
        import runpy

        monkeypatch.setenv("DELTAFORGE_ORDERS_DOCUMENT", "orders.yaml")
        return runpy.run_path(str(DAGS / "orders_resnapshot.py"))["dag"].get_task("snapshot")

    def test_a_scheduled_run_copies_its_interval(self, snapshot):
        day = datetime.datetime(2026, 11, 20, tzinfo=datetime.timezone.utc)
        params = {"tables": ["shop.orders"], "where": None, "mode": "always", "column": "changed"}
        interval = {"data_interval_start": day, "data_interval_end": day.replace(day=21)}

        assert rendered(snapshot, params=params, **interval) == (
            "shop.orders",
            "changed >= '2026-11-20 00:00:00' AND changed < '2026-11-21 00:00:00'",
            "always",
        )

    @pytest.mark.parametrize("tables", [["shop.orders", "shop.items"], [], None])
    def test_several_tables_or_all_are_copied_whole(self, snapshot, tables):
        day = datetime.datetime(2026, 11, 20, tzinfo=datetime.timezone.utc)
        params = {"tables": tables, "where": None, "mode": "always", "column": "changed"}
        interval = {"data_interval_start": day, "data_interval_end": day.replace(day=21)}
        names, where, mode = rendered(snapshot, params=params, **interval)

        assert CopySelection.of(names, where) == CopySelection(tuple(tables or ()))
        assert mode == "always"

    def test_a_condition_of_the_form_wins(self, snapshot):
        params = {"tables": ["shop.items"], "where": "id < 9 AND sku = '{{ x }}'", "mode": "always"}

        assert rendered(snapshot, params=params)[:2] == ("shop.items", "id < 9 AND sku = '{{ x }}'")

    def test_a_run_without_an_interval_copies_whole_tables(self, snapshot):
        params = {"tables": ["shop.orders"], "where": None, "mode": "always", "column": "changed"}

        assert rendered(snapshot, params=params) == ("shop.orders", "", "always")
