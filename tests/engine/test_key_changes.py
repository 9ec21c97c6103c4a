"""An update that changes a key: the old key goes, then the row comes, and both are one event."""

import json
import re

import pyarrow as pa
import pytest
import yaml

from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import DeadLetterWriter, restored
from airflow_provider_deltaforge.engine.dead_letters.row_keys import place_of, places_of
from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys, without_foreign
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessedBatch
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.envelopes.cloudevents import CloudEventsEnvelope
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.processors.mask.settings import Mask
from airflow_provider_deltaforge.sinks.file import FileSink
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.sinks.memory import MemorySink
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, StoredDeadLetter
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.envelopes.changes import ORIGIN
from tests.spec.documents import document


class Silent:
    """Hears of every error, and says nothing."""

    def report_error(self, *_):
        pass

    report_processor_error = report_error


def moved(old, new, at=1, **more):
    """Return an update that changes the key of a row."""
    image = b'{"id":%b,"sku":"a","region":"%b"}'
    return change(
        op="u",
        before=image % (old, more.pop("was", b"eu")),
        after=image % (new, more.pop("now", b"eu")),
        key=b'{"id":%b}' % new,
        row=at,
        event_id=bytes([at]) * 16,
        **more,
    )


def render(changes, sink=None, **settings):
    sink = sink or MemorySink(**{"topic": "cdc", **settings})
    return Renderer(sink, ORIGIN).render(with_former_keys(change_rows(changes)))


def shown(messages):
    """Return key, operation and images of each message; only the key of a tombstone."""
    found = []
    for key, value in zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True):
        event = None if value is None else json.loads(value)
        event = event if event is None else event.get("payload", event)
        ids = [event[name] and event[name]["id"] for name in ("before", "after")] if event else []
        found.append((key.decode(), *([event["op"], *ids] if event else [])))
    return found


def former(*changes):
    return with_former_keys(change_rows(changes))["former_key"].to_pylist()


class TestFormerKeys:
    @pytest.mark.parametrize(
        ("before", "key", "expected"),
        [
            (b'{"id":1}', b'{"id":2}', b'{"id":1}'),
            (b'{"id":1}', b'{"id":1}', None),
            (b'{"n":0,"id":"\xc3\xa9"}', b'{"id":"e"}', b'{"id":"\xc3\xa9"}'),
            (b'{"a":1,"b":2,"c":3}', b'{"c":3,"a":9}', b'{"c":3,"a":1}'),
            (b'{"a":1,"b":2}', b'{"b":2,"a":1}', None),
            (b'{"id":18446744073709551615}', b'{"id":1}', b'{"id":18446744073709551615}'),
            (b'{"a.b":1}', b'{"a.b":2}', b'{"a.b":1}'),
            (b'{"a\\"b":1}', b'{"a\\"b":2}', b'{"a\\"b":1}'),
            (b'{"id":{"_base64":"AA"}}', b'{"id":{"_base64":"AQ"}}', b'{"id":{"_base64":"AA"}}'),
            (b'{"other":1}', b'{"id":1}', None),  # The server did not send it.
            (b'{"a":1}', b'{"a":2,"b":1}', None),  # Nor part of it.
            (b'{"id":{"_unchanged":true}}', b'{"id":1}', None),
            (None, b'{"id":1}', None),
            (b'{"id":1}', None, None),
        ],
    )  # fmt: skip
    def test_the_key_before_is_known_where_an_update_changed_it(self, before, key, expected):
        for around in ([], [change()], [moved(b"5", b"5", table="others")]):
            *_, found = former(*around, change(op="u", before=before, key=key))
            assert found == expected
        assert former(change(op="c", before=before, key=key)) == [None]

    def test_tables_of_one_batch_have_keys_of_their_own(self):
        changes = [
            change(
                op="u",
                table=f"t{n % 3}",
                before=b'{"k%d":%d}' % (n % 3, n),
                key=b'{"k%d":0}' % (n % 3),
            )
            for n in range(9)
        ]
        assert former(*changes) == [
            None if n == 0 else b'{"k%d":%d}' % (n % 3, n) for n in range(9)
        ]

    def test_a_key_that_a_processor_made_has_no_former_one(self):
        before = with_former_keys(change_rows([moved(b"1", b"2"), moved(b"3", b"4")]))
        at = before.schema.get_field_index("key")
        keys = pa.array([b"own", before["key"][1].as_py()], pa.binary())
        after = before.set_column(at, before.schema.field(at), keys)
        assert without_foreign(before, after, None)["former_key"].to_pylist() == [None, b'{"id":3}']


