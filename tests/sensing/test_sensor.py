"""What is learned of rows and JSON columns, and from which of them; each setting does its part."""

import itertools
import json
import random

import jsonschema
import pytest

from airflow_provider_deltaforge.sensing.fingerprint import canonical
from airflow_provider_deltaforge.sensing.json_schema import json_schema
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.sensing import SensedTable, SensedTables
from tests.sensing.sensed import Sensed

WARM = {"warmup_events": 4, "sample_rate": 3}


def rows(*values):
    return [{"id": number, "data": value} for number, value in enumerate(values)]


def text_of(*values, **changed):
    """Return the canonical text of what values of a JSON column have in common."""
    sensed = Sensed(**changed)
    sensed.observe(*rows(*values))
    return canonical(sensed.record().root)


def test_rows_and_their_json_columns_have_schemas_of_their_own():
    sensed = Sensed()
    sensed.observe(
        {"id": 1, "price": "9.50", "data": {"a": 1}}, {"id": 2, "price": None, "data": None}
    )
    former = sensed.records()
    sensed.observe({"id": 3, "price": None, "data": {"a": 1, "b": []}})

    assert canonical(former["shop.orders"].root) == (
        'struct{"data":1:struct{},"id":0:int,"price":1:string}'
    )
    assert canonical(former["shop.orders:data"].root) == 'struct{"a":0:int}'
    latest = sensed.records()
    grown = {name: latest[name].sequence - former[name].sequence for name in former}
    assert grown == {"shop.orders": 0, "shop.orders:data": 1}
    assert canonical(latest["shop.orders:data"].root) == 'struct{"a":0:int,"b":2:seq[]}'


def test_tables_of_one_name_in_two_databases_have_two_schemas():
    sensed = Sensed(catalog={})
    sensed.observe({"a": 1}, db="shop")
    sensed.observe({"b": 1}, db="crm")
    sensed.observe({"c": 1}, db="a.b")

    assert {name: list(record.root.fields) for name, record in sensed.records().items()} == {
        "shop.orders": ["a"],
        "crm.orders": ["b"],
        '"a.b".orders': ["c"],
    }


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([{"a": 1}, {"a": 2}], 'struct{"a":0:int}'),
        ([{"a": 1}, {"a": "x"}, {"a": 1.5}], 'struct{"a":0:union(float|int|string)}'),
        ([{"a": 1}, {"a": None}], 'struct{"a":1:int}'),
        ([{"a": 1}, {}], 'struct{"a":2:int}'),
        ([{}, {"a": None}], 'struct{"a":3:null}'),
        ([[1, None], []], "seq[union(int|null)]"),
        ([{"a": [{"b": 1}, {"c": True}]}], 'struct{"a":0:seq[struct{"b":2:int,"c":2:bool}]}'),
        ([{"a": {"_base64": "aa"}}], 'struct{"a":0:bytes}'),
        ([{"a": 1}, [1], "x", 1.0, False], 'union(bool|float|seq[int]|string|struct{"a":0:int})'),
        ([{"a": 10**19, "b": 10**20}], 'struct{"a":0:int,"b":0:float}'),
    ],
)
def test_what_was_seen_is_merged_in_any_order(values, text):
    assert {text_of(*order) for order in itertools.permutations(values)} == {text}


def test_only_another_schema_is_an_evolution_and_is_logged(caplog):
    caplog.set_level("INFO")
    sensed = Sensed()
    for value in ({"a": 1}, {"a": 2}, {"a": None}, {"a": 3}, {"a": 3, "b": {"c": 1}}):
        sensed.observe(*rows(value))

    record = sensed.record()
    assert record.sequence == 3
    told = [(e.sequence, e.added, e.changed) for e in record.evolutions]
    assert told == [(1, [], []), (2, [], ["a"]), (3, ["b", "b.c"], [])]
    logged = [r for r in caplog.records if r.message == "sensed schema evolved"]
    assert [(r.table, r.sequence, r.fingerprint) for r in logged] == [
        ("shop.orders:data", e.sequence, e.fingerprint) for e in record.evolutions[1:]
    ]


def test_rows_are_looked_at_as_sampling_says_and_then_no_more():
    sensed = Sensed(sampling=WARM, deep_inspect={"max_sample_size": 7})
    seen = []
    for number in range(20):
        sensed.observe({"id": number, f"at{number}": 1})
        if f"at{number}" in sensed.record("shop.orders").root.fields:
            seen.append(number)

    record = sensed.record("shop.orders")
    assert seen == [0, 1, 2, 3, 6, 9, 12]
    assert (record.event_count, record.sampled, record.stabilized) == (20, 7, True)


def test_one_large_batch_is_sampled_like_many_small_ones():
    large, small = Sensed(sampling=WARM), Sensed(sampling=WARM)
    images = [{"id": number, f"at{number}": 1} for number in range(20)]
    large.observe(*images)
    for image in images:
        small.observe(image)

    assert large.record("shop.orders").root == small.record("shop.orders").root


