"""Which rows break which rules, and what becomes of them."""

import re
from decimal import Decimal
from typing import ClassVar

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_provider_deltaforge.errors import EventError, SpecError
from airflow_provider_deltaforge.processors.data_contract.settings import ColumnRule, DataContract
from airflow_provider_deltaforge.processors.data_contract.worker import broken
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.processors.rows import rows_of


def contract(columns=None, schema=None, **more):
    rule = {"table": "shop.orders", "columns": columns or {}}
    rule |= {} if schema is None else {"schema": schema}
    return DataContract.model_validate({"tables": [rule], **more}).open()


def verdicts(rule, *values):
    """Return which check of a column each value breaks."""
    images = [b"{}" if value is None else b'{"v":%s}' % value.encode() for value in values]
    found: list = [None] * len(values)
    for _, what, rows in broken(pa.array(images, pa.binary()), {"v": ColumnRule(**rule)}):
        for at in rows.nonzero()[0]:
            assert found[at] is None
            found[at] = what
    return found


class TestColumns:
    def test_types(self):
        values = ["1", "1.5", '"1.50"', '"x"', "true", "{}", "[]", "1e3", '"NaN"', "null", None]
        fits = {
            "string": [2, 3, 8],
            "integer": [0],
            "number": [0, 1, 7],
            "decimal": [0, 1, 2, 7],
            "boolean": [4],
            "object": [5],
            "array": [6],
        }
        for kind, good in fits.items():
            broken_by = verdicts({"type": kind}, *values)
            assert [at for at in range(9) if broken_by[at] is None] == good, kind
            assert broken_by[9:] == [None, None]

    def test_what_is_not_there_is_null(self):
        rule = {"nullable": False, "type": "integer", "min": 1, "enum": [1]}
        assert verdicts(rule, "null", None, "1") == ["nullable", "nullable", None]

    def test_a_value_the_log_did_not_repeat_is_not_judged(self):
        rule = {"type": "string", "nullable": False, "regex": "x"}
        assert verdicts(rule, '{"_unchanged":true}', '{"_unchanged":false}') == [None, "type"]

    def test_choices(self):
        rule = {"enum": ["new", "1", 2, True]}
        values = ['"new"', '"1"', "1", "2", '"2"', "true", "false", '"true"', '"ne\\u0077"', "null"]
        assert verdicts(rule, *values) == [
            None,
            None,
            "enum",
            None,
            "enum",
            None,
            "enum",
            "enum",
            None,
            None,
        ]

    def test_texts(self):
        rule = {"type": "string", "min_length": 2, "max_length": 3, "regex": "^é|z$"}
        values = ['"éa"', '"\\u00e9abc"', '"é"', '"ab"', '"abz"']
        assert verdicts(rule, *values) == [None, "max_length", "min_length", "regex", None]

    def test_bounds_are_compared_digit_by_digit(self):
        rule = {"type": "decimal", "min": 0.01, "max": 9007199254740993}
        values = ['"0.01"', "0.0099999999999999999999", '"9007199254740993"', "9007199254740994"]
        values += ["9007199254740993.0000000000000000000000001", "1e999", "-1e-999", '"0.010"']
        assert verdicts(rule, *values) == [None, "min", None, "max", "max", "max", "min", None]

    def test_exponents_beyond_those_of_decimals_are_compared_by_their_sign(self):
        values = [f'"{text}{"9" * 30}"' for text in ("1e", "-1e+", "1e-", "-1E-", "0e")]
        rule = {"type": "decimal", "min": 0, "max": 10**30}
        assert verdicts(rule, *values) == ["max", "min", None, "min", None]

    @given(
        st.lists(st.decimals(allow_nan=False, allow_infinity=False), min_size=1, max_size=20),
        st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
    )
    @settings(max_examples=60, deadline=None)
    def test_bounds_mean_what_decimals_mean(self, values, bound):
        exact = Decimal(str(bound))
        texts = [f'"{value}"' for value in values]
        for name, beyond in (
            ("min", lambda value: value < exact),
            ("max", lambda value: value > exact),
        ):
            expected = [name if beyond(value) else None for value in values]
            assert verdicts({"type": "decimal", name: bound}, *texts) == expected


RULES = {
    "id": {"type": "integer", "nullable": False, "min": 1},
    "total": {"type": "decimal", "max": 1000},
}


