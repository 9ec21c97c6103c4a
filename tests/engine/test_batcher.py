"""Batches end at transaction borders, and waiting for one costs nothing."""

from dataclasses import replace

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.read.batcher import Batcher, BatchLimits, CuttingBatcher
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch
from airflow_provider_deltaforge.sinks.kafka import KafkaSink
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.sources.turso.polling import PollPositions
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.spec.policies import Batch


class _After:
    def __init__(self, base):
        self._base = base

    def after(self, tx):
        return {"tx": self._base + tx}


def batch_of(*sizes, first=1, open_tx=False, continues=False, row_bytes=100):
    """Return a decoded batch: one transaction per size; the last stays open if asked."""
    rows = [
        {
            "op": "c",
            "ts_ms": 0,
            "tx": tx,
            "row": row,
            "tx_end": row == size - 1 and not (open_tx and tx == len(sizes) - 1),
            "event_id": bytes(16),
        }
        for tx, size in enumerate(sizes)
        for row in range(size)
    ]
    complete = len(sizes) - 1 if open_tx else len(sizes)
    return ChangeBatch(
        rows=pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA),
        positions=_After(first),
        end={"tx": first + complete - 1},
        connector="test",
        nbytes=len(rows) * row_bytes,
        open_tx=open_tx,
        continues=continues,
    )


def _batcher(**limits):
    given = {"max_events": 1000, "max_bytes": 10**6, "max_age_s": 0.05, **limits}
    return Batcher(BatchLimits(**given))


def test_small_transactions_stay_whole_when_many_of_them_exceed_the_limit_of_one():
    batcher = _batcher(max_events=10**6, max_bytes=10**6, max_transaction_bytes=2000)
    out = list(batcher.add(batch_of(8, 8, 8, open_tx=True), 0.0))
    assert [batch.rows.num_rows for batch in out] == [16]
    assert [batch.position for batch in out] == [{"tx": 2}]
    assert not any(batch.splits_transaction for batch in out)


def test_a_transaction_beyond_its_limit_is_split():
    batcher = _batcher(max_transaction_bytes=2000)
    out = list(batcher.add(batch_of(8, 30, open_tx=True), 0.0))
    assert [(batch.rows.num_rows, batch.position) for batch in out] == [(8, {"tx": 1}), (30, None)]
    assert out[-1].splits_transaction


@pytest.mark.parametrize("whole", [True, False])
def test_nothing_is_due_while_all_that_waits_is_an_open_transaction(whole):
    batcher = _batcher(respect_source_tx=whole)
    assert list(batcher.add(batch_of(5, open_tx=True), 0.0)) == []
    late = 10.0
    if whole:
        assert batcher.due(late) is None
        # Whoever waits for 0 s here turns in circles until the transaction's rest arrives.
        assert batcher.wait_s(late) is None
    else:
        assert batcher.wait_s(late) == 0
        assert batcher.due(late).rows.num_rows == 5


def test_the_end_of_a_transaction_that_waited_makes_it_due():
    batcher = _batcher()
    assert list(batcher.add(batch_of(5, open_tx=True), 0.0)) == []
    assert list(batcher.add(batch_of(2, continues=True), 1.0)) == []
    assert batcher.wait_s(1.1) == 0
    due = batcher.due(1.1)
    assert (due.rows.num_rows, due.position) == (7, {"tx": 1})


def test_what_holds_nothing_for_us_behind_a_full_batch_is_passed_too():
    """Else the checkpoint stays where it is until something else comes, perhaps never."""
    out = list(_batcher(max_events=2).add(batch_of(2, 0, 0), 0.0))

    assert [(batch.rows.num_rows, batch.position) for batch in out] == [
        (2, {"tx": 1}),
        (0, {"tx": 3}),
    ]


def test_a_full_batch_at_the_end_of_what_was_read_has_nothing_behind_it():
    out = list(_batcher(max_events=2).add(batch_of(2), 0.0))

    assert [(batch.rows.num_rows, batch.position) for batch in out] == [(2, {"tx": 1})]


def test_rows_of_few_bytes_are_split_by_the_memory_they_take():
    batcher = _batcher(max_transaction_bytes=2000, least_event_bytes=100)
    out = [
        one.rows.num_rows
        for part in range(6)
        for one in batcher.add(
            batch_of(10, first=1, open_tx=True, continues=part > 0, row_bytes=1), 0.0
        )
    ]
    assert out == [30, 30]


@pytest.mark.parametrize(
    ("batch", "exactly_once", "events"),
    [({}, False, 2000), ({}, True, 16_000), ({"max_events": 2000}, True, 2000)],
)
def test_a_sink_may_wish_for_larger_batches_where_the_document_does_not_say(
    batch, exactly_once, events
):
    sink = KafkaSink(brokers="b:9092", topic="t", exactly_once=exactly_once)
    assert BatchLimits.of(Batch(**batch), [sink]).max_events == events


LIMITS = BatchLimits(max_events=1000, max_bytes=10**6, max_age_s=0.0)


def polled(**tables):
    return FilePosition("polling", tables=tables).as_json()


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_batch_ends_where_a_sink_stands(place):
    batcher = CuttingBatcher(LIMITS, ScriptedSource(), {"tx": 0}, [{"tx": place}])
    out = [*batcher.add(batch_of(4, 4, 4), 0.0), batcher.rest()]
    assert out[0].position == {"tx": place}
    assert out[0].rows.num_rows == 4 * place


@pytest.mark.parametrize(
    "place",
    [{"a": 7, "b": 3}, {"a": 4, "b": 5}, {"a": 6, "b": 5}],
    ids=["further in a", "further in b", "behind both"],
)
def test_no_batch_claims_what_another_order_of_tables_has_yet_to_bring(place):
    """A sink has read table ``a`` before ``b``; here the rows of ``b`` come first."""
    source = TursoSource.model_construct(id="polled")
    start = {"a": 5, "b": 3}
    batcher = CuttingBatcher(LIMITS, source, polled(**start), [polled(**place)])
    out = []
    for table, values in (("b", (4, 5, 6)), ("a", (6, 7, 8))):
        positions = PollPositions(dict(start), table, values)
        start[table] = values[-1]
        batch = replace(batch_of(1, 1, 1), positions=positions, end=polled(**start))
        out += [*batcher.add(batch, 0.0), batcher.rest()]
    reached = {"a": 5, "b": 3}
    for batch in [batch for batch in out if batch is not None]:
        position = FilePosition.from_json(batch.position).tables
        rows = sum(position[name] - reached[name] for name in reached)
        assert rows == batch.rows.num_rows
        reached = position
