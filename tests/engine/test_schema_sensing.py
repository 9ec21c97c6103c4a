"""Schema sensing in a lane: what is kept of it, over restarts and against other drivers."""

import json

import pytest

from airflow_provider_deltaforge.control import sensing
from airflow_provider_deltaforge.control.metrics import families, observe
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.records.measurements import measurements
from airflow_provider_deltaforge.storage.records.sensing import SensedTables
from tests.engine.driving import Driving
from tests.engine.in_process import DRIVER, InProcess
from tests.engine.running import RunningLane, begun, events, run_to_the_end
from tests.engine.scripted_run import NAME, PATIENCE_S, ScriptedRun
from tests.waiting import wait_for, wait_until

SENSED = "schema_sensing: {enabled: true, tracking: {field_statistics: true}}"
DETAILS = (
    '{type: javascript, id: details, inline: "(event) => { event.after.details = '
    '{[`key${event.after.id}`]: 1, at: null}; return event; }"}'
)


def stored(pipeline):
    return {
        table.name: table for table in SensedTables(pipeline.store, pipeline.name, "tests").all()
    }


def goes_on(pipeline, transactions):
    """Let the log of a pipeline that has stopped grow, and want it to run."""
    pipeline.document = pipeline.document.replace(
        "transactions: 20", f"transactions: {transactions}"
    )
    pipeline.want("running")


def test_a_lane_keeps_what_it_senses_and_a_restart_goes_on_from_there():
    pipeline = begun(policy=SENSED)
    run_to_the_end(pipeline)

    (first,) = sensing.schemas(pipeline.store, pipeline.name)
    assert first["table"] == "script.rows"
    assert (first["sequence"], first["event_count"], first["stabilized"]) == (1, 60, False)
    assert first["fingerprint"].startswith("sha256:")
    fields = sensing.schema(pipeline.store, pipeline.name, "rows")["fields"]
    assert [(field["name"], field["types"], field["optional"]) for field in fields] == [
        ("id", ["integer"], False),
        ("tx", ["integer"], False),
        ("row", ["integer"], False),
    ]
    assert (fields[1]["minimum"], fields[1]["maximum"]) == (1, 20)
    counts = measurements(pipeline.store, pipeline.name).counts.sensing["script.rows"]
    assert (counts.events, counts.evolutions, counts.cache_hits, counts.cache_misses) == (
        60, 0, 59, 1,
    )  # fmt: skip

    goes_on(pipeline, 40)
    run_to_the_end(pipeline, tx=40)

    (second,) = sensing.schemas(pipeline.store, pipeline.name)
    assert second["event_count"] == 120
    kept = ("table", "sequence", "fingerprint", "first_seen")
    assert [second[key] for key in kept] == [first[key] for key in kept]
    measured = measurements(pipeline.store, pipeline.name)
    assert measured.counts.sensing["script.rows"].events == 120
    assert (measured.gauges.sensed_tables, measured.gauges.dynamic_maps) == (1, 0)
    assert sum(sum(latency.counts) for latency in measured.counts.stages["schema_sensing"].values())
    samples = {
        (sample.name.removeprefix("deltaforge_"), sample.labels.get("table")): sample.value
        for family in families(observe(pipeline.store, [status(pipeline.store, pipeline.name)]))
        for sample in family.samples
    }
    for name in ("schema_sensing_cache_hits_total", "schema_cache_hits_total"):
        assert samples[name, "script.rows"] == 118
    for name in ("schema_sensing_cache_misses_total", "schema_cache_misses_total"):
        assert samples[name, "script.rows"] == 2
    assert samples["schema_events_total", "script.rows"] == 120
    assert samples["schema_evolutions_total", "script.rows"] == 0
    assert samples["schema_sensing_seconds_count", "script.rows"] == 120
    assert samples["pipeline_evolutions_total", None] == 0


def test_sensing_changes_no_event():
    runs = []
    for policy in ("", SENSED):
        pipeline = begun(policy=policy, source="alter_every: 7,", name=f"unchanged-{len(runs)}")
        run_to_the_end(pipeline)
        runs.append(events(pipeline))
        pipeline.log().clear()

    told = ("schema_version", "schema_sequence")
    assert [[event[key] for key in told] for event in runs[0]] == [
        [event[key] for key in told] for event in runs[1]
    ]
    assert len({event["schema_version"] for event in runs[1]}) > 1


