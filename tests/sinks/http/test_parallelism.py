"""Several requests at a time: in order per key, nothing lost, nothing twice."""

import json
import threading

import pytest

from airflow_provider_deltaforge.engine.render.former_keys import with_former_keys
from airflow_provider_deltaforge.engine.render.renderer import Renderer
from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sinks.http import HttpSink
from airflow_provider_deltaforge.testing.changes import change, change_rows
from airflow_provider_deltaforge.testing.sinks import messages, value
from tests.envelopes.changes import ORIGIN
from tests.sinks.http import endpoint as endpoints
from tests.sinks.http.endpoint import numbers
from tests.waiting import PATIENCE_S, wait_until

KEYS = 7


def keyed(endpoint, span):
    """Return messages whose key is their number modulo KEYS."""
    return messages([(f"{endpoint.url}/in", b"%d" % (n % KEYS), value(n)) for n in span])


def by_key(endpoint):
    found = {key: [] for key in range(KEYS)}
    for number in numbers(endpoint):
        found[number % KEYS].append(number)
    return found


def in_order(span):
    return {key: [n for n in span if n % KEYS == key] for key in range(KEYS)}


@pytest.mark.parametrize("batch_mode", [False, True])
def test_each_key_is_in_order(endpoint, opened, batch_mode):
    writer = opened(endpoint, parallelism=4, batch_mode=batch_mode)

    for start in range(0, 300, 100):
        assert list(writer.write(keyed(endpoint, range(start, start + 100)))) == []

    assert by_key(endpoint) == in_order(range(300))
    assert len(endpoint.connections) == 4


def test_requests_are_under_way_together(endpoint, opened):
    together = threading.Barrier(3)

    def judge(_):
        together.wait(PATIENCE_S)
        return 204

    endpoint.judge = judge

    opened(endpoint, parallelism=3, send_timeout_secs=600).write(keyed(endpoint, range(3)))

    assert sorted(numbers(endpoint)) == [0, 1, 2]


@pytest.mark.parametrize("batch_mode", [False, True])
def test_a_failure_leaves_no_hole_and_repeats_nothing(endpoint, opened, batch_mode):
    failures = iter([503, 503, 503])

    def judge(request):
        bad = b'{"n":50}' in request.body
        return next(failures, 204) if bad else 204

    endpoint.judge = judge
    writer, batch = (
        opened(endpoint, parallelism=4, batch_mode=batch_mode),
        keyed(endpoint, range(100)),
    )
    for _ in range(3):
        with pytest.raises(RetryableError):
            writer.write(batch)

    assert list(writer.write(batch)) == []

    assert by_key(endpoint) == in_order(range(100))


def test_what_is_refused_is_reported_in_order(endpoint, opened):
    endpoint.judge = lambda request: 422 if json.loads(request.body)["n"] % 10 == 3 else 204

    rejections = opened(endpoint, parallelism=4).write(keyed(endpoint, range(50)))

    assert [each.event_row for each in rejections] == [3, 13, 23, 33, 43]
    assert sorted(numbers(endpoint)) == [n for n in range(50) if n % 10 != 3]


def test_the_error_that_needs_a_person_is_reported(endpoint, opened):
    statuses = {0: 503, 1: 401, 2: 503}
    together = threading.Barrier(3)

    def judge(request):
        together.wait(PATIENCE_S)
        return statuses[json.loads(request.body)["n"]]

    endpoint.judge = judge

    with pytest.raises(AccessError):
        opened(endpoint, parallelism=3, send_timeout_secs=600).write(keyed(endpoint, range(3)))


def test_messages_without_a_key_keep_their_order(endpoint, opened):
    batch = messages([(f"{endpoint.url}/in", None, value(n)) for n in range(30)])

    opened(endpoint, parallelism=4).write(batch)

    assert numbers(endpoint) == list(range(30))


def test_all_of_them_can_be_broken_off(endpoint, opened):
    endpoint.judge = lambda _: endpoints.stays_silent
    writer = opened(endpoint, parallelism=3, send_timeout_secs=3600)
    said = []

    def write():
        try:
            writer.write(keyed(endpoint, range(9)))
        except RetryableError as error:
            said.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: len(endpoint.requests) == 3)
    writer.abandon()
    thread.join()

    assert "asked to end" in said[0]
    assert len(endpoint.requests) == 3


def held_up(endpoint, slow, *behind):
    """Answer a request only when one behind it has come, or could have come for long."""
    overtaken = threading.Event()

    def judge(request):
        if slow in request.body:
            overtaken.wait(0.5)
        elif any(each in request.body for each in behind):
            overtaken.set()
        return 204

    endpoint.judge = judge


