"""A script sees plain objects: the native event, and nothing that it could not do with one."""

import json

import pytest

from airflow_provider_deltaforge.envelopes.native import NativeEnvelope
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.envelopes.changes import ORIGIN
from tests.processors.javascript.conftest import opened


@pytest.fixture(scope="module")
def writer():
    worker = opened("(event) => { event.after = { text: JSON.stringify(event) }; }")
    yield worker
    worker.close()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"op": "d", "after": None},
        {"op": "r", "source_position": None, "tx_id": None, "tx_end": True},
        {"db": "app", "schema": "public", "schema_version": None, "schema_sequence": None},
        {"op": "t", "after": None, "ddl": b'{"sql":"TRUNCATE","cascade":false}'},
        {"tags": ["a", "b"], "synthetic": "outbox", "after": '{"ä":"ü😀"}'.encode()},
    ],
)
def test_its_text_is_the_native_event(writer, changed):
    rows = change_rows([change(**changed)])

    done = writer.process(rows)

    text = json.loads(done.rows["after"][0].as_py())["text"]
    origin = type(ORIGIN)("orders-cdc", "acme", "mysql")
    assert text.encode() == NativeEnvelope().wrap(rows, origin)[0].as_py()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("event.table", "shop.orders"),
        ("event.timestamp === event.ts_ms", True),
        ("event.op", "c"),
        ("event.after.sku", "sku-1"),
        ("event.source.connector + event.source.name", "mysqlorders-cdc"),
        ("event.source.pos", 9),
        ("event.tenant_id", "acme"),
        ("event.event_id", "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("event.transaction.total_order", 1),
        ("event.tags", "(undefined)"),
        ("event.__routing", "(undefined)"),
        ("event.nothing", "(undefined)"),
        ("'after' in event && 'table' in event && !('nothing' in event)", True),
        ("Object.keys(event).slice(0, 5)", ["before", "after", "source", "op", "ts_ms"]),
        ("Object.keys(event).includes('table')", False),
        ("Object.entries(event).length === Object.keys(event).length", True),
        ("(({ op, after: { id } }) => [op, id])(event)", ["c", 1]),
        ("(({ before, ...rest }) => 'after' in rest && !('before' in rest))(event)", True),
        ("({ ...event, op: 'u' }).op + event.op", "uc"),
        ("JSON.parse(JSON.stringify(event)).after.sku", "sku-1"),
        ("event.hasOwnProperty('op') && event instanceof Object", True),
        ("Object.getOwnPropertyDescriptor(event, 'op').value", "c"),
        ("(delete event.after, 'after' in event)", False),
        ("(event.x = 1, Object.keys(event).at(-1))", "x"),
        ("(event.table = 'x', event.table)", "shop.orders"),
        ("(event.source.table = 'x', event.table)", "shop.x"),
        ("(Object.assign(event, { op: 'u' }), event.op)", "u"),
        ("event.after === event.after && event.source === event.source", True),
        (
            "(() => { 'use strict'; try { event.table = 1 } catch (e) { return e.name } })()",
            "TypeError",
        ),
        ("typeof setTimeout + typeof WebAssembly + typeof Atomics", "undefined" * 3),
    ],
)
def test_it_behaves_as_a_plain_object(shown, expression, expected):
    assert shown(expression) == expected


def test_the_full_name_has_the_schema_where_there_is_one(shown):
    assert shown("event.table", db="app", schema="sales") == "sales.orders"


