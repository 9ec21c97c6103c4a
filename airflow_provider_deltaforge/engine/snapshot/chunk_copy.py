"""Copies snapshot chunks, in whatever process they were dealt to."""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.control_watcher import ControlWatcher
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.data_drift import drift_watch_of
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.outcome import Outcome, Why
from airflow_provider_deltaforge.engine.base.processor_stats import (
    DeadLetterStats,
    ProcessorStats,
    SinkCounts,
)
from airflow_provider_deltaforge.engine.base.runner import UNLIMITED, ChunkResult, ReadRate
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.row_marks import RowMarkers
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.engine.deliver.sink_group import SinkGroup
from airflow_provider_deltaforge.engine.read.registrar import Registrar, lookup, registry_of
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage, SinkMessages
from airflow_provider_deltaforge.engine.snapshot.chunk_sinks import ChunkSinks, exact_sinks
from airflow_provider_deltaforge.engine.snapshot.chunk_split import ChunkSplitter, LargeChunk
from airflow_provider_deltaforge.engine.snapshot.repair import delete_batches, is_of_deletes
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, joined
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sensing.data_drift.findings import TableFindings, combined
from airflow_provider_deltaforge.sensing.data_drift.row_check_kernel import SAMPLES
from airflow_provider_deltaforge.sensing.row_samples import RowSample, samples_of
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Store, Write
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.telemetry.redaction import redacted

_WORKERS_S = 30.0
_FOREVER_S = 10.0**9
_SAMPLED = 4  # Batches of a chunk from which rows are chosen for schema sensing.
_ERROR_TTL_S = 60.0
_WHOLE_ROWS = 100_000
"""Chunks of up to so many rows are written at once to sinks that can take them so."""

SINK = "sink "
"""Begins the names of sinks among what keeps tasks from going on."""

_log = logging.getLogger(__name__)


def copy_chunks(
    job: DriverAssignment,
    run_id: str,
    chunks: Iterable[TableChunk],
    over: Callable[[], bool] = lambda: False,
    rate: ReadRate = UNLIMITED,
) -> Iterator[ChunkResult]:
    """Copy chunks one after the other over one set of connections; stop at the first failure.

    Args:
        job: what they belong to.
        run_id: the snapshot run.
        chunks: what to copy.
        over: asked now and then, from another thread, whether to end.
        rate: how fast to read.
    """
    try:
        context = TaskContext.open(job, renew=False)
    except Exception as error:  # noqa: BLE001 - as text it would lose its class
        yield ChunkResult("", "", 0, Outcome.of(error))
        return
    records = Snapshots(context.store, context.pipeline.name)
    watcher = ControlWatcher(
        context,
        _FOREVER_S,
        also=lambda: "failed" if over() else _cancelled(records, context.control, run_id),
    )
    watcher.watch(job.tuning.listen_s)
    try:
        copier = _Copier(context, run_id, watcher, rate)
    except Exception as error:  # noqa: BLE001 - as text it would lose its class
        yield ChunkResult("", "", 0, Outcome.of(error))
        watcher.end("finished")
        context.store.close()
        return
    try:
        for chunk in chunks:
            for copied in copier.copy(chunk):
                yield copied
                if copied.outcome is not None:
                    return
    finally:
        watcher.end("finished")
        copier.close()
        context.store.close()


def until_done(results: "SimpleQueue[ChunkResult | None]", tables: int) -> Iterator[ChunkResult]:
    """Yield what arrives until every table has put its closing None."""
    while tables:
        copied = results.get()
        if copied is None:
            tables -= 1
        else:
            yield copied


def await_workers(working: Collection[Future[None]], within_s: float = _WORKERS_S) -> None:
    """Wait for workers that were asked to end, so that none writes while the next lane starts.

    One that hangs in a read is not waited for: before it writes, it asks for its fence.
    """
    # A table that was never begun is cancelled, which ``wait`` does not count as done.
    begun = [table for table in working if not table.cancelled()]
    if wait(begun, within_s).not_done:
        _log.warning("some workers of the snapshot hang; their fence keeps them from writing")


