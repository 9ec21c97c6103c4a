"""A script in a lane: what it sees of its pipeline, and where bad events go."""

import json

from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.running import begun, events, run_to_the_end

SCRIPT = """
function processBatch(events) {
  for (const e of events) {
    if (e.after.tx === 7 && e.after.row === 1) throw new Error(`row ${e.after.row}`);
    e.tags = [`${e.source.name}/${e.tenant_id}/${e.source.connector}/${e.table}`];
  }
}
"""


def test_a_script_in_a_lane(monkeypatch):
    script = {"type": "javascript", "id": "js", "inline": SCRIPT}
    script["limits"] = {"cpu_ms": 20_000, "timeout_ms": 40_000}
    pipeline = begun(processors=json.dumps(script), journal="enabled: true")

    progress = run_to_the_end(pipeline)

    (letter,) = DeadLetterRecords(pipeline.store, pipeline.name).read()
    assert (letter.event["after"]["tx"], letter.event["after"]["row"]) == (7, 1)
    sent = events(pipeline)
    source = sent[0]["source"]
    place = f"{source['db']}.{source['table']}"
    seen = f"{source['name']}/{sent[0]['tenant_id']}/{source['connector']}/{place}"
    assert len(sent) == 59
    assert {tag for event in sent for tag in event["tags"]} == {seen}
    assert progress.processors["js"].counts == {"errors": 1}