@pytest.mark.parametrize(
    ("code", "column", "expected"),
    [
        ("event.op = 'd'; event.after = null", "op", "d"),
        ("event.after = null", "after", None),
        ("delete event.after", "after", None),
        ("event.after.sku = 'é'", "after", '{"id":1,"sku":"é","total":"12.50"}'.encode()),
        ("event.after = { ...event.after, n: null }", "after",
         b'{"id":1,"sku":"sku-1","total":"12.50","n":null}'),
        ("Object.keys(event); event.after.id = 2", "after",
         b'{"id":2,"sku":"sku-1","total":"12.50"}'),
        ("event.ts_ms += 1", "ts_ms", 1_700_000_000_001),
        ("event.source.table = 'other'", "table", "other"),
        ("event.source = { ...event.source, schema: 's' }", "schema", "s"),
        ("event.tags = (event.tags || []).concat(['a', 'b'])", "tags", ["a", "b"]),
        ("event.tags = []; event.tags.push('\\u2028\"')", "tags", ["\u2028\""]),
        ("event.ddl = { sql: 'x' }", "ddl", b'{"sql":"x"}'),
        ("event.schema_version = 'v2'", "schema_version", "v2"),
        ("event.synthetic = 'me'", "synthetic", "me"),
        ("return { ...event, after: { id: 5 } }", "after", b'{"id":5}'),
        ("const e = JSON.parse(JSON.stringify(event)); e.op = 'u'; return [e]", "op", "u"),
        ("Object.defineProperty(event, 'op', { get() { return 'u' } })", "op", "u"),
        ("Object.freeze(event)", "op", "c"),
    ],
)  # fmt: skip
def test_a_change_arrives_in_its_column(tried, code, column, expected):
    done = tried(code)

    assert not done.rejections, done.rejections
    assert done.origins is None
    assert done.made is None
    assert done.rows[column].to_pylist() == [expected]
    assert done.rows["event_id"].to_pylist() == [bytes(range(16))]
    assert done.rows["key"].to_pylist() == [b'{"id":1}']


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("event.op = 'x'", "op must be one of c, u, d, r, t and ddl"),
        ("event.after = 5", "after must be an object or null, not a number"),
        ("event.after = [1]", "after must be an object or null, not an array"),
        ("event.before = 'x'", "before must be an object or null, not a string"),
        ("event.tags = 'a'", "tags must be an array of text, not a string"),
        ("event.tags = [1]", "tags must be an array of text; it holds a number"),
        ("event.ts_ms = 'now'", "ts_ms must be a whole number"),
        ("event.source = null", "source must be an object, not null"),
        ("event.source.db = 1", "source.db must be text, not a number"),
        ("event.schema_sequence = 1.5; delete event.x", "schema_sequence must be a whole number"),
        ("return [{}]", "source must be an object, not undefined"),
        ("return [{ source: { db: 'a', table: 'b' }, op: 'c' }]", "ts_ms must be a whole number"),
        ("return 5", "returned a number"),
        ("return true", "returned a boolean"),
        ("return Symbol('x')", "returned a symbol"),
        ("return [event, undefined]", "returned an array that holds undefined"),
        ("return Promise.resolve(event)",
         "returned a promise; a processor's functions cannot be async"),
        ("event.route({ stream: 'x' })", "route: knows topic, key, headers and raw_payload only"),
        ("event.route({ topic: {} })", "route: topic must be text"),
        ("event.route({ raw_payload: 1 })", "route: raw_payload must be true or false"),
    ],
)  # fmt: skip
def test_what_no_event_can_be_is_refused_by_name(tried, code, text):
    done = tried(code)

    assert [each.reason for each in done.rejections] == [f"the script's result is refused: {text}"]
    assert [each.kind for each in done.rejections] == ["processor"]
    assert done.rows.num_rows == 0
    assert done.counts == {"errors": 1}


def test_names_that_are_lost_are_named_once(start, caplog):
    worker = start(
        "(event) => { event.processed_at = 1; event.source.name = 'x'; console.log('hi', {a: 1}) }"
    )
    rows = change_rows([change(), change()])
    caplog.set_level("INFO")

    done = worker.process(rows)
    worker.process(rows)

    assert done.rows.equals(rows)
    assert [line for line in caplog.messages if "hi {" not in line] == [
        "processor js sets 'processed_at', which no event has; ignored",
        "processor js changes 'source.name'; it stays as it was",
    ]
    assert caplog.messages.count('processor js: hi {"a":1}') == 4


def test_console_is_bounded(start, caplog):
    worker = start("(event) => { for (let i = 0; i < 60; i++) console.warn('x'.repeat(2000)) }")

    worker.process(change_rows([change()]))

    assert caplog.messages.count("processor js: " + "x" * 1000) == 50
    assert "processor js logged 10 more lines in one call" in caplog.messages


def test_the_text_of_the_shared_columns_is_what_a_slice_holds(start):
    worker = start(
        "function processBatch(events) { return events.map(e => ({...e, tags: [e.table]})) }"
    )
    rows = change_rows(
        [change(table=f"t{n}", tx_id=f"tx{n}", row=n, event_id=bytes([n] * 16)) for n in range(9)]
    )

    done = worker.process(rows.slice(3, 4))

    assert done.rows["tags"].to_pylist() == [[f"shop.t{n}"] for n in range(3, 7)]
    assert done.rows.drop_columns(["tags"]).equals(rows.slice(3, 4).drop_columns(["tags"]))
