import json
import logging
import pickle
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


class TestVariables:
    def test_they_are_filled_in_alone_inside_text_and_in_numbers(self):
        text = document(
            source="rows: ${ROWS}",
            sink='key: "${PREFIX}-${after.id}"\nrequired: ${REQUIRED}',
            spec="batch: {max_ms: '${MS:-25}'}",
        )

        spec = load(text, {"ROWS": "9", "PREFIX": "eu", "REQUIRED": "false"}).spec

        assert spec.source.rows == 9
        assert spec.sinks[0].key == "eu-${after.id}"
        assert spec.sinks[0].required is False
        assert spec.batch.max_ms == 25

    def test_a_value_is_never_read_as_yaml(self):
        text = document(metadata="labels: {note: '${NOTE}'}")

        note = "x\nspec: {a: [1, 2]} # ${NOTE} $$ 'quoted\""

        assert note == load(text, {"NOTE": note}).metadata.labels["note"]

    def test_text_that_looks_like_a_number_stays_text(self):
        text = document(metadata="labels: {note: '${NOTE}'}")

        assert load(text, {"NOTE": "007"}).metadata.labels["note"] == "007"

    def test_bare_dollars_stay(self):
        text = document(metadata="labels: {note: '$HOME $$ $1 costs $'}")

        assert load(text, {"HOME": "x"}).metadata.labels["note"] == "$HOME $$ $1 costs $"

    def test_an_empty_variable_takes_its_default_and_without_one_stays_empty(self):
        text = document(metadata="labels: {a: '${A:-d}', b: '${B}'}")

        assert load(text, {"A": "", "B": ""}).metadata.labels == {"a": "d", "b": ""}

    def test_scripts_are_not_touched(self):
        script = "`${id}` + `${HOME}` + '$$'"
        text = document(spec=f'processors: [{{type: javascript, inline: "{script}"}}]')

        assert script == load(text, {"HOME": "x"}).spec.processors[0].inline

    def test_templates_survive_even_when_a_variable_has_their_name(self):
        text = document(sink='key: "${op}.${source.table}"')

        pipeline = load(text, {"op": "x", "source.table": "y", "source": "z"})

        assert pipeline.spec.sinks[0].key == "${op}.${source.table}"

    def test_columns_of_the_outbox_survive_in_its_templates(self):
        text = document(
            spec='processors: [{type: outbox, topic: "${aggregate_type}", key: "${aggregate_id}"}]'
        )

        assert load(text, {}).spec.processors[0].topic == "${aggregate_type}"

    def test_an_unset_variable_is_named_with_key_and_line(self):
        text = document(sink="key: ${NOBODY}")

        assert messages(text) == [
            "line 17: spec.sinks[0].config.key: the variable 'NOBODY' is not set; set it, or "
            "write '${NOBODY:-default}'"
        ]

    def test_event_fields_are_refused_where_there_is_no_event(self):
        text = document(metadata="labels: {note: '${source.table}'}")

        assert messages(text) == [
            "line 4: metadata.labels.note: '${source.table}' is a field of an event, and this is "
            "no template; write '${NAME}' or '${NAME:-default}', or hold the text itself in a "
            "variable"
        ]

    @pytest.mark.parametrize(
        "slip",
        ["${X:?must be set}", "${X-d3fault}", "${X-Y}", "${a.b}", "${op}", "${X", "${X${Y}}"],
    )
    @pytest.mark.parametrize("expand", [True, False])
    @pytest.mark.parametrize(
        ("key", "kind", "config"),
        [
            ("spec.processors[0].secret", "mask", {"secret": ""}),
            (
                "spec.sinks[0].config.signing_secret",
                "http",
                {"url": "http://h", "signing_secret": ""},
            ),
            (
                "spec.sinks[0].config.password",
                "redis",
                {"uri": "redis://h", "stream": "s", "password": ""},
            ),
            ("spec.sinks[0].config.brokers", "kafka", {"topic": "t", "brokers": ""}),
            (
                'spec.sinks[0].config.client_conf["sasl.password"]',
                "kafka",
                {"topic": "t", "brokers": "b:1", "client_conf": {"sasl.password": ""}},
            ),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_mistyped_reference_never_becomes_the_value(self, slip, expand, key, kind, config):
        config = json.loads(json.dumps(config).replace('""', json.dumps(slip)))
        data = yaml.safe_load(document())
        if kind == "mask":
            rules = [{"columns": ["shop.orders.email"], "action": "hash"}]
            data["spec"]["processors"] = [{"type": kind, "rules": rules, **config}]
        else:
            data["spec"]["sinks"] = [{"type": kind, "config": {"id": "sink-a", **config}}]

        problems = check(json.dumps(data), {"X": "x" * 32, "Y": "y" * 32}, expand=expand)

        assert [problem.key for problem in problems] == [key]
        assert "write '${NAME}' or '${NAME:-default}'" in problems[0].message
        assert "d3fault" not in problems[0].message

    def test_templates_follow_a_sink_whose_type_is_a_variable(self):
        text = document(sink='key: "${after.id}"').replace("type: redis", "type: ${KIND:-redis}")

        assert load(text, {}).spec.sinks[0].key == "${after.id}"
        assert load(text, expand=False).spec.sinks[0].key == "${after.id}"

    def test_queries_and_parameters_of_functions_hold_braces_of_their_own(self):
        text = document(
            spec="processors:\n- {type: sql, query: \"select '${a.b}' as x, '${' as y\"}\n"
            "- {type: python, function: 'm:f', params: {form: ['${after.id}'], to: '${TO}'}}"
        )

        sql, python = load(text, {"TO": "eu"}).spec.processors

        assert sql.query == "select '${a.b}' as x, '${' as y"
        assert python.params == {"form": ["${after.id}"], "to": "eu"}

    def test_names_of_kept_state_cannot_be_variables(self):
        text = document().replace("name: orders", "name: ${N}").replace("sink-a", "${ID:-x}")

        assert messages(text, {"N": "orders", "ID": "y"}) == [
            "line 2: metadata.name: kept state is named by this, so '${N}' cannot stand here",
            "line 14: spec.sinks[0].config.id: kept state is named by this, so '${ID:-x}' cannot "
            "stand here",
        ]

    def test_something_that_is_no_name_is_refused(self):
        text = document(source="chunk_transactions: '${a b}'")

        assert messages(text) == [
            "line 10: spec.source.config.chunk_transactions: '${a…}' is no variable; write "
            "'${NAME}' or '${NAME:-default}', or hold the text itself in a variable"
        ]


class TestUnexpanded:
    def test_references_stay_where_text_stands(self):
        text = document(sink="key: ${KEY:-x.y}").replace("redis://cache", "${URI}")

        sink = load(text, {"URI": "redis://never"}, expand=False).spec.sinks[0]

        assert (sink.uri.get_secret_value(), sink.key) == ("${URI}", "${KEY:-x.y}")

    def test_numbers_and_choices_take_their_defaults(self):
        text = document(
            source="rows: ${ROWS:-12}", spec="commit_policy: {mode: '${MODE:-required}'}"
        )

        spec = load(text, expand=False).spec

        assert (spec.source.rows, spec.commit_policy.mode) == (12, "required")

    def test_a_number_without_default_is_refused_with_the_way_out(self):
        assert messages(document(source="rows: ${ROWS}"), expand=False) == [
            "line 10: spec.source.config.rows: Input should be a valid integer, unable to parse "
            "string as an integer; unexpanded, this needs a default: '${NAME:-value}'"
        ]

    def test_a_wrong_default_is_refused(self):
        assert messages(document(source="rows: ${ROWS:-many}"), expand=False) == [
            "line 10: spec.source.config.rows: Input should be a valid integer, unable to parse "
            "string as an integer"
        ]


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
