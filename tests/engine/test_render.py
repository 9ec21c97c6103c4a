import json
import logging

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.sinks.contract import SinkFilter
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.spec.policies import Sharding
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.compiling import compiled_late
from tests.envelopes.changes import ORIGIN


def render(changes, **settings):
    return Renderer(MemorySink(**{"topic": "cdc", **settings}), ORIGIN).render(change_rows(changes))


DELETE = change(op="d", before=b'{"id":9,"sku":"a"}', after=None, key=b'{"id":9}')
SPACED = change(
    after=rb' { "n" : 100000000000000000001 , "d":1.50,"e":1E2, '
    rb'"a\u0062":"\u00e9\ud83d\ude00\"\\\n", '
    rb'"o" : { "a b" : [ 1.0 , "x \" , y" , [ ] ] } , "o2":{"x":1}, "n2":1,"n2": 2 }'
)
WALK = change(after=b'{"id":18446744073709551615,"a":{"b":true},"n":1.5,"list":[1],"nil":null}')
PARTIAL = change(
    op="u",
    before=b'{"id":1,"w":{"k":1}}',
    after=b'{"id":1,"v":{"_unchanged":true},"w":{"_unchanged":true},"u":{"_unchanged": true}}',
)


@pytest.mark.parametrize(
    ("template", "given", "expected"),
    [
        pytest.param("static", change(), "static", id="static"),
        pytest.param("${source.db}.${source.table}", change(), "shop.orders", id="place"),
        pytest.param("${source.schema}-", change(schema="public"), "public-", id="schema"),
        pytest.param("x${source.schema}", change(), "x", id="no schema"),
        pytest.param("${source.connector}/${source.name}", change(), "mysql/orders-cdc", id="name"),
        pytest.param("${source.version}", change(), "deltaforge-0.1.0", id="version"),
        pytest.param("${source.server_id}.${source.file}", change(), "7.b.000002", id="position"),
        pytest.param("x${source.pos}", change(source_position=None), "x", id="no position"),
        pytest.param("${source.row}:${source.ts_ms}", change(row=4), "4:1700000000000", id="row"),
        pytest.param("${source.snapshot}", change(op="r"), "true", id="snapshot"),
        pytest.param("x${source.nothing}", change(), "x", id="unknown field of source"),
        pytest.param("x${source.db.x}", change(), "x", id="too deep"),
        pytest.param("x${whatever.db}", change(), "x", id="unknown root"),
        pytest.param("${op}.${tenant_id}.${ts_ms}", change(), "c.acme.1700000000000", id="top"),
        pytest.param("${transaction.id}", change(tx_id="742"), "742", id="transaction"),
        pytest.param("${transaction.total_order}", change(row=4), "5", id="order"),
        pytest.param("x${transaction.total_order}", change(tx_id=None), "x", id="no transaction"),
        pytest.param("${schema_sequence}", change(), "3", id="schema sequence"),
        pytest.param("${synthetic}", change(synthetic="js"), "js", id="synthetic"),
        pytest.param("${tags}", change(tags=["a"]), '["a"]', id="tags"),
        pytest.param("x${tx_end}", change(), "x", id="tx_end false is absent"),
        pytest.param("${tx_end}", change(tx_end=True), "true", id="tx_end"),
        pytest.param("${ddl.sql}", change(ddl=b'{"sql":"DROP"}'), "DROP", id="ddl"),
        pytest.param("${event_id}", change(), "00010203-0405-0607-0809-0a0b0c0d0e0f", id="id"),
        pytest.param("${after.id}", WALK, "18446744073709551615", id="large number"),
        pytest.param("x${after.v}", PARTIAL, "x", id="a value that the log lacks"),
        pytest.param("x${after.v.deep}", PARTIAL, "x", id="a value in one that the log lacks"),
        pytest.param("x${after.w}-${after.w.k}", PARTIAL, 'x{"k":1}-1', id="the old image has it"),
        pytest.param("${after.u}", PARTIAL, '{"_unchanged":true}', id="a row's own value"),
        pytest.param("${after.a.b} ${after.n}", WALK, "true 1.5", id="nested"),
        pytest.param("${after.a}${after.list}", WALK, '{"b":true}[1]', id="compact"),
        pytest.param(
            "${after.n} ${after.d} ${after.e}", SPACED, f"{10**20 + 1} 1.50 1E2", id="digits"
        ),
        pytest.param("${after.ab}", SPACED, 'é😀"\\\n', id="escapes"),
        pytest.param("${after.o}", SPACED, r'{"a b":[1.0,"x \" , y",[]]}', id="white space"),
        pytest.param("${after.n2}.${after.o2.x}", SPACED, "2.1", id="the last of equal keys"),
        pytest.param("x${after.nil}${after.none}${after.n.x}", WALK, "x", id="missing columns"),
        pytest.param("x${before.sku}", change(), "x", id="no image"),
        pytest.param("${before.sku}", DELETE, "a", id="before"),
        pytest.param("${after.sku}", DELETE, "a", id="after of a delete is its before"),
    ],
)
def test_templates(template, given, expected):
    messages, rejections = render([given], topic="t", key=template)

    assert [expected.encode()] == messages.keys.to_pylist()
    assert rejections == []

    messages, _ = render([given, given], topic=template)
    assert [expected, expected] == messages.topics.to_pylist()