class TestViolations:
    def test_rows_that_break_rules_are_set_aside_with_every_rule(self):
        rows = rows_of({"id": 1, "total": "5"}, {"id": -7, "total": "5000.25"}, {"total": "1"})

        done = contract(RULES).process(rows)

        assert done.rows.equals(rows.slice(0, 1))
        assert done.origins.to_pylist() == [0]
        assert [(one.event_row, one.kind, one.reason) for one in done.rejections] == [
            (
                1,
                "processor",
                "table shop.orders, column 'id': min; table shop.orders, column 'total': max",
            ),
            (2, "processor", "table shop.orders, column 'id': nullable"),
        ]
        assert done.counts == {
            "violations:shop.orders.id.min": 1,
            "violations:shop.orders.id.nullable": 1,
            "violations:shop.orders.total.max": 1,
        }

    def test_rows_that_break_rules_may_only_be_counted(self):
        rows = rows_of({"id": 0}, {"id": 5})
        done = contract(RULES, on_violation="count").process(rows)
        assert done.rows is rows
        assert done.rejections == ()
        assert done.counts == {"violations:shop.orders.id.min": 1}

    def test_a_row_that_breaks_a_rule_may_stop_the_pipeline_and_its_values_are_not_shown(self):
        with pytest.raises(
            EventError, match=r"1 of 2 .* table shop.orders, column 'total': type"
        ) as (caught):
            contract(RULES, on_violation="block").process(
                rows_of({"id": 5}, {"id": 5, "total": "Hush"})
            )
        assert "Hush" not in str(caught.value)

    def test_what_becomes_of_it_can_differ_by_table(self):
        worker = DataContract(
            on_violation="block",
            tables=[
                {
                    "table": "orders",
                    "columns": {"id": {"nullable": False}},
                    "on_violation": "count",
                },
                {"table": "shop.%", "columns": {"no": {"nullable": False}}},
            ],
        ).open()
        assert worker.process(rows_of({"no": 1})).counts == {"violations:orders.id.nullable": 1}
        with pytest.raises(EventError, match="'no': nullable"):
            worker.process(rows_of({"id": 1}))

    def test_other_tables_and_events_without_a_new_image_pass(self):
        rows = change_rows(
            [
                change(table="others", after=b"{}"),
                change(op="d", after=None, before=b"{}"),
                change(op="t", after=None),
                change(op="r", after=b'{"id":1}'),
                change(schema="sales", after=b"{}"),
            ]
        )
        done = contract(RULES).process(rows)
        assert done.rows is rows
        assert done.counts == {}

    def test_an_outbox_row_is_matched_by_its_database_too(self):
        rows = change_rows([change(schema="__outbox", after=b"{}")])
        assert len(contract(RULES).process(rows).rejections) == 1

    def test_a_slice_is_judged_for_itself(self):
        rows = rows_of({}, {"id": 1}, {}, {"id": 2})
        done = contract(RULES).process(rows.slice(1, 3))
        assert done.origins.to_pylist() == [0, 2]
        assert [one.event_row for one in done.rejections] == [1]


TEXT_BODY = {"body": {"type": "string"}}
ID_BODY = {"required": ["id", "body"]}


