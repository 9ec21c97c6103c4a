"""What outbox messages become, held against the same rules written row by row."""

import json
import logging
import pickle
import random

import pyarrow as pa
import pytest
from pydantic import ValidationError

from airflow_provider_deltaforge.processors.outbox.settings import Outbox
from airflow_provider_deltaforge.testing.changes import change, change_rows

ROW = {
    "id": 7,
    "aggregate_type": "Order",
    "aggregate_id": "42",
    "event_type": "OrderCreated",
    "payload": {"total": 99.99},
}


def message(row=None, /, **changed):
    """Return an outbox event; ``row`` is its image, or the bytes of it."""
    row = ROW if row is None else row
    image = row if isinstance(row, bytes | None) else json.dumps(row).encode()
    return change(**{"schema": "__outbox", "table": "outbox", "after": image, **changed})


def processed(changes, **settings):
    worker = pickle.loads(pickle.dumps(Outbox(**settings))).open()
    try:
        return worker.process(change_rows(changes))
    finally:
        worker.close()


def one(row, **settings):
    """Return what one message becomes, as (after, topic, key, headers)."""
    (event,) = processed([message(row)], **settings).rows.to_pylist()
    routing = event["routing"]
    after = event["after"] and json.loads(event["after"])
    return after, routing["topic"], routing["key"], dict(routing["headers"])


def test_a_message_becomes_its_payload_routed_and_labelled():
    done = processed(
        [message(before=b"{}")], topic="${aggregate_type}.${event_type}", raw_payload=True
    )
    (event,) = done.rows.to_pylist()

    assert event["after"] == b'{"total": 99.99}'
    assert (event["before"], event["schema"], event["op"]) == (None, None, "c")
    assert event["routing"] == {
        "topic": "Order.OrderCreated",
        "key": "42",
        "headers": [
            ("df-event-id", "7"),
            ("df-aggregate-type", "Order"),
            ("df-aggregate-id", "42"),
            ("df-event-type", "OrderCreated"),
            ("df-source-kind", "outbox"),
        ],
        "raw_payload": True,
    }
    assert done.origins is None
    assert done.counts == {"transformed": 1}
    untouched = set(event) - {"after", "before", "schema", "routing"}
    assert {name: event[name] for name in untouched} == {
        name: message().get(name) for name in untouched
    }


def test_everything_else_passes_untouched_and_in_order():
    routing = {"topic": "t", "key": "k", "headers": [("a", "b")], "raw_payload": None}
    changes = [
        change(row=0, routing=routing, before=b'{"x":1}'),
        message(row=1),
        change(row=2, schema="__wal_message", table="outbox", after=b"5"),
        message(row=3, op="d", before=b"{}", after=None),
        message(b"[1]", row=4),
        message(row=5, table="payments_outbox"),
        change(row=6, schema="public"),
    ]
    rows = change_rows([change(), *changes, change()]).slice(1, len(changes))
    done = Outbox(tables=("out*",)).open().process(rows)
    found = done.rows.to_pylist()

    assert [event["row"] for event in found] == [0, 1, 2, 5, 6]
    assert done.origins.to_pylist() == [0, 1, 2, 5, 6]
    passed = rows.to_pylist()
    assert [found[0], *found[2:]] == [passed[0], passed[2], passed[5], passed[6]]
    assert found[1]["after"] == b'{"total": 99.99}'
    assert done.counts == {"transformed": 1, "dropped:non_insert": 1, "dropped:non_object": 1}
    assert not done.rejections


def test_a_mark_that_stands_twice_in_its_dictionary_is_one_mark():
    rows = change_rows([change(schema="__outbox", after=b'{"payload":1}'), change()])
    twice = pa.DictionaryArray.from_arrays(
        pa.array([1, None], pa.int32()), pa.array(["__outbox", "__outbox"])
    )
    at = rows.schema.get_field_index("schema")
    done = Outbox().open().process(rows.set_column(at, rows.schema.field(at), twice))

    assert done.rows["after"][0].as_py() == b"1"
    assert done.counts == {"transformed": 1}


def test_a_batch_without_messages_is_not_copied():
    rows = change_rows([change(), change(schema="public")])

    assert Outbox().open().process(rows).rows is rows


