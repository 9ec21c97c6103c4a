"""Which event of the input each returned object stands for, and where it goes."""

import json

import pytest

from airflow_provider_deltaforge.engine.render.processor_chain import checked, marked
from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.processors.javascript.conftest import opened

HEADERS = [("x-tier", "high"), ("x-n", "12")]


def batch(count, **changed):
    return change_rows(
        [
            change(
                after=b'{"id":%d}' % n,
                key=b'{"id":%d}' % n,
                event_id=bytes([n]) * 16,
                tx=n,
                tx_end=True,
                **changed,
            )
            for n in range(count)
        ]
    )


def origins(done):
    return None if done.origins is None else done.origins.to_pylist()


def made(done):
    return None if done.made is None else done.made.to_pylist()


@pytest.fixture(scope="module")
def batches():
    worker = opened(
        """const MADE = { op: 'c', ts_ms: 5, after: { n: 1 }, source: { connector: 'mysql',
        name: 'orders-cdc', ts_ms: 5, db: 'shop', table: 'totals' } };
        function processBatch(events) {
          return new Function('events', 'MADE', events[0].before.code)(events, MADE);
        }"""
    )
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("body", "expected_origins", "expected_made"),
    [
        ("return events", None, None),
        ("", None, None),
        ("return null", None, None),
        ("events.pop()", [0, 1], None),
        ("return []", [], None),
        ("return events.filter(e => e.after.id !== 1)", [0, 2], None),
        ("return events.reverse()", [2, 1, 0], None),
        ("return events[1]", [1], None),
        ("return events.flatMap(e => [e, e])", [0, 0, 1, 1, 2, 2], [False, True] * 3),
        ("return events.map(e => ({...e}))", None, None),
        ("return JSON.parse(JSON.stringify(events))", None, None),
        ("return events.flatMap(e => [{...e}, e])", [0, 0, 1, 1, 2, 2], [True, False] * 3),
        ("return events.flatMap(e => [{...e}, {...e}])", [0, 0, 1, 1, 2, 2], [False, True] * 3),
        ("return [events[2], {...MADE}, events[0], {...MADE}]", [2, 2, 0, 0],
         [False, True, False, True]),
        ("return [MADE]", [0], [True]),
        ("globalThis.kept ??= events[0]; return [events[1], kept]", [1, 0], None),
    ],
)  # fmt: skip
def test_what_a_returned_object_stands_for(batches, body, expected_origins, expected_made):
    rows = batch(3, before=json.dumps({"code": body}, separators=(",", ":")).encode())

    done = batches.process(rows)

    assert not done.rejections
    assert (origins(done), made(done)) == (expected_origins, expected_made)
    taken = rows if done.origins is None else rows.take(done.origins)
    same = taken.num_rows if expected_made is None else expected_made.index(True)
    assert done.rows.slice(0, same).to_pylist() == taken.slice(0, same).to_pylist()


def test_a_new_event_has_its_own_fields_and_its_neighbours_transaction(start):
    worker = start(
        "(e) => [e, { op: 'u', ts_ms: 5, before: null, after: { n: 1 }, tags: ['t'], "
        "source: { db: 'a', schema: 's', table: 'totals' }, __routing: { topic: 'x' } }]"
    )

    done = worker.process(batch(1))

    row = done.rows.to_pylist()[1]
    assert made(done) == [False, True]
    wanted = ("op", "db", "schema", "table", "ts_ms", "before", "after", "key", "tags", "tx_end")
    assert [row[name] for name in wanted] == [
        "u", "a", "s", "totals", 5, None, b'{"n":1}', None, ["t"], False,
    ]  # fmt: skip
    assert (row["routing"]["topic"], row["tx"], row["schema_version"]) == ("x", 0, None)