def test_a_lane_that_lost_its_fence_writes_nothing_more():
    pipeline = begun(policy=SENSED, transactions=0, source="rate: 200, started_ms: 1,")
    running = RunningLane(pipeline)
    wait_until(lambda: stored(pipeline))
    pipeline.control.take_epoch(DRIVER)
    newest = stored(pipeline)["script.rows"].model_copy(update={"sequence": 9})
    put = SensedTables(pipeline.store, pipeline.name, "tests").put(newest)
    pipeline.store.put(put.namespace, put.key, put.value)

    assert running.end().why == "fenced"
    assert stored(pipeline)["script.rows"].sequence == 9


def test_records_that_cannot_be_read_stay_and_the_pipeline_goes_on():
    pipeline = begun(policy=SENSED)
    key = f"{pipeline.name}/tests/script.rows"
    pipeline.store.put(names.SENSING, key, b'{"v":2}')

    run_to_the_end(pipeline)

    assert len(events(pipeline)) == 60
    assert pipeline.store.get(names.SENSING, key) == b'{"v":2}'


def test_what_processors_made_of_rows_is_sensed():
    pipeline = begun(policy=SENSED, processors=DETAILS, transactions=100)
    run_to_the_end(pipeline, tx=100)

    document = sensing.json_schema(pipeline.store, pipeline.name, "rows")
    assert document["properties"]["details"] == {
        "type": "object",
        "properties": {"at": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
        "required": ["at"],
    }
    shown = sensing.classifications(pipeline.store, pipeline.name, "rows")["paths"]["details"]
    assert (shown["stable_fields"], shown["has_dynamic_fields"]) == (["at"], True)
    assert 28 <= shown["unique_keys"] <= 32


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{enabled: false}", "set spec.schema_sensing.enabled"),
        ("{enabled: true, output: {expose_api: false}}", "spec.schema_sensing.output.expose_api"),
        (
            "{enabled: true, output: {export_json_schema: false}}",
            "spec.schema_sensing.output.export_json_schema",
        ),
    ],
)
def test_what_is_not_to_be_shown_is_refused_by_its_key(settings, words):
    pipeline = begun(policy=f"schema_sensing: {settings}")
    run_to_the_end(pipeline)

    with pytest.raises(SpecError, match=words):
        sensing.json_schema(pipeline.store, pipeline.name, "rows")


def test_schemas_are_emitted_in_lists_where_the_document_says_so():
    pipeline = begun(policy="schema_sensing: {enabled: true, output: {emit_schemas: true}}")
    run_to_the_end(pipeline)

    (shown,) = sensing.schemas(pipeline.store, pipeline.name)
    assert shown["json_schema"]["$schema"] == "http://json-schema.org/draft-07/schema#"
    newer = sensing.json_schema(pipeline.store, pipeline.name, "rows", "2020-12")
    assert json.dumps(newer["properties"]) == json.dumps(shown["json_schema"]["properties"])


def test_rows_of_a_copy_are_sensed_like_those_of_the_log():
    pipeline = InProcess(policy=SENSED, snapshot="initial")
    driving = Driving(pipeline)
    wait_until(lambda: {at["tx"] for at in pipeline.checkpoints().load().values()} == {20})
    pipeline.want("stopped")
    assert driving.end().why == "stopped"

    copied = [event for event in events(pipeline) if event["op"] == "r"]
    (shown,) = sensing.schemas(pipeline.store, pipeline.name)
    assert shown["event_count"] == shown["events_sampled"] == len(copied) == 30
    fields = sensing.schema(pipeline.store, pipeline.name, "rows")["fields"]
    assert [field["name"] for field in fields] == ["id", "tx", "row"]


@pytest.mark.long
def test_a_killed_driver_leaves_an_older_state_and_its_successor_learns_the_rest(tmp_path):
    script = (
        "(event) => { event.after[`field_${event.after.tx % 4}`] = event.after.tx; return event; }"
    )
    run = ScriptedRun(
        tmp_path,
        transactions=0,
        processors=f'{{type: javascript, id: fields, inline: "{script}"}}',
        more="  schema_sensing: {enabled: true, deep_inspect: {max_sample_size: 0}}",
    )
    run.begin()
    records = SensedTables(run.store, NAME, "tests")
    told = []
    for _ in range(2):
        driver = run.start()
        wait_for("more events", lambda former=[*told]: any(r not in former for r in records.all()))
        driver.kill()
        driver.wait(PATIENCE_S)
        told += records.all()

    first, second = told
    assert second.sequence >= first.sequence
    assert second.first_seen_ms == first.first_seen_ms
    assert [e.fingerprint for e in second.evolutions][: first.sequence] == [
        e.fingerprint for e in first.evolutions
    ]
    known = {f"field_{n}" for n in range(4)} | {"id", "tx", "row"}
    assert {*second.root.fields} == known
