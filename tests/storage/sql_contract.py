"""What stores made of ``storage.sql`` promise besides, as tests to inherit."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.testing.stores import DurableStoreContract
from tests.storage.computed import ComputedPut


class SqlStoreContract(DurableStoreContract):
    """How they lock and sweep."""

    def test_an_epoch_waits_for_the_write_its_fence_let_through(self, open_store):
        """The writer has passed its check; the next driver must not be told it won before."""
        writer, driver = open_store(), open_store()
        writer.swap("epochs", "p", 0, b"")
        inside, go_on = threading.Event(), threading.Event()

        def slow():
            inside.set()
            assert go_on.wait(60)
            return b"1"

        writes = [ComputedPut("a", "k", slow)]
        with ThreadPoolExecutor(2) as threads:
            late = threads.submit(writer.transact, writes, Fence("epochs", "p", 1))
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

    def test_expired_values_are_swept_by_later_writers(self, store):
        store.put("a", "k", b"1", ttl_s=0.01)
        time.sleep(0.05)
        store.sweep_every_s = 0
        store.put("a", "other", b"1", ttl_s=60)
        assert store._read("SELECT key FROM df_kv", ()) == [("other",)]
