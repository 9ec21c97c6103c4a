"""Checkpoints never move back."""

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints


def _compare(one, other):
    return one["pos"] - other["pos"]


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def checkpoints(store):
    return Checkpoints(store, "orders", "shop", _compare)


def test_each_sink_has_its_own_position(checkpoints, store):
    store.transact([checkpoints.put("kafka", {"pos": 5}), checkpoints.put("redis", {"pos": 3})])
    assert checkpoints.load() == {"kafka": {"pos": 5}, "redis": {"pos": 3}}
    keys = [key for key, _ in store.items(names.CHECKPOINTS)]
    assert keys == ["orders/shop::sink::kafka", "orders/shop::sink::redis"]


def test_positions_of_other_pipelines_and_sources_are_not_ours(checkpoints, store):
    for pipeline, source in (("orders", "shop2"), ("orders2", "shop"), ("order", "shop")):
        store.transact([Checkpoints(store, pipeline, source).put("kafka", {"pos": 1})])
    assert checkpoints.load() == {}


def test_a_checkpoint_moves_forward_or_stays(checkpoints, store):
    for pos in (5, 5, 6):
        store.transact([checkpoints.put("kafka", {"pos": pos})])
    assert checkpoints.load() == {"kafka": {"pos": 6}}


def test_a_checkpoint_never_moves_back(store):
    store.transact([Checkpoints(store, "orders", "shop").put("kafka", {"pos": 5})])
    fresh = Checkpoints(store, "orders", "shop", _compare)  # It has to read what is stored.
    with pytest.raises(FatalError, match="move back"):
        fresh.put("kafka", {"pos": 4})
    fresh.put("kafka", {"pos": 9})
    with pytest.raises(FatalError, match="move back"):
        fresh.put("kafka", {"pos": 8})


def test_a_checkpoint_may_be_written_again_when_its_transaction_failed(checkpoints, store):
    with pytest.raises(FencedError):
        store.transact([checkpoints.put("kafka", {"pos": 5})], Fence("epochs", "orders", 1))
    store.transact([checkpoints.put("kafka", {"pos": 5})])
    assert checkpoints.load() == {"kafka": {"pos": 5}}
