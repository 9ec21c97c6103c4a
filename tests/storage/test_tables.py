"""Records of tables that stop and appear."""

import pytest

from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.tables import Arrival, TableRecords


@pytest.fixture
def store(request):
    return StoreLocation.from_dsn(f"memory://{request.node.name}").create()


def test_a_table_is_stopped_until_a_copy_of_it_is_done(store):
    tables = TableRecords(store, "p")
    store.transact([tables.stop("shop.a", "why", 7), tables.stop("shop.b", "why", 8)])
    store.transact(tables.repair(["shop.a", "shop.c"]))
    assert list(tables.stopped()) == ["shop.b"]
    assert {name: told.sequence for name, told in tables.marked().items()} == {
        "shop.a": 7,
        "shop.b": 8,
    }
    assert TableRecords(store, "q").marked() == {}


def test_an_arrival_is_kept_until_it_is_taken(store):
    tables = TableRecords(store, "p")
    arrival = Arrival(id="appeared:shop.a:00", table="shop.a")
    store.transact([tables.arrive(arrival)])
    assert tables.arrivals() == [arrival]
    store.transact([tables.taken(arrival)])
    assert tables.arrivals() == []


def test_a_deleted_pipeline_leaves_no_tables_behind(store):
    tables = TableRecords(store, "p")
    store.transact([tables.stop("shop.a", "why", 1)])
    Control(store, "p").delete()
    assert tables.marked() == {}
