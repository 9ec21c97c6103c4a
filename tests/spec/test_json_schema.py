import pytest
import yaml
from jsonschema import Draft202012Validator

from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS, SOURCES
from airflow_provider_deltaforge.spec.json_schema import json_schema
from tests.spec.documents import DOCUMENTS, document


@pytest.fixture(scope="module")
def validator():
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def errors(validator, text):
    return [error.message for error in validator.iter_errors(yaml.safe_load(text))]


@pytest.mark.parametrize("path", DOCUMENTS.values(), ids=lambda path: path.stem)
def test_every_example_is_accepted_as_it_is_written(validator, path):
    assert errors(validator, path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        document(source="rows: ${ROWS}"),
        document(sink="required: ${REQUIRED:-true}\nenvelope: debezium\nencoding: {type: json}"),
        document(spec="commit_policy: {mode: '${MODE}'}\nbatch: {max_ms: '${MS:-4}'}"),
        document(metadata="labels: {a: b}\nannotations: {c: d}"),
        document().replace("      id: source-a\n", ""),
        document(spec="processors: [{type: outbox, topic: '${kind}'}, {type: filter}]"),
    ],
)
def test_documents_that_load_are_accepted(validator, text):
    assert errors(validator, text) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(document(source="rowz: 4"), id="a key of a source"),
        pytest.param(document(sink="ulr: 4"), id="a key of a sink"),
        pytest.param(document(sink="envelope: {type: nativ}"), id="an envelope"),
        pytest.param(document(sink="envelope: cloudevents"), id="an envelope without its prefix"),
        pytest.param(document(sink="filter: {producer: [a]}"), id="a key of a filter"),
        pytest.param(document(spec="bach: {}"), id="a key of spec"),
        pytest.param(document(spec="batch: {max_event: 4}"), id="a key of batch"),
        pytest.param(document(spec="batch: {max_events: many}"), id="text for a number"),
        pytest.param(document(spec="batch: {max_events: 0}"), id="no events"),
        pytest.param(document(spec="commit_policy: {mode: sometimes}"), id="a mode"),
        pytest.param(document(spec="processors: [{type: flattn}]"), id="a processor"),
        pytest.param(document(spec="processors: [{type: outbox, raw: 1}]"), id="its key"),
        pytest.param(document(spec="storage: {backend: sqlit}"), id="a backend"),
        pytest.param(document().replace("scripted", "mysqll"), id="a source"),
        pytest.param(document().replace("orders", "${NAME}", 1), id="a variable as name"),
        pytest.param(document().replace("  tenant: acme\n", ""), id="no tenant"),
        pytest.param("kind: Pipe\n" + document(), id="a kind"),
    ],
)
def test_what_is_misspelt_is_refused(validator, text):
    assert errors(validator, text)


def test_every_shipped_plugin_is_in_it():
    schema = json_schema()
    spec = schema["$defs"]["Spec"]["properties"]

    def types(choices):
        return {choice["properties"]["type"]["const"] for choice in choices}

    assert types(spec["source"]["oneOf"]) >= set(SOURCES.shipped)
    assert types(spec["sinks"]["items"]["oneOf"]) >= set(SINKS.shipped)
    assert types(spec["processors"]["items"]["oneOf"]) >= set(PROCESSORS.shipped)
