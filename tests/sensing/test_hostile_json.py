"""Hostile JSON costs bounded time and room, and stops nothing."""

import json
import time

import pytest

from airflow_provider_deltaforge.sensing.sensor import SchemaSensor
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.sensing import SensedTable, SensedTables
from tests.sensing.sensed import Sensed, batch, settings, text

RECORD_BYTES_MAX = 1 << 20

TEXTS = {
    "deep arrays": b"[" * 5000 + b"]" * 5000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "deep and never closed": b"[" * 500_000,
    "many keys": json.dumps({f"k{n}": n for n in range(10_000)}).encode(),
    "a huge key": json.dumps({"k" * 900_000: 1}).encode(),
    "a huge string": json.dumps({"a": "x" * 1_000_000}).encode(),
    "beyond the limit": json.dumps({"a": "x" * 2_000_000}).encode(),
    "a long array": json.dumps([{"a": n, f"b{n}": 1} for n in range(20_000)]).encode(),
    "NUL": b'{"a\\u0000b": "\\u0000", "<dynamic>": 1, "<*>": {"[]": 1}}',
    "a bare NUL": b'{"a": "\x00"}',
    "equal keys": b'{"a": 1, "a": "x", "a": {"b": 1}}',
    "large numbers": b'{"a": 123456789012345678901234567890, "b": 1e999, "c": -0, "d": 1E400}',
    "not UTF-8": b'{"a": "\xff\xfe", "\xc3\x28": 1}',
    "half a surrogate pair": b'{"\\ud800": "\\udfff"}',
    "not JSON": b"{'a': 1}",
    "empty": b"",
    "a scalar": b"7",
    "HTML": b'{"<script>alert(1)</script>": "\\"><img src=x>"}',
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_text_is_bounded_and_the_next_one_is_learned(name):
    sensed = Sensed(catalog={}, deep_inspect={"max_depth": 64, "max_sample_size": 0})
    text = TEXTS[name]
    began = time.thread_time()
    for _ in range(3):
        sensed.observe(text, b'{"fine": true}', b'{"data":' + text + b"}")
    took = time.thread_time() - began

    record = sensed.record("shop.orders")
    assert "fine" in record.root.fields or len(record.root.fields) == 1000
    assert record.event_count == 9
    assert took < 5
    put = SensedTables(MemoryStore(), "p", "acme").put(record)
    assert len(put.value) < RECORD_BYTES_MAX
    assert SensedTable.from_stored(put.value, "it") == record


def test_sensing_takes_its_share_of_the_time_and_passes_over_the_rest():
    now = [0.0]

    def sampled():
        return sum(record.sampled for record in sensed.records().values()) if made else 0

    made = []
    # Each row that is looked at takes a quarter of a second.
    sensed = Sensed(catalog={}, clock=lambda: now[0], cost=lambda: sampled() / 4)
    made.append(sensed)

    def looked_at(batches):
        before = sampled()
        for _ in range(batches):
            sensed.observe({"a": 1}, {"a": 2})
        return sampled() - before

    assert looked_at(30) == 20  # Five seconds, to begin with.
    now[0] += 5
    assert looked_at(30) == 4  # A fifth of five.
    now[0] += 3600
    assert looked_at(30) == 20  # No more than five are saved up.

    record = sensed.record("shop.orders")
    assert record.event_count == 180
    assert record.sampled + record.passed_over == 180


def test_a_schema_holds_so_many_places_and_no_more():
    sensed = Sensed(
        catalog={}, high_cardinality={"enabled": False}, deep_inspect={"max_sample_size": 0}
    )
    for at in range(20):
        sensed.observe({f"o{at}": {f"k{at}_{n}": {"x": "y" * 10} for n in range(400)}})

    record = sensed.record("shop.orders")
    text = SensedTables(MemoryStore(), "p", "acme").put(record).value
    assert len(text) < RECORD_BYTES_MAX
    assert any(inner.is_cut for inner in record.root.fields.values())


def test_an_error_nobody_foresaw_is_logged_once_without_values(caplog):
    def fail(*_):
        raise ValueError(" ".join(["secret", "value"]))

    sensor = SchemaSensor(settings(), "acme", fail)
    for _ in range(3):
        sensor.observe(batch([("shop", "orders", text({"a": 1}))]))

    (told,) = caplog.records
    assert told.getMessage().startswith("schema sensing failed with ValueError at:")
    assert "secret value" not in caplog.text
