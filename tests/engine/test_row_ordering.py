"""A row's events around an entry: what overtakes it is told, or waits behind it."""

import numpy as np
import orjson
import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.dead_letters import row_ordering
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import DeadLetterWriter
from airflow_provider_deltaforge.engine.dead_letters.row_ordering import RowOrdering
from airflow_provider_deltaforge.engine.render.processor_chain import ProcessedBatch, RefusedEvents
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords
from tests.engine.in_process import InProcess
from tests.engine.planted import plant, refusing
from tests.engine.running import RunningLane, begun, events, run_to_the_end
from tests.waiting import wait_until

HOLDS = "enabled: true, dlq: {hold_keys: true}"


def entries(pipeline):
    return list(DeadLetterRecords(pipeline.store, pipeline.name).read())


def told(pipeline):
    return [
        (one.event["after"]["id"], one.event["after"]["tx"], one.meta.error_kind)
        for one in entries(pipeline)
    ]


def keys(pipeline, sink="out"):
    return [(event["after"]["id"], event["after"]["tx"]) for event in events(pipeline, sink)]


def history(pipeline):
    source = pipeline.context().pipeline.spec.source
    return [(key, tx) for tx, _, key in source.events(1, pipeline.transactions)]


@pytest.fixture
def refused():
    """The row that comes first of all, and is refused where it comes first."""
    pipeline = InProcess()
    key, tx = history(pipeline)[0]
    return key, tx


def refuse(pipeline, key, tx, sink="out"):
    pipeline.log(sink).refuses = lambda value: (
        (after := orjson.loads(value)["after"])["id"] == key and after["tx"] == tx
    )


@pytest.mark.parametrize("batch", ["", "max_bytes: 500, "])
def test_an_entry_names_the_sinks_that_got_something_newer(refused, batch):
    key, tx = refused
    pipeline = begun(sinks=("out", "other"), journal="enabled: true", batch=batch)
    refuse(pipeline, key, tx)
    run_to_the_end(pipeline)

    assert len([one for one in history(pipeline) if one[0] == key]) > 1
    (entry,) = entries(pipeline)
    assert entry.meta.overtaken == ["out"]
    assert len(keys(pipeline, "other")) == 60


def test_the_last_event_of_a_row_is_overtaken_by_nothing():
    pipeline = begun(journal="enabled: true")
    key, tx = history(pipeline)[-1]
    refuse(pipeline, key, tx)
    run_to_the_end(pipeline)
    assert [one.meta.overtaken for one in entries(pipeline)] == [[]]


def test_what_a_processor_refused_is_overtaken_in_every_sink(monkeypatch, refused):
    key, tx = refused
    at = b'{"id":%d,"tx":%d,' % (key, tx)
    plant(monkeypatch, picky=refusing(lambda text: text.startswith(at)))
    pipeline = begun(
        sinks=("out", "other"), processors="{type: planted, id: picky}", journal="enabled: true"
    )
    run_to_the_end(pipeline)
    assert [sorted(one.meta.overtaken) for one in entries(pipeline)] == [["other", "out"]]


@pytest.mark.parametrize("batch", ["max_bytes: 500, ", "max_bytes: 100, "])
def test_later_events_of_a_row_wait_behind_its_entry(refused, batch):
    key, tx = refused
    pipeline = begun(sinks=("out", "other"), journal=HOLDS, batch=batch)
    refuse(pipeline, key, tx)
    run_to_the_end(pipeline)

    mine = [one for one in history(pipeline) if one[0] == key]
    assert [one[:2] for one in told(pipeline)] == mine
    assert [one[2] for one in told(pipeline)] == ["refused", *["held"] * (len(mine) - 1)]
    assert keys(pipeline) == [one for one in history(pipeline) if one[0] != key]
    assert len(keys(pipeline, "other")) == 60
    assert pipeline.control.progress().sinks["out"].events == 60 - len(mine)


def test_what_is_refused_before_any_sink_holds_back_even_within_its_batch(monkeypatch, refused):
    key, tx = refused
    at = b'{"id":%d,"tx":%d,' % (key, tx)
    plant(monkeypatch, picky=refusing(lambda text: text.startswith(at)))
    pipeline = begun(
        sinks=("out", "other"),
        processors="{type: planted, id: picky}",
        journal=HOLDS,
        batch="max_bytes: 100000, ",
    )
    run_to_the_end(pipeline)

    mine = [one for one in history(pipeline) if one[0] == key]
    assert not [one for one in keys(pipeline) + keys(pipeline, "other") if one[0] == key]
    assert len(entries(pipeline)) == 1 + 2 * (len(mine) - 1)
    assert {tuple(one.meta.overtaken) for one in entries(pipeline)} == {()}


