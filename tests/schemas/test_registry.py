"""The registry's promises, on every store."""

import random
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.errors import FatalError, FencedError, PositionLostError, SpecError
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.registry import RegisteredHistory, Registry, named
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.memory import MemoryStore
from tests.schemas.registered import find, register


def table(*columns: str, name: str = "orders", db: str = "shop", schema: str | None = None):
    made = [Column(column, "int", "int", ordinal_position=n) for n, column in enumerate(columns, 1)]
    return TableSchema(db, schema, name, tuple(made), columns[:1])


A, B, C = table("id"), table("id", "note"), table("id", "note", "paid")
ORDERS = ("shop", None, "orders")


def compare(left, right):
    if left["server"] != right["server"]:
        raise PositionLostError("two histories; take a new snapshot")
    return (left["at"] > right["at"]) - (left["at"] < right["at"])


def at(place, server="one"):
    return {"at": place, "server": server}


@pytest.fixture
def memory():
    return MemoryStore()


def registry_in(store, source="shop", tenant="acme", **settings):
    return Registry(store, source, tenant, **settings)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryStore()
        return
    dsn = f"sqlite:///{tmp_path}/state.db"
    if request.param == "postgres":
        dsn = request.getfixturevalue("postgres_dsn")
    opened = StoreLocation.from_dsn(dsn).create()
    yield opened
    opened.close()


def test_versions_count_fingerprints_and_sequences_grow_across_tables(store):
    registry = registry_in(store)
    other = table("id", name="customers")
    registered = [register(registry, one, at(n)) for n, one in enumerate([A, other, B, C])]

    assert [v.number for v in registered] == [1, 1, 2, 3]
    sequences = [v.sequence for v in registered]
    assert sequences == sorted(set(sequences))
    assert register(registry, B, at(9), compare=compare).number == 2
    assert registry.latest(*ORDERS).schema == B


def test_everything_is_there_after_a_cold_start(store):
    registry = registry_in(store, page_entries=64)
    rng = random.Random(7)
    known = [table("id", *(f"c{k % 7}" for k in range(n)), name=f"t{n % 9}") for n in range(60)]
    told = [(rng.choice(known), at(n)) for n in range(400)]
    for start in range(0, len(told), 50):
        registry.register_all(told[start : start + 50], compare=compare)
    cold = registry_in(store, page_entries=64)

    assert len(store.read(names.SCHEMAS, registry.key, limit=5000)) > 300
    assert cold.all() == registry.all()
    for one in known:
        assert find(cold, one) == find(registry, one)
    name = ("shop", None, "t3")
    assert cold.entries(*name) == registry.entries(*name)
    assert [v.number for v in cold.versions(*name)] == list(range(1, len(cold.versions(*name)) + 1))


def test_what_one_worker_registers_another_finds_with_the_same_numbers(store):
    one, two = registry_in(store), registry_in(store)
    two.all()
    first = register(one, A, at(1), compare=compare)
    register(two, B, at(5), compare=compare)

    assert register(two, A, at(2), compare=compare).sequence == first.sequence
    assert register(one, B, at(6), compare=compare) == find(two, B)
    assert len(store.read(names.SCHEMAS)) == 2


def test_a_worker_that_lost_its_fence_registers_nothing(store):
    store.swap(names.EPOCHS, "p", 0, b"")
    registry = registry_in(store)
    register(registry, A, at(1), fence=Fence(names.EPOCHS, "p", 1))
    store.swap(names.EPOCHS, "p", 1, b"")

    with pytest.raises(FencedError):
        register(registry, B, at(2), fence=Fence(names.EPOCHS, "p", 1))
    assert find(registry_in(store), B) is None
    # What is known already needs no write, and so no fence.
    assert register(registry, A, at(1), fence=Fence(names.EPOCHS, "p", 1)).number == 1


def test_a_form_that_returns_is_the_old_version_with_the_old_sequence(memory):
    registry = registry_in(memory)
    first = register(registry, A, at(10), compare=compare)
    register(registry, B, at(20), compare=compare)
    back = register(registry, A, at(30), compare=compare)

    assert (back.number, back.sequence) == (first.number, first.sequence)
    assert [v.number for v in registry.entries(*ORDERS)] == [1, 2, 1]
    places = [9, 10, 19, 20, 29, 30, 99]
    found = [registry.at_position(*ORDERS, at(place), compare) for place in places]
    assert [v and v.number for v in found] == [None, 1, 1, 2, 2, 1, 1]


