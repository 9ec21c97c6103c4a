import json
import logging
import pickle
import re
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec import load as load_module
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.inline_secrets import withhold
from airflow_provider_deltaforge.spec.load import check, load, read_document, spec_hash
from tests.spec.documents import document

GOLDEN_FILES = Path(__file__).parents[1] / "golden" / "spec"


def messages(text, environment=None, **options):
    return [str(problem) for problem in check(text, environment or {}, **options)]


def test_a_document_becomes_descriptions_ready_to_open():
    pipeline = load(document(source="rows: 7", spec="batch: {max_ms: 5}"), {})

    assert (pipeline.name, pipeline.metadata.tenant) == ("orders", "acme")
    assert (
        type(pipeline.spec.source).__name__,
        pipeline.spec.source.id,
        pipeline.spec.source.rows,
    ) == ("ScriptedSource", "source-a", 7)
    assert [sink.id for sink in pipeline.spec.sinks] == ["sink-a"]
    assert type(pipeline.spec.sinks[0].envelope).__name__ == "NativeEnvelope"
    assert type(pipeline.spec.sinks[0].encoding).__name__ == "JsonEncoding"


def test_defaults_are_those_of_the_contract():
    spec = load(document(), {}).spec

    assert (
        spec.batch.max_events,
        spec.batch.max_bytes,
        spec.batch.max_ms,
        spec.batch.respect_source_tx,
        spec.batch.max_inflight,
        spec.batch.max_transaction_bytes,
    ) == (2000, 16777216, 50, True, 1, 8388608)
    assert (
        spec.commit_policy.mode,
        spec.trigger.window,
        spec.delivery.parallelism,
        spec.schema_sensing.enabled,
        spec.journal.enabled,
    ) == ("required", 600, 1, False, False)


def test_a_pipeline_travels_to_an_executor_and_cannot_be_changed():
    pipeline = load(document(), {})

    assert pipeline == pickle.loads(pickle.dumps(pipeline))
    with pytest.raises(ValueError, match="frozen"):
        pipeline.spec.batch.max_ms = 4


def test_json_is_read_as_well():
    text = (
        '{"metadata": {"name": "a", "tenant": "b"}, "spec": {"source": {"type": "scripted"},'
        ' "sinks": [{"type": "redis", "config": {"id": "r", "uri": "redis://h", "stream": "s"}}]}}'
    )

    assert load(text, {}).name == "a"


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("envelope: debezium\nencoding: json", id="bare names"),
        pytest.param("envelope: {type: debezium}\nencoding: {type: json}", id="maps"),
    ],
)
def test_envelope_and_encoding_are_names_or_maps(written):
    sink = load(document(sink=written), {}).spec.sinks[0]

    assert type(sink.envelope).__name__ == "DebeziumEnvelope"
    assert type(sink.encoding).__name__ == "JsonEncoding"


GOLDEN = """\
metadata:
  name: a b
  tenant: acme
spec:
  source:
    type: postgres
    config:
      id: pg
      dsn: ${PG_DSN}
      slot: Bad-Slot
      publicaton: p
      snapshot: {mode: initial, chunk_siz: 4, max_parallel_tables: many}
  processors:
    - type: javascript
      inline: ""
      limits: {timeout: 4}
    - type: flattn
    - type: filter
      fields: [{path: a, op: eqq}, {path: b, op: in, value: 4}]
  sinks:
    - type: redis
      config:
        stream: "${source.table}.${NOPE}"
        ulr: 4
        envelope: {typo: 4}
        encoding: {type: avro, schema_registry_ulr: x}
    - type: nats
      confg: {}
  batch:
    max_event: 4
    max_ms: -4
  commit_policy: {mode: quorum}
  storage: {backend: sqlit}
shards: 4
"""


