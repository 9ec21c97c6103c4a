"""What every state store promises, as tests to inherit."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.storage.contract import (
    Amend,
    Append,
    Delete,
    Fence,
    Push,
    Put,
    Store,
    StoredSlot,
    Take,
    Write,
)

OpenStore = Callable[[], Store]

_PATIENCE_S = 180.0
"""Ends a hang; far more than a slow machine needs."""


class StoreContract:
    """Inherit, and define the fixture ``open_store``, in the class or in its module.

    It is a function that opens the store; each call opens the same state, which is empty at first.
    """

    @pytest.fixture
    def store(self, open_store: OpenStore) -> Iterator[Store]:
        """A store that is closed when the test ends."""
        opened = open_store()
        yield opened
        opened.close()

    # Key-value map

    def test_a_value_is_what_was_last_put(self, store: Store) -> None:
        assert store.get("a", "k") is None
        store.put("a", "k", b"one")
        store.put("a", "k", b"two")
        assert store.get("a", "k") == b"two"
        assert store.get("b", "k") is None

    @pytest.mark.parametrize("value", [b"", b"\0\xff\n", bytes(range(256)) * 5000])
    def test_a_value_may_be_any_bytes(self, store: Store, value: bytes) -> None:
        store.put("a", "k", value)
        assert store.get("a", "k") == value
        assert store.items("a") == [("k", value)]

    def test_delete_says_whether_there_was_a_value(self, store: Store) -> None:
        store.put("a", "k", b"one")
        assert store.delete("a", "k") is True
        assert store.delete("a", "k") is False
        assert store.get("a", "k") is None

    def test_items_come_in_code_point_order(self, store: Store) -> None:
        keys = ["", "A", "Z", "_", "a", "aa", "b", "\ud7ff", "\ue000", "\U0010ffff", "é", "日本"]
        for key in reversed(keys):
            store.put("a", key, key.encode())
        store.put("b", "elsewhere", b"")
        assert [key for key, _ in store.items("a")] == sorted(keys)

    @pytest.mark.parametrize(
        "prefix", ["a_", "a%", "a", "p/", "\ud7ff", "\U0010ffff", "a\U0010ffff"]
    )
    def test_a_prefix_is_taken_letter_by_letter(self, store: Store, prefix: str) -> None:
        keys = ["a", "a_", "a_1", "a%", "a%2", "aX1", "A_", "b", "p/1", "p0", "\ud7ff1", "\ue0001"]
        keys += ["\U0010ffff", "\U0010ffffz", "a\U0010ffff", "a\U0010ffffz"]
        for key in keys:
            store.put("n", key, b"")
        expected = sorted(key for key in keys if key.startswith(prefix))
        assert [key for key, _ in store.items("n", prefix)] == expected

    def test_a_value_with_a_time_to_live_vanishes(self, store: Store) -> None:
        store.put("a", "short", b"1", ttl_s=600)
        store.put("a", "long", b"2", ttl_s=600)
        assert store.get("a", "short") == b"1"
        store.put("a", "short", b"1", ttl_s=0.01)
        _wait_until_gone(store, "a", "short")
        assert store.items("a") == [("long", b"2")]
        assert store.delete("a", "short") is False

    def test_a_later_put_decides_about_the_time_to_live(self, store: Store) -> None:
        store.put("a", "other", b"1", ttl_s=0.05)
        store.put("a", "k", b"1", ttl_s=0.05)
        store.put("a", "k", b"2")
        _wait_until_gone(store, "a", "other")
        time.sleep(0.05)
        assert store.get("a", "k") == b"2"

    @pytest.mark.parametrize("name", ["a\0b", "\ud800"])
    def test_a_name_no_database_could_keep_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(ValueError, match="state store"):
            store.put("a", name, b"")
        with pytest.raises(ValueError, match="state store"):
            store.transact([Put("a", "fine", b""), Put(name, "k", b"")])
        assert store.items("a") == []

    # Log

    def test_log_numbers_grow_across_all_logs(self, store: Store) -> None:
        numbers = [store.append(f"n{i % 2}", f"k{i % 3}", b"%d" % i) for i in range(12)]
        assert numbers == sorted(set(numbers))
        assert [entry.value for entry in store.read("n0")] == [b"%d" % i for i in range(0, 12, 2)]
        assert [entry.seq for entry in store.read("n1", "k1")] == [numbers[1], numbers[7]]

    def test_a_log_is_read_in_pages(self, store: Store) -> None:
        numbers = [store.append("n", "k", b"%d" % i) for i in range(5)]
        first = store.read("n", limit=2)
        assert [entry.seq for entry in first] == numbers[:2]
        assert [entry.seq for entry in store.read("n", "k", after=first[-1].seq)] == numbers[2:]
        assert store.read("n", after=numbers[-1]) == []

    def test_entries_carry_the_time_they_were_written(self, store: Store) -> None:
        before_ms = time.time() * 1000
        store.append("n", "k", b"")
        store.push("n", "k", b"")
        after_ms = time.time() * 1000
        for entry in (*store.read("n"), *store.peek("n", "k")):
            # A database may round, and may have a clock of its own.
            assert before_ms - 1000 < entry.ts_ms < after_ms + 1000

    # Slots

    def test_a_slot_is_created_once_and_counts_its_versions(self, store: Store) -> None:
        assert store.slot("s", "k") is None
        assert store.swap("s", "k", 1, b"x") is None
        assert store.swap("s", "k", 0, b"one") == 1
        assert store.swap("s", "k", 0, b"other") is None
        assert store.swap("s", "k", 1, b"two") == 2
        assert store.swap("s", "k", 1, b"late") is None
        assert store.slot("s", "k") == StoredSlot(2, b"two")

    def test_swaps_of_many_threads_lose_nothing(self, store: Store) -> None:
        def add(_: int) -> None:
            while True:
                slot = store.slot("s", "k")
                version, count = (slot.version, int(slot.state)) if slot else (0, 0)
                if store.swap("s", "k", version, b"%d" % (count + 1)) is not None:
                    return

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(add, range(80)))
        assert store.slot("s", "k") == StoredSlot(80, b"80")

    # Queues

    def test_a_queue_is_first_in_first_out_until_acknowledged(self, store: Store) -> None:
        numbers = [store.push("q", "k", b"%d" % i) for i in range(5)]
        store.push("q", "other", b"x")
        assert [entry.value for entry in store.peek("q", "k", limit=2)] == [b"0", b"1"]
        assert [entry.seq for entry in store.peek("q", "k", after=numbers[2])] == numbers[3:]
        assert store.ack("q", "k", numbers[1]) == 2
        assert store.ack("q", "k", numbers[1]) == 0
        assert store.length("q", "k") == 3
        assert store.drop_oldest("q", "k") == 1
        assert [entry.seq for entry in store.peek("q", "k")] == numbers[3:]
        assert store.drop_oldest("q", "k", 10) == 2
        assert (store.length("q", "k"), store.length("q", "other")) == (0, 1)

    def test_the_number_of_a_removed_entry_is_never_given_again(
        self, open_store: OpenStore
    ) -> None:
        store = open_store()
        last = store.push("q", "k", b"1")
        store.ack("q", "k", last)
        store.close()
        again = open_store()
        assert again.push("q", "k", b"2") > last
        again.close()

    def test_an_entry_is_changed_or_taken_where_it_stands(self, store: Store) -> None:
        first, second, third = (store.push("q", "k", b"%d" % i) for i in range(3))
        other = store.push("q", "other", b"x")
        store.transact(
            [
                Amend("q", "k", second, b"changed"),
                Take("q", "k", first),
                Take("q", "k", other),
                Amend("q", "k", other, b"not mine"),
                Amend("q", "k", third + 1000, b"nobody's"),
            ]
        )
        assert [(entry.seq, entry.value) for entry in store.peek("q", "k")] == [
            (second, b"changed"),
            (third, b"2"),
        ]
        assert [entry.value for entry in store.peek("q", "other")] == [b"x"]
        store.transact([Take("q", "k", first), Take("q", "k", second)])
        assert store.length("q", "k") == 1

    # Transactions and fences

    def test_a_transaction_applies_all_its_writes_in_order(self, store: Store) -> None:
        store.put("a", "old", b"")
        store.transact(
            [
                Put("a", "k", b"1"),
                Put("a", "k", b"2"),
                Delete("a", "old"),
                Append("n", "k", b"3"),
                Append("n", "k", b"4"),
                Push("q", "k", b"5"),
                Put("a", "gone", b""),
                Delete("a", "gone"),
            ]
        )
        assert store.items("a") == [("k", b"2")]
        assert [entry.value for entry in store.read("n")] == [b"3", b"4"]
        assert [entry.value for entry in store.peek("q", "k")] == [b"5"]

    def test_only_the_holder_of_a_fence_writes(self, store: Store) -> None:
        store.swap("epochs", "p", 0, b"")
        store.transact([Put("a", "k", b"1")], Fence("epochs", "p", 1))
        store.swap("epochs", "p", 1, b"")
        writes: list[Write] = [
            Put("a", "k", b"2"),
            Delete("a", "k"),
            Append("n", "k", b""),
            Push("q", "k", b""),
        ]
        with pytest.raises(FencedError, match="newer driver"):
            store.transact(writes, Fence("epochs", "p", 1))
        assert store.get("a", "k") == b"1"
        assert (store.read("n"), store.length("q", "k")) == ([], 0)
        store.transact([Put("a", "k", b"3")], Fence("epochs", "p", 2))
        assert store.get("a", "k") == b"3"

    @pytest.mark.parametrize("version", [0, 1])
    def test_a_fence_without_its_slot_lets_nothing_through(
        self, store: Store, version: int
    ) -> None:
        with pytest.raises(FencedError):
            store.transact([Put("a", "k", b"")], Fence("epochs", "p", version))
        assert store.get("a", "k") is None

    def test_an_empty_transaction_tells_whether_the_fence_holds(self, store: Store) -> None:
        store.swap("epochs", "p", 0, b"")
        store.transact([], Fence("epochs", "p", 1))
        with pytest.raises(FencedError):
            store.transact([], Fence("epochs", "p", 2))

    def test_a_reader_that_follows_the_log_misses_nothing(self, store: Store) -> None:
        """Numbers drawn by one writer never appear behind those of a faster one."""
        writers, each = 4, 40
        seen: list[int] = []
        done = threading.Event()

        def follow() -> None:
            while True:
                ended = done.is_set()
                entries = store.read("n", after=seen[-1] if seen else 0)
                seen.extend(entry.seq for entry in entries)
                if ended and not entries:
                    return

        reader = threading.Thread(target=follow)
        reader.start()

        def write(writer: int) -> None:
            for _ in range(each):
                store.transact([Put("a", f"{writer}", b""), Append("n", f"{writer}", b"")])

        with ThreadPoolExecutor(writers) as threads:
            list(threads.map(write, range(writers)))
        done.set()
        reader.join(60)
        assert len(seen) == len(set(seen)) == writers * each

    def test_closing_twice_is_fine(self, open_store: OpenStore) -> None:
        store = open_store()
        store.put("a", "k", b"1")
        store.close()
        store.close()


class DurableStoreContract(StoreContract):
    """Further promises of stores that outlive their process."""

    def test_another_opening_sees_everything(self, open_store: OpenStore) -> None:
        first, second = open_store(), open_store()
        first.transact([Put("a", "k", b"1"), Append("n", "k", b"2"), Push("q", "k", b"3")])
        first.swap("s", "k", 0, b"4")
        first.close()
        assert second.get("a", "k") == b"1"
        assert second.read("n")[0].value == b"2"
        assert second.peek("q", "k")[0].value == b"3"
        assert second.slot("s", "k") == StoredSlot(1, b"4")
        second.close()

    def test_many_threads_may_open_a_new_store_at_once(self, open_store: OpenStore) -> None:
        def use(i: int) -> None:
            store = open_store()
            store.put("a", f"{i}", b"")
            store.close()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(use, range(8)))
        store = open_store()
        assert len(store.items("a")) == 8
        store.close()

    def test_a_forked_child_and_its_parent_do_not_share_a_connection(self, store: Store) -> None:
        store.put("a", "parent", b"")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for i in range(20):
                    store.put("a", f"child{i}", b"")
                code = 0
            finally:
                os._exit(code)
        for i in range(20):
            store.put("a", f"parent{i}", b"")
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert len(store.items("a")) == 41


def _wait_until_gone(store: Store, namespace: str, key: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while store.get(namespace, key) is not None:
        assert time.monotonic() < deadline, "a value outlived its time to live"
        time.sleep(0.1)
