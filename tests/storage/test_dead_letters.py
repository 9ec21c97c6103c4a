"""The queue of what was set aside, on every durable store."""

import time

import pytest

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Amend, Fence
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.dead_letters import (
    DeadLetterFilter,
    DeadLetterRecords,
)


@pytest.fixture
def store(durable_dsn):
    opened = StoreLocation.from_dsn(durable_dsn).create()
    yield opened
    opened.close()


def letter(number):
    return (
        b'{"v":1,"timestamp":%d,"pipeline":"orders","event_id":"e","event":{"n":%d},'
        % (
            number,
            number,
        )
        + b'"meta":{"error_kind":"routing","error_message":"why"}}'
    )


def fill(store, count, pipeline="orders"):
    queue = DeadLetterRecords(store, pipeline)
    store.transact([queue.push(letter(number)) for number in range(count)])
    return queue


def numbers(queue, after=0):
    return [one.event["n"] for one in queue.read(after)]


def test_entries_come_in_order_through_many_pages(store):
    queue = fill(store, 130)
    fill(store, 2, "orders2")
    assert numbers(queue) == list(range(130))
    seqs = [one.seq for one in queue.read()]
    assert numbers(queue, seqs[49]) == list(range(50, 130))


def test_ack_drop_and_purge_concern_one_pipeline(store):
    queue, other = fill(store, 6), fill(store, 2, "other")
    second = [one.seq for one in queue.read()][1]
    assert (queue.ack(second), queue.drop_oldest(1), queue.count()) == (2, 1, 3)
    assert numbers(queue) == [3, 4, 5]
    assert (queue.purge(), queue.count(), other.count()) == (3, 0, 2)


def test_only_what_is_old_expires(store):
    queue = fill(store, 70)
    assert queue.expire(int(time.time() * 1000) - 3_600_000) == 0
    assert queue.expire(int(time.time() * 1000) + 3_600_000) == 70
    assert queue.count() == 0


def test_an_entry_is_not_stored_by_who_has_lost_the_fence(store):
    version = store.swap(names.EPOCHS, "orders", 0, b"driver")
    store.swap(names.EPOCHS, "orders", version, b"newer")
    queue = DeadLetterRecords(store, "orders")
    with pytest.raises(FencedError):
        store.transact([queue.push(letter(1))], Fence(names.EPOCHS, "orders", version))
    assert queue.count() == 0


def test_one_entry_is_read_alone():
    store = StoreLocation.from_dsn("memory://alone").create()
    queue = fill(store, 5)
    fetched = []
    peek = store.peek
    store.peek = lambda *told: fetched.append(peek(*told)) or fetched[-1]
    try:
        third = next(
            one.dead_letter.seq for one in queue.stored() if one.dead_letter.event["n"] == 2
        )
        fetched.clear()
        assert queue.find(third).dead_letter.event == {"n": 2}
        assert [len(page) for page in fetched] == [1]
    finally:
        store.close()


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"torn{", "cannot be read"), (b'{"v":9}', "upgrade airflow-provider-deltaforge")],
)
def test_an_entry_that_cannot_be_read_says_so_and_hides_no_other(store, text, why):
    queue = fill(store, 3)
    first, second, third = (one.seq for one in queue.read())
    store.transact([Amend(names.JOURNAL, "orders:dlq", second, text)])

    found = list(queue.read())

    assert [one.seq for one in found] == [first, second, third]
    assert found[1].meta.error_kind == "damaged"
    assert why in found[1].meta.error_message
    assert [one.dead_letter.seq for one in queue.stored(damaged=False)] == [first, third]
    assert queue.find(second) is None  # Nothing may be written into it.
    assert DeadLetterFilter(last=second).fits(found[1])
    assert not DeadLetterFilter(first=third).fits(found[1])
    assert not DeadLetterFilter(table="None.None").fits(found[1])


def test_an_old_moment_behind_a_younger_one_is_no_sign_of_age(request):
    """The clock was set back in between: what lies behind was set aside later."""
    in_memory = StoreLocation.from_dsn(f"memory://{request.node.name}").create()
    queue = fill(in_memory, 3)
    entries = in_memory._state.queues[names.JOURNAL, "orders:dlq"]
    for at, ts_ms in enumerate((10_000, 2_000_000, 10_000)):
        entries[at] = type(entries[at])(entries[at].seq, "", entries[at].value, ts_ms)
    assert queue.expire(1_000_000) == 1
    assert queue.count() == 2