def test_a_replay_over_every_change_writes_nothing_and_says_the_same(memory):
    registry = registry_in(memory)
    log = [(A, at(10)), (B, at(20)), (A, at(30)), (C, at(40)), (A, at(50))]
    first = [register(registry, *one, compare=compare) for one in log]
    written = memory.read(names.SCHEMAS)

    for start in range(len(log)):
        cold = registry_in(memory)
        again = [register(cold, *one, compare=compare) for one in log[start:]]
        told = [(v.number, v.sequence) for v in again]
        assert told == [(v.number, v.sequence) for v in first[start:]]
    assert memory.read(names.SCHEMAS) == written


def test_an_event_finds_its_schema_by_its_sequence(memory):
    registry = registry_in(memory)
    for place, one in enumerate([A, table("x", name="other"), B, A, C]):
        version = register(registry, one, at(place), compare=compare)
        name = (one.db, one.schema, one.table)
        assert registry.at_sequence(*name, version.sequence).schema == one
    for one in (A, B, C):
        version = find(registry, one)
        assert registry.at_sequence(*ORDERS, version.sequence).schema == one
    assert registry.at_sequence(*ORDERS, 0) is None


def test_lookup_by_number_and_by_time(memory):
    registry = registry_in(memory)
    one, two = register(registry, A, at(1)), register(registry, B, at(2))

    assert registry.version(*ORDERS, 2) == two
    assert registry.version(*ORDERS, 3) is None
    assert registry.at_time(*ORDERS, two.registered_at_ms) == two
    assert registry.at_time(*ORDERS, one.registered_at_ms - 1) is None
    assert registry.latest("shop", None, "nobody") is None


def test_tables_of_equal_name_do_not_collide(memory):
    registry = registry_in(memory)
    places = [("shop", None), ("shop", "a"), ("shop", "b"), ("a/b", None), ("a", "b")]
    for db, schema in places:
        register(registry, table("id", db, db=db, schema=schema), at(1))
    register(registry_in(memory, source="other"), table("id", "else"), at(1))
    register(registry_in(memory, tenant="rival"), table("id", "rival"), at(1))

    cold = registry_in(memory)
    assert len(cold.all()) == len(places)
    for db, schema in places:
        (version,) = cold.versions(db, schema, "orders")
        assert version.number == 1
        assert version.schema.columns[1].name == db


def test_what_the_fingerprint_leaves_out_makes_no_version_but_is_known_at_its_place(memory):
    registry = registry_in(memory)
    latin = replace(A, columns=(replace(A.columns[0], charset="latin1"),))
    register(registry, latin, at(1), compare=compare)
    version = register(registry, A, at(5), compare=compare)

    history = RegisteredHistory(registry_in(memory), compare)
    assert version.number == 1
    assert history.schema_at(*ORDERS, at(4)) == latin
    assert history.schema_at(*ORDERS, at(5)) == A


def test_positions_of_another_history_are_passed_over(memory):
    registry = registry_in(memory)
    register(registry, A, at(5, "gone"), compare=compare)
    register(registry, B, at(1), compare=compare)

    assert registry.at_position(*ORDERS, at(9), compare).schema == B
    assert registry.at_position(*ORDERS, at(0), compare) is None
    assert registry.at_position(*ORDERS, at(6, "gone"), compare).schema == A


def test_an_earlier_place_that_is_registered_later_stays_earlier(memory):
    registry = registry_in(memory)
    register(registry, B, at(10), compare=compare)
    register(registry, A, at(3), compare=compare)

    assert registry.at_position(*ORDERS, at(12), compare).schema == B
    assert registry.at_position(*ORDERS, at(5), compare).schema == A


def test_two_forms_within_one_transaction_are_registered_once(memory):
    log = [(A, at(1)), (B, at(1)), (A, at(1))]
    registry_in(memory).register_all(log, compare=compare)
    written = len(memory.read(names.SCHEMAS))
    registry_in(memory).register_all(log, compare=compare)

    assert len(memory.read(names.SCHEMAS)) == written


def test_a_person_names_a_table(memory):
    registry = registry_in(memory)
    register(registry, table("id"))
    register(registry, table("id", name="t", db="w", schema="public"))
    register(registry, table("id", name="t", db="w", schema="audit"))

    assert named(registry, "orders") == named(registry, "shop.orders") == ORDERS
    assert named(registry, "audit.t") == named(registry, "w.audit.t") == ("w", "audit", "t")
    with pytest.raises(SpecError, match=r"several tables; write one of .*w\.audit\.t"):
        named(registry, "t")
    with pytest.raises(SpecError, match=r"no schema of a table 'x' .*shop\.orders"):
        named(registry, "x")


def test_a_damaged_entry_is_refused_by_name(memory):
    register(registry_in(memory), A)
    memory.append(names.SCHEMAS, "acme/shop", b'{"v":2,"new":1}')

    with pytest.raises(FatalError, match=r"entry \d+ of schemas acme/shop .* format 2"):
        registry_in(memory).all()
