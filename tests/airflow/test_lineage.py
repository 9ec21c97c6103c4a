"""What OpenLineage is told, by the provider that asks operators for it."""

import json
import uuid
from datetime import datetime, timezone

import pytest
from airflow.providers.openlineage.extractors.base import DefaultExtractor, OperatorLineage
from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
from openlineage.client.serde import Serde

from airflow_provider_deltaforge.operators.fleet import DeltaForgeFleetOperator
from airflow_provider_deltaforge.operators.preflight import DeltaForgePreflightOperator
from airflow_provider_deltaforge.operators.snapshot import DeltaForgeSnapshotOperator
from airflow_provider_deltaforge.operators.stream import DeltaForgeStreamOperator
from tests.airflow.lineage_specification import faults
from tests.engine.running import begun, run_to_the_end

pytestmark = pytest.mark.usefixtures("connection")

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {name: orders, tenant: tests}
spec:
  source: {type: scripted, config: {id: SOURCE, transactions: 5, rows: 3}}
  processors: [PROCESSORS]
  sinks:
    - type: kafka
      config: {id: k, brokers: "${BROKERS}", topic: "${source.db}.${source.table}"}
    - type: redis
      config: {id: r, uri: "redis://me:hunter22@cache:6380/2", stream: all}
    - type: nats
      config: {id: n, url: "nats://me:hunter22@bus:4222,bus2", subject: "rows.${after.id}"}
    - type: http
      config: {id: hook, url: "https://hooks.example.com/services/hunter22"}
    - type: file
      config: {id: f, path: "/srv/${source.table}.jsonl"}
    - type: stdout
      config: {id: shown}
"""
MASK = "{type: mask, rules: [{columns: [script.rows.row], action: redact}]}"


@pytest.fixture
def source(dsn):
    """The id of a source whose table is registered."""
    pipeline = begun(dsn=dsn, transactions=5)
    run_to_the_end(pipeline, tx=5)
    pipeline.store.close()
    return f"{pipeline.name}-source"


def operator(source, processors="", kind=DeltaForgeStreamOperator):
    document = DOCUMENT.replace("SOURCE", source).replace("PROCESSORS", processors)
    return kind(task_id="stream", document=document)


def extracted(task):
    """What Airflow's provider takes from a task when it begins, and when it has ended."""
    extractor = DefaultExtractor(task)
    return extractor.extract(), extractor.extract_on_complete(None)


@pytest.fixture(autouse=True)
def brokers(monkeypatch):
    monkeypatch.setenv("BROKERS", "kafka-1:9092,kafka-2:9092")


def event_of(lineage):
    run, job = Run(str(uuid.uuid4())), Job("airflow", "d.stream")
    now = datetime.now(timezone.utc).isoformat()
    datasets = {"inputs": lineage.inputs, "outputs": lineage.outputs}
    event = RunEvent(eventTime=now, run=run, job=job, eventType=RunState.COMPLETE, **datasets)
    return Serde.to_dict(event)


@pytest.mark.parametrize("kind", [DeltaForgeStreamOperator, DeltaForgeSnapshotOperator])
def test_tables_go_to_destinations_column_by_column(source, kind):
    begins, ends = extracted(operator(source, MASK, kind))
    event = event_of(begins)

    [table] = event["inputs"]
    place = {"namespace": f"scripted://{source}", "name": "script.rows"}
    assert {key: table[key] for key in place} == place
    fields = {each["name"]: each["type"] for each in table["facets"]["schema"]["fields"]}
    assert fields == dict.fromkeys(("id", "tx", "row"), "bigint")
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [
        ("kafka://kafka-1:9092", "script.rows"),
        ("redis://cache:6380", "all"),
        ("nats://bus:4222", "rows.${after.id}"),
        ("https://hooks.example.com", "hook"),
        ("file", "/srv/rows.jsonl"),
    ]
    for output in event["outputs"]:
        columns = output["facets"]["columnLineage"]["fields"]
        assert columns.keys() == fields.keys()
        for name, column in columns.items():
            [made_of] = column["inputFields"]
            assert {key: made_of[key] for key in place} == place
            assert made_of["field"] == name
            [how] = made_of["transformations"]
            assert (how["type"], how["masking"]) == ("DIRECT", name == "row")
    facets = [table["facets"]["schema"], *(o["facets"]["columnLineage"] for o in event["outputs"])]
    assert all(each["_producer"] and each["_schemaURL"] for each in facets)
    assert "hunter22" not in json.dumps(event)
    assert faults(event) == []
    assert event_of(ends)["outputs"] == event["outputs"]


def test_columns_are_unknown_behind_processors_that_make_new_ones(source):
    lineage, _ = extracted(operator(source, "{type: flatten}"))

    assert len(lineage.outputs) == 5
    assert [output.facets for output in lineage.outputs] == [{}] * 5


@pytest.mark.parametrize(("left_out", "count"), [("script.*", 0), ("other.*", 1)])
def test_tables_that_are_filtered_out_are_not_read(source, left_out, count):
    tables = f"{{type: filter, tables: {{exclude: ['{left_out}']}}}}"
    lineage, _ = extracted(operator(source, tables))

    assert (len(lineage.inputs), len(lineage.outputs)) == (count, 5 * count)


def test_a_fleet_reads_and_writes_what_its_pipelines_do(source, tmp_path):
    document = DOCUMENT.replace("SOURCE", source).replace("PROCESSORS", "")
    for name, path in (("orders", "/srv/a.jsonl"), ("again", "/srv/b.jsonl")):
        text = document.replace("name: orders", f"name: {name}")
        (tmp_path / f"{name}.yaml").write_text(text.replace("/srv/${source.table}.jsonl", path))
    (tmp_path / "wrong.yaml").write_text(document.replace("brokers:", "broker:"))
    fleet = DeltaForgeFleetOperator(task_id="fleet", documents=str(tmp_path))

    begins, ends = extracted(fleet)

    assert [table.name for table in begins.inputs] == ["script.rows"]
    names = [output.name for output in begins.outputs]
    assert names.count("script.rows") == 1
    assert {"/srv/a.jsonl", "/srv/b.jsonl"} < set(names)
    assert faults(event_of(begins)) == []
    assert ends == begins


def test_tasks_that_move_nothing_and_unknown_documents_have_none(source):
    nothing = (OperatorLineage(), OperatorLineage())
    assert extracted(operator(source, kind=DeltaForgePreflightOperator)) == nothing
    gone = DeltaForgeStreamOperator(task_id="stream", document="/gone.yaml")
    assert extracted(gone) == (None, None)
    assert extracted(DeltaForgeStreamOperator(task_id="stream", document="")) == nothing


def test_an_event_that_is_not_as_the_specification_says_is_found(source):
    event = event_of(extracted(operator(source, MASK))[0])
    [table], output = event["inputs"], event["outputs"][0]
    table["facets"]["schema"]["fields"][0]["nullable"] = True
    del table["name"]
    column = output["facets"]["columnLineage"]["fields"]["id"]
    column["inputFields"][0]["transformations"][0]["masking"] = "no"
    output["facets"]["x"] = {"_schemaURL": "https://example.com/x.json", "_producer": "p"}

    found = faults(event)

    assert len(found) == 4, found
