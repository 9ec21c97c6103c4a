"""The two threads before delivery: one reads the log, one turns it into deliveries.

Both are daemon threads behind bounded queues, so the reader stops reading when sinks are slow,
and neither keeps a process alive whose parent is gone.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.read.batcher import LEAST_EVENT_BYTES, Batcher, SourceBatch
from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.sources.reader_contract import LogReader, LogSegment

_READ_S = 0.2
_PUT_S = 0.1
_SMALL_BYTES = 64 << 10
"""Segments of more are read ahead while others are decoded and delivered."""
_CHUNKS_AHEAD = 4
_BYTES_AHEAD = 8 << 20
"""Bytes of log in deliveries that are prepared and not over; one delivery may be larger, alone.

Rows and rendered messages take several times as much memory.
"""
_JOIN_S = 5.0
_LONGEST_WAIT_S = 1.0  # A reader paces itself as well.

Prepared = TypeVar("Prepared")


class ReadAheadEnded(Exception):  # noqa: N818 - not an error: the queue's owner asked for the end
    """The lane is ending; nothing more comes."""


class _Handover(Generic[Prepared]):
    """A bounded queue that gives up waiting when the lane ends or a thread has failed.

    Small batches pass through it one by one: ``queue.Queue`` takes several times as long.
    """

    def __init__(self, size: int, ending: threading.Event) -> None:
        self._items: queue.SimpleQueue[Prepared | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(size)
        self._ending = ending

    def put(self, item: Prepared) -> None:
        while not self._ending.is_set():
            if self._room.acquire(timeout=_PUT_S):
                self._items.put(item)
                return
        raise ReadAheadEnded

    def wake(self) -> None:
        """Make a ``get`` that waits return None at once."""
        if self._items.empty():
            self._items.put(None)

    def size(self) -> int:
        return self._items.qsize()

    def get(self, timeout_s: float) -> Prepared | None:
        try:
            item = self._items.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return None
        if item is not None:
            self._room.release()
        return item


class _Prefetched:
    """Bounds what is prepared before it is delivered. One delivery has room, whatever its size."""

    def __init__(self, size: int, ending: threading.Event) -> None:
        self._size = size
        self._ending = ending
        self._used = 0
        self._changed = threading.Condition()

    @property
    def used(self) -> int:
        return self._used

    def take(self, nbytes: int) -> None:
        """Wait until there is room.

        Raises:
            Ended: the lane ended while waiting.
        """
        with self._changed:
            while self._used and self._used + nbytes > self._size:
                if self._ending.is_set():
                    raise ReadAheadEnded
                self._changed.wait(_PUT_S)
            self._used += nbytes

    def give(self, nbytes: int) -> None:
        with self._changed:
            self._used -= nbytes
            self._changed.notify()


class Gate(Generic[Prepared]):
    """What decoded batches go through before they are cut. Used by the decoder thread.

    Args:
        admit: returns what is to be delivered of a batch; None: nothing, as if it had not come.
    """

    def __init__(self, admit: Callable[[ChangeBatch], ChangeBatch | None]) -> None:
        self._admit = admit

    def admit(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return what is to be delivered of a batch."""
        return self._admit(batch)

    def joining(self) -> Sequence[Prepared]:
        """Return what is to be delivered here, if that is between two transactions.

        Asked behind every batch, and while none comes.
        """
        return ()