class TestMessages:
    def test_with_tombstones_the_old_key_goes_and_the_row_follows(self):
        changes = [change(row=0), moved(b"1", b"2"), moved(b"2", b"2", at=2)]
        messages, rejections = render(changes, tombstones=True)

        assert shown(messages) == [
            ('{"id":1}', "c", None, 1),
            ('{"id":1}', "d", 1, None),
            ('{"id":1}',),
            ('{"id":2}', "u", 1, 2),
            ('{"id":2}', "u", 2, 2),
        ]
        assert rejections == []
        assert messages.event_rows.to_pylist() == [0, 1, 1, 1, 2]
        assert messages.headers is None
        ids = messages.event_ids.to_pylist()
        assert ids[3:] == [bytes([1]) * 16, bytes([2]) * 16]
        assert ids[1] == ids[2]
        assert len(set(ids)) == 4
        assert render(changes, tombstones=True)[0].event_ids.to_pylist() == ids

    def test_both_parts_stand_at_one_place_of_the_transaction(self):
        messages, _ = render([moved(b"1", b"2", at=4, tx_end=True)], tombstones=True)
        delete, _, row = (text and json.loads(text) for text in messages.values.to_pylist())
        assert delete["transaction"] == row["transaction"]
        assert delete["source"] == row["source"]
        assert ("tx_end" in delete, row["tx_end"]) == (False, True)

    def test_without_tombstones_a_native_event_stays_one_message(self):
        for envelope in ("native", CloudEventsEnvelope(type_prefix="com.acme")):
            messages, _ = render([moved(b"1", b"2")], envelope=envelope)
            assert messages.keys.to_pylist() == [b'{"id":2}']

    @pytest.mark.parametrize("envelope", ["native", "debezium"])
    def test_the_delete_names_no_unchanged_columns(self, envelope):
        """They are said of ``after``, which it has not."""
        changes = [moved(b"1", b"2", unchanged=b'["sku"]')]
        messages, _ = render(changes, envelope=envelope, tombstones=True)

        events = [json.loads(value) for value in messages.values.to_pylist() if value is not None]
        events = [each.get("payload", each) for each in events]
        assert [each.get("unchanged") for each in events] == [None, ["sku"]]

    @pytest.mark.parametrize("tombstones", [False, True])
    def test_debezium_shows_a_delete_and_an_insert_that_name_each_other(self, tombstones):
        changes = [moved(b"1", b"2"), moved(b"5", b"5", at=2)]
        messages, _ = render(changes, envelope="debezium", tombstones=tombstones)
        delete, row = ('{"id":1}', "d", 1, None), ('{"id":2}', "c", None, 2)
        tombstone = [('{"id":1}',)] if tombstones else []
        assert shown(messages) == [delete, *tombstone, row, ('{"id":5}', "u", 5, 5)]
        headers = messages.headers.to_pylist()
        assert headers[0] == [("__debezium.newkey", '{"id":2}')]
        assert headers[-2:] == [[("__debezium.oldkey", '{"id":1}')], None]

    def test_headers_of_a_processor_stay_in_front_of_these(self):
        own = {"topic": None, "key": None, "headers": [("a", "b")], "raw_payload": None}
        messages, _ = render([moved(b"1", b"2", routing=own)], envelope="debezium")
        assert messages.headers.to_pylist() == [
            [("a", "b"), ("__debezium.newkey", '{"id":2}')],
            [("a", "b"), ("__debezium.oldkey", '{"id":1}')],
        ]

    def test_a_sink_without_keys_gets_one_message(self):
        messages, _ = render([moved(b"1", b"2")], FileSink(path="x.jsonl", envelope="debezium"))
        assert len(messages) == 1
        messages, _ = render([moved(b"1", b"2")], HttpSink(url="http://x", envelope="debezium"))
        assert len(messages) == 2

    def test_a_key_that_a_processor_chose_is_left_alone(self):
        own = {"topic": None, "key": "mine", "headers": None, "raw_payload": None}
        messages, _ = render([moved(b"1", b"2", routing=own)], tombstones=True)
        assert messages.keys.to_pylist() == [b"mine"]

    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("${after.region}:${after.id}", [b"eu:7", b"eu:7", b"us:7"]),
            ("${after.region}", [b"eu", b"eu", b"us"]),
            ("${after.id}", [b"7"]),
            ("${source.table}:${before.region}", [b"orders:eu"]),
            ("${after.nothing}", [b""]),
            ("constant", [b"constant"]),
        ],
    )
    def test_a_template_whose_text_changes_is_a_key_that_changes(self, template, expected):
        event = moved(b"7", b"7", was=b"eu", now=b"us")
        messages, _ = render([event], key=template, tombstones=True)
        assert messages.keys.to_pylist() == expected
        assert messages.event_rows.to_pylist() == [0] * len(expected)

    def test_a_template_that_the_old_image_does_not_fill_splits_nothing(self, caplog):
        event = change(op="u", before=b'{"id":1}', after=b'{"id":1,"v":"x"}', key=b'{"id":1}')
        messages, _ = render([event], key="${after.v}", tombstones=True)
        assert messages.keys.to_pylist() == [b"x"]
        assert caplog.records == []

    def test_an_old_image_of_the_key_alone_goes_where_the_row_goes(self, caplog):
        event = {**moved(b"1", b"2"), "before": b'{"id":1}'}
        messages, _ = render([event], topic="${after.region}-${after.id}", tombstones=True)
        assert messages.topics.to_pylist() == ["eu-1", "eu-1", "eu-2"]
        assert caplog.records == []

    @pytest.mark.parametrize("envelope", ["native", "debezium"])
    def test_a_delete_that_a_processor_made_of_it_stays_one(self, envelope):
        event = {**moved(b"1", b"2"), "op": "d", "after": None, "before": b'{"id":2}'}
        rows = with_former_keys(change_rows([moved(b"1", b"2")]))
        made = change_rows([event])
        kept = made.set_column(
            CHANGE_SCHEMA.get_field_index("former_key"), "former_key", rows["former_key"]
        )
        sink = MemorySink(topic="cdc", envelope=envelope, tombstones=True)
        messages, _ = Renderer(sink, ORIGIN).render(kept)
        assert shown(messages) == [
            ('{"id":1}', "d", 2, None),
            ('{"id":1}',),
            ('{"id":2}', "d", 2, None),
            ('{"id":2}',),
        ]

    @pytest.mark.parametrize(
        ("was", "now", "expected"),
        [
            (b'"a"', b"null", [b"a", b"a", b""]),
            (b"null", b'"a"', [b"", b"", b"a"]),
            (b"null", b"null", [b""]),
            (b'"a"', b'{"_unchanged":true}', [b"a"]),
            (b'{"_unchanged":true}', b'"a"', [b"a"]),
        ],
    )
    def test_null_is_known_and_an_unchanged_value_is_the_old_one(self, was, now, expected):
        event = change(op="u", before=b'{"id":1,"v":%b}' % was, after=b'{"id":1,"v":%b}' % now)
        messages, _ = render([event], key="${after.v}", tombstones=True)
        assert messages.keys.to_pylist() == expected

    def test_an_event_is_refused_as_a_whole(self):
        changes = [moved(b"1", b"2", was=b""), moved(b"3", b"4", at=2)]
        messages, rejections = render(changes, topic="${after.region}", tombstones=True)
        assert [(one.event_row, one.kind) for one in rejections] == [(0, "routing")]
        assert messages.event_rows.to_pylist() == [1, 1, 1]

    def test_a_masked_key_is_masked_in_both_parts(self):
        rules = [{"columns": ["shop.orders.id"], "action": "redact"}]
        worker = Mask(rules=rules, secret="0123456789abcdef").open()
        done = worker.process(with_former_keys(change_rows([moved(b"1", b"2"), moved(b"2", b"3")])))
        messages, _ = Renderer(MemorySink(topic="t", tombstones=True), ORIGIN).render(done.rows)
        keys = messages.keys.to_pylist()
        assert keys[0] == keys[1] != keys[2] == keys[3] == keys[4] != keys[5]
        assert all(re.fullmatch(rb'\{"id":"[0-9a-f]{64}"\}', key) for key in keys)