@pytest.mark.parametrize("batch_mode", [False, True])
def test_a_message_without_a_key_waits_for_all_and_all_wait_for_it(endpoint, opened, batch_mode):
    held_up(endpoint, b'{"n":1}', b'{"n":2}', b'{"n":4}')
    keys = [b"a", b"b", None, None, b"c", b"b", b"d"]
    batch = messages([(f"{endpoint.url}/in", key, value(n)) for n, key in enumerate(keys)])

    opened(endpoint, parallelism=2, batch_mode=batch_mode).write(batch)

    found = numbers(endpoint)
    assert (set(found[:2]), found[2:4], set(found[4:])) == ({0, 1}, [2, 3], {4, 5, 6})


def image(key):
    return b'{"id":%d}' % key


def update(old, new):
    return change(op="u", before=image(old), after=image(new), key=image(new))


def insert(key, **more):
    return change(after=image(key), key=image(key), **more)


def rendered(endpoint, *events, **settings):
    """Return a sink, and what it is given of these events."""
    sink = HttpSink(**{"url": f"{endpoint.url}/in", "parallelism": 2, **settings})
    found, _ = Renderer(sink, ORIGIN).render(with_former_keys(change_rows(list(events))))
    return sink, found


def taken(endpoint):
    """Return what happened, as operation and key, in the order in which it was taken."""
    events = [json.loads(each) for each in endpoint.values()]
    return [(each["op"], (each["after"] or each["before"] or {}).get("id")) for each in events]


@pytest.mark.parametrize("key", [None, "${after.id}"])
def test_a_row_keeps_its_order_when_its_key_changes(endpoint, key):
    held_up(endpoint, b'"after":{"id":1}', b'"op":"u"')
    sink, batch = rendered(endpoint, insert(5), insert(1), update(1, 2), update(2, 3), key=key)

    writer = sink.open("p")
    writer.write(batch)
    writer.close()

    assert [each for each in taken(endpoint) if each != ("c", 5)] == [("c", 1), ("u", 2), ("u", 3)]


@pytest.mark.parametrize("key", [None, "${after.id}"])
def test_a_truncate_waits_for_every_row_and_every_row_for_it(endpoint, key):
    held_up(endpoint, b'"after":{"id":1}', b'"op":"t"', b'"after":{"id":6}')
    truncate = change(op="t", after=None, key=None)
    sink, batch = rendered(endpoint, insert(5), insert(1), truncate, insert(6), key=key)

    writer = sink.open("p")
    writer.write(batch)
    writer.close()

    assert taken(endpoint)[2:] == [("t", None), ("c", 6)]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_arrays_of_several_urls_keep_each_row_in_order(endpoint, parallelism):
    def delete(key):
        return change(op="d", before=image(key), after=None, key=image(key))

    events = [insert(9), insert(1), delete(1), insert(1), delete(9), update(1, 2), insert(1)]
    url = f"{endpoint.url}/${{op}}"
    sink, batch = rendered(endpoint, *events, url=url, batch_mode=True, parallelism=parallelism)

    writer = sink.open("p")
    writer.write(batch)
    writer.close()

    found = taken(endpoint)
    assert [each for each in found if each[1] == 9] == [("c", 9), ("d", 9)]
    moves = [("c", 1), ("d", 1), ("c", 1), ("u", 2), ("c", 1)]
    assert [each for each in found if each[1] != 9] == moves


def test_arrays_of_several_urls_keep_a_truncate_between_rows(endpoint):
    truncate = change(op="t", after=None, key=None)
    url = f"{endpoint.url}/${{op}}"
    events = [insert(1), truncate, insert(2)]
    sink, batch = rendered(endpoint, *events, url=url, batch_mode=True, parallelism=1)

    writer = sink.open("p")
    writer.write(batch)
    writer.close()

    assert taken(endpoint) == [("c", 1), ("t", None), ("c", 2)]


def test_arrays_of_several_urls_are_few_where_no_row_comes_twice(endpoint):
    events = [insert(n // 2, table=f"t{n % 2}") for n in range(20)]
    url = f"{endpoint.url}/${{source.table}}"
    sink, batch = rendered(endpoint, *events, url=url, batch_mode=True, parallelism=1)

    writer = sink.open("p")
    writer.write(batch)
    writer.close()

    assert len(endpoint.requests) == 2


def test_rows_of_a_table_without_a_key_hold_up_no_other_table(endpoint):
    log = [insert(n, table="log") | {"key": None} for n in (1, 2)]
    _, batch = rendered(endpoint, log[0], insert(5), log[1])

    first, other, second = batch.order_groups.to_pylist()
    assert first == second != other