def test_each_row_goes_to_its_own_topic():
    tables = ["a", "b", "a", "c"]
    changes = [change(table=table, after=b'{"id":%d}' % n) for n, table in enumerate(tables)]

    messages, _ = render(changes, topic="${source.table}-${after.id}")

    assert messages.topics.to_pylist() == ["a-0", "b-1", "a-2", "c-3"]


def test_what_rows_have_in_one_place_may_differ():
    images = [b'{"v":"a"}', b'{"v": {"b": 1}}', b'{"v":null}', b'{"v":7}', None]
    deletes = [change(op="d", before=image, after=None) for image in images]
    inserts = [change(after=image) for image in images]

    messages, _ = render([*inserts, *deletes], key="${after.v}")

    assert messages.keys.to_pylist() == [b"a", b'{"b":1}', b"", b"7", b""] * 2


FILLED = """
from airflow_provider_deltaforge.columns import json_fields
from airflow_provider_deltaforge.sources.shared.precompile import precompile_shared
json_fields.precompile()
precompile_shared()
precompiled()
from tests.engine.test_render import DELETE, SPACED, change, render
render([DELETE, SPACED, change()], key="${after.o} ${before.sku} ${ddl.sql}")
"""


def test_what_templates_need_is_compiled_ahead():
    assert compiled_late(FILLED) == []


def test_the_default_key_is_the_primary_key():
    messages, _ = render([change(), change(key=None)])

    assert messages.keys.to_pylist() == [b'{"id":1}', None]


def test_an_empty_topic_is_rejected_and_the_rest_go_on():
    changes = [change(), change(schema="public"), change()]

    messages, rejections = render(changes, topic="${source.schema}")

    assert messages.event_rows.to_pylist() == [1]
    assert messages.topics.to_pylist() == ["public"]
    assert [(each.event_row, each.kind) for each in rejections] == [(0, "routing"), (2, "routing")]
    assert "memory" in rejections[0].reason
    assert "${source.schema}" in rejections[0].reason


def test_a_missing_field_warns_once_per_template(caplog):
    renderer = Renderer(MemorySink(topic="x${source.schema}", key="${after.none}"), ORIGIN)

    with caplog.at_level(logging.WARNING):
        renderer.render(change_rows([change()]))
        renderer.render(change_rows([change()]))

    assert [record.template for record in caplog.records] == ["${after.none}", "x${source.schema}"]


URL = "https://h/hush/${source.table}?id=${after.id}"


def to_url(changes, url=URL):
    return Renderer(HttpSink(url=url), ORIGIN).render(change_rows(changes))[0].topics.to_pylist()


def test_fields_in_a_url_are_percent_encoded():
    changes = [
        change(table="a/b", after=b'{"id":"x&y=../?#"}'),
        change(table="é", after=b'{"id":"A-z_0.9~"}'),
        change(after=b"{}"),
    ]

    assert to_url(changes) == [
        "https://h/hush/a%2Fb?id=x%26y%3D..%2F%3F%23",
        "https://h/hush/%C3%A9?id=A-z_0.9~",
        "https://h/hush/orders?id=",
    ]
    assert to_url(changes[:2], "https://h/${source.table}") == [
        "https://h/a%2Fb",
        "https://h/%C3%A9",
    ]


def test_a_warning_about_a_url_does_not_show_it(caplog):
    to_url([change(after=b"{}")])

    (record,) = caplog.records
    assert (record.where, record.template) == ("http.url", "${source.table} ${after.id}")


def test_a_field_that_is_there_warns_nothing(caplog):
    render([change(), change()], topic="${source.table}", key="${after.id}")

    assert caplog.records == []


