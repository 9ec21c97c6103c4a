"""One thread per sink: it writes a batch until it is durable, and says so when it is not."""

import logging
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.columns.binary_columns import bytes_in
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.parallel_calls import call_in_parallel
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.deliver.exactly_once import ExactlyOnceGuard
from airflow_provider_deltaforge.engine.deliver.held_event import LogRows
from airflow_provider_deltaforge.engine.deliver.held_positions import PositionOwner, holds_part
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFence, SinkFences, claim
from airflow_provider_deltaforge.engine.render.key_parts import parts_of_messages
from airflow_provider_deltaforge.engine.render.render_queue import DeferredRender
from airflow_provider_deltaforge.errors import DeltaForgeError, FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark, ChunkWriter, RowMarker
from airflow_provider_deltaforge.sinks.contract import (
    FencedWriter,
    Interruptible,
    Sink,
    SinkWriter,
)
from airflow_provider_deltaforge.sinks.position_contract import ExactlyOnceWriter
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition
from airflow_provider_deltaforge.telemetry.client_counts import ClientCounts, CountsWork
from airflow_provider_deltaforge.telemetry.redaction import redacted

_CLOSE_S = 1.5

_log = logging.getLogger(__name__)


class SinkWatcher(Protocol):
    """Called with what a sink does and the errors it meets."""

    measured: LaneMeasurements

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Called at every failed attempt, and with None when the sink is back."""


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What one sink is given of a batch.

    Attributes:
        messages: what it lacks.
        at: where the batch ends; None inside a transaction.
        stand: the sink's checkpoint.
        chunk: what is written with the messages, of a sink that takes all rows of a chunk at once.
        rows: the change events that the messages' ``event_rows`` count in, where the sink may be
            written to over several connections.
        log: what the messages were made of, where the sink may hold a part of that.
    """

    messages: Messages
    at: Position | None = None
    stand: StoredPosition | None = None
    chunk: ChunkMark | None = None
    rows: pa.RecordBatch | None = None
    log: LogRows | None = None

    def without(self, refused: Collection[Rejection]) -> "SinkBatch":
        """Return the parcel without what was refused of it."""
        rows = pa.array({rejection.event_row for rejection in refused}, pa.int32())
        kept = pc.invert(pc.is_in(self.messages.event_rows, rows))
        return replace(self, messages=self.messages.take(pc.indices_nonzero(kept)))


@dataclass(frozen=True, slots=True)
class SinkResult:
    """How writing one batch to one sink ended.

    ``error`` None means durable, but for ``rejections``.
    """

    rejections: Sequence[Rejection] = ()
    error: Exception | None = None
    is_nothing: bool = False
    """Because of ``rejections``, the sink does not hold the parcel; the rest has to be given again
    when they are set aside."""
    is_made: bool = False
    """Nothing is written: the messages are rendered now, and have to be given."""
    chunk_text: str | None = None
    """Names the view whose rows the sink holds of a chunk; None if several may be."""
    row_mark: str | None = None
    """Left behind rows of a snapshot in the same step; None if a mark has still to be left."""

    def durable(self) -> Sequence[Rejection]:
        """Return what the sink refused while the rest is durable; raise what it could not do."""
        if self.error is not None:
            raise self.error
        return self.rejections


class _Abilities:
    """What an open writer can do beyond writing. Asked once: to ask takes as long as a write."""

    def __init__(self, writer: SinkWriter) -> None:
        self.is_fenced = isinstance(writer, FencedWriter)
        self.chunk_writer = writer if isinstance(writer, ChunkWriter) else None
        self.row_marker = writer if isinstance(writer, RowMarker) else None
        self.counts_work = writer if isinstance(writer, CountsWork) else None

    @property
    def row_mark(self) -> str | None:
        return None if self.row_marker is None else self.row_marker.row_mark


