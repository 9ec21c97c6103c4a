"""Events come back from dead letters as they were, byte for byte."""

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.dead_letters.dead_letter import DeadLetterWriter, restored
from airflow_provider_deltaforge.engine.dead_letters.row_keys import place_of, places_of
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessorInput
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessedBatch, RefusedEvents
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, StoredDeadLetter
from tests.engine.in_process import InProcess

PLAIN = {"db": "shop", "table": "orders", "ts_ms": 7, "tx_end": False, "op": "u", "row": 0}
ROWS = [
    {
        **PLAIN,
        "key": b'{"id":1}',
        "before": b'{"id":1,"price":1.10,"big":123456789012345678901234567890}',
        "after": b'{"id":1,"json":{"b" : 1,  "a":1E5},"text":"\xc3\xa4\\u00e4 ,\\"meta\\":"}',
        "source_position": b'"file":"b.000002","pos":1234,"gtid":"u:7"',
        "row": 3,
        "tx_id": "u:7",
        "tx_end": True,
        "schema_version": "sha256:x",
        "schema_sequence": 4,
        "tags": ["a", 'b"'],
        "routing": {
            "topic": "t",
            "key": "k",
            "headers": [("h", "1"), ("i", "2")],
            "raw_payload": True,
        },
        "synthetic": "copy",
    },
    {**PLAIN, "schema": "public", "op": "d", "before": b'{"id":2}', "key": b'{"id":2}'},
    {**PLAIN, "op": "r", "after": b'{"x":null}', "schema_version": "v"},
    {**PLAIN, "op": "t", "source_position": b'"lsn":"0/1"'},
    {**PLAIN, "op": "ddl", "ddl": b'{"sql":"ALTER  TABLE t","database":"shop"}'},
    {**PLAIN, "op": "c", "after": b'{"id":"5"}', "key": b'{"id":"\xe2\x82\xac"}', "routing": {}},
]


def batch(rows):
    told = [
        {"event_id": bytes([number] * 16), "tx": number, **row} for number, row in enumerate(rows)
    ]
    return pa.RecordBatch.from_pylist(told, schema=CHANGE_SCHEMA)


def stored(letters):
    return [
        StoredDeadLetter(
            DeadLetter.from_stored(one.text, "letter").model_copy(update={"seq": seq}), one.text
        )
        for seq, one in enumerate(letters, 1)
    ]


@pytest.fixture
def writer():
    return DeadLetterWriter(InProcess().context().origin, 1 << 20)


def refusals(rows):
    return [Rejection(row, "refused", 'a reason, "meta":') for row in range(rows.num_rows)]


def test_what_a_sink_refused_comes_back_as_it_was(writer):
    rows = batch(ROWS)
    found = stored(writer.of_sink("out", refusals(rows), ProcessedBatch(rows)))
    assert restored(found).to_pylist() == rows.to_pylist()
    assert [place_of(one.dead_letter) for one in found] == places_of(rows)


def test_what_a_processor_refused_comes_back_as_it_came_to_it(writer):
    rows = batch(ROWS)
    origins = np.arange(rows.num_rows, dtype=np.int32) + 10
    letters = writer.of_processors(
        ProcessedBatch(rows, None, [RefusedEvents("p", rows, origins, refusals(rows))])
    )
    assert restored(stored(letters)).equals(
        restored(stored(writer.of_sink("o", refusals(rows), ProcessedBatch(rows))))
    )
    assert [one.at for one in letters] == origins.tolist()


@pytest.mark.parametrize("op", ["u", "t"])
def test_an_entry_keeps_what_its_row_was_before_it_had_another_table_or_key(writer, op):
    plain = {**PLAIN, "op": op}
    rows = batch([{**plain, "key": b"1"}, {**plain, "key": b"2"}])
    before = batch([{**plain, "key": b"1", "table": "old"}, {**plain, "key": b"2"}])
    inputs = [ProcessorInput("p", [before]), ProcessorInput("q", [rows])]
    letters = writer.of_sink("out", refusals(rows), ProcessedBatch(rows, None, [], inputs))
    places = places_of(rows, [before, rows])
    assert [place_of(one.dead_letter) for one in stored(letters)] == places
    assert [place.meets(there) for place, there in zip(places, places_of(before), strict=True)] == [
        True,
        True,
    ]
    # What an earlier release stored of an event that no processor has changed is the same.
    assert [b"earlier" in one.text for one in letters] == [True, False]


def test_only_what_was_refused_unmasked_or_cut_cannot_come_back(writer):
    rows = batch(ROWS[:2])
    unmasked = RefusedEvents("p", rows, np.arange(2, dtype=np.int32), refusals(rows), masked=False)
    cut = DeadLetterWriter(InProcess().context().origin, 10)
    for letters in (
        writer.of_processors(ProcessedBatch(rows, None, [unmasked])),
        cut.of_sink("out", refusals(rows), ProcessedBatch(rows)),
    ):
        assert {one.place for one in letters} == {None}
        assert {one.dead_letter.rest for one in stored(letters)} == {None}
        assert not any(word in one.text for one in letters for word in (b"price", b'\\"id'))


def test_an_entry_is_marked_as_overtaken_and_keeps_its_event(writer):
    rows = batch(ROWS)
    letters = writer.of_sink("out", refusals(rows), ProcessedBatch(rows))
    for one in letters:
        one.overtaken_by("out")
        one.overtaken_by("out")
    found = stored(letters)
    assert {tuple(one.dead_letter.meta.overtaken) for one in found} == {("out",)}
    assert restored(found).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        ({"key": b"1"}, {"key": b"1"}, True),
        ({"key": b"1"}, {"key": b"2"}, False),
        ({"key": b"1"}, {"key": b"1", "table": "other"}, False),
        ({"key": b"1", "schema": "a"}, {"key": b"1", "schema": "b"}, False),
        ({"key": b"1"}, {"op": "t"}, True),
        ({"op": "t"}, {"key": b"2"}, True),
        ({"op": "t"}, {}, True),
        ({}, {}, False),
        ({"op": "ddl"}, {"key": b"2"}, False),
        ({"key": b"1"}, {"op": "t", "table": "other"}, False),
    ],
)
def test_order_matters_for_events_of_one_row_and_for_truncations(first, second, meet):
    one, other = places_of(batch([{**PLAIN, **first}, {**PLAIN, **second}]))
    assert (one.meets(other), other.meets(one)) == (meet, meet)
