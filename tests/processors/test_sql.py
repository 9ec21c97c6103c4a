"""What a query makes of a batch, what it is refused, and which rows it fails for."""

import json
import threading
import traceback

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.errors import EventError, RetryableError, SpecError
from airflow_provider_deltaforge.processors.sql import QueryLimits, Sql
from airflow_provider_deltaforge.testing.changes import change, change_rows
from tests.waiting import PATIENCE_S, wait_until

ENDLESS = """
    select _row from events
    where (select count(*) from range(10000000000) t(n), events e where e._row + n < 0) = 0"""


@pytest.fixture(scope="module")
def opened():
    """Open processors, and close them at the end: an engine is not cheap."""
    workers = []

    def start(query, **limits):
        workers.append(Sql(query=query, limits=QueryLimits(**limits)).open())
        return workers[-1]

    yield start
    for worker in workers:
        worker.close()


def orders(count=6, **more):
    return change_rows(
        [
            change(
                after=b'{"id":%d,"status":"%s","total":"%d.50"}'
                % (at, b"paid" if at % 2 else b"new", at),
                event_id=bytes([at]) * 16,
                row=at,
                **more,
            )
            for at in range(count)
        ]
    )


def images(rows, column="after"):
    return [None if text is None else json.loads(text) for text in rows[column].to_pylist()]


def test_rows_that_are_not_returned_are_dropped(opened):
    rows = orders()

    done = opened("select * from events where after->>'$.status' = 'paid'").process(rows)

    assert done.rows.equals(rows.take(pa.array([1, 3, 5])))
    assert done.origins.to_pylist() == [1, 3, 5]
    assert done.made is None
    assert done.counts == {"dropped": 3}


def test_every_event_may_be_dropped(opened):
    done = opened("select _row from events where false").process(orders())

    assert done.rows.num_rows == 0
    assert done.origins.to_pylist() == []
    assert done.counts == {"dropped": 6}


def test_only_what_is_returned_changes_and_the_rest_keeps_its_bytes(opened):
    rows = orders(2, before=b'{"id": 1, "big": 123456789012345678901234567890}')
    query = """
        select * replace (json_merge_patch(after, '{"seen":true}') as after),
        from events  -- with a comment at the end"""

    done = opened(query).process(rows)

    assert images(done.rows) == [{**image, "seen": True} for image in images(rows)]
    others = [name for name in rows.schema.names if name != "after"]
    assert done.rows.select(others).equals(rows.select(others))
    assert done.rows.schema == rows.schema


def test_a_slice_of_a_batch_is_taken_for_itself(opened):
    rows = orders()
    done = opened("select _row from events where _row > 0").process(rows.slice(2, 3))
    assert done.rows.equals(rows.slice(3, 2))


def test_types_are_friendly(opened):
    rows = change_rows(
        [
            change(
                schema="sales",
                tags=["a", "b"],
                routing={"topic": "t", "key": "k", "headers": {"h": "1"}, "raw_payload": True},
            )
        ]
    )
    query = """
        select _row from events
        where op = 'c' and db = 'shop' and schema = 'sales' and "table" = 'orders'
          and (after->>'$.total')::decimal(9,2) = 12.50 and (key->'id')::int = 1
          and event_id = '00010203-0405-0607-0809-0a0b0c0d0e0f' and ts_ms = 1700000000000
          and list_contains(tags, 'b') and topic = 't' and routing_key = 'k'
          and headers['h'] = '1' and raw_payload and before is null and ddl is null
          and synthetic is null and schema_sequence = 3 and tx_id like '3E11%'"""

    assert opened(query).process(rows).rows.equals(rows)


def test_routing_tags_place_and_operation_can_be_set(opened):
    query = """
        select _row, 'u' as op, 'orders-' || (after->>'status') as topic,
          after->>'id' as routing_key, map {'from': db} as headers, ['x'] as tags,
          'sales' as schema, ts_ms + 1 as ts_ms, {'id': after->'id'} as key, null as before
        from events"""

    done = opened(query).process(orders(2, before=b"{}"))

    [_, second] = done.rows.to_pylist()
    assert second["routing"] == {
        "topic": "orders-paid",
        "key": "1",
        "headers": [("from", "shop")],
        "raw_payload": None,
    }
    assert (second["op"], second["schema"], second["tags"]) == ("u", "sales", ["x"])
    assert (second["key"], second["before"]) == (b'{"id":1}', None)
    assert second["ts_ms"] == 1_700_000_000_001


