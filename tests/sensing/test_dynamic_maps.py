"""Objects whose keys are data are told from objects whose keys are fields."""

import random

import pytest

from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.sensing.dynamic_keys import KeyClassifier
from airflow_provider_deltaforge.sensing.fingerprint import canonical
from airflow_provider_deltaforge.spec.sensing import HighCardinality
from tests.sensing.sensed import Sensed, batch, text

ENDLESS = {"max_sample_size": 0}
SAMPLED = {"warmup_events": 110, "sample_rate": 10}


def sessions(chance, count=2):
    return {f"sess_{chance.getrandbits(48):x}": {"user": 1, "at": 1.5} for _ in range(count)}


def test_hundred_and_twenty_tables_with_session_ids_hardly_evolve_and_hit_the_cache():
    chance = random.Random(1)
    tables = [f"table_{number}" for number in range(120)]
    sensed = Sensed(
        cost=lambda: 0.0,  # However slow the machine is, all that were chosen are looked at.
        sampling=SAMPLED,
        deep_inspect=ENDLESS,
        tracking={"enum_detection": False},
    )

    def observe(count):
        rows = [
            ("shop", table, text({"id": 1, "data": {"kind": "a", "sessions": sessions(chance)}}))
            for _ in range(count)
            for table in tables
        ]
        sensed.sensor.observe(batch(rows))
        found = sensed.sensor.counts().values()
        return [
            sum(getattr(c, name) for c in found)
            for name in ("events", "evolutions", "cache_hits", "cache_misses")
        ]

    warm = observe(130)
    done = observe(500)

    events, evolutions, hits, misses = (
        after - before for before, after in zip(warm, done, strict=True)
    )
    assert events == 120 * 500 * 2
    assert evolutions == 0
    assert hits / (hits + misses) > 0.99
    assert done[1] / done[0] < 0.01
    assert sensed.sensor.dynamic_maps() == 120
    record = sensed.record("shop.table_7:data")
    assert canonical(record.root) == (
        'struct{"kind":0:string,"sessions":0:map{struct{"at":0:float,"user":0:int},struct{}}}'
    )


def test_without_recognition_every_event_is_an_evolution():
    chance = random.Random(2)
    sensed = Sensed(high_cardinality={"enabled": False})
    for _ in range(30):
        sensed.observe({"id": 1, "data": sessions(chance, 1)})

    assert sensed.record().sequence == 30
    assert sensed.record().maps == []


def test_an_outermost_object_may_be_a_map_and_columns_of_the_catalog_are_fields():
    chance = random.Random(3)
    sensed = Sensed(catalog={"id": "int", "rare": "int"})
    for number in range(250):
        rare = {"rare": 1} if number in (3, 200) else {}
        sensed.observe({"id": number, **rare, f"x{chance.getrandbits(60)}": 1})

    root = sensed.record("shop.orders").root
    assert canonical(root) == 'map{int,struct{"id":0:int,"rare":2:int}}'
    assert sensed.record("shop.orders").cache_hits > 100


def test_a_wide_object_is_no_map_though_its_fields_outnumber_what_is_remembered():
    chance = random.Random(4)
    sensed = Sensed()
    for _ in range(150):
        value = {f"field_{n}": 1 for n in range(200) if n < 150 or chance.random() < 0.9}
        sensed.observe({"id": 1, "data": value})

    record = sensed.record()
    assert [known.decided for known in record.maps] == ["fields"]
    assert len(record.root.fields) == 200
    assert record.sequence < 40  # Some fields turn out to be optional.


def test_fields_of_an_undecided_object_are_shown_and_count_when_it_is_decided():
    sensed = Sensed(high_cardinality={"min_events": 40})
    for number in range(39):
        sensed.observe({"id": 1, "data": {"id": 1, f"option_{number % 20}": 1}})
    before = sensed.record()
    assert len(before.root.fields) == 21
    assert before.sequence <= 6
    sensed.observe({"id": 1, "data": {"id": 1}})

    after = sensed.record()
    assert [known.decided for known in after.maps] == ["map"]
    assert list(after.root.fields) == ["id"]
    assert after.sequence == before.sequence + 1


@pytest.mark.parametrize(
    ("changed", "decided"),
    [
        ({}, "map"),
        ({"min_dynamic_fields": 500}, "fields"),
        ({"min_events": 500}, None),
        ({"confidence_threshold": 0.9}, None),
        ({"stable_threshold": 0.001}, "fields"),
    ],
)
def test_each_threshold_is_obeyed(changed, decided):
    settings = HighCardinality.model_validate({"heavy_hitter_capacity": 400, **changed})
    keys = KeyClassifier((), settings)
    for number in range(200):
        keys.see(["id", f"key {number}"])
        keys.decide()

    assert keys.decided == decided


def test_it_is_decided_again_after_so_many_objects():
    settings = HighCardinality(min_events=10, reevaluate_interval=50)
    keys = KeyClassifier((), settings)
    told = []
    for number in range(200):
        keys.see(["id", *([f"key {number}"] if number >= 10 else [])])
        if keys.decide():
            told.append((number + 1, keys.decided))

    assert told == [(10, "fields"), (60, "map")]


@pytest.mark.parametrize("precision", [10, 12, 14])
def test_the_estimate_of_distinct_keys_errs_by_less_than_five_percent(precision):
    keys = KeyClassifier((), HighCardinality(hll_precision=precision))
    for count in (1000, 20_000):
        while keys.objects < count:
            keys.see([f"sess_{keys.objects}", "id"])
        assert abs(keys.unique_keys - (count + 1)) / count < 0.05

    stored = keys.record()
    again = KeyClassifier((), HighCardinality(hll_precision=precision), stored).record()
    assert again.model_copy(update={"frequent": stored.frequent}) == stored
    assert len(stored.distinct) <= 2**precision
    assert len(stored.examples) <= 50


def test_a_document_may_ask_for_other_sketches_later():
    keys = KeyClassifier((), HighCardinality(hll_precision=14, sample_size=40))
    for number in range(3000):
        keys.see([f"key {number}"])
    smaller = HighCardinality(hll_precision=10, heavy_hitter_capacity=5, sample_size=3)

    again = KeyClassifier((), smaller, keys.record())

    assert again.unique_keys == pytest.approx(3000, rel=0.1)
    assert len(again.record().examples) == 3
    assert len(again.record().distinct) < 700


def test_a_missing_library_is_named_with_its_key_and_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasketches", None)

    with pytest.raises(SpecError, match=r"high_cardinality.enabled needs .*\[sensing\]"):
        Sensed()
    Sensed(high_cardinality={"enabled": False})