class TestSetAside:
    def test_an_entry_holds_the_former_key_and_is_sent_again_as_both_messages(self):
        rows = with_former_keys(change_rows([moved(b"1", b"2"), moved(b"3", b"3", at=2)]))
        writer = DeadLetterWriter(ORIGIN, 100_000)
        refused = [Rejection(row, "too_large", "for a test") for row in (0, 1)]
        letters = writer.of_sink("memory", refused, ProcessedBatch(rows))
        stored = [
            StoredDeadLetter(DeadLetter.model_validate_json(one.text), one.text) for one in letters
        ]

        again = restored(stored)
        assert again["former_key"].to_pylist() == [b'{"id":1}', None]
        renderer = Renderer(MemorySink(topic="t", tombstones=True), ORIGIN)
        keys = [b'{"id":1}', b'{"id":1}', b'{"id":2}', b'{"id":3}']
        assert renderer.render(again)[0].keys.to_pylist() == keys
        assert [place_of(one.dead_letter) for one in stored] == places_of(rows)

    def test_events_of_either_key_are_events_of_its_row(self):
        changes = [moved(b"1", b"2"), moved(b"2", b"2"), moved(b"1", b"1"), moved(b"3", b"3")]
        first, new, old, other = places_of(with_former_keys(change_rows(changes)))
        assert [first.meets(one) for one in (new, old, other)] == [True, True, False]
        assert [one.meets(first) for one in (new, old, other)] == [True, True, False]