def test_routing_that_is_not_named_stays(opened):
    rows = change_rows([change(routing={"topic": "t", "key": "k"}), change(event_id=bytes(16))])
    done = opened("select _row, null::varchar as routing_key from events").process(rows)
    assert done.rows["routing"].to_pylist() == [
        {"topic": "t", "key": None, "headers": None, "raw_payload": None},
        None,
    ]


def test_rows_made_of_one_event_follow_it_and_are_marked(opened):
    rows = change_rows(
        [
            change(after=b'{"id":1,"items":[{"sku":"a"},{"sku":"b"}]}'),
            change(after=b'{"id":2,"items":[]}', event_id=bytes(16)),
            change(after=b'{"id":3,"items":[{"sku":"c"}]}', event_id=bytes([9]) * 16),
        ]
    )
    query = """
        select _row, unnest(from_json(after->'items', '["JSON"]')) as after
        from events order by _row desc"""

    done = opened(query).process(rows)

    assert images(done.rows) == [{"sku": "a"}, {"sku": "b"}, {"sku": "c"}]
    assert done.origins.to_pylist() == [0, 0, 2]
    assert done.made.to_pylist() == [False, True, False]
    assert done.counts == {"dropped": 1}


def test_the_order_of_the_batch_stands_whatever_the_query_says(opened):
    rows = orders()
    done = opened("select * from events order by after->>'id' desc").process(rows)
    assert done.rows.equals(rows)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("select count(*) from events", "'_row'"),
        ("select after from events", "'_row'"),
        ("select *, '{}' as after from events", "returns 'after' twice"),
        ("select _row, 1 as total from events", "returns 'total'"),
        ("select _row::varchar as _row from events", "must stay the integer"),
        ("select sum(_row) as _row from events", "must stay the integer"),
        ("select _row, nope from events", 'Referenced column "nope" not found'),
        ("selec 1", "syntax error"),
        ("select 1; select 2", "one select"),
        ("create table t as select 1", "one select"),
        ("set threads = 4", "one select"),
        ("attach '/tmp/x.db'", "one select"),
        ("copy events to '/tmp/x.csv'", "one select"),
        ("install httpfs", "one select"),
        ("select _row, c as after from events, read_text('/etc/passwd') t(a, c)", "disabled"),
        ("select _row from events, '/etc/passwd'", "does not exist"),
        ("select _row, getenv('HOME') as topic from events", "does not exist"),
        ("select _row from rows, events", "does not exist"),
    ],
)
def test_a_query_that_cannot_work_is_refused_when_it_is_validated(query, reason):
    with pytest.raises(SpecError, match="query: ") as caught:
        Sql(query=query).check()
    assert reason in str(caught.value)


def test_rows_the_query_fails_for_are_rejected_alone_and_their_values_are_not_shown(opened):
    rows = change_rows(
        [
            change(after=b'{"n":"%s"}' % value, event_id=bytes([at]) * 16)
            for at, value in enumerate([b"1", b"Top Secret", b"3", b"4", b"99999999999"])
        ]
    )

    done = opened("select _row, (after->>'n')::int::varchar as topic from events").process(rows)

    assert [routing["topic"] for routing in done.rows["routing"].to_pylist()] == ["1", "3", "4"]
    assert done.origins.to_pylist() == [0, 2, 3]
    assert [(one.event_row, one.kind) for one in done.rejections] == [
        (1, "processor"),
        (4, "processor"),
    ]
    assert done.rejections[0].reason == "Conversion Error: Could not convert string '***' to INT32"
    assert "99999" not in done.rejections[1].reason


