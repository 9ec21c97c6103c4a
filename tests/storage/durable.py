"""What stores that outlive their process promise besides, as tests to inherit."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_deltaforge.storage.contract import Append, Fence, Push, Put, StoredSlot
from tests.storage.contract import StoreContract


class DurableContract(StoreContract):
    """Further promises of stores that outlive their process."""

    def test_another_opening_sees_everything(self, open_store):
        first, second = open_store(), open_store()
        first.transact([Put("a", "k", b"1"), Append("n", "k", b"2"), Push("q", "k", b"3")])
        first.swap("s", "k", 0, b"4")
        first.close()
        assert second.get("a", "k") == b"1"
        assert second.read("n")[0].value == b"2"
        assert second.peek("q", "k")[0].value == b"3"
        assert second.slot("s", "k") == StoredSlot(1, b"4")
        second.close()

    def test_many_threads_may_open_a_new_store_at_once(self, open_store):
        def use(i):
            store = open_store()
            store.put("a", f"{i}", b"")
            store.close()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(use, range(8)))
        store = open_store()
        assert len(store.items("a")) == 8
        store.close()

    def test_a_forked_child_and_its_parent_do_not_share_a_connection(self, store):
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

    def test_an_epoch_waits_for_the_write_its_fence_let_through(self, open_store, monkeypatch):
        """The writer has passed its check; the next driver must not be told it won before."""
        from airflow_provider_deltaforge.storage import sql

        writer, driver = open_store(), open_store()
        writer.swap("epochs", "p", 0, b"")
        inside, go_on = threading.Event(), threading.Event()
        real = sql._apply

        def slow(write, execute):
            inside.set()
            assert go_on.wait(60)
            real(write, execute)

        monkeypatch.setattr(sql, "_apply", slow)
        with ThreadPoolExecutor(2) as threads:
            late = threads.submit(writer.transact, [Put("a", "k", b"1")], Fence("epochs", "p", 1))
            assert inside.wait(60)
            taken = threads.submit(driver.swap, "epochs", "p", 1, b"")
            time.sleep(0.4)
            assert not taken.done()
            go_on.set()
            late.result(60)
            assert taken.result(60) == 2
        assert driver.get("a", "k") == b"1"
        writer.close()
        driver.close()

    def test_expired_values_are_swept_by_later_writers(self, store, monkeypatch):
        from airflow_provider_deltaforge.storage import sql

        store.put("a", "k", b"1", ttl_s=0.01)
        time.sleep(0.05)
        monkeypatch.setattr(sql, "_SWEEP_EVERY_S", 0)
        store.put("a", "other", b"1", ttl_s=60)
        assert store._read("SELECT key FROM df_kv", ()) == [("other",)]