class SinkConnection:
    """Opens a sink, shuts former writers out, and writes. Used by one thread, but for ``abandon``.

    Args:
        sink: the description.
        pipeline: the pipeline's name.
        fence: the right to write; None where nobody else could.
        owner: of the positions that the sink holds.
        closing: set when nobody waits for a write any more.
        parallelism: connections to write over at the same time, if the sink allows that.
        source: whose log is written; None where that is not known.
    """

    def __init__(
        self,
        sink: Sink,
        pipeline: str,
        fence: SinkFence | None,
        owner: PositionOwner,
        closing: threading.Event,
        parallelism: int = 1,
        source: Source | None = None,
    ) -> None:
        self._sink = sink
        self._pipeline = pipeline
        self._fence = fence
        self._owner, self._source = owner, source
        self._closing = closing
        is_divided = parallelism > 1 and sink.takes_several_writers and not sink.holds_position
        self._parallelism = parallelism if is_divided else 1
        self._writers: list[SinkWriter] = []
        self._abilities: list[_Abilities] = []
        self._claimed = 0
        self._batch: SinkBatch | None = None
        self._done: dict[int, Sequence[Rejection]] = {}
        """What was refused of the parts of ``_batch`` that are durable."""
        self._once: ExactlyOnceGuard | None = None
        self._exact: Counter[str] = Counter()

    def write(self, sink_batch: SinkBatch) -> SinkResult:
        """Write a batch until it is durable, but for what is refused.

        Raises:
            DeltaForgeError: see ``SinkWriter.write``.
        """
        writer, abilities = self._opened()[0], self._abilities[0]
        if self._fence is not None and not abilities.is_fenced:
            self._fence.hold()
        if sink_batch.chunk is not None and abilities.chunk_writer is not None:
            written = abilities.chunk_writer.write_chunk(sink_batch.messages, sink_batch.chunk)
            refused = written.rejections
            text, mark = written.text, abilities.row_mark
            return SinkResult(refused, is_nothing=bool(refused), chunk_text=text, row_mark=mark)
        if self._parallelism > 1 and sink_batch.rows is not None:
            return SinkResult(self._write_parts(sink_batch, sink_batch.rows))
        if not self._sink.holds_position:
            refused = writer.write(sink_batch.messages)
            return SinkResult(refused, row_mark=abilities.row_mark)
        if self._once is None:
            exact = exact_writer(writer)
            self._once = ExactlyOnceGuard(self._sink.id, exact, self._owner, self._source)
        refused = self._once.write(
            sink_batch.messages, sink_batch.at, sink_batch.stand, sink_batch.log
        )
        self._exact.update(txn_commits=not refused, txn_aborts=bool(refused))
        return SinkResult(refused, is_nothing=bool(refused))

    def _write_parts(self, sink_batch: SinkBatch, rows: pa.RecordBatch) -> list[Rejection]:
        """Write over all connections, each the messages of some keys; return what is refused.

        What has become durable is not written again when the others are.
        """
        if self._batch is not sink_batch:
            self._batch, self._done = sink_batch, {}
        messages = sink_batch.messages
        parts = parts_of_messages(messages, rows, self._parallelism)

        def write(number: int) -> None:
            at = pa.array(np.flatnonzero(parts == number))
            part = messages if len(at) == len(messages) else messages.take(at)
            self._done[number] = self._writers[number].write(part)
            reach(CrashPoint.PART_WRITTEN)

        left = [number for number in np.unique(parts).tolist() if number not in self._done]
        if left:
            call_in_parallel([partial(write, number) for number in left], f"sink-{self._sink.id}")
        refused = [rejection for each in self._done.values() for rejection in each]
        self._batch, self._done = None, {}  # Nothing of it is held while waiting for the next one.
        return sorted(refused, key=lambda rejection: rejection.event_row)

    def holds(self, stand: StoredPosition | None) -> tuple[str, ...] | None:
        """Return what the sink may tell while it lacks nothing; see ``SinkThread.holds``."""
        if not self._sink.holds_position:
            return None
        held = self._once.held if self._once is not None else None
        return held if held is not None or stand is None else stand.held

    def read_again(self) -> None:
        """Note that the log is read from the checkpoint again."""
        if self._once is not None:
            self._once.read_again()

    def is_searching(self, stand: StoredPosition | None) -> bool:
        """Return whether the sink holds a part of what comes; see ``SinkThread.is_searching``."""
        if stand is None or not self._sink.holds_position:
            return False
        once = self._once
        if once is not None and once.has_begun:
            return once.is_searching(stand)
        return holds_part(stand, self._owner)

    def client(self) -> ClientCounts:
        """Return what the client has counted since the last call, and what it measures."""
        able = [each.counts_work for each in self._abilities if each.counts_work is not None]
        if able:
            return ClientCounts.total([each.take_counts() for each in able])
        exact, self._exact = self._exact, Counter()
        return ClientCounts(exact)

    def abandon(self) -> None:
        """End a write under way, where that is possible. Called by another thread."""
        for writer in self._writers:
            if isinstance(writer, Interruptible):
                writer.abandon()

    @property
    def may_send_late(self) -> bool:
        """Return whether what was sent can arrive although the connection is closed."""
        is_shut_out = self._sink.is_private or self._sink.holds_position
        return bool(self._writers) and self._fence is not None and not is_shut_out

    def close(self, *, leaves: bool = True) -> None:
        """Close all connections; the next write opens others.

        Args:
            leaves: False has the next driver wait as after a kill: something may be under way.
        """
        writers, self._writers, self._abilities = self._writers, [], []
        self._once, self._claimed, self._batch = None, 0, None
        are_closed = True
        for writer in writers:
            try:
                writer.close()
            except Exception:  # noqa: BLE001 - the others are closed all the same
                are_closed = False
        if writers and are_closed and leaves and self._fence is not None:
            with suppress(Exception):
                self._fence.leave()

    def _opened(self) -> Sequence[SinkWriter]:
        while len(self._writers) < self._parallelism:
            self._writers.append(self._sink.open(self._pipeline))
            self._abilities.append(_Abilities(self._writers[-1]))
        if self._fence is not None:
            for writer in self._writers[self._claimed :]:
                claim(self._sink, writer, self._fence)
                self._claimed += 1
        if self._closing.is_set():
            # Nobody waits any more: sent now, it could arrive behind what the next lane sends.
            raise RetryableError(f"sink {self._sink.id}: the lane ended before this batch was sent")
        return self._writers