def test_images_that_are_no_json_are_rejected_alone_where_the_query_looks_at_them(opened):
    rows = change_rows(
        [
            change(after=image, event_id=bytes([at]) * 16)
            for at, image in enumerate([b'{"a":"\xff"}', b"no json", b'{"a":1}', b"[1"])
        ]
    )
    query = "select _row, {} as after from events"

    merged = opened(query.format("json_merge_patch(after, '{\"x\":1}')")).process(rows)
    read = opened(query.format("json_object('b', after->'a')")).process(rows)

    for done, image in ((merged, {"a": 1, "x": 1}), (read, {"b": 1})):
        assert images(done.rows) == [image]
        assert [one.event_row for one in done.rejections] == [0, 1, 3]
        assert done.rejections[0].reason == "after is not in UTF, as JSON must be"
        assert all("no json" not in one.reason for one in done.rejections)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("'x' as op", "none of c, u, d, r, t"),
        ("null::varchar as op", "null for op"),
        ("'{' as after", "Malformed JSON"),
        ("_row + 7 as _row", "none of the batch's"),
    ],
)
def test_what_is_no_change_event_is_rejected(opened, column, reason):
    query = f"select {'' if '_row' in column else '_row, '}{column} from events"
    done = opened(query).process(orders(1))

    assert done.rows.num_rows == 0
    [rejection] = done.rejections
    assert reason in rejection.reason


def test_numbers_that_json_does_not_have_are_rejected_alone(opened):
    """DuckDB writes them as they are, and takes them: what comes after could not read the row."""
    ratio = "to_json({ratio: 1.0::double / (after->>'n')::double})"
    rows = change_rows([change(after=b'{"n":%d}' % n, event_id=bytes([n]) * 16) for n in (1, 0, 2)])
    done = opened(f"select _row, {ratio} as after from events").process(rows)
    assert images(done.rows) == [{"ratio": 1.0}, {"ratio": 0.5}]
    assert [(one.event_row, one.kind) for one in done.rejections] == [(1, "processor")]
    assert "NaN or Infinity" in done.rejections[0].reason


@pytest.mark.parametrize(
    "query", ["selec 'SECRET-1'", "select _row, no_such('SECRET-1') as topic from events"]
)
def test_an_error_shows_no_text_of_the_query(query):
    """A variable may have put the salt of a pseudonym there."""
    with pytest.raises(SpecError) as caught:
        Sql(query=query).check()
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))
    assert "Error: " in str(caught.value)


def test_a_query_that_fails_for_most_rows_stops_the_batch(opened):
    worker = opened("select _row, (after->>'status')::int::varchar as topic from events")
    with pytest.raises(EventError, match="more than 20 of 21 events"):
        worker.process(orders(21))


def test_a_query_without_end_and_one_without_measure_are_stopped_and_the_next_batch_runs(opened):
    greedy = "select _row, repeat(after->>'id', 100000000 * (_row + 1)) as topic from events"
    seven = change_rows([change(after=b'{"id":7}')])

    for query, limits, reason in (
        (ENDLESS, {"timeout_ms": 1000}, "timeout_ms"),
        (greedy, {"mem_mb": 32}, "mem_mb"),
    ):
        with pytest.raises(EventError, match=reason):
            opened(query, **limits).process(seven)
    assert opened("select * from events").process(seven).rows.equals(seven)


def test_a_query_that_can_work_passes_validation():
    Sql(query="select * from events").check()


def test_a_query_that_does_not_even_end_without_events_is_refused_at_start():
    query = "select _row from events where (select sum(n) from range(1000000000000) t(n)) > 0"
    with pytest.raises(SpecError, match="timeout_ms"):
        Sql(query=query, limits=QueryLimits(timeout_ms=100)).open()


def test_a_worker_can_be_closed_while_its_query_runs_and_twice():
    worker = Sql(query=ENDLESS, limits=QueryLimits(timeout_ms=60_000)).open()
    failures = []

    def process():
        with pytest.raises(RetryableError, match="the stream ends") as caught:
            worker.process(orders(1))
        failures.append(caught.value)

    thread = threading.Thread(target=process)
    thread.start()
    wait_until(lambda: worker._engine._table.content.num_rows == 1)
    worker.close()
    worker.close()
    thread.join(PATIENCE_S)

    assert len(failures) == 1
