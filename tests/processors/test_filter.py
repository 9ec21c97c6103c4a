"""Filters keep what passes every gate, by the table of comparisons in the documentation."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from airflow_provider_deltaforge.processors.filter.settings import Filter
from tests.events.json_texts import KEYS, objects
from tests.processors.filter_twin import holds
from tests.processors.rows import images, rows


def keep(batch, **given_settings):
    """Return which rows pass, by their ordinal in the batch."""
    done = Filter(**given_settings).open().process(batch)
    kept = list(range(batch.num_rows)) if done.origins is None else done.origins.to_pylist()
    assert (
        done.rows.equals(batch.take(done.origins))
        if done.origins is not None
        else done.rows is batch
    )
    assert done.counts.get("dropped", 0) == batch.num_rows - len(kept)
    assert done.made is None
    assert not done.rejections
    return kept


def passes(text, op, value=None, path="x", before=None):
    condition = {"path": path, "op": op}
    if op not in {"exists", "not_exists", "changed"}:
        condition["value"] = value
    batch = images(text, before=[before])
    answer = bool(keep(batch, fields=[condition]))
    assert answer == holds(op, value, path, before, text)
    return answer


# Every row of the table, with what is present, what is missing and what is null.
TABLE = [
    ("eq", 1, [b'{"x":1}', b'{"x":1.0}', b'{"x":10e-1}'], [b'{"x":2}', b'{"x":"1"}', b"{}"]),
    ("eq", "ü", [b'{"x":"\xc3\xbc"}', b'{"x":"\\u00fc"}'], [b'{"x":"u"}', b'{"x":null}', None]),
    ("eq", True, [b'{"x":true}'], [b'{"x":false}', b'{"x":1}', b'{"x":"true"}']),
    ("eq", None, [b'{"x":null}'], [b"{}", b'{"x":0}']),
    ("eq", [1, {"a": 2}], [b'{"x":[1.0, {"a":2}]}'], [b'{"x":[{"a":2},1]}', b'{"x":[]}']),
    ("eq", 2**53 + 1, [b'{"x":9007199254740993}'], [b'{"x":9007199254740992}']),
    ("eq", 0.1, [b'{"x":0.10}', b'{"x":1e-1}'], [b'{"x":"0.1"}', b'{"x":0.1000000000000000055}']),
    ("ne", 1, [b'{"x":2}', b'{"x":"1"}', b'{"x":null}'], [b'{"x":1}', b'{"x":1.0}', b"{}", None]),
    ("exists", None, [b'{"x":0}', b'{"x":{}}', b'{"x":""}'], [b'{"x":null}', b"{}", None]),
    ("not_exists", None, [b'{"x":null}', b"{}", None], [b'{"x":0}', b'{"x":[]}']),
    ("gt", 9, [b'{"x":10}', b'{"x":9.001}'], [b'{"x":9}', b'{"x":"10"}', b"{}", b'{"x":[10]}']),
    ("gte", -1, [b'{"x":-1.0}', b'{"x":0}', b'{"x":-0.5}'], [b'{"x":-2}', b'{"x":null}']),
    ("lt", "b", [b'{"x":"a"}', b'{"x":"B"}', b'{"x":""}'], [b'{"x":"b"}', b'{"x":1}', b"{}"]),
    ("lte", "10", [b'{"x":"10"}', b'{"x":"0010"}'], [b'{"x":"9.50"}', b'{"x":9}']),
    ("lt", 10**30, [b'{"x":999999999999999999999999999999}'], [b'{"x":1e30}', b'{"x":1e31}']),
    ("in", ["a", 1, None], [b'{"x":"a"}', b'{"x":1.0}', b'{"x":null}'], [b'{"x":"b"}', b"{}"]),
    ("in", ["a", "b"], [b'{"x":"\\u0062"}'], [b'{"x":"ab"}', b'{"x":["a"]}', None]),
    ("in", [[1], {}], [b'{"x":[1]}', b'{"x":{ }}'], [b'{"x":1}', b'{"x":[]}']),
    (
        "in",
        list(range(40)),
        [b'{"x":39}', b'{"x":3e1}'],
        [b'{"x":40}', b'{"x":true}', b'{"x":"1"}'],
    ),
    ("in", [[1], [1], *[2] * 9], [b'{"x":2.0}', b'{"x":[1]}'], [b'{"x":1}', b'{"x":[2]}']),
    ("not_in", ["a", 1], [b'{"x":"b"}', b"{}", None, b'{"x":null}'], [b'{"x":"a"}', b'{"x":1}']),
    (
        "contains",
        "bc",
        [b'{"x":"abcd"}', b'{"x":["bc"]}'],
        [b'{"x":"b"}', b'{"x":["abcd"]}', b"{}"],
    ),
    (
        "contains",
        2,
        [b'{"x":[1, 2.0]}'],
        [b'{"x":2}', b'{"x":["2"]}', b'{"x":[[2]]}', b'{"x":"2"}'],
    ),
    ("contains", [2], [b'{"x":[[2]]}'], [b'{"x":[2]}', b'{"x":"[2]"}']),
    ("regex", "^A.*z$", [b'{"x":"A z"}', b'{"x":"Az"}'], [b'{"x":"Az "}', b'{"x":1}', b"{}", None]),
    ("regex", "b", [b'{"x":"abc"}'], [b'{"x":["b"]}', b'{"x":null}']),
]


@pytest.mark.parametrize(("op", "value", "yes", "no"), TABLE)
def test_the_table_of_comparisons(op, value, yes, no):
    assert [passes(text, op, value) for text in yes] == [True] * len(yes)
    assert [passes(text, op, value) for text in no] == [False] * len(no)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (b'{"x":1}', b'{"x":2}', True),
        (b'{"x":1}', b'{"x":1}', False),
        (b'{"x":1}', b'{"x":1.0}', False),
        (b'{"x":"a"}', b'{"x":"\\u0061"}', False),
        (b'{"x":{"a":1,"b":2}}', b'{"x":{"b":2, "a":1}}', False),
        (b'{"x":[1,2]}', b'{"x":[2,1]}', True),
        (b'{"x":1}', b"{}", True),
        (b'{"x":null}', b"{}", True),
        (b"{}", b"{}", False),
        (None, b'{"x":1}', True),
        (b'{"x":1}', None, True),
        (b'{"x":1}', b'{"x":{"_unchanged":true}}', False),
    ],
)
def test_changed_compares_the_images(before, after, changed):
    assert passes(after, "changed", before=before) == changed


def test_a_value_that_the_server_did_not_send_is_there_but_unknown():
    text = b'{"x":{"_unchanged":true}}'

    assert bool(keep(images(text), fields=[{"path": "x", "op": "exists"}]))
    assert not keep(images(text), fields=[{"path": "x", "op": "not_exists"}])
    assert not keep(images(text), fields=[{"path": "x", "op": "ne", "value": 1}])


CONSTANTS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**63, 0.5, 1e30, -1.5, 7, "a", "", "ä", "😀", True, False]),
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.one_of(st.none(), objects), st.one_of(st.none(), objects)),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.sampled_from([key for key in KEYS if key and "." not in key]), min_size=1, max_size=2
    ),
    st.sampled_from(
        ["eq", "ne", "gt", "gte", "lt", "lte", "contains", "in", "not_in", "exists", "changed"]
    ),
    CONSTANTS,
)
def test_any_rows_are_judged_as_one_event_at_a_time(pairs, names, op, constant):
    value = [constant, 0, "a"] if op in {"in", "not_in"} else constant
    if op in {"gt", "gte", "lt", "lte"} and isinstance(value, bool):
        value = int(value)
    condition = {"path": ".".join(names), "op": op}
    if op not in {"exists", "changed"}:
        condition["value"] = value
    before, after = zip(*pairs, strict=True)

    kept = keep(images(*after, before=before), fields=[condition])

    assert kept == [
        n for n, (old, new) in enumerate(pairs) if holds(op, value, condition["path"], old, new)
    ]


def test_operations_and_tables_are_gates_of_their_own():
    batch = rows(
        {"op": "c"},
        {"op": "u", "table": "customers"},
        {"op": "d", "table": "order_items"},
        {"op": "r"},
        {"op": "t"},
        {"op": "c", "db": "sales", "schema": "shop", "table": "orders"},
        {"op": "c", "db": "sales", "schema": "public", "table": "orders"},
    )

    assert keep(batch, ops=["create", "truncate"]) == [0, 4, 5, 6]
    assert keep(batch, ops=["read", "delete", "update"]) == [1, 2, 3]
    assert keep(batch, tables={"include": ["shop.order%"]}) == [0, 2, 3, 4, 5]
    assert keep(batch, tables={"exclude": ["orders"]}) == [1, 2]
    assert keep(batch, tables={"include": ["order*"], "exclude": ["shop.orders"]}) == [2, 6]
    assert keep(batch, ops=["create"], tables={"include": ["public.*"]}) == [6]


def test_an_outbox_row_is_matched_by_its_database_too():
    batch = rows({"schema": "__outbox", "table": "outbox"}, {"schema": "public", "table": "outbox"})

    assert keep(batch, tables={"include": ["shop.outbox"]}) == [0]
    assert keep(batch, tables={"include": ["__outbox.*"]}) == [0]


def test_schema_changes_pass_every_gate():
    batch = rows({"op": "ddl", "table": "_ddl", "ddl": b'{"sql":"DROP TABLE x"}'}, {"op": "u"})

    kept = keep(
        batch,
        ops=["create"],
        tables={"include": ["other"]},
        fields=[{"path": "x", "op": "eq", "value": 1}],
    )

    assert kept == [0]


def test_all_or_any_condition():
    batch = images(b'{"a":1,"b":1}', b'{"a":1}', b'{"b":1}', b"{}")
    fields = [{"path": "a", "op": "exists"}, {"path": "b", "op": "exists"}]

    assert keep(batch, fields=fields) == [0]
    assert keep(batch, fields=fields, match="any") == [0, 1, 2]
    assert keep(batch) == [0, 1, 2, 3]


def test_a_batch_may_be_dropped_whole():
    batch = rows({"op": "d"}, {"op": "d"})

    done = Filter(ops=["create"]).open().process(batch)

    assert done.rows.num_rows == 0
    assert done.origins.to_pylist() == []
    assert done.rows.schema.equals(batch.schema)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ({"path": "x", "op": "eq"}, "needs a 'value'"),
        ({"path": "x", "op": "in", "value": "a"}, "needs a list"),
        ({"path": "x", "op": "in", "value": []}, "'in' never holds with an empty list"),
        ({"path": "x", "op": "not_in", "value": []}, "'not_in' always holds with an empty list"),
        ({"path": "x", "op": "gt", "value": True}, "needs a number or text"),
        ({"path": "x", "op": "gt", "value": float("inf")}, "finite"),
        ({"path": "x", "op": "exists", "value": 1}, "takes no 'value'"),
        ({"path": "x..y", "op": "exists"}, "empty part"),
        ({"path": "x", "op": "regex", "value": "("}, "RE2"),
        ({"path": "x", "op": "regex", "value": "(?=a)"}, "RE2"),
        ({"path": "x", "op": "regex", "value": 1}, "needs text"),
        ({"path": "x", "op": "eq", "value": {1, 2}}, "quote it"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_the_document(condition, says):
    with pytest.raises(ValidationError, match=r"fields\.0") as refused:
        Filter(fields=[condition])
    assert says in str(refused.value)


def test_patterns_that_match_nothing_are_refused():
    with pytest.raises(ValidationError, match="empty part"):
        Filter(tables={"include": ["shop."]})


def test_a_description_is_plain_data():
    settings_of = Filter(fields=[{"path": "a.b", "op": "regex", "value": "^x"}]).model_dump()

    assert json.loads(json.dumps(settings_of))["fields"][0]["path"] == "a.b"