@pytest.mark.parametrize(
    ("tables", "db", "table", "taken"),
    [
        ((), "shop", "anything", True),
        (("orders_outbox",), "shop", "orders_outbox", True),
        (("orders_outbox",), "shop", "payments_outbox", False),
        (("*_outbox",), "shop", "orders_outbox", True),
        (("shop.orders_%",), "shop", "orders_outbox", True),
        (("other.orders_%",), "shop", "orders_outbox", False),
        (("app.events",), "shop", "app.events", True),
        (("app.*",), "shop", "app.events", True),
    ],
)
def test_tables_are_chosen_by_name_or_prefix(tables, db, table, taken):
    done = processed([message(db=db, table=table), message(table="x_y")], tables=tables)

    assert (done.rows["routing"].null_count == 2) is not taken


@pytest.mark.parametrize(
    ("settings", "row", "topic"),
    [
        ({"topic": "${domain}.${act}", "default_topic": "d"}, {"domain": "a", "act": 1}, "a.1"),
        ({"topic": "${domain}.x", "default_topic": "d"}, {"topic": "own"}, "own"),
        ({"topic": "${domain}", "default_topic": "d"}, {"topic": "own"}, "own"),
        ({"topic": "${domain}", "default_topic": "d"}, {"topic": "", "domain": None}, "d"),
        ({"topic": "${payload.kind.of}"}, {"payload": {"kind": {"of": True}}}, "true"),
        ({"topic": "${payload}"}, {"payload": {"a": [1]}}, '{"a": [1]}'),
        ({"default_topic": "d"}, {"topic": 5}, "5"),
        ({"default_topic": "d"}, {"topic": {"no": "word"}}, "d"),
        ({"topic": "fixed"}, {}, "fixed"),
        ({"columns": {"topic": "to"}}, {"to": "there", "topic": "own"}, "there"),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_the_topic_is_the_templates_the_columns_or_the_default(settings, row, topic):
    assert one(row, **settings)[1] == topic


@pytest.mark.parametrize(
    ("settings", "row", "key"),
    [
        ({}, {"aggregate_id": 42}, "42"),
        ({}, {"aggregate_id": [42]}, None),
        ({"key": "${tenant}/${aggregate_id}"}, {"tenant": "é\n", "aggregate_id": 1.50}, "é\n/1.5"),
        ({"key": "${tenant}"}, {"aggregate_id": "a"}, "a"),
        ({"columns": {"aggregate_id": "aggregateid"}}, {"aggregateid": "x"}, "x"),
    ],
)
def test_the_key_is_the_templates_or_the_aggregates(settings, row, key):
    assert one(row, **settings)[2] == key


def test_headers_hold_words_only():
    row = {
        "id": "u-1",
        "aggregate_type": True,
        "aggregate_id": 12345678901234567890,
        "event_type": None,
        "trace": 'quoted "x" \\ é',
        "deep": {"a": 1},
        "list": [],
    }
    headers = {"x-trace": "trace", "x-deep": "deep", "x-list": "list", "x-none": "none"}

    assert one(row, additional_headers=headers)[3] == {
        "df-event-id": "u-1",
        "df-aggregate-type": "true",
        "df-aggregate-id": "12345678901234567890",
        "x-trace": 'quoted "x" \\ é',
        "df-source-kind": "outbox",
    }


@pytest.mark.parametrize(
    ("row", "settings", "after"),
    [
        ({"a": 1}, {}, {"a": 1}),
        ({"payload": None}, {}, None),
        ({"payload": "text"}, {}, "text"),
        ({"payload": '{"a": 1}'}, {}, '{"a": 1}'),
        ({"payload": ' {"a": "\\u00e9"} '}, {"parse_payload": True}, {"a": "é"}),
        ({"payload": "no {json"}, {"parse_payload": True}, "no {json"),
        ({"payload": {"a": "1"}}, {"parse_payload": True}, {"a": "1"}),
        ({"data": [1, 2]}, {"columns": {"payload": "data"}}, [1, 2]),
    ],
)
def test_the_image_is_the_payload(row, settings, after):
    assert one(row, **settings)[0] == after


def test_the_payload_keeps_its_digits_and_spaces():
    image = b'{"payload":{ "n":12345678901234567890.10 ,"u":"\\u00e9"},"aggregate_id":"1"}'
    done = processed([message(image)])

    assert done.rows["after"].to_pylist() == [b'{ "n":12345678901234567890.10 ,"u":"\\u00e9"}']


def test_what_is_no_message_is_dropped_counted_and_logged_once(caplog):
    changes = [
        message(op="u"),
        message(op="r"),
        message(b"null"),
        message(None, after=None),
        message(b'"text"'),
        message(b'{"_base64":"bm8="}'),
    ]
    with caplog.at_level(logging.WARNING):
        done = processed([*changes, *changes])

    assert done.rows.num_rows == 0
    assert done.counts == {
        "dropped:non_insert": 4,
        "dropped:null_payload": 4,
        "dropped:non_object": 4,
    }
    assert len(caplog.records) == 3
    assert all("outbox" in record.getMessage() for record in caplog.records)


def test_strict_refuses_what_lacks_something_and_names_all_of_it():
    whole = {**ROW, "topic": "t"}
    changes = [
        change(),
        message(whole),
        message({"aggregate_type": {}, "event_type": "secret"}),
        message({**whole, "payload": None}),
        message(b"[1]"),
        message(op="d"),
        message({**whole, "event_type": None}),
    ]
    done = processed(changes, strict=True)

    assert [(one.event_row, one.kind) for one in done.rejections] == [
        (2, "processor"),
        (4, "processor"),
        (6, "processor"),
    ]
    assert [one.reason for one in done.rejections] == [
        "strict: it lacks topic, payload, aggregate_type, aggregate_id",
        "strict: its row is no JSON object",
        "strict: it lacks event_type",
    ]
    assert done.origins.to_pylist() == [0, 1, 3]
    assert done.counts == {"transformed": 2, "dropped:non_insert": 1, "strict_missing_fields": 3}


def test_a_template_that_lacks_a_column_is_logged_once(caplog):
    worker = Outbox(topic="${nowhere}-${aggregate_id}", default_topic="unrouted").open()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            done = worker.process(change_rows([message()]))

    assert done.rows["routing"][0].as_py()["topic"] == "unrouted"
    assert len([r for r in caplog.records if "nowhere" in r.getMessage()]) == 1
    assert "42" not in caplog.text.replace("'${nowhere}-${aggregate_id}'", "")


@pytest.mark.parametrize(
    "settings",
    [
        {"topic": "${a"},
        {"key": "${a.b.c.d}"},
        {"topic": "${}"},
        {"additional_headers": {"DF-Event-Id": "x"}},
        {"tables": (".x",)},
    ],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValidationError, match=next(iter(settings))):
        Outbox(**settings)


def expected(row):
    """Write the rules of one message straightforwardly."""

    def word(name):
        value = row.get(name)
        if value is None or isinstance(value, dict | list):
            return None
        return value if isinstance(value, str) else json.dumps(value)

    def text(name):
        value = row.get(name)
        if value is None or isinstance(value, str):
            return value or ""
        return json.dumps(value)

    lacks = row.get("event_type") is None or row.get("b") is None
    filled = "" if lacks else f"{text('event_type')}{text('b')}"
    topic = filled or word("topic") or "default"
    named = {
        "df-event-id": "id",
        "df-aggregate-type": "aggregate_type",
        "df-aggregate-id": "aggregate_id",
        "df-event-type": "event_type",
        "x-b": "b",
    }
    headers = {header: word(name) for header, name in named.items() if word(name) is not None}
    after = row.get("payload", row)
    return after, topic, word("aggregate_id"), {**headers, "df-source-kind": "outbox"}


def test_any_rows_become_what_the_rules_say():
    rng = random.Random(7)
    values = [None, True, 1, -2.5, "", "x", 'q"\\\u1234', {"a": None}, {}, [1, "b"], "[]"]
    names = [*ROW, "topic", "b"]
    rows = [
        {name: rng.choice(values) for name in rng.sample(names, rng.randrange(len(names)))}
        for _ in range(500)
    ]
    done = processed(
        [message(row) for row in rows],
        topic="${event_type}${b}",
        default_topic="default",
        additional_headers={"x-b": "b"},
    )
    found = [
        (
            None if event["after"] is None else json.loads(event["after"]),
            event["routing"]["topic"],
            event["routing"]["key"],
            dict(event["routing"]["headers"]),
        )
        for event in done.rows.to_pylist()
    ]
    assert found == [expected(row) for row in rows]
