"""JSON of any depth: conditions on other columns read past it, and nothing is dropped unseen."""

import json

import pytest

from airflow_provider_deltaforge.processors.data_contract.settings import DataContract
from airflow_provider_deltaforge.processors.filter.settings import Filter
from airflow_provider_deltaforge.processors.flatten.settings import Flatten
from airflow_provider_deltaforge.processors.mask.settings import Mask
from airflow_provider_deltaforge.processors.outbox.settings import Outbox
from tests.processors.rows import images, rows

DEPTHS = [1_023, 1_024, 1_025, 3_000, 200_000]


def nested(depth, inside=b"1", kind="array"):
    if kind == "array":
        return b"[" * depth + inside + b"]" * depth
    return b'{"k":' * depth + inside + b"}" * depth


def row(depth, **more):
    doc = nested(depth, kind=more.pop("kind", "array"))
    return b'{"id":1,"doc":' + doc + b',"name":"ann","note":null}'


@pytest.mark.parametrize("kind", ["array", "object"])
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_condition_on_another_column_reads_past_any_depth(depth, kind):
    batch = images(row(depth, kind=kind), row(2), before=[row(depth, kind=kind), row(2)])
    for condition in (
        {"path": "name", "op": "eq", "value": "ann"},
        {"path": "name", "op": "in", "value": ["ann", "bob"]},
        {"path": "name", "op": "regex", "value": "^a"},
        {"path": "note", "op": "not_exists"},
        {"path": "doc", "op": "exists"},
    ):
        done = Filter(fields=[condition]).open().process(batch)
        assert (done.rows.num_rows, list(done.rejections)) == (2, []), condition
    unchanged = Filter(fields=[{"path": "doc", "op": "changed"}]).open().process(batch)
    assert unchanged.rows.num_rows == 0


@pytest.mark.parametrize(
    "condition",
    [
        {"path": "doc", "op": "changed"},
        {"path": "doc", "op": "contains", "value": {"a": 1}},
        {"path": "doc", "op": "eq", "value": [1]},
        {"path": "doc", "op": "ne", "value": [1]},
        {"path": "doc", "op": "not_in", "value": [[1], {}]},
    ],
)
def test_a_value_too_deep_to_be_compared_is_set_aside_unless_the_rest_decides(condition):
    deep, other = row(3_000), row(3_001)
    batch = images(row(2), deep, row(2), before=[row(2), other, row(2)])

    done = Filter(fields=[condition]).open().process(batch)
    assert [one.event_row for one in done.rejections] == [1]
    assert "too deep" in done.rejections[0].reason
    kept = [] if done.origins is None else done.origins.to_pylist()
    assert done.counts.get("dropped", 0) == 2 - len(kept)

    no = {"path": "name", "op": "eq", "value": "bob"}
    yes = {"path": "name", "op": "eq", "value": "ann"}
    decided = Filter(fields=[condition, no]).open().process(batch)
    assert (decided.rows.num_rows, list(decided.rejections)) == (0, [])
    decided = Filter(fields=[condition, yes], match="any").open().process(batch)
    assert (decided.rows.num_rows, list(decided.rejections)) == (3, [])


@pytest.mark.parametrize("depth", DEPTHS)
def test_rules_of_a_contract_read_past_any_depth(depth):
    columns = {
        "id": {"type": "integer", "nullable": False},
        "name": {"type": "string", "enum": ["ann"]},
        "doc": {"type": "array", "nullable": False},
        "note": {"nullable": True},
    }
    contract = DataContract(
        tables=[{"table": "shop.orders", "columns": columns}], on_violation="quarantine"
    )
    done = contract.open().process(images(row(depth)))
    assert (done.rows.num_rows, list(done.rejections)) == (1, [])

    columns["name"] = {"enum": ["bob"]}
    contract = DataContract(
        tables=[{"table": "shop.orders", "columns": columns}], on_violation="quarantine"
    )
    done = contract.open().process(images(row(depth)))
    assert ["enum" in one.reason for one in done.rejections] == [True]


@pytest.mark.parametrize("depth", DEPTHS)
def test_flatten_keeps_what_max_depth_keeps_and_sets_aside_what_it_cannot_open(depth):
    batch = images(row(depth, kind="object"), b'{"a":{"b":1}}')

    done = Flatten(max_depth=1).open().process(batch)
    assert not done.rejections
    inner = nested(depth - 1, kind="object")
    assert (
        done.rows["after"][0].as_py()
        == b'{"id":1,"doc__k":' + inner + b',"name":"ann","note":null}'
    )

    done = Flatten().open().process(batch)
    assert done.rows["after"].to_pylist()[-1] == b'{"a__b":1}'
    if depth < 1_024:
        assert list(json.loads(done.rows["after"][0].as_py())) == [
            "id", "__".join(["doc", *"k" * depth]), "name", "note",
        ]  # fmt: skip
    else:
        assert [(one.event_row, "max_depth" in one.reason) for one in done.rejections] == [
            (0, True)
        ]


@pytest.mark.parametrize("depth", DEPTHS)
def test_masking_reads_past_any_depth_and_never_passes_what_it_did_not_search(depth):
    secret = b'{"ssn":"123-45-6789"}'
    rule = {"columns": ["shop.orders.name"], "action": "redact"}
    done = Mask(rules=[rule]).open().process(images(row(depth)))
    assert done.rows["after"][0].as_py() == row(depth).replace(b'"ann"', b'"***"')

    whole = {"columns": ["shop.orders.doc"], "action": "redact"}
    done = Mask(rules=[whole]).open().process(images(row(depth)))
    assert json.loads(done.rows["after"][0].as_py())["doc"] == "***"

    inside = {"columns": ["shop.orders.doc.ssn"], "action": "redact"}
    deep = nested(depth, secret)
    as_text = json.dumps(deep.decode()).encode()
    for doc in (deep, as_text):
        done = Mask(rules=[inside]).open().process(rows({"after": b'{"doc":' + doc + b"}"}, {}))
        shown = b"".join(text for text in done.rows["after"].to_pylist() if text)
        assert b"123-45" not in shown
        assert done.rows.num_rows + len(done.rejections) == 2
        if done.rejections:
            assert depth > 1_000
            assert "deep" in done.rejections[0].reason


def test_an_outbox_message_of_any_depth_is_delivered():
    payload = nested(3_000)
    message = (
        b'{"aggregate_type":"o","aggregate_id":"1","event_type":"t","payload":' + payload + b"}"
    )
    done = Outbox(topic="t").open().process(rows({"schema": "__outbox", "after": message}))
    assert done.rows["after"].to_pylist() == [payload]
