"""What was read before a reader fails is delivered, as far as its transactions are whole."""

import queue
import threading
import time
from contextlib import suppress

import pytest

from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.read.batcher import Batcher, BatchLimits
from airflow_provider_deltaforge.engine.read.read_ahead import _BYTES_AHEAD, Gate, ReadAhead
from airflow_provider_deltaforge.errors import ServerChangedError
from airflow_provider_deltaforge.events.change import ChangeBatch
from tests.engine.test_batcher import batch_of
from tests.waiting import PATIENCE_S, wait_until

PATIENT = BatchLimits(max_events=10**6, max_bytes=10**9, max_age_s=10**6)
"""Nothing is due by itself."""


class Chunks:
    """A reader that hands out decoded batches, and then fails."""

    is_caught_up = True

    def __init__(self, *chunks: ChangeBatch) -> None:
        self._chunks = list(chunks)

    def read(self, timeout_s: float) -> ChangeBatch | None:
        if self._chunks:
            return self._chunks.pop(0)
        raise ServerChangedError("another server answers")

    def decode(self, chunk: ChangeBatch) -> ChangeBatch:
        return chunk

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def pumped():
    pumps = []

    def pump(
        *chunks, limits=PATIENT, prepare=lambda batch: batch, ahead=1, reader=None, kind=ReadAhead
    ):
        pumps.append(
            kind(
                reader or Chunks(*chunks),
                Batcher(limits),
                prepare,
                ahead,
                lambda _: None,
                Gate(lambda batch: batch),
                LaneMeasurements(),
            )
        )
        return pumps[-1]

    yield pump
    for one in pumps:
        one.close()


def test_whole_transactions_read_before_a_failure_are_delivered(pumped):
    pump = pumped(batch_of(3, 4, 5, open_tx=True))
    delivered = pump.next(PATIENCE_S)
    assert (delivered.rows.num_rows, delivered.position) == (7, {"tx": 2})
    with pytest.raises(ServerChangedError):
        exhaust(pump)


def exhaust(pump):
    """Wait for what the reader failed with."""
    while pump.next(0.1) is None:
        pass


def test_a_large_delivery_is_alone_in_memory(pumped):
    one_each = BatchLimits(max_events=5, max_bytes=10**9, max_age_s=10**6)
    prepared = [threading.Event() for _ in range(4)]

    def prepare(batch):
        prepared[batch.position["tx"] - 1].set()
        return batch

    large = [batch_of(5, first=n + 1, row_bytes=_BYTES_AHEAD) for n in range(4)]
    pump = pumped(*large, limits=one_each, prepare=prepare, ahead=10)
    for number in range(3):
        assert pump.next(PATIENCE_S).position == {"tx": number + 1}
        # While it is delivered: this gives the next one its chance.
        assert not prepared[number + 1].wait(0.2)


def test_small_deliveries_are_prepared_ahead(pumped):
    one_each = BatchLimits(max_events=5, max_bytes=10**9, max_age_s=10**6)
    ready = threading.Event()

    def prepare(batch):
        if batch.position == {"tx": 3}:
            ready.set()
        return batch

    pumped(*(batch_of(5, first=n + 1) for n in range(3)), limits=one_each, prepare=prepare, ahead=2)
    assert ready.wait(PATIENCE_S)


@pytest.mark.parametrize("ahead", [1, 4])
def test_as_many_deliveries_wait_as_the_document_allows(pumped, ahead):
    """``batch.max_inflight`` wait behind the one that is prepared."""
    one_each = BatchLimits(max_events=1, max_bytes=10**9, max_age_s=10**6)
    prepared, taken, most = [], [], []

    def prepare(batch):
        prepared.append(batch.position)
        most.append(len(prepared) - len(taken))
        return batch

    pump = pumped(batch_of(*[1] * 12), limits=one_each, prepare=prepare, ahead=ahead)
    wait_until(lambda: len(prepared) == ahead + 1)
    for _ in range(12):
        assert pump.next(PATIENCE_S) is not None
        taken.append(None)
    assert len(prepared) == 12
    # One is taken before it is counted as taken.
    assert max(most) <= ahead + 2


class Fed(Chunks):
    """A reader that hands out what it is given, and waits for it."""

    def __init__(self) -> None:
        self.chunks: queue.Queue[ChangeBatch] = queue.Queue()
        self.decoded = 0

    def read(self, timeout_s: float) -> ChangeBatch | None:
        with suppress(queue.Empty):
            return self.chunks.get(timeout=timeout_s)
        return None

    def decode(self, chunk: ChangeBatch) -> ChangeBatch:
        self.decoded += 1
        return chunk


def test_who_is_idle_gets_what_there_is_and_who_is_busy_gets_more_at_once(pumped):
    reader = Fed()
    pump = pumped(reader=reader)
    assert pump.next(0) is None
    reader.chunks.put(batch_of(2, first=1))
    first = pump.next(PATIENCE_S)
    assert (first.position, first.trigger) == ({"tx": 1}, "idle")

    # While that is delivered, what comes is kept together.
    for number in range(2, 5):
        reader.chunks.put(batch_of(2, first=number))
    wait_until(lambda: reader.decoded == 4)
    rest = pump.next(PATIENCE_S)
    assert (rest.position, rest.rows.num_rows) == ({"tx": 4}, 6)


class Pausing(ReadAhead):
    """Waits for idle delivery as long as a test may take."""

    pause_s = PATIENCE_S


def test_behind_a_small_segment_the_reader_waits_until_delivery_is_idle(pumped):
    reader = Fed()
    pairs = BatchLimits(max_events=2, max_bytes=10**9, max_age_s=10**6)
    pump = pumped(limits=pairs, ahead=2, reader=reader, kind=Pausing)
    reader.chunks.put(batch_of(2, first=1))
    reader.chunks.put(batch_of(2, first=2))
    wait_until(lambda: pump.depths()["batches"] == 1)
    assert pump.next(0).position == {"tx": 1}
    time.sleep(0.2)  # Whoever reads on has done it by then.
    assert reader.chunks.qsize() == 1
    assert pump.next(PATIENCE_S / 2).position == {"tx": 2}


def test_behind_a_large_segment_reading_goes_on_while_it_is_delivered(pumped):
    reader = Fed()
    pump = pumped(reader=reader, kind=Pausing)
    reader.chunks.put(batch_of(2, first=1, row_bytes=1 << 20))
    reader.chunks.put(batch_of(2, first=2))
    assert pump.next(PATIENCE_S).position == {"tx": 1}
    wait_until(lambda: reader.decoded == 2, PATIENCE_S / 2)


def test_a_reader_that_has_more_goes_on_reading(pumped):
    reader = Fed()
    reader.is_caught_up = False
    pump = pumped(reader=reader, kind=Pausing)
    reader.chunks.put(batch_of(2, first=1))
    reader.chunks.put(batch_of(2, first=2))
    assert pump.next(PATIENCE_S).position == {"tx": 1}
    wait_until(lambda: reader.decoded == 2, PATIENCE_S / 2)


def test_the_rest_of_a_transaction_is_read_without_a_pause(pumped):
    reader = Fed()
    pump = pumped(reader=reader, kind=Pausing)
    assert pump.next(0) is None
    reader.chunks.put(batch_of(2, first=1, open_tx=True))
    reader.chunks.put(batch_of(2, first=1, continues=True))
    assert pump.next(PATIENCE_S / 2).rows.num_rows == 4