def test_with_the_entry_gone_later_events_go_on(refused):
    key, tx = refused
    pipeline = begun(transactions=0, journal=HOLDS, source="rate: 200,")
    refuse(pipeline, key, tx)
    running = RunningLane(pipeline)
    wait_until(lambda: len(entries(pipeline)) > 1)

    def goes_on():
        # One that was set aside at the very moment of the last purge holds the row once more.
        DeadLetterRecords(pipeline.store, pipeline.name).purge()
        return any(one[0] == key for one in keys(pipeline))

    wait_until(goes_on)
    pipeline.want("stopped")
    assert running.end().why == "stopped"


@pytest.mark.parametrize("batch", ["", "max_bytes: 500, "])
def test_an_entry_whose_event_is_read_again_is_overtaken_by_what_follows_it_only(batch):
    pipeline = begun(sinks=("out", "other"), journal="enabled: true", batch=batch)
    rows = history(pipeline)
    last, first = rows[-1], rows[0]
    pipeline.log().refuses = lambda value: (
        ((after := orjson.loads(value)["after"])["id"], after["tx"]) in (last, first)
    )
    run_to_the_end(pipeline)
    told = [one.meta.overtaken for one in entries(pipeline)]
    assert told == [["out"], []]
    # The sink has lost its position; both are refused once more, or taken this time.
    pipeline.begin_at(out=0)
    pipeline.want("running")
    run_to_the_end(pipeline)
    again = [(one.event["after"]["id"], one.meta.overtaken) for one in entries(pipeline)]
    assert again == [(first[0], ["out"]), (last[0], [])] * 2


class Behind:
    """The order of a sink that is caught up, around one event that a processor refused."""

    def __init__(self, *, holds):
        self.pipeline = InProcess(journal="enabled: true")
        self.queue = DeadLetterRecords(self.pipeline.store, self.pipeline.name)
        writer = DeadLetterWriter(self.pipeline.context().origin, 1 << 20)
        (letter,) = writer.of_processors(self.refused(1))
        self.pipeline.store.transact([self.queue.push(letter.text)])
        self.order = RowOrdering(self.queue, ["out"], holds=holds, behind="out")
        self.order.begin()

    def rows(self, *numbers):
        plain = {"db": "d", "table": "t", "op": "u", "ts_ms": 1, "tx": 0, "row": 0, "tx_end": True}
        told = [{**plain, "key": b'{"id":1}', "event_id": bytes([n] * 16)} for n in numbers]
        return pa.RecordBatch.from_pylist(told, schema=CHANGE_SCHEMA)

    def refused(self, number):
        told = [Rejection(0, "processor", "why")]
        refused = RefusedEvents("p", self.rows(number), np.zeros(1, np.int32), told)
        return ProcessedBatch(self.rows(), np.zeros(0, np.int32), [refused])

    def given(self, processed):
        count = processed.rows.num_rows
        ids = processed.rows["event_id"]
        topics = pa.array(["t"] * count, pa.utf8()).dictionary_encode()
        texts = pa.array([b"{}"] * count, pa.binary())
        at = pa.array(range(count), pa.int32())
        messages = Messages(topics, texts, texts, None, ids, at)
        return SinkMessages(processed, {"out": messages}, {"out": ()})

    def reads(self, processed):
        """Deliver a batch; return how many events wait, and who has overtaken the entry."""
        rendered = self.given(processed)
        _, held = self.order.held_back(rendered, [], ["out"])
        self.order.delivered(rendered, {"out": held.get("out", ())}, [])
        self.pipeline.store.transact(self.order.writes())
        self.order.written()
        (entry,) = self.queue.read()
        return len(held.get("out", ())), entry.meta.overtaken


@pytest.mark.parametrize(("holds", "later"), [(False, (0, ["out"])), (True, (1, []))])
def test_a_sink_that_comes_from_behind_overtakes_an_entry_only_after_its_event(holds, later):
    sink = Behind(holds=holds)
    sink.reads(ProcessedBatch(sink.rows(0)))
    assert sink.reads(sink.refused(1)) == (0, [])
    assert sink.reads(ProcessedBatch(sink.rows(2))) == later


def test_a_sink_that_begins_behind_an_entry_has_overtaken_it_with_the_next_event():
    sink = Behind(holds=True)
    assert sink.reads(ProcessedBatch(sink.rows(2))) == (0, ["out"])


def test_a_row_that_many_wait_for_is_looked_up_once_an_event(monkeypatch):
    sink = Behind(holds=True)
    sink.reads(sink.refused(1))
    stored = next(sink.queue.stored())
    sink.pipeline.store.transact([sink.queue.push(stored.text) for _ in range(100)])
    sink.order.read_on()
    sink.order.held_back(sink.given(sink.refused(1)), [], ["out"])
    looked = []
    real = row_ordering.newer

    def counted(*told):
        for found in real(*told):
            looked.append(found)
            yield found

    monkeypatch.setattr(row_ordering, "newer", counted)
    rows = ProcessedBatch(sink.rows(*range(2, 52)))
    count = rows.rows.num_rows
    given = sink.given(rows)
    _, held = sink.order.held_back(given, [], ["out"])
    assert len(held["out"]) == count
    assert len(looked) <= count