class ReadAhead(Generic[Prepared]):
    """Reads, decodes and prepares ahead of delivery.

    Args:
        reader: the open log.
        batcher: cuts batches.
        prepare: processors and rendering; runs in the decoder thread.
        ready_ahead: batches that may wait for delivery (``batch.max_inflight``).
        gate: what each decoded batch goes through first, in the decoder thread.
        on_error: called with a retryable read error, and with None when reading works again.
        measured: where what is read is counted.
    """

    pause_s = 0.02
    """How long the reader pauses at most behind a small segment, until nothing is being delivered.

    What the server sends meanwhile becomes one segment: ten rows cost little less than a hundred.
    """

    def __init__(
        self,
        reader: LogReader,
        batcher: Batcher,
        prepare: Callable[[SourceBatch], Prepared],
        ready_ahead: int,
        on_error: Callable[[BaseException | None], None],
        gate: Gate[Prepared],
        measured: LaneMeasurements,
    ) -> None:
        self._reader = reader
        self._resume = threading.Event()
        self._batcher = batcher
        self._prepare = prepare
        self._on_error = on_error
        self._gate = gate
        self._measured = measured
        self._ending = threading.Event()
        self._chunks: _Handover[LogSegment | Exception] = _Handover(_CHUNKS_AHEAD, self._ending)
        self._ready: _Handover[tuple[Prepared, int]]
        self._ready = _Handover(max(1, ready_ahead), self._ending)
        self._room = _Prefetched(_BYTES_AHEAD, self._ending)
        self._under_way = 0
        self._is_idle = False
        """Nothing is delivered, and nothing is ready: what is read goes out at once."""
        self._failure: Exception | None = None
        self._reading = threading.Thread(target=self._run_reader, name="reader", daemon=True)
        self._reading.start()
        threading.Thread(target=self._run_decoder, name="decoder", daemon=True).start()

    def next(self, timeout_s: float) -> Prepared | None:
        """Return the next delivery, or None when none is ready within ``timeout_s``.

        The one before it is over by then, and its caller holds nothing of it any more.

        Raises:
            Exception: what the reader or decoder failed with, after everything that was ready.
        """
        failure = self._failure  # Looked at first: what was ready is there then.
        self._room.give(self._under_way)
        self._under_way = 0
        ready = self._ready.get(0)
        if ready is None:
            self._is_idle = True  # Before the look: whatever is added from now on is not kept back.
            self._resume.set()
            if not self._batcher.is_empty:
                self._chunks.wake()
            ready = self._ready.get(timeout_s)
        if ready is None:
            if failure is not None:
                raise failure
            return None
        self._is_idle = False
        prepared, self._under_way = ready
        return prepared

    def depths(self) -> dict[str, int]:
        """Return how much waits: segments to be decoded, batches to be delivered, their bytes."""
        return {
            "segments": self._chunks.size(),
            "batches": self._ready.size(),
            "bytes": self._room.used,
        }

    def close(self) -> None:
        """End both threads and let go of the log.

        The reader's thread first: the number of a socket that is closed under it may go to the
        next connection, whose bytes it would then take.
        """
        self._ending.set()
        if threading.current_thread() is not self._reading:
            self._reading.join(_JOIN_S)
        self._reader.close()

    def _run_reader(self) -> None:
        """Hand a failure on in order: whole transactions read before it are still delivered."""
        with suppress(ReadAheadEnded):
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - a thread's exception must reach delivery
                self._measured.source_failed(error)
                self._chunks.put(error)

    def _run_decoder(self) -> None:
        try:
            self._decode()
        except ReadAheadEnded:
            return
        except Exception as error:  # noqa: BLE001 - a thread's exception must reach delivery
            self._failure = error

    def _read(self) -> None:
        ending = self._ending
        while not ending.is_set():
            chunk = retry_until(
                self._read_once, self._on_error, ending.is_set, ending.wait, _LONGEST_WAIT_S
            )
            if chunk is None:
                continue
            self._resume.clear()
            self._chunks.put(chunk)
            if chunk.nbytes < _SMALL_BYTES and self._reader.is_caught_up:
                self._resume.wait(self.pause_s)

    def _read_once(self) -> LogSegment | None:
        if self._ending.is_set():
            raise ReadAheadEnded
        return self._reader.read(_READ_S)

    def _decode(self) -> None:
        while not self._ending.is_set():
            wait_s = self._batcher.wait_s(time.monotonic())
            chunk = self._chunks.get(_READ_S if wait_s is None else min(wait_s, _READ_S))
            if isinstance(chunk, Exception):
                if (rest := self._batcher.rest()) is not None:
                    self._make_ready(rest)
                raise chunk
            for batch in self._batches(chunk):
                self._make_ready(batch)
            if self._is_idle:  # The end of a transaction is still to be read.
                self._resume.set()
            for prepared in self._gate.joining():
                if (rest := self._batcher.rest()) is not None:
                    self._make_ready(rest)
                self._ready.put((prepared, 0))

    def _make_ready(self, batch: SourceBatch) -> None:
        weight = max(batch.nbytes, batch.rows.num_rows * LEAST_EVENT_BYTES)
        self._room.take(weight)
        prepared = self._prepare(batch)
        self._is_idle = False
        self._ready.put((prepared, weight))

    def _decoded(self, chunk: LogSegment) -> ChangeBatch:
        begun_s = time.perf_counter()
        try:
            batch = self._reader.decode(chunk)
        except Exception as error:
            self._measured.source_failed(error)
            raise
        seconds = time.perf_counter() - begun_s
        known = len(batch.schemas)
        self._measured.decoded(batch.nbytes, seconds, known, has_events=batch.rows.num_rows > 0)
        return batch

    def _batches(self, chunk: LogSegment | None) -> Iterator[SourceBatch]:
        if chunk is not None:
            batch = self._gate.admit(self._decoded(chunk))
            if batch is not None:
                yield from self._batcher.add(batch, time.monotonic())
        due = self._batcher.due(time.monotonic(), is_idle=self._is_idle)
        if due is not None:
            yield due
