"""``${VAR}`` in a document: where it is replaced, and what is refused in its place."""

import json

import pytest
import yaml

from airflow_provider_deltaforge.spec.load import check, load
from tests.spec.documents import document


def messages(text, environment=None, **options):
    return [str(problem) for problem in check(text, environment or {}, **options)]


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