def test_a_stable_table_goes_on_to_look_for_json_in_columns_that_were_null():
    sensed = Sensed(
        sampling={"warmup_events": 1, "sample_rate": 1}, deep_inspect={"max_sample_size": 2}
    )
    sensed.observe(*rows(None, None, None))
    assert sensed.record("shop.orders").stabilized
    sensed.observe(*rows({"late": 1}))

    assert list(sensed.record().root.fields) == ["late"]


def test_a_stable_table_is_sampled_while_a_column_is_awaited():
    sensed = Sensed(
        sampling={"warmup_events": 1000, "sample_rate": 5}, deep_inspect={"max_sample_size": 2}
    )
    sensed.observe(*rows(None, None))
    for number in range(2, 12):
        sensed.observe(*rows({f"at{number}": 1}))

    assert list(sensed.record().root.fields) == ["at5", "at10"]


def test_tables_and_columns_are_chosen_by_patterns():
    tables = {"include": ["orders%", "crm.*"], "exclude": ["%_audit"]}
    columns = {"include": ["data", "orders.more%"], "exclude": ["crm.users.data"]}
    catalog = {"id": "int", "data": "json", "more": "jsonb"}
    sensed = Sensed(catalog=catalog, tables=tables, deep_inspect={"columns": columns})
    image = {"id": 1, "data": {"a": {"b": 1}}, "more": {"c": 1}}
    for db, table in (
        ("shop", "orders"),
        ("shop", "orders_audit"),
        ("shop", "users"),
        ("crm", "users"),
    ):
        sensed.observe(image, db=db, table=table)

    assert sorted(sensed.records()) == [
        "crm.users", "shop.orders", "shop.orders:data", "shop.orders:more",
    ]  # fmt: skip
    assert canonical(sensed.record("crm.users").root) == (
        'struct{"data":0:struct{},"id":0:int,"more":0:struct{}}'
    )


@pytest.mark.parametrize(
    ("deep", "text"),
    [
        ({"max_depth": 0}, "struct{}"),
        ({"max_depth": 1}, 'struct{"a":0:struct{}}'),
        ({"max_depth": 2}, 'struct{"a":0:struct{"b":0:seq[]}}'),
        ({"max_depth": 4}, 'struct{"a":0:struct{"b":0:seq[struct{"c":0:int}]}}'),
    ],
)
def test_it_looks_as_deep_as_it_may(deep, text):
    sensed = Sensed(catalog={}, deep_inspect=deep)
    sensed.observe({"d": {"a": {"b": [{"c": 1}]}}})
    whole = canonical(sensed.record("shop.orders").root)

    assert whole == f'struct{{"d":0:{text}}}'


def test_without_deep_inspection_columns_have_names_and_types_only():
    sensed = Sensed(deep_inspect={"enabled": False})
    sensed.observe({"id": 1, "data": {"a": 1}, "blob": {"_base64": "aa"}})

    assert list(sensed.records()) == ["shop.orders"]
    assert canonical(sensed.record("shop.orders").root) == (
        'struct{"blob":0:bytes,"data":0:struct{},"id":0:int}'
    )


def test_json_in_columns_of_text_is_found_and_other_text_is_not():
    sensed = Sensed()
    sensed.observe(
        {
            "id": 1,
            "notes": '{"role": "admin", "tags": ["vip"]}',
            "name": "[draft] one",
            "data": '[{"a":1}]',
        }
    )
    sensed.observe({"id": 2, "notes": None, "name": '{"a": 1}', "data": '"plain"'})

    assert sorted(sensed.records()) == ["shop.orders", "shop.orders:data", "shop.orders:notes"]
    assert canonical(sensed.record("shop.orders:notes").root) == (
        'struct{"role":0:string,"tags":0:seq[string]}'
    )
    assert canonical(sensed.record().root) == 'union(seq[struct{"a":0:int}]|string)'


def test_deletes_and_rows_without_their_unchanged_values_are_not_looked_at():
    sensed = Sensed(catalog={})
    sensed.observe({"a": 1})
    sensed.observe(None, None, op="d")
    sensed.observe({"a": {"_unchanged": True}}, op="u", unchanged=b'["a"]')

    record = sensed.record("shop.orders")
    assert (record.event_count, record.sampled) == (2, 1)
    assert canonical(record.root) == 'struct{"a":0:int}'


def test_the_structure_cache_counts_hits_and_is_as_large_as_it_may():
    values = [{"a": 1}, {"a": "x"}, {"a": 2}, {"a": []}, {"a": "y"}, {"a": [1]}]
    counted = {}
    for cache in ({}, {"structure_cache_size": 1}, {"structure_cache": False}):
        sensed = Sensed(sampling=cache)
        for value in values:
            sensed.observe(*rows(value))
        record = sensed.record()
        counted[str(cache)] = record.cache_hits, record.cache_misses, record.cached_structures
        assert canonical(record.root) == 'struct{"a":0:union(int|seq[int]|string)}'

    assert list(counted.values()) == [(2, 4, 4), (1, 5, 1), (0, 6, 0)]