def test_all_errors_come_at_once_with_key_line_and_suggestion(golden):
    with pytest.raises(SpecError) as caught:
        load(GOLDEN, {"PG_DSN": "postgres://u:planted@h/d"}, origin="orders.yaml")

    golden(GOLDEN_FILES / "all_errors.txt", f"{caught.value}\n".encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the document is empty; begin with 'metadata' and 'spec'"),
        ("[1]", "line 1: the document is not a map; begin with 'metadata' and 'spec'"),
        ("a: 1\n---\nb: 2", "line 2, column 1: not YAML: but found another document"),
        ("a: {b", "line 1, column 6: not YAML: expected ',' or '}', but got '<stream end>'"),
        ("a: \x00", "not YAML: the text holds characters that YAML does not allow"),
        (
            "a: !!python/object:os.system x",
            "line 1, column 4: not YAML: could not determine a constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'",
        ),
        (
            "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\n"
            "c: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\n"
            "e: &e [*d, *d, *d, *d, *d, *d, *d, *d]\nf: [*e, *e, *e, *e, *e, *e, *e, *e]\n",
            "the document holds more than 50000 values; split it",
        ),
        ("a: &a [*a]", "the document is nested too deeply, or an alias holds itself"),
        ("a: " + "[" * 5000, "the document is nested too deeply, or an alias holds itself"),
        ("a: " + "9" * 5000, "the document holds a number that is too long, or not one"),
    ],
)
def test_text_that_is_no_document_is_refused(text, message):
    assert [message] == messages(text)


def test_a_key_given_twice_is_refused():
    text = document(source="rows: 3\nrows: 4")

    assert messages(text) == [
        "line 11: spec.source.config.rows: the key is there twice, first on line 10"
    ]


def test_a_key_that_yaml_does_not_read_as_text_is_refused():
    assert messages(document(metadata="labels: {true: x}")) == [
        "line 4: metadata.labels: keys are text; put the key 'true' in quotes"
    ]


@pytest.mark.parametrize("value", ["!!binary aGk=", "!!timestamp 2026-01-01"])
def test_values_that_json_does_not_know_are_refused(value):
    assert messages(document(metadata=f"labels: {{a: {value}}}"))[0] == (
        "line 4: metadata.labels.a: write this as text, a number, true or false; other tags are "
        "not read"
    )


def test_merge_keys_fill_in_and_do_not_count_as_twice():
    text = document(metadata="labels: &l {team: a, zone: b}\nannotations: {<<: *l, team: c}")

    assert load(text, {}).metadata.annotations == {"team": "c", "zone": "b"}


def test_dates_stay_text():
    assert load(document(metadata="labels: {since: 2026-01-01}"), {}).metadata.labels == {
        "since": "2026-01-01"
    }


class TestSecrets:
    ENVIRONMENT: ClassVar = {"PW": "planted-secret", "N": "planted-number"}

    @pytest.mark.parametrize(
        "text",
        [
            document(source="rows: '${PW}'"),
            document(sink="envelope: '${PW}'"),
            document(sink="send_timeout_secs: redis://u:planted-secret@h"),
            document(spec="storage: {backend: '${PW}'}"),
            document(spec="processors: [{type: '${PW}'}]"),
            document(sink="key: '${PW}${'"),
            document(source="rows: {planted-secret"),
        ],
    )
    @pytest.mark.parametrize("expand", [True, False])
    def test_they_are_in_no_message(self, text, expand):
        told = "\n".join(messages(text, self.ENVIRONMENT, expand=expand))

        assert told
        assert "planted" not in told

    def test_they_are_in_no_repr(self):
        pipeline = load(document().replace("redis://cache", "redis://:${PW}@h"), self.ENVIRONMENT)

        assert "planted-secret" in pipeline.spec.sinks[0].uri.get_secret_value()
        assert "planted" not in repr(pipeline) + str(pipeline)


