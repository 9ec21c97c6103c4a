"""``schema_sensing.output.emit_events``: each evolution is an event, and reaches every sink."""

import json

import pytest

from airflow_provider_deltaforge.control import sensing
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.snapshot.copy_window import WatchedLog
from airflow_provider_deltaforge.engine.snapshot.schema_events import SchemaEvents
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.running import RunningLane, begun, events, run_to_the_end
from tests.engine.scripted_run import ScriptedRun
from tests.oracle.readers import whole_lines
from tests.waiting import wait_for, wait_until

EMITTED = "schema_sensing: {enabled: true, output: {emit_events: true}}"
# It refuses whatever has no row, which an event of a schema is.
EVOLVES = (
    '{type: javascript, id: details, inline: "(event) => { '
    'event.after[`f${Math.floor(event.after.tx / 5)}`] = 1; return event; }"}'
)


def schema_events(pipeline, sink="out"):
    return [event for event in events(pipeline, sink) if event["op"] == "ddl"]


def sensed(event):
    told = event["ddl"]["sensed"]
    return told["schema"], told["sequence"]


def run_again(pipeline, is_there):
    """Run a lane over a log that has nothing more until it has sent what was left."""
    pipeline.want("running")
    running = RunningLane(pipeline)
    wait_until(is_there)
    pipeline.want("stopped")
    assert running.end().why == "stopped"


def evolved(**settings):
    """Return a pipeline that has sensed everything, and what it knows."""
    pipeline = begun(policy=EMITTED, processors=EVOLVES, **settings)
    run_to_the_end(pipeline)
    known = {
        (table["table"], evolution["sequence"]): evolution
        for table in sensing.schemas(pipeline.store, pipeline.name)
        for evolution in sensing.schema(pipeline.store, pipeline.name, table["table"])["evolutions"]
    }
    assert len(known) > 1
    return pipeline, known


def test_each_evolution_is_sent_once_to_every_sink_behind_the_processors():
    pipeline, known = evolved(sinks=("out", "other"))
    run_again(pipeline, lambda: len(schema_events(pipeline, "other")) == len(known))

    sent = schema_events(pipeline)
    assert {sensed(event) for event in sent} == known.keys()
    assert {event["event_id"] for event in sent} == {
        event["event_id"] for event in schema_events(pipeline, "other")
    }
    for event in sent:
        evolution = known[sensed(event)]
        told = {key: event["ddl"]["sensed"][key] for key in ("fingerprint", "added", "changed")}
        assert told == {key: evolution[key] for key in told}
        assert (event["source"]["db"], event["source"]["table"]) == ("script", "rows")
        assert (event["synthetic"], event["before"], event["after"]) == (
            "schema_sensing",
            None,
            None,
        )

    # What was sent is stored with it: the next lane sends only what is new.
    pipeline.document = pipeline.document.replace("transactions: 20", "transactions: 40")
    pipeline.want("running")
    run_to_the_end(pipeline, tx=40)
    assert len(schema_events(pipeline)) == len(known)


def test_what_waited_when_the_log_was_opened_anew_is_sent_then():
    pipeline, _ = evolved()
    lane = Lane(pipeline.context(), 60.0)
    lane._sensing.open()
    log = WatchedLog(lane._source, {"tx": 20}, lambda batch: batch)
    parts = (lane._context, lane._stats, lane._heartbeat, log)
    stored = lane._sensing.evolved()
    assert stored
    lane._sensing._note(stored)

    former = SchemaEvents(*parts, lambda: False, lane._sensing)
    former.start()
    wait_until(lambda: former._evolved)
    former.close()

    assert lane._sensing.evolved() == stored
    lane._sensing.close()
    lane._rendering.close()


def test_sinks_can_leave_them_out_or_take_nothing_else():
    only, known = evolved(sink="filter: {producers: [schema_sensing]},")
    run_again(only, lambda: len(events(only)) == len(known))
    assert len(schema_events(only)) == len(known)

    none, _ = evolved(sink="filter: {exclude_synthetic: true},", sinks=("out",))
    before = len(events(none))
    run_again(none, lambda: _all_sent(none))
    assert len(events(none)) == before == 60


def _all_sent(pipeline):
    keys = pipeline.store.items("sensing", f"{pipeline.name}//tests/")
    return len(list(keys)) == len(sensing.schemas(pipeline.store, pipeline.name))


@pytest.mark.parametrize("journal", ["", "enabled: true"])
def test_one_that_a_sink_refuses_stops_the_pipeline_or_is_set_aside(journal):
    pipeline, known = evolved(journal=journal)
    pipeline.log().refuses = lambda value: b'"op":"ddl"' in value
    if journal:
        run_again(pipeline, lambda: _all_sent(pipeline))
        assert DeadLetterRecords(pipeline.store, pipeline.name).count() == len(known)
    else:
        pipeline.want("running")
        outcome = RunningLane(pipeline).end()
        assert (outcome.why, outcome.error_class) == ("failed", "event")
        assert "memory sink: it refuses this one" in outcome.reason
    assert not schema_events(pipeline)


def test_one_that_was_killed_before_it_was_stored_is_sent_again_under_its_id(tmp_path):
    run = ScriptedRun(tmp_path, snapshot="never", policy=EMITTED)
    run.begin()
    run.kill_at(CrashPoint.CHUNK_WRITTEN)
    first = [event for event in map(json.loads, whole_lines(run.output)) if event["op"] == "ddl"]
    assert first
    driver = run.start()
    wait_for("both", lambda: len(_ids(run)) >= 2 * len(first))
    run.stop(driver)
    run.close()
    ids = _ids(run)
    assert ids[: len(first)] == ids[len(first) : 2 * len(first)]


def _ids(run):
    return [
        event["event_id"]
        for event in map(json.loads, whole_lines(run.output))
        if event["op"] == "ddl"
    ]