def test_events_of_earlier_batches_can_be_kept(start):
    worker = start("let last; (e) => { const out = last ? [e, last] : [e]; last = e; return out; }")
    worker.process(batch(1))

    done = worker.process(change_rows([change(event_id=b"\x09" * 16, table="later")]))

    assert made(done) == [False, True]
    assert done.rows["after"].to_pylist()[1] == b'{"id":0}'
    assert done.rows["table"].to_pylist() == ["later", "orders"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("event.route({ topic: 'a', key: 7 })", ("a", "7", None, None)),
        ("event.route({ headers: { 'x-tier': 'high', 'x-n': 12, no: null } })",
         (None, None, HEADERS, None)),
        ("event.route({ topic: 'é\"', raw_payload: true })", ("é\"", None, None, True)),
        ("event.route({ key: 'k' }); event.route({ topic: 'b' })", ("b", None, None, None)),
        ("route(event, { topic: 'c' })", ("c", None, None, None)),
        ("const e = JSON.parse(JSON.stringify(event)); route(e, { topic: 'c', key: 12n }); "
         "return e", ("c", "12", None, None)),
        ("event.__routing = { key: 'd' }", (None, "d", None, None)),
        ("event.route({ topic: 'x' }); delete event.__routing", None),
        ("event.route({ topic: 'x' }); event.route(null)", None),
        ("event.route({ topic: 'x' }); return {...event}", None),
        ("event.route({ topic: 'x' }); event.route({ topic: event.__routing.topic + 'y' })",
         ("xy", None, None, None)),
    ],
)  # fmt: skip
def test_routes(tried, code, expected):
    done = tried(code)

    assert not done.rejections, done.rejections
    routing = done.rows["routing"].to_pylist()[0]
    wanted = ("topic", "key", "headers", "raw_payload")
    assert (routing and tuple(routing[name] for name in wanted)) == expected


def test_routes_of_earlier_processors_stay_and_can_be_read(tried, shown):
    earlier = {"topic": "a", "key": "k", "headers": [("h", "1")], "raw_payload": False}

    assert tried("event.tags = ['x']", routing=earlier).rows["routing"].to_pylist() == [earlier]
    seen = shown("event.__routing", routing=earlier)
    assert seen == {"topic": "a", "key": "k", "headers": {"h": "1"}, "raw_payload": False}


def test_many_different_routes_and_tags(start):
    worker = start(
        "function processBatch(events) { events.forEach((e, i) => { if (i % 3) { "
        "e.route({ topic: `t${i}`, key: String(e.after.id) }); e.tags = [`g${i}`]; "
        "e.op = i % 2 ? 'u' : 'c'; e.after.x = i; } }); return events.filter((e, i) => i % 5) }"
    )

    done = worker.process(batch(100))

    kept = [n for n in range(100) if n % 5]
    assert origins(done) == kept
    assert [tags and tags[0] for tags in done.rows["tags"].to_pylist()] == [
        f"g{n}" if n % 3 else None for n in kept
    ]
    assert [one and (one["topic"], one["key"]) for one in done.rows["routing"].to_pylist()] == [
        (f"t{n}", str(n)) if n % 3 else None for n in kept
    ]
    assert done.rows["op"].to_pylist() == ["u" if n % 3 and n % 2 else "c" for n in kept]
    assert done.rows["after"].to_pylist() == [
        b'{"id":%d,"x":%d}' % (n, n) if n % 3 else b'{"id":%d}' % n for n in kept
    ]


def test_a_batch_is_handed_over_in_parts_that_its_memory_holds(start):
    worker = start(
        "let calls = 0; function processBatch(events) { calls++; "
        "for (const e of events) e.tags = [String(calls)]; return events }",
        mem_mb=16,
    )
    rows = change_rows([change(after=b'{"x":"%s"}' % (b"y" * 100_000)) for _ in range(12)])

    done = worker.process(rows)

    assert done.rows["tags"].to_pylist() == [[str(n // 5 + 1)] for n in range(12)]
    assert done.rows.drop_columns(["tags"]).equals(rows.drop_columns(["tags"]))


ALERTS = """
function processBatch(events) {
  const alerts = [];
  for (const e of events) {
    const source = { db: "shop", table: "alerts" };
    if (e.after.id % 2) alerts.push({ op: "c", ts_ms: e.ts_ms, source, after: { id: e.after.id } });
  }
  return [...events, ...alerts];
}
"""


def test_with_other_batches_no_id_is_that_of_an_event_with_another_content():
    """A consumer that keeps ids would throw the other one away."""
    events = [
        change(after=b'{"id":%d}' % n, key=b'{"id":%d}' % n, event_id=bytes([n]) * 16)
        for n in (1, 2, 3)
    ]
    named = {}
    for batches in ([events], [events[:2], events[2:]], [[each] for each in events]):
        worker = opened(ALERTS)
        for batch in batches:
            rows = change_rows(batch)
            done = checked("js", rows, worker.process(rows))
            for event in marked("js", id_key("made", "js"), rows, done).to_pylist():
                named.setdefault(event["event_id"], set()).add((event["table"], event["after"]))
        worker.close()
    assert [contents for contents in named.values() if len(contents) > 1] == []