class TestIds:
    def test_a_missing_id_becomes_the_type_with_a_warning(self, caplog):
        text = (
            document()
            .replace("      id: source-a\n", "      rows: 3\n")
            .replace("        id: sink-a\n", "")
        )
        with caplog.at_level(logging.WARNING):
            spec = load(text, {}).spec

        assert (spec.source.id, spec.sinks[0].id) == ("scripted", "redis")
        assert caplog.messages == [
            "spec.source.config.id is not given, using 'scripted'",
            "spec.sinks[0].config.id is not given, using 'redis'",
        ]

    def test_processors_are_numbered(self):
        text = document(spec="processors: [{type: outbox}, {type: flatten}, {type: outbox}]")

        assert [processor.id for processor in load(text, {}).spec.processors] == [
            "outbox",
            "flatten",
            "outbox-2",
        ]

    def test_two_sinks_of_a_type_need_ids(self):
        text = document().replace("        id: sink-a\n", "")
        text += "    - {type: redis, config: {uri: redis://h, stream: s}}\n"

        assert messages(text) == [
            "line 13: spec.sinks[0].config.id: required, but not there",
            "line 18: spec.sinks[1].config.id: required, but not there",
        ]

    @pytest.mark.parametrize("name", ["", "  ", "a/b", "a\nb", "a\n", "-a", "a b", "ä", "x" * 101])
    @pytest.mark.parametrize(
        "key", ["spec.source.config.id", "spec.processors[0].id", "spec.sinks[0].config.id"]
    )
    def test_an_id_is_a_name_as_the_pipelines_is(self, key, name):
        text = document(spec="processors: [{type: outbox, id: outbox-a}]")
        written = {"source": "source-a", "processors": "outbox-a", "sinks": "sink-a"}
        kind = re.split(r"\W", key)[1]

        found = messages(text.replace(written[kind], json.dumps(name)))

        assert [re.sub(r"^line \d+: ", "", message) for message in found] == [
            f"{key}: must be 1 to 100 letters, digits, '.', '_' or '-', the first a letter or digit"
        ]

    def test_ids_are_unique(self):
        text = document() + "    - {type: nats, config: {id: sink-a, url: n, subject: s}}\n"

        assert messages(text) == [
            "line 19: spec.sinks[1].config.id: another of the sinks has the id 'sink-a'"
        ]


class TestFiles:
    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(SpecError, match=r"none\.yaml: cannot be read: No such file"):
            read_document(tmp_path / "none.yaml")


class TestHash:
    def test_formatting_does_not_change_it(self):
        one = "a: {b: 1, c: [x, 'y']}\n"
        two = "# comment\na:\n    c:\n    - 'x'\n    - y\n    b: 1\n"

        assert spec_hash(one) == spec_hash(two)
        assert len(spec_hash(one)) == 64

    @pytest.mark.parametrize("other", ["a: 2", "a: '1'", "b: 1", "a: ${A}", "a: [1]"])
    def test_meaning_does(self, other):
        assert spec_hash("a: 1") != spec_hash(other)

    def test_variables_do_not(self, monkeypatch):
        before = spec_hash("a: ${A}")
        monkeypatch.setenv("A", "x")

        assert before == spec_hash("a: ${A}")


class TestOncePerProcess:
    @pytest.fixture
    def read(self, monkeypatch):
        """How many texts were read as YAML, and how many documents were validated."""
        counted = Counter()
        compose, validate = yaml.SafeLoader.get_single_node, Pipeline.model_validate

        def counting_compose(loader):
            counted["parsed"] += 1
            return compose(loader)

        def counting_validate(data):
            counted["validated"] += 1
            return validate(data)

        monkeypatch.setattr(yaml.SafeLoader, "get_single_node", counting_compose)
        monkeypatch.setattr(Pipeline, "model_validate", counting_validate)
        return counted

    def test_a_text_is_parsed_once_and_validated_once_expanded_and_once_not(self, read):
        text = document(spec="batch: {max_ms: 31}")

        for _ in range(3):
            unexpanded = load(text, expand=False)
            withhold(text, unexpanded)
            spec_hash(text)
            expanded = load(text)

        assert read == {"parsed": 1, "validated": 2}
        assert load(text) is expanded

    def test_a_variable_that_changed_counts(self, monkeypatch):
        text = document(source="rows: ${ROWS_OF_ONE:-7}")
        rows = [load(text).spec.source.rows]
        for value in ("8", "8", "9"):
            monkeypatch.setenv("ROWS_OF_ONE", value)
            rows.append(load(text).spec.source.rows)

        assert rows == [7, 8, 8, 9]

    def test_another_environment_is_never_handed_on(self):
        text = document(source="rows: ${ROWS_OF_TWO:-7}")

        assert load(text, {"ROWS_OF_TWO": "3"}).spec.source.rows == 3
        assert load(text).spec.source.rows == 7
        assert load(text, {"ROWS_OF_TWO": "4"}).spec.source.rows == 4

    def test_only_some_documents_are_kept(self):
        for number in range(1, 40):
            load(document(source=f"rows: {number}"))

        assert len(load_module._loaded) <= load_module._LOADED_MAX