def test_fields_are_tracked_as_the_document_says():
    values = [{"n": n, "s": "ab"[n % 2] * 3, "t": f"text {n}", "o": None} for n in range(60)]
    sensed = Sensed(tracking={"field_statistics": True, "enum_max_cardinality": 2})
    sensed.observe(*rows(*values))
    fields = sensed.record().root.fields
    assert (fields["n"].minimum, fields["n"].maximum) == (0, 59)
    assert (fields["t"].shortest, fields["t"].longest) == (6, 7)
    assert fields["s"].values == {"aaa": 30, "bbb": 30}
    assert fields["t"].values is None
    assert (fields["o"].seen, fields["o"].nulls, fields["n"].nulls) == (60, 60, 0)
    described = json_schema(sensed.record().root, "t", "draft-07")["properties"]["s"]
    assert described == {"type": "string", "description": "Fixed length: 3"}

    nothing = {"null_rates": False, "enum_detection": False}
    sensed = Sensed(tracking=nothing)
    sensed.observe(*rows(*values))
    fields = sensed.record().root.fields
    assert (fields["n"].minimum, fields["s"].values, fields["o"].nulls) == (None, {}, 0)


def test_what_comes_after_the_warm_up_is_drift():
    sensed = Sensed(sampling={"warmup_events": 10, "sample_rate": 1})
    sensed.observe(*rows(*[{"a": 1}] * 10))
    sensed.observe(*rows(*[{"a": 1}] * 15, *[{"a": 1, "b": 2}] * 3, *[{"a": "x"}] * 2))

    record = sensed.record()
    assert (record.sampled_late, record.drifted) == (20, 5)
    assert (record.root.fields["b"].late, record.root.fields["a"].late_types) == (True, ["string"])
    assert [evolution.is_late for evolution in record.evolutions] == [False, True, True]


@pytest.mark.parametrize("dialect", ["draft-07", "2020-12"])
def test_everything_that_was_seen_validates_against_the_exported_schema(dialect):
    chance = random.Random(7)
    scalars = (None, True, 1, 2.5, "x", {"_base64": "aa"}, [], {})
    values = [
        {key: chance.choice([*scalars, [chance.choice(scalars)], {"k": chance.choice(scalars)}])
         for key in "abcd" if chance.random() < 0.8}
        for _ in range(300)
    ]  # fmt: skip
    sensed = Sensed()
    images = rows(*values, None)
    sensed.observe(*images)
    records = sensed.records()

    schema = json_schema(
        records["shop.orders"].root,
        "shop.orders",
        dialect,
        {"data": records["shop.orders:data"].root},
    )

    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    assert schema["title"] == "shop.orders"
    for image in images:
        validator(schema).validate(image)
    with pytest.raises(jsonschema.ValidationError):
        validator(schema).validate({"id": "no number", "data": None})


def test_a_successor_goes_on_with_what_is_stored():
    chance = random.Random(3)
    values = [
        {"kind": "a", "sessions": {f"s{chance.randrange(10**9)}": {"n": 1} for _ in range(3)}}
        for _ in range(400)
    ]
    whole = Sensed()
    for at in range(0, 400, 50):
        whole.observe(*rows(*values[at : at + 50]))
    known, store = [], MemoryStore()
    for at in range(0, 400, 50):
        part = Sensed(known=known)
        part.observe(*rows(*values[at : at + 50]))
        for record in part.records().values():
            put = SensedTables(store, "p", "acme").put(record)
            store.put(put.namespace, put.key, put.value)
        known = SensedTables(store, "p", "acme").all()

    mine, theirs = (found for found in known if found.column), whole.record()
    (mine,) = mine
    assert (mine.fingerprint, mine.sequence) == (theirs.fingerprint, theirs.sequence)
    assert (mine.event_count, mine.sampled) == (theirs.event_count, theirs.sampled) == (400, 400)
    assert mine.root == theirs.root
    for left, right in zip(mine.maps, theirs.maps, strict=True):
        assert (left.objects, left.decided, left.stable) == (
            right.objects,
            right.decided,
            right.stable,
        )
        assert left.unique_keys == pytest.approx(right.unique_keys, rel=0.05)


def test_a_record_of_a_deep_schema_is_stored_and_read_again():
    value = leaf = {}
    for _ in range(70):
        leaf["a"] = leaf = {}
    sensed = Sensed(deep_inspect={"max_depth": 64})
    sensed.observe(*rows(value))
    record = sensed.record()
    put = SensedTables(MemoryStore(), "p", "acme").put(record)

    assert SensedTable.from_stored(put.value, "it") == record
    assert json.dumps(json_schema(record.root, "t", "draft-07")).count("properties") == 65
