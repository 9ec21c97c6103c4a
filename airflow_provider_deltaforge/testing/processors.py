"""What every processor promises, as tests to inherit."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_deltaforge.engine.render.processor_chain import checked
from airflow_provider_deltaforge.processors.contract import Processed, Processor
from airflow_provider_deltaforge.testing.changes import change, change_rows


class ProcessorContract:
    """Inherit, and define the fixture ``processor``: the description, opened by each test.

    The events are an insert, an update and a delete of ``shop.orders``; define ``rows`` in the
    class where the processor is about others.
    """

    @pytest.fixture
    def rows(self) -> pa.RecordBatch:
        """The events to process, in ``CHANGE_SCHEMA``."""
        old, new = b'{"id":2,"sku":"sku-2","total":null}', b'{"id":2,"sku":"sku-2","total":"1.00"}'
        key = b'{"id":2}'
        return change_rows(
            [
                change(tx_end=True),
                change(op="u", before=old, after=new, key=key, tx=1, event_id=b"u" * 16),
                change(
                    op="d", before=new, after=None, key=key, tx=1, row=1, tx_end=True,
                    event_id=b"d" * 16,
                ),
            ]
        )  # fmt: skip

    def test_description_travels_to_another_process(self, processor: Processor) -> None:
        assert pickle.loads(pickle.dumps(processor)) == processor

    def test_the_settings_can_work(self, processor: Processor) -> None:
        processor.check()

    def test_what_comes_out_is_what_the_engine_takes(
        self, processor: Processor, rows: pa.RecordBatch
    ) -> None:
        process(processor, rows)

    def test_an_event_may_come_alone(self, processor: Processor, rows: pa.RecordBatch) -> None:
        for row in range(rows.num_rows):
            process(processor, rows.slice(row, 1))

    def test_a_batch_that_is_read_again_gives_the_same_events(
        self, processor: Processor, rows: pa.RecordBatch
    ) -> None:
        assert _shown(process(processor, rows)) == _shown(process(processor, rows))

    def test_a_slice_of_a_batch_is_processed_alone(
        self, processor: Processor, rows: pa.RecordBatch
    ) -> None:
        twice = pa.Table.from_batches([rows, rows]).combine_chunks().to_batches()[0]

        part = process(processor, twice.slice(rows.num_rows, rows.num_rows))

        assert _shown(part) == _shown(process(processor, rows))

    def test_the_batch_itself_stays_as_it_is(
        self, processor: Processor, rows: pa.RecordBatch
    ) -> None:
        before = rows.to_pylist()

        process(processor, rows)

        assert rows.to_pylist() == before

    def test_it_is_opened_used_and_closed_by_three_threads(
        self, processor: Processor, rows: pa.RecordBatch
    ) -> None:
        with ThreadPoolExecutor(1) as opening, ThreadPoolExecutor(1) as using:
            worker = opening.submit(processor.open).result()
            using.submit(worker.process, rows).result()
            worker.close()

    def test_closing_twice_is_harmless(self, processor: Processor) -> None:
        worker = processor.open()
        worker.close()
        worker.close()


def process(processor: Processor, rows: pa.RecordBatch) -> Processed:
    """Return what a fresh worker makes of a batch.

    Raises:
        FatalError: it is not what the engine takes.
    """
    worker = processor.open()
    try:
        return checked(processor.id, rows, worker.process(rows))
    finally:
        worker.close()


def _shown(done: Processed) -> tuple[Any, ...]:
    columns = (done.rows, done.origins, done.made)
    return (*(None if each is None else each.to_pylist() for each in columns), done.rejections)