def _cancelled(records: Snapshots, control: Control, run_id: str) -> Why | None:
    run = records.run(run_id)
    if run is None or run.cancelled is not None:
        return "failed"
    if run.ticket is None:
        return None
    return "cancelled" if control.why_cancelled(run.ticket) is not None else None


@dataclass
class _Attempt:
    """One reading of a chunk.

    Attributes:
        cut: of its view.
        mark: what sinks keep that take the chunk at once; None if it is too large for that.
        is_single_view: the sinks hold the rows of one view, and that is at ``cut``.
        row_marks: by sink, what was left with each part; see ``RowMarkers.leave``.
    """

    cut: dict[str, Any]
    mark: ChunkMark | None
    is_single_view: bool
    row_marks: dict[str, list[str | None]] = field(default_factory=dict)

    def see(self, texts: Sequence[str | None]) -> None:
        """Take note of which view's rows each sink holds that was given the mark."""
        held = {*texts}
        text = held.pop() if len(held) == 1 else None
        self.is_single_view = self.is_single_view and text is not None
        if self.is_single_view and text is not None:
            self.cut = json.loads(text)


class _Copier:
    """A chunk is marked done only when every sink holds all of it, together with its cut."""

    def __init__(
        self, context: TaskContext, run_id: str, watcher: ControlWatcher, rate: ReadRate
    ) -> None:
        self._rate = rate
        self._begun_s = time.monotonic()
        spec = context.pipeline.spec
        self._run_id = run_id
        self._watcher = watcher
        self._records = Snapshots(context.store, context.pipeline.name)
        self._processor_stats = ProcessorStats()
        self._dead_letter_stats = DeadLetterStats()
        errors = CopyErrors(context.store, context.pipeline.name)
        self._measured = errors.measured
        registry = registry_of(context)
        self._registrar = Registrar(context, registry, lambda call: call())
        given_up = Gaps(context.store, context.pipeline.name).open()
        sinks = [sink.without_position() for sink in spec.sinks if sink.id not in given_up]
        sink_ids = [sink.id for sink in sinks]
        described = [sink for sink in spec.sinks if sink.id not in given_up]
        exact = exact_sinks(described)
        self._rendering = RenderStage(
            context.pipeline,
            context.origin,
            self._processor_stats,
            errors,
            self._watcher.ending.is_set,
            lookup(registry),
            sink_ids,
        )
        self._senses = spec.schema_sensing.enabled
        self._drift_watch = drift_watch_of(context.pipeline, lookup(registry))
        self._measured.encodes_by(self._rendering.encoding_counts)
        self._rendering.open()
        try:
            self._snapshotter = spec.source.open_snapshot()
        except BaseException:
            self._rendering.close()
            raise
        self._dead_letters = DeadLetterQueue(
            context,
            self._dead_letter_stats,
            errors.report_error,
            self._watcher.ending,
            watcher.confirm,
        )
        group = SinkGroup(
            sinks, context.pipeline.name, errors, self._watcher.ending, claims=SinkFences(context)
        )
        self._sinks = ChunkSinks(
            group, sink_ids, exact, self._dead_letters, lambda: self._store([])
        )
        self._whole_bytes = context.job.tuning.chunk_bytes
        self._splitter = ChunkSplitter(context, run_id, self._snapshotter)
        self._marks = RowMarkers(described, context.pipeline.name, errors, self._watcher.ending)

    def copy(self, chunk: TableChunk) -> Iterator[ChunkResult]:
        """Copy a chunk; yield what became of it, or of each part that it was split into.

        Each with what was counted since the last one.
        """
        left = [chunk]
        while left:
            copied = self._attempt(left.pop(0))
            if not isinstance(copied, ChunkResult):
                left = [*copied, *left]
                continue
            yield replace(
                copied,
                processors=self._processor_stats.take(),
                dead_letters=self._dead_letter_stats.take(),
                measured=self._measured.take(),
            )

    def _attempt(self, chunk: TableChunk) -> ChunkResult | Sequence[TableChunk]:
        """Copy a chunk once; return what became of it, or the parts to copy in its place."""
        table = chunk.full_name
        if self._watcher.ending.is_set():
            return ChunkResult(chunk.id, table, 0, _asked(self._watcher))
        try:
            if (parts := self._splitter.parts_ahead(chunk)) is not None:
                return parts
            copied = self._copy(chunk)
        except LargeChunk as large:
            return large.parts
        except Exception as error:  # noqa: BLE001 - across Spark, outcomes travel as rows
            outcome = _asked(self._watcher) if self._watcher.ending.is_set() else Outcome.of(error)
            return ChunkResult(chunk.id, table, 0, outcome)
        return ChunkResult(chunk.id, table, 0, _asked(self._watcher)) if copied is None else copied

    def _copy(self, chunk: TableChunk) -> ChunkResult | None:
        """Copy one chunk; return None when asked to end before it was durable."""
        rows = row_bytes = 0
        findings: list[TableFindings] = []
        samples: list[RowSample] = []
        self._dead_letters.begin()  # What a former attempt held comes again.
        taken: dict[str, SinkCounts] = {}
        attempt: _Attempt | None = None
        for batch, is_whole in self._read(chunk):
            if (
                attempt is None
                and (attempt := self._begin(chunk, batch, is_whole=is_whole)) is None
            ):
                return None
            source = self._registrar.admit(batch).rows
            rendered = self._rendering.render(source)
            self._dead_letters.check(rendered, source)
            findings = combined([*findings, *self._drift_of(source, rendered.processed)], SAMPLES)
            if self._senses:
                chosen = samples_of(rendered.processed.rows, counted_only=len(samples) >= _SAMPLED)
                samples += chosen
            reach(CrashPoint.CHUNK_RENDERED)
            self._watcher.confirm()
            refused = self._deliver(source, rendered, attempt)
            if refused is None:
                return None
            self._dead_letters.take(rendered, source, refused)
            if self._dead_letters.overflows and not self._store([]):
                return None
            for name in refused:
                taken[name] = taken.get(name, SinkCounts(0, 0)) + rendered.taken(
                    name, refused[name]
                )
            rows += 0 if is_of_deletes(chunk) else batch.rows.num_rows
            batch_bytes = batch.rows.column("after").nbytes
            row_bytes += batch_bytes
            self._await_rate(batch.rows.num_rows, batch_bytes)
        if attempt is None:  # No source has a chunk without a batch.
            return None
        reach(CrashPoint.CHUNK_WRITTEN)
        marks = self._marks.leave(attempt.row_marks)
        done = self._records.chunk_done(
            self._run_id,
            chunk.id,
            chunk.full_name,
            rows,
            attempt.cut,
            marks,
            is_single_view=attempt.is_single_view,
            row_bytes=row_bytes,
        )
        if not self._store([done]):
            return None
        reach(CrashPoint.CHUNK_STORED)
        return ChunkResult(
            chunk.id, chunk.full_name, rows, taken=taken, findings=findings, samples=samples
        )

    def _await_rate(self, rows: int, row_bytes: int) -> None:
        """Wait until so many rows may have been read.

        Time that others took, such as a sink, counts; it is not made up for later.
        """
        due_s = self._begun_s + self._rate.seconds(rows, row_bytes)
        self._watcher.ending.wait(max(0.0, due_s - time.monotonic()))
        self._begun_s = time.monotonic()

    def _read(self, chunk: TableChunk) -> Iterator[tuple[ChangeBatch, bool]]:
        """Yield a chunk's batches, and whether they are all that there is.

        For sinks that can take a chunk at once it becomes one batch, unless it is too large.
        """
        batches = delete_batches(self._run_id, chunk) or self._snapshotter.read(chunk, self._run_id)
        first: list[ChangeBatch] = []
        for batch in batches if self._sinks.exact else ():
            first.append(batch)
            count = sum(each.rows.num_rows for each in first)
            share = max(count / _WHOLE_ROWS, sum(each.nbytes for each in first) / self._whole_bytes)
            if share > 1 and len(first) > 1:
                self._splitter.check(chunk, int(count / share), batches)
                break
        else:
            if first:
                rows = joined([batch.rows for batch in first])
                yield replace(first[0], rows=rows, nbytes=rows.nbytes), True
                return
        for batch in chain(first, batches):
            yield batch, False

    def _deliver(
        self, source: pa.RecordBatch, rendered: SinkMessages, attempt: "_Attempt"
    ) -> Mapping[str, list[Rejection]] | None:
        """Write a batch to every sink; return what each refused, or None when asked to end."""
        written = self._sinks.write(
            source, rendered, attempt.mark, attempt.row_marks, self._watcher.ending.is_set
        )
        if written is None:
            return None
        attempt.see(written.views)
        return written.refused

    def _begin(self, chunk: TableChunk, batch: ChangeBatch, *, is_whole: bool) -> "_Attempt | None":
        """Keep what the first rows of a chunk show; None when asked to end.

        Rows of an attempt that failed stay in the sinks. What happened to them after its view is
        in the log, and the seam must not leave it out.
        """
        is_marked = is_whole and {*self._sinks.exact} == {*self._sinks.ids}
        begun = self._records.begun(self._run_id, chunk.id)
        if begun is None or (begun.is_marked and not is_marked):
            cut = batch.end if begun is None else begun.cut
            write = self._records.chunk_begun(self._run_id, chunk.id, cut, is_marked=is_marked)
            if not self._store([write]):
                return None
        mark = None
        if is_whole:
            text = json.dumps(dict(batch.end), sort_keys=True)
            mark = ChunkMark(f"{self._run_id}/{chunk.id}", text, is_first=begun is None)
        return _Attempt(dict(batch.end), mark, is_marked and (begun is None or begun.is_marked))

    def _drift_of(self, source: pa.RecordBatch, done: ProcessedBatch) -> list[TableFindings]:
        return [] if self._drift_watch is None else self._drift_watch.examine(source, done)

    def _store(self, writes: Sequence[Write]) -> bool:
        """Store, together with what is set aside; False when asked to end before there is room."""
        if not self._dead_letters.awaits_room():
            return False
        self._dead_letters.transact(writes)
        self._dead_letters.stored()
        return True

    def close(self) -> None:
        self._dead_letters.log_counts()
        try:
            self._snapshotter.close()
            self._sinks.group.close()
            self._marks.close()
        finally:
            self._rendering.close()


