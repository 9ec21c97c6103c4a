"""Checkpoints never move back, and travel between stores."""

import json

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError, SpecError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.checkpoints import (
    Checkpoints,
    export_checkpoints,
    import_checkpoints,
)


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


def test_only_a_person_who_names_the_pipeline_resets_it(checkpoints, store):
    store.transact([checkpoints.put("kafka", {"pos": 5})])
    with pytest.raises(SpecError, match="'orders'"):
        checkpoints.reset("order")
    assert checkpoints.load() == {"kafka": {"pos": 5}}
    checkpoints.reset("orders")
    assert checkpoints.load() == {}
    store.transact([checkpoints.put("kafka", {"pos": 1})])
    assert checkpoints.load() == {"kafka": {"pos": 1}}


def test_exported_checkpoints_mean_the_same_in_another_kind_of_store(store, sqlite_dsn):
    position = {"file": "binlog.000003", "pos": 2**40, "gtid_set": "a:1-5,b:2"}
    source = Checkpoints(store, "orders", "größe")
    store.transact([source.put("kafka", position), source.put("redis", {"lsn": "0/1"})])
    store.transact([Checkpoints(store, "orders2", "x").put("kafka", {"pos": 1})])
    lines = list(export_checkpoints(store, "orders"))
    assert all("\n" not in line and json.loads(line)["v"] == 1 for line in lines)

    target = StoreLocation.from_dsn(sqlite_dsn).create()
    assert import_checkpoints(target, lines) == 2
    assert target.items(names.CHECKPOINTS) == store.items(names.CHECKPOINTS, "orders/")
    assert Checkpoints(target, "orders", "größe").load()["kafka"] == position
    target.close()


def test_an_import_never_replaces_a_checkpoint(checkpoints, store):
    store.transact([checkpoints.put("kafka", {"pos": 5}), checkpoints.put("redis", {"pos": 5})])
    lines = list(export_checkpoints(store, "orders"))
    target = MemoryStore()
    target.transact([Checkpoints(target, "orders", "shop").put("redis", {"pos": 9})])
    with pytest.raises(SpecError, match="redis exists here"):
        import_checkpoints(target, lines)
    assert Checkpoints(target, "orders", "shop").load() == {"redis": {"pos": 9}}


@pytest.mark.parametrize(
    "line",
    [
        "",
        '"text"',
        "[]",
        "{}",
        '{"key":"orders/shop::sink::k","v":1}',
        '{"key":"orders/shop::sink::k","v":2,"position":{},"updated_at_ms":1}',
        '{"key":"orders/shop::sink::k","v":1,"position":{},"updated_at_ms":1,"more":1}',
    ],
)
def test_a_line_that_is_no_checkpoint_imports_nothing(store, line):
    fine = '{"key":"orders/shop::sink::a","v":1,"position":{"pos":1},"updated_at_ms":1}'
    with pytest.raises(SpecError, match="line 2"):
        import_checkpoints(store, [fine, line])
    assert store.items(names.CHECKPOINTS) == []