def routing(**said):
    return {"topic": None, "key": None, "headers": None, "raw_payload": None, **said}


def test_what_a_processor_set_wins_field_by_field():
    changes = [
        change(),
        change(routing=routing(topic="own")),
        change(routing=routing(topic="", key="k")),
        change(routing=routing(headers=[("h", "1"), ("i", "2")])),
        change(routing=routing(raw_payload=True)),
        change(routing=routing(raw_payload=True), after=None),
    ]

    messages, _ = render(changes, topic="${source.table}")

    assert messages.topics.to_pylist() == ["orders", "own", *["orders"] * 4]
    assert messages.keys.to_pylist()[1:3] == [b'{"id":1}', b"k"]
    assert messages.headers.to_pylist()[3] == [("h", "1"), ("i", "2")]
    assert messages.headers.to_pylist()[0] is None
    assert messages.values[4].as_py() == changes[4]["after"]
    assert messages.values[5].as_py() == b"null"
    assert json.loads(messages.values[3].as_py())["op"] == "c"


def test_the_order_of_precedence():
    said = [
        None,
        routing(topic="own", key="mine"),
        routing(topic="", key=""),
        routing(headers=[("h", None)]),
    ]
    changes = [change(routing=each, schema="public") for each in said]
    nowhere = [change(routing=each) for each in said]

    messages, rejections = render(changes, topic="${source.schema}", key="${after.id}!")
    assert messages.topics.to_pylist() == ["public", "own", "public", "public"]
    assert messages.keys.to_pylist() == [b"1!", b"mine", b"", b"1!"]
    assert messages.headers.to_pylist() == [None, None, None, [("h", None)]]
    assert rejections == []

    messages, rejections = render(nowhere, topic="${source.schema}", key="${after.id}!")
    assert messages.topics.to_pylist() == ["own"]
    assert [(each.event_row, each.kind) for each in rejections] == [
        (row, "routing") for row in (0, 2, 3)
    ]


def test_a_field_that_nobody_needs_warns_nothing(caplog):
    routed = change(routing=routing(topic="own", key="mine"))

    render([routed, change(schema="public")], topic="${source.schema}", key="${source.schema}")

    assert caplog.records == []


def test_a_tombstone_follows_each_delete_that_has_a_key():
    keyless = {**DELETE, "key": None}

    messages, _ = render([change(), DELETE, DELETE, keyless, change()], tombstones=True)

    assert [value is None for value in messages.values.to_pylist()] == [
        *(False, False, True, False, True, False, False)
    ]
    assert messages.event_rows.to_pylist() == [0, 1, 1, 2, 2, 3, 4]
    assert messages.keys.to_pylist()[1:3] == [b'{"id":9}'] * 2
    assert len(messages.topics) == len(messages.event_ids) == len(messages) == 7


def test_tombstones_stay_with_their_delete_when_others_are_rejected():
    first = {**DELETE, "schema": None}
    changes = [first, {**DELETE, "schema": "s"}]

    messages, rejections = render(changes, topic="${source.schema}", tombstones=True)

    assert messages.event_rows.to_pylist() == [1, 1]
    assert [each.event_row for each in rejections] == [0]


def test_without_tombstones_a_delete_is_one_message():
    messages, _ = render([DELETE])

    assert len(messages) == 1


@pytest.mark.parametrize(
    ("keep", "rows"),
    [
        pytest.param({}, [0, 1, 2], id="empty passes all"),
        pytest.param({"exclude_synthetic": True}, [0], id="from the source"),
        pytest.param({"synthetic_only": True}, [1, 2], id="made by processors"),
        pytest.param({"producers": ("js",)}, [1], id="made by one processor"),
    ],
)
def test_filter(keep, rows):
    changes = [change(), change(synthetic="js"), change(synthetic="copy")]

    messages, _ = render(changes, filter=SinkFilter(**keep), topic="${source.table}")

    assert rows == messages.event_rows.to_pylist()


def test_a_transaction_ends_with_the_last_event_that_a_sink_is_given():
    copy = {"synthetic": "js"}
    ended = [change(), change(row=1), change(row=1, tx_end=True, **copy)]
    alone = [change(tx=1, tx_end=True, **copy)]
    unended = [change(tx=2), change(tx=2, row=1, **copy)]
    only = SinkFilter(exclude_synthetic=True)

    messages, _ = render([*ended, *alone, *unended], filter=only)

    assert messages.event_rows.to_pylist() == [0, 1, 4]
    assert ["tx_end" in json.loads(text) for text in messages.values.to_pylist()] == [
        False,
        True,
        False,
    ]