@pytest.mark.parametrize(
    ("sink", "journal", "links"),
    [
        (("http", {"url": "http://h/in"}), False, False),
        (("http", {"url": "http://h/in", "parallelism": 2}), False, True),
        (("http", {"url": "http://h/in", "batch_mode": True}), False, True),
        (("nats", {"url": "nats://h", "subject": "s"}), False, True),
        (("memory", {}), False, False),
        (("memory", {}), True, True),
    ],
)
def test_both_keys_of_a_moved_row_are_known_where_a_sink_or_the_journal_needs_them(
    sink, journal, links
):
    plain = yaml.safe_load(document())
    kind, config = sink
    plain["spec"]["sinks"] = [{"type": kind, "config": {"id": "a", **config}}]
    plain["spec"]["journal"] = {"enabled": journal}
    pipeline = load(yaml.safe_dump(plain), {})
    stage = RenderStage(
        pipeline, ORIGIN, ProcessorStats(), Silent(), lambda: False, lambda *_: None
    )
    stage.open()
    rendered = stage.render(change_rows([moved(b"1", b"2")]))
    stage.close()

    known = rendered.processed.rows["former_key"].to_pylist()
    assert known == ([b'{"id":1}'] if links else [None])
    groups = rendered.messages["a"].order_groups
    assert len(rendered.messages["a"]) == 1
    assert (groups is not None) is (links and kind != "memory")
