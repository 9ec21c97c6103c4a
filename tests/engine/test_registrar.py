"""Events carry the version and sequence of the schema in force at their position."""

import threading
from collections import defaultdict
from dataclasses import replace

import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.engine.read.registrar import Registrar, lookup, registry_of
from airflow_provider_deltaforge.errors import FencedError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage import names
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.schemas.registered import find
from tests.waiting import PATIENCE_S, wait_until


def table(*columns, name="t", db="d", schema=None):
    made = tuple(Column(column, "int", "int", ordinal_position=1) for column in columns)
    return TableSchema(db, schema, name, made)


class After:
    def __init__(self, base):
        self.base = base

    def after(self, tx):
        return {"tx": self.base + tx}


def batch(*rows, base=1, schemas=None, end=None):
    """Return a batch of (tx, schema) rows; a schema may be None."""
    made = [
        {
            "op": "c",
            "db": schema.db if schema else "d",
            "schema": schema.schema if schema else None,
            "table": schema.table if schema else "_ddl",
            "ts_ms": 0,
            "tx": tx,
            "row": 0,
            "tx_end": True,
            "event_id": bytes(16),
            "schema_version": schema.fingerprint if schema else None,
        }
        for tx, schema in rows
    ]
    last = rows[-1][0] if rows else 0
    used = dict.fromkeys(schema for _, schema in rows if schema)
    return ChangeBatch(
        rows=pa.RecordBatch.from_pylist(made, schema=CHANGE_SCHEMA),
        positions=After(base),
        end={"tx": base + last} if end is None else end,
        connector="scripted",
        nbytes=1,
        schemas=tuple(used) if schemas is None else schemas,
    )


A, B = table("id"), table("id", "note")
TWIN = table("id", name="twin")


@pytest.fixture
def inside():
    return InProcess()


def registrar_of(inside, start=0):
    context = inside.context()
    at = None if start is None else {"tx": start}
    return Registrar(context, registry_of(context), lambda call: call(), at)


def sequences(admitted):
    return admitted.rows.column("schema_sequence").to_pylist()


def entries(inside):
    return inside.store.read(names.SCHEMAS)


def test_each_row_has_the_sequence_of_its_tables_version(inside):
    registrar = registrar_of(inside)
    admitted = registrar.admit(batch((0, A), (1, TWIN), (2, None), (3, B), (4, TWIN)))
    registry = registry_of(inside.context())

    a, twin, b = (find(registry, one).sequence for one in (A, TWIN, B))
    assert A.fingerprint == TWIN.fingerprint
    assert len({a, twin, b}) == 3
    assert sequences(admitted) == [a, twin, None, b, twin]


def test_one_transaction_registers_what_a_batch_brings(inside, monkeypatch):
    registrar = registrar_of(inside)
    calls = []
    transact = type(inside.store).transact
    monkeypatch.setattr(
        type(inside.store), "transact", lambda *told: calls.append(1) or transact(*told)
    )
    rows = [(n, table("id", name=f"t{n}")) for n in range(40)]
    registrar.admit(batch(*rows))
    registrar.admit(batch(*rows, base=50))
    registrar.admit(batch(*rows[::-1], base=100))

    assert len(calls) == 1
    assert len(entries(inside)) == 40


def test_a_form_that_comes_back_within_a_batch_is_registered_at_its_place(inside):
    registrar = registrar_of(inside)
    admitted = registrar.admit(batch((0, A), (2, B), (3, B), (6, A), (7, A)))
    registry = registry_of(inside.context())

    found = [(v.schema, v.position["tx"]) for v in registry.entries("d", None, "t")]
    assert found == [(A, 0), (B, 2), (A, 6)]
    assert sequences(admitted)[0] == sequences(admitted)[4]
    registrar.admit(batch((0, A), base=9))
    registrar_of(inside).admit(batch((0, A), (2, B), (3, B), (6, A), (7, A)))
    assert len(entries(inside)) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
def test_how_a_log_falls_into_batches_does_not_count(inside, size):
    check_readings(inside, size)


def check_readings(inside, size):
    """Read a log twice, from several places and in other pieces; it must say the same."""
    forms = [A, A, B, B, B, A, TWIN, B, A, A]
    log = list(enumerate(forms, 1))

    def read(start, size):
        registrar = registrar_of(inside, start - 1)
        told = {}
        for first in range(start - 1, len(log), size):
            part = log[first : first + size]
            rows = [(tx - part[0][0], schema) for tx, schema in part]
            admitted = registrar.admit(batch(*rows, base=part[0][0]))
            versions = admitted.rows.column("schema_version").to_pylist()
            pairs = zip(part, versions, sequences(admitted), strict=True)
            told |= {tx: pair for (tx, _), *pair in pairs}
        return told

    whole = read(1, 4)
    written = entries(inside)
    for start in (1, 3, 6, 9):
        assert read(start, size) == {tx: pair for tx, pair in whole.items() if tx >= start}
    assert entries(inside) == written
    registry = registry_of(inside.context())
    compare = ScriptedSource().compare
    for (tx, schema), (_, sequence) in zip(log, whole.values(), strict=True):
        name = (schema.db, schema.schema, schema.table)
        found = registry.at_sequence(*name, sequence)
        in_force = registry.at_position(*name, {"tx": tx - 1}, compare)
        assert [one and one.schema for one in (found, in_force)] == [schema, schema]