class TestSchema:
    SCHEMA: ClassVar = {
        "type": "object",
        "required": ["id", "lines"],
        "properties": {
            "id": {"type": "integer"},
            "note": {"$ref": "#/definitions/note"},
            "lines": {"type": "array", "items": {"properties": {"sku": {"maxLength": 2}}}},
        },
        "additionalProperties": False,
        "definitions": {"note": {"type": "string", "pattern": "^[a-z]*$"}},
    }

    def test_rows_are_held_to_it_and_no_value_is_shown(self):
        rows = rows_of(
            {"id": 1, "lines": [{"sku": "ab"}]},
            {"id": 1, "lines": [{"sku": "Hush"}]},
            {"id": "Hush", "lines": []},
            {"id": 1, "lines": [], "note": "Hush"},
            {"lines": []},
            {"id": 1, "lines": [], "more": "Hush"},
        )

        done = contract(schema=self.SCHEMA).process(rows)

        assert done.origins.to_pylist() == [0]
        assert [one.reason for one in done.rejections] == [
            "table shop.orders, column 'lines': schema (maxLength)",
            "table shop.orders, column 'id': schema (type)",
            "table shop.orders, column 'note': schema (pattern)",
            "table shop.orders, column 'id': schema (required)",
            "table shop.orders, schema (additionalProperties)",
        ]
        assert done.counts == {"violations:shop.orders.schema": 5}

    def test_a_value_the_log_did_not_repeat_is_not_judged(self):
        unchanged = {"_unchanged": True}
        rows = rows_of({"id": 1, "lines": unchanged, "note": unchanged}, {"lines": unchanged})
        done = contract(schema=self.SCHEMA).process(rows)
        assert [one.event_row for one in done.rejections] == [1]

    @pytest.mark.parametrize("value", [b'{"_unchanged": true}', b'{"_unchanged":1}'])
    def test_a_value_of_the_source_is_judged_although_it_looks_like_the_mark(self, value):
        rows = change_rows([change(after=b'{"id":1,"lines":%b}' % value)])
        done = contract(schema=self.SCHEMA).process(rows)
        assert len(done.rejections) == 1

    @pytest.mark.parametrize(
        ("schema", "broken"),
        [
            ({"type": "object", "required": ["id", "body"]}, {}),
            (
                {
                    "$ref": "#/definitions/R%6Fw",
                    "definitions": {"Row": {"required": ["id", "body"], "properties": TEXT_BODY}},
                },
                {},
            ),
            ({"allOf": [{"required": ["id"]}, {"required": ["body"]}]}, {}),
            ({"anyOf": [{"required": ["body", "id"]}, {"required": ["text"]}]}, {}),
            ({"oneOf": [{"required": ["body"]}, {"required": ["text"]}]}, {"text": 1}),
            ({"minProperties": 2}, {}),
            ({"maxProperties": 2}, {"id": 1, "more": 2}),
            ({"dependencies": {"id": ["body", "more"], "more": ["body"]}}, {"id": 1}),
            ({"dependencies": {"body": ["id"]}}, {}),
            ({"dependencies": {"body": {"required": ["id"]}}}, {}),
            (
                {"if": {"properties": {"id": {"const": 1}}}, "then": {"required": ["body", "id"]}},
                {},
            ),
            (
                {
                    "if": {"properties": {"body": {"const": "x"}}},
                    "then": {"required": ["id"]},
                    "else": {"properties": {"id": {"type": "integer"}}, "required": ["id"]},
                },
                {},
            ),
            ({"not": {"properties": TEXT_BODY}, "required": ["id"]}, {}),
            ({"not": {"required": ["text"]}}, {"text": 1}),
            (
                {
                    "oneOf": [{"properties": {"body": {"const": at}}} for at in (1, 2)],
                    "minLength": 1,
                }
                | {"properties": {"id": {"const": 1}}},
                {"id": 2},
            ),
            ({"allOf": [{"$ref": "#row"}], "definitions": {"r": {"$id": "#row", **ID_BODY}}}, {}),
        ],
    )
    def test_a_column_the_log_did_not_repeat_is_there_wherever_a_schema_asks(self, schema, broken):
        unchanged = {"_unchanged": True}
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
        fitting = {"id": 1, "more": 0} if "dependencies" in str(schema) else {"id": 1}
        rows = rows_of({**fitting, "body": unchanged}, {**broken, "body": unchanged})
        done = contract(schema=schema).process(rows)
        assert [one.event_row for one in done.rejections] == [1]

    def test_an_image_that_is_no_json_breaks_it(self):
        done = contract(schema={}).process(change_rows([change(after=b"{")]))
        assert done.rejections[0].reason == "table shop.orders, schema (no JSON)"

    def test_columns_and_schema_hold_together(self):
        worker = contract({"id": {"max": 5, "type": "integer"}}, {"required": ["no"]})
        done = worker.process(rows_of({"id": 9}))
        assert done.rejections[0].reason == (
            "table shop.orders, column 'id': max; table shop.orders, column 'no': schema (required)"
        )

    def test_a_schema_that_is_wrong_is_refused_at_start(self):
        with pytest.raises(SpecError, match=r"schema of 'shop.orders' is wrong"):
            contract(schema={"type": "text"})

    def test_a_schema_is_compiled_when_it_is_validated(self):
        tables = [{"table": "a", "schema": self.SCHEMA}, {"table": "b", "schema": {"type": "text"}}]
        DataContract.model_validate({"tables": tables[:1]}).check()
        with pytest.raises(SpecError, match="schema of 'b' is wrong"):
            DataContract.model_validate({"tables": tables}).check()


@pytest.mark.parametrize(
    "value",
    [b"9" * 400, b"[" * 1010 + b"1" * 20 + b"]" * 1010],
    ids=["beyond floats", "nested beyond Python's stack"],
)
def test_what_no_schema_can_be_asked_about_is_set_aside(value):
    schema = {"properties": {"v": {"multipleOf": 0.01}}}
    images = [b'{"v":%s}' % value, b'{"v":1}']
    done = contract(schema=schema).process(change_rows([change(after=one) for one in images]))

    assert [one.event_row for one in done.rejections] == [0]
    assert done.rows["after"].to_pylist() == images[1:]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ({}, "needs 'columns' or a 'schema'"),
        ({"columns": {"a": {"min": 1}}}, "'min' needs the type"),
        ({"columns": {"a": {"type": "string", "max": 1}}}, "'max' needs the type"),
        ({"columns": {"a": {"type": "integer", "max": float("inf")}}}, "finite"),
        ({"columns": {"a": {"regex": "x"}}}, "'regex' needs the type string"),
        ({"columns": {"a": {"type": "string", "regex": "(?=x)"}}}, "no RE2 pattern"),
        ({"columns": {"a": {"type": "string", "enum": [1]}}}, "'enum' holds a int"),
        ({"columns": {"a": {"maxx": 1}}}, "Extra inputs"),
        ({"schema": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}, "another draft"),
        ({"schema": {"allOf": [{"$ref": "https://example.com/x.json"}]}}, "only references within"),
        ({"schema": {}, "table": "shop."}, "empty part"),
    ],
)
def test_rules_that_cannot_work_are_refused_in_the_document(rule, reason):
    with pytest.raises(ValidationError, match=re.escape(reason)):
        DataContract.model_validate({"tables": [{"table": "orders", **rule}]})


def test_a_table_is_named_once():
    rule = {"table": "orders", "schema": {}}
    with pytest.raises(ValidationError, match="'orders' twice"):
        DataContract.model_validate({"tables": [rule, rule]})