def test_a_sink_can_leave_out_what_concerns_a_whole_table():
    changes = [change(op=op) for op in ("c", "t", "ddl", "r")]

    for left_out, rows in ((["truncate"], [0, 2, 3]), (["truncate", "ddl"], [0, 3])):
        messages, _ = render(changes, filter=SinkFilter(exclude_ops=left_out))
        assert rows == messages.event_rows.to_pylist()


def test_the_envelope_of_the_sink_is_used():
    messages, _ = render([change()], envelope=CloudEventsEnvelope(type_prefix="com.acme"))

    assert json.loads(messages.values[0].as_py())["type"] == "com.acme.created"


def test_no_events_give_no_messages():
    messages, rejections = render([], topic="${source.table}.${after.id}", tombstones=True)

    assert (len(messages), rejections) == (0, [])


def test_a_slice_of_a_batch_renders_like_the_whole():
    changes = [change(table=f"t{n}", row=n, tx_end=n == 2) for n in range(4)]
    renderer = Renderer(MemorySink(topic="${source.table}"), ORIGIN)

    whole, _ = renderer.render(change_rows(changes))
    part, _ = renderer.render(change_rows(changes).slice(1, 2))

    assert part.values.to_pylist() == whole.values.to_pylist()[1:3]
    assert part.topics.to_pylist() == ["t1", "t2"]
    assert part.event_ids.to_pylist() == whole.event_ids.to_pylist()[1:3]
    assert part.event_rows.type == pa.int32()


class TestSharding:
    @staticmethod
    def rendered(changes, sharding, **settings):
        sink = MemorySink(**{"topic": "t-${shard}", **settings})
        rows = with_former_keys(change_rows(changes))
        return Renderer(sink, ORIGIN, sharding=Sharding(mode="hash", **sharding)).render(rows)[0]

    def test_shards_are_the_partitions_that_kafka_clients_choose(self):
        # murmur2("foobar") = -790332482 and murmur2("21") = -973932308 in Kafka's own tests.
        images = [b'{"v":"foobar"}', b'{"v":21}', b'{"v":"foobar"}', b"{}"]
        messages = self.rendered(
            [change(after=image) for image in images], {"count": 7, "key": "v"}, key="${after.v}"
        )

        expected = [(-790332482 & 0x7FFFFFFF) % 7, (-973932308 & 0x7FFFFFFF) % 7]
        assert messages.shards.to_pylist()[:3] == [*expected, expected[0]]
        assert messages.shards.slice(0).to_pylist() == [
            int(topic.removeprefix("t-")) for topic in messages.topics.to_pylist()
        ]

    def test_without_a_sharding_key_the_key_of_the_message_counts(self):
        changes = [change(key=b'{"id":%d}' % n) for n in (1, 2, 1)]
        one, two, again = self.rendered(changes, {"count": 1 << 30}).shards.to_pylist()
        assert one == again != two

    def test_a_sink_with_a_key_of_its_own_keeps_it(self):
        row = change(after=b'{"id":9,"region":"foobar"}')
        messages = self.rendered([row], {"count": 7, "key": "region"}, key="${after.id}")
        assert messages.keys.to_pylist() == [b"9"]
        assert messages.shards.to_pylist() == [(-790332482 & 0x7FFFFFFF) % 7]

    def test_a_row_that_changes_its_shard_is_deleted_from_the_old_one(self):
        moved = change(op="u", before=b'{"id":9,"v":"foobar"}', after=b'{"id":9,"v":"21"}')
        messages = self.rendered(
            [moved], {"count": 7, "key": "v"}, key="${after.v}", tombstones=True
        )
        old, new = (-790332482 & 0x7FFFFFFF) % 7, (-973932308 & 0x7FFFFFFF) % 7
        assert messages.topics.to_pylist() == [f"t-{old}", f"t-{old}", f"t-{new}"]
        assert messages.keys.to_pylist() == [b"foobar", b"foobar", b"21"]
        assert messages.values[1].as_py() is None

    def test_processors_choose_the_topic_all_the_same(self):
        routed = change(routing={"topic": "x", "key": None, "headers": None, "raw_payload": None})
        messages = self.rendered([routed, change()], {"count": 1})
        assert messages.topics.to_pylist() == ["x", "t-0"]
