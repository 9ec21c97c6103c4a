"""In a whole pipeline no masked value gets anywhere: not into the queue, a log or an error."""

import logging

import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.processors.contract import Processed
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.planted import plant, refusing
from tests.engine.running import RunningLane, begun, events, run_to_the_end

MASK = "{type: mask, rules: [{columns: ['script.rows.value'], action: redact}]}"
SECRET = "no-one-may-read-this"
_AFTER = CHANGE_SCHEMA.get_field_index("after")


def row_of(text):
    return orjson.loads(text)["row"]


def revealing(rows):
    """Put a secret into each row, and what is no JSON into the third of each transaction."""
    texts = [
        text[:-1] + f',"value":"{SECRET}"}}'.encode() + (b"}" if row_of(text) == 2 else b"")
        for text in rows["after"].to_pylist()
    ]
    column = pa.array(texts, pa.binary())
    return Processed(rows.set_column(_AFTER, CHANGE_SCHEMA.field(_AFTER), column))


@pytest.fixture
def choosy(monkeypatch):
    """One processor refuses the first row of each transaction, another the second."""
    plant(
        monkeypatch,
        reveals=revealing,
        early=refusing(lambda text: b'"row":0' in text),
        late=refusing(lambda text: row_of(text) == 1),
    )


def chain(*names):
    """Return processors by name; ``mask`` is the mask."""
    told = [MASK if name == "mask" else f"{{type: planted, id: {name}}}" for name in names]
    return ", ".join(told)


def test_refused_events_are_set_aside_masked_or_without_images(choosy, caplog):
    pipeline = begun(
        rows=4, processors=chain("reveals", "early", "mask", "late"), journal="enabled: true"
    )
    pipeline.log().refuses = lambda value: True
    with caplog.at_level(logging.DEBUG):
        progress = run_to_the_end(pipeline)
    letters = list(DeadLetterRecords(pipeline.store, pipeline.name).read())
    told = {}
    for letter in letters:
        told.setdefault(letter.meta.processor_id or letter.meta.sink_id, []).append(letter)

    assert {name: len(found) for name, found in told.items()} == dict.fromkeys(
        ("early", "mask", "late", "out"), 20
    )
    for one in (*told["early"], *told["mask"]):
        assert one.event["after"] == "<left out: refused before it was masked>"
        assert one.payload_truncated
        assert one.event["source"]["table"] == "rows"
    for one in (*told["late"], *told["out"]):
        assert one.event["after"]["value"] == "***"
        assert not one.payload_truncated
    assert not events(pipeline)
    assert progress.processors["mask"].counts == {"masked:script.rows.value": 40}
    assert SECRET not in "".join(letter.model_dump_json() for letter in letters)
    assert SECRET not in caplog.text + progress.model_dump_json()


@pytest.mark.parametrize(
    ("names", "told"), [(("reveals", "mask"), "is not JSON"), (("reveals", "late"), "planted")]
)
def test_an_error_holds_no_value(choosy, caplog, names, told):
    pipeline = begun(rows=2 if "late" in names else 3, processors=chain(*names))
    with caplog.at_level(logging.DEBUG):
        assert RunningLane(pipeline).end().error_class == "event"
    progress = pipeline.control.progress()

    assert told in progress.reason
    assert SECRET not in caplog.text + progress.model_dump_json()