def whatever_is_last(places, position, compare):
    return len(places) - 1 if places else None


def by_fingerprint(batch):
    prints = [schema.fingerprint for schema in batch.schemas]
    versions = batch.rows.column("schema_version").to_pylist()
    return pa.array([None if v is None else prints.index(v) for v in versions], pa.int32())


def numbered_by_entry(registry, found, **how):
    right(registry, found, **how)
    told = [registry.entries(s.db, s.schema, s.table)[-1] for s, _ in found]
    return [replace(version, sequence=version.entry) for version in told]


right = Registry.register_all


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        pytest.param(
            "airflow_provider_deltaforge.schemas.registry.in_force",
            whatever_is_last,
            id="positions do not count",
        ),
        pytest.param(
            "airflow_provider_deltaforge.engine.read.registrar._ordinals",
            by_fingerprint,
            id="tables of one form are one",
        ),
        pytest.param(
            "airflow_provider_deltaforge.schemas.registry.Registry.register_all",
            numbered_by_entry,
            id="each period has a sequence",
        ),
    ],
)
def test_a_wrong_registry_is_noticed(inside, monkeypatch, place, fault):
    monkeypatch.setattr(place, fault)
    with pytest.raises(AssertionError):
        check_readings(inside, 3)


def test_an_aligned_dictionary_is_followed_by_index(inside):
    registrar = registrar_of(inside)
    plain = batch((0, A), (1, TWIN), (2, None))
    aligned = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None], pa.int32()), pa.array([A.fingerprint, TWIN.fingerprint])
    )
    place = CHANGE_SCHEMA.get_field_index("schema_version")
    rows = plain.rows.set_column(place, CHANGE_SCHEMA.field(place), aligned)
    admitted = registrar.admit(
        ChangeBatch(rows, plain.positions, plain.end, "scripted", 1, schemas=(A, TWIN))
    )

    registry = registry_of(inside.context())
    assert sequences(admitted) == [
        find(registry, A).sequence, find(registry, TWIN).sequence, None,
    ]  # fmt: skip


def test_a_lane_that_lost_its_epoch_registers_nothing(inside):
    registrar = registrar_of(inside)
    registrar.admit(batch((0, A)))
    inside.control.take_epoch("a newer driver")

    with pytest.raises(FencedError):
        registrar.admit(batch((0, B), base=2))
    assert len(entries(inside)) == 1


def test_the_rows_of_a_snapshot_are_registered_where_their_view_stands(inside):
    registrar = registrar_of(inside, start=None)
    registrar.admit(batch((0, A), end={"tx": 77}))

    (version,) = registry_of(inside.context()).versions("d", None, "t")
    assert version.position == {"tx": 77}


def delivered(inside):
    """Return (version, sequence) of every delivery, by transaction."""
    told = defaultdict(set)
    for message in inside.log().messages():
        event = orjson.loads(message.value)
        told[event["after"]["tx"]].add((event["schema_version"], event["schema_sequence"]))
    return told


def test_a_lane_delivers_what_is_in_force_and_a_second_reading_says_the_same():
    inside = InProcess(transactions=40, source="alter_every: 5, chunk_transactions: 7,")
    source = ScriptedSource(alter_every=5)
    inside.begin_at(out=0)
    carry_all(inside)
    registered = entries(inside)
    for key, _ in inside.store.items(names.CHECKPOINTS):
        inside.store.delete(names.CHECKPOINTS, key)
    inside.begin_at(out=0)
    carry_all(inside)

    told = delivered(inside)
    assert set(told) == set(range(1, 41))
    assert all(len(pairs) == 1 for pairs in told.values())
    assert entries(inside) == registered
    registry = registry_of(inside.context())
    for tx, ((version, sequence),) in told.items():
        assert version == source.schema_of(tx).fingerprint
        at = registry.at_sequence("script", None, "rows", sequence)
        assert at.schema == source.schema_of(tx)
        place = registry.at_position("script", None, "rows", {"tx": tx - 1}, source.compare)
        assert place.schema == source.schema_of(tx)
    assert len({pair for pairs in told.values() for pair in pairs}) == 3


def carry_all(inside):
    lane = Lane(inside.context(), 600.0)
    thread = threading.Thread(target=lane.run, daemon=True)
    thread.start()
    wait_until(lambda: inside.checkpoints().load()["out"]["tx"] == 40)
    inside.want("stopped")
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    inside.want("running")


def test_a_copy_carries_version_and_sequence():
    inside = InProcess(transactions=20, snapshot="initial")
    outcome = Driving(inside, drive_snapshot).end()

    events = [orjson.loads(message.value) for message in inside.log().messages()]
    (version,) = registry_of(inside.context()).all()
    assert outcome.why == "finished"
    assert len(events) == 30
    assert {(e["schema_version"], e["schema_sequence"]) for e in events} == {
        (version.fingerprint, version.sequence)
    }


def test_a_version_that_nobody_knows_any_more_is_read_as_the_latest(inside):
    registrar_of(inside).admit(batch((0, A), (1, B)))
    find = lookup(registry_of(inside.context()))
    assert find("d", None, "t", A.fingerprint) == A
    assert find("d", None, "t", "sha256:gone") == B
    assert find("d", None, "t", None) == B
    assert find("d", None, "other", None) is None