def _asked(watcher: ControlWatcher) -> Outcome:
    return Outcome.of(watcher.failure) if watcher.failure else Outcome(watcher.why)


class CopyErrors:
    """Reports to the driver, through the store, what keeps a task from going on."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/trouble/"
        self.measured = LaneMeasurements()
        self._failing: set[str] = set()

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Write or clear a sink's trouble."""
        if error is not None:
            self._failing.add(sink_id)
            self.measured.sink_failed(sink_id, error)
        elif sink_id in self._failing:  # One that was only slow had not failed.
            self._failing.discard(sink_id)
            self.measured.sink_reconnected(sink_id)
        self.report_error(f"{SINK}{sink_id}", error)

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Write or clear a processor's trouble."""
        self.report_error(f"processor {processor_id}", error)

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Write or clear the last error; nothing is written while the store is away."""
        key = f"{self._prefix}{name}"
        with suppress(RetryableError):
            if error is None:
                self._store.delete(names.SNAPSHOTS, key)
                return
            error_class = getattr(error, "error_class", "error")
            text = json.dumps({"reason": redacted(str(error)), "error_class": error_class})
            self._store.put(names.SNAPSHOTS, key, text.encode(), _ERROR_TTL_S)

    def read(self) -> dict[str, RetryableError]:
        """Return the troubles of now, by name."""
        return {
            key.removeprefix(self._prefix): RetryableError(json.loads(text)["reason"])
            for key, text in self._store.items(names.SNAPSHOTS, self._prefix)
        }
