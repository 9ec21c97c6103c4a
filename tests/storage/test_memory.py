"""The store in memory."""

import pytest

from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.testing.stores import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def open_store(self, request):
        return lambda: MemoryStore(request.node.nodeid)


def test_stores_without_a_name_share_nothing():
    one, other = MemoryStore(), MemoryStore()
    one.put("a", "k", b"1")
    assert other.get("a", "k") is None
