"""Real processes that race for a store, and that are killed in the middle of a write."""

import random
import time

import pytest

from airflow_provider_deltaforge.storage.contract import Store, StoredSlot
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.storage import worker
from tests.waiting import PATIENCE_S, wait_until


@pytest.fixture
def store(durable_dsn):
    opened = StoreLocation.from_dsn(durable_dsn).create()
    yield opened
    opened.close()


def test_swaps_of_several_processes_lose_nothing(store, durable_dsn):
    processes = [worker.spawn("count", durable_dsn, 50) for _ in range(4)]
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * 4
    assert store.slot("cas", "k") == StoredSlot(200, b"200")


def test_log_numbers_of_several_processes_are_one_sequence(store, durable_dsn):
    processes = [worker.spawn("append", durable_dsn, 50) for _ in range(3)]
    told = [
        [int(line) for line in process.communicate(timeout=PATIENCE_S)[0].split()]
        for process in processes
    ]
    stored = [entry.seq for entry in store.read("log")]
    assert all(numbers == sorted(numbers) for numbers in told)
    assert stored == sorted(number for numbers in told for number in numbers)
    assert len(set(stored)) == 150


def test_no_write_of_an_old_epoch_lands_after_the_next_one_was_taken(store, durable_dsn):
    assert store.swap("epochs", "p", 0, b"") == 1
    epochs, workers = 4, []
    for epoch in range(1, epochs + 1):
        pair = [worker.spawn("fenced", durable_dsn, epoch) for _ in range(2)]
        workers.append(pair)
        for process in pair:
            assert process.stdout.readline() == "ready\n"
        told = b"%d" % epoch
        wait_until(
            lambda told=told: any(e.value == told for e in store.read("epochs", limit=10**6))
        )
        assert store.swap("epochs", "p", epoch, b"") == epoch + 1
        # The order of the log is the order of the commits: this entry is the bump.
        store.append("epochs", "p", b"taken %d" % (epoch + 1))
    acknowledged = [
        sum(int(process.communicate(timeout=PATIENCE_S)[0]) for process in pair) for pair in workers
    ]
    _assert_epochs_do_not_mix([entry.value for entry in store.read("epochs", limit=10**6)])
    for epoch, count in enumerate(acknowledged, 1):
        landed = [e for e in store.read("epochs", limit=10**6) if e.value == b"%d" % epoch]
        assert len(landed) == count > 0
    assert store.get("last", "epoch") == b"%d" % epochs


def _assert_epochs_do_not_mix(values: list[bytes]) -> None:
    current = 1
    for value in values:
        if value.startswith(b"taken "):
            current = int(value.removeprefix(b"taken "))
        else:
            assert int(value) == current


def test_the_check_for_mixed_epochs_sees_a_late_write():
    _assert_epochs_do_not_mix([b"1", b"taken 2", b"2"])
    with pytest.raises(AssertionError):
        _assert_epochs_do_not_mix([b"1", b"taken 2", b"2", b"1"])


@pytest.mark.parametrize("after", [1, worker.KEYS, worker.KEYS + 1, worker.KEYS + 2])
def test_a_process_killed_inside_a_transaction_leaves_nothing(store, durable_dsn, after):
    process = worker.spawn("die", durable_dsn, after)
    assert process.wait(PATIENCE_S) == -9
    assert _numbers(store) == ([], [], [])
    store.transact(worker.same(7))  # Nothing it held keeps others out.
    assert _numbers(store) == ([b"7"] * worker.KEYS, [b"7"], [b"7"])


def test_a_process_killed_at_any_moment_leaves_whole_transactions(store, durable_dsn):
    chance = random.Random(5)
    first, epoch = 1, store.swap("epochs", "p", 0, b"")
    for _ in range(6):
        process = worker.spawn("transactions", durable_dsn, first, epoch)
        assert int(process.stdout.readline()) == first
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        told = [first, *(int(line) for line in process.stdout if line.endswith("\n"))]
        worker.end(process)
        # A server may still be busy with the commit of the dead: taking the epoch waits for it.
        epoch = store.swap("epochs", "p", epoch, b"")
        values, log, queue = _numbers(store)
        (last,) = {int(value) for value in values}
        assert told[-1] <= last <= told[-1] + 1
        assert log == queue == [b"%d" % number for number in range(1, last + 1)]
        first = last + 1


def _numbers(store: Store) -> tuple[list[bytes], list[bytes], list[bytes]]:
    return (
        [value for _, value in store.items("same")],
        [entry.value for entry in store.read("same", limit=10**6)],
        [entry.value for entry in store.peek("same", "k", limit=10**6)],
    )