class SinkThread:
    """Owns a sink's connection. ``submit`` and ``result`` are called by one other thread.

    Args:
        sink: the description.
        pipeline: the pipeline's name.
        watcher: called with errors.
        ending: set when the lane ends; a failing write is then given up.
        news: set whenever an attempt has ended.
        claims: who may write; None where nobody else could.
        parallelism: see ``SinkConnection``.
    """

    def __init__(
        self,
        sink: Sink,
        pipeline: str,
        watcher: SinkWatcher,
        ending: threading.Event,
        news: threading.Event | None = None,
        claims: SinkFences | None = None,
        parallelism: int = 1,
    ) -> None:
        self._id = sink.id
        self._watcher, self._measured = watcher, watcher.measured
        self._ending = ending
        # Never more than one of each: the next batch is given when the result is fetched.
        self._jobs: queue.SimpleQueue[Callable[[], SinkResult] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[SinkResult] = queue.SimpleQueue()
        self.is_exact = sink.holds_position
        self._unforeseen: set[tuple[type, str, int]] = set()
        self._closing = threading.Event()
        fence = None if claims is None else claims.of(sink.id, self._is_over)
        owner = PositionOwner() if claims is None else claims.owner
        source = None if claims is None else claims.source
        self._connection = SinkConnection(
            sink, pipeline, fence, owner, self._closing, parallelism, source
        )
        self._news = news or threading.Event()
        self.failing = False
        """Its last attempt has failed; it tries again."""
        self._is_writing = self.may_arrive = False
        """Closed in a write while its lane goes on, it may have sent what arrives later."""
        self._thread = threading.Thread(target=self._run, name=f"sink-{sink.id}", daemon=True)
        self._thread.start()

    def submit(self, what: SinkBatch | DeferredRender) -> None:
        """Hand over a batch, or first its rendering; fetch the result before the next one."""
        self.failing = False
        if isinstance(what, SinkBatch):
            self._jobs.put(partial(self._write, what))
        else:
            self._jobs.put(partial(_make, what))

    def holds(self, stand: StoredPosition | None) -> tuple[str, ...] | None:
        """Return what the sink may tell while it lacks nothing; see ``Checkpoints.put``."""
        return self._connection.holds(stand)

    def read_again(self) -> None:
        """Note that the log is read from the checkpoint again; nothing is being written."""
        self._connection.read_again()

    def is_searching(self, stand: StoredPosition | None) -> bool:
        """Return whether the sink holds events that the log has not shown again; between writes.

        Until it has, nothing is written, and the sink's checkpoint must not move: a person may have
        to change the document back, and the log is read from there then.
        """
        return self._connection.is_searching(stand)

    def result(self, timeout_s: float) -> SinkResult | None:
        """Return how the batch ended, or None while it is being written."""
        try:
            return self._results.get(timeout_s > 0, timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Close the connection; a write that hangs is left to its daemon thread."""
        self.has_ended()
        self._thread.join(_CLOSE_S)

    def has_ended(self) -> bool:
        """Close without waiting; return whether nothing more can come of it."""
        if not self._closing.is_set():
            self._closing.set()
            self._jobs.put(None)
        if self._is_writing and not self._ending.is_set():
            self.may_arrive |= self._connection.may_send_late
        self._connection.abandon()
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome = self._attempt(job)
            del job  # Its messages are not held while waiting for the next ones.
            self._results.put(outcome)
            self._news.set()
            if self._closing.is_set():
                break  # Closed before it had taken the job: nobody could put the end behind that.
        self._connection.close(leaves=not self.may_arrive)

    def _attempt(self, job: Callable[[], SinkResult]) -> SinkResult:
        try:
            return retry_until(job, self._tell, self._is_over, self._ending.wait)
        except Exception as error:  # noqa: BLE001 - outcomes are data; the lane decides
            if not isinstance(error, RetryableError):
                # Refused for good: whoever tries again has another connection.
                self._connection.close()
            if not isinstance(error, DeltaForgeError):
                self._show(error)
            return SinkResult(error=error)

    def _show(self, error: Exception) -> None:
        """Log with its way what nobody has foreseen, once: a sink that is behind meets it again."""
        raised = traceback.extract_tb(error.__traceback__)[-1]
        found = (type(error), raised.filename, raised.lineno or 0)
        if found not in self._unforeseen:
            self._unforeseen.add(found)
            shown = "".join(traceback.format_exception(error))
            _log.error("sink %s: %s", self._id, redacted(shown))

    def _tell(self, error: BaseException | None) -> None:
        self._watcher.report_sink_error(self._id, error)
        self.failing = error is not None
        self._news.set()

    def _is_over(self) -> bool:
        return self._ending.is_set() or self._closing.is_set()

    def _write(self, sink_batch: SinkBatch) -> SinkResult:
        messages, is_searching = sink_batch.messages, self._connection.is_searching
        if not len(messages) and sink_batch.chunk is None and not is_searching(sink_batch.stand):
            return SinkResult()  # Of a batch that was filtered to nothing the sink need not know.
        self._measured.sink_begins(self._id, len(messages), bytes_in(messages.values))
        begun_s = time.perf_counter()
        self._is_writing = True
        try:
            result = self._connection.write(sink_batch)
        finally:
            self._is_writing = False
        seconds = time.perf_counter() - begun_s
        self._measured.sink_ended(self._id, seconds, self._connection.client())
        return result


def _make(deferred: DeferredRender) -> SinkResult:
    deferred.make()
    return SinkResult(is_made=True)


def exact_writer(writer: SinkWriter) -> ExactlyOnceWriter:
    """Return the writer of a sink that holds the position itself."""
    if isinstance(writer, ExactlyOnceWriter):
        return writer
    raise FatalError(f"{type(writer).__name__} cannot deliver exactly once; its sink says it does")
