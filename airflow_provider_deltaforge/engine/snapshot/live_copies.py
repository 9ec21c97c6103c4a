"""Copies that are asked for while a lane runs: their rows join the log as it goes by.

Threads of their own read chunks and render their rows. Each chunk joins at a place of the log that
lies behind everything its view contained (``copy_window``); there the lane's delivery thread gives
it to the sinks, between two batches, and stores that it is done. So a row never goes back to an
older state, and the log waits for one chunk at most.

A copy waits while a sink is behind: rows would reach it in front of older changes; and while one
is to be resumed, which would lack the rows. One that the
source cannot join to its log, or whose tables the lane leaves out, is left to the driver, which
serves it while no lane runs.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.data_drift import drift_watch_of
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.base.restarts import Restarts
from airflow_provider_deltaforge.engine.base.runner import CopyPlan, ReadRate
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.catch_up.table_watch import ASKER
from airflow_provider_deltaforge.engine.read.registrar import Registrar, lookup, registry_of
from airflow_provider_deltaforge.engine.render.render_stage import RenderStage
from airflow_provider_deltaforge.engine.snapshot.attempts import (
    may_be_copied,
    needs_the_log_to_wait,
)
from airflow_provider_deltaforge.engine.snapshot.chunk_split import ChunkSplitter, copy_in_parts
from airflow_provider_deltaforge.engine.snapshot.copy_window import (
    CopyWindow,
    RenderedRows,
    WatchedLog,
)
from airflow_provider_deltaforge.engine.snapshot.repair import with_deletes
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotPlan, SnapshotRun
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, joined
from airflow_provider_deltaforge.sensing.row_samples import samples_of
from airflow_provider_deltaforge.sources.contract import Snapshotter, TableChunk
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest, SnapshotResults
from airflow_provider_deltaforge.telemetry.redaction import redacted

_LOOK_S, _READ_AGAIN_S, _POLL_S = 0.1, 0.02, 0.005
_ATTEMPTS = 20
_SETTLE_S = 60.0
_JOIN_S = 5.0

_log = logging.getLogger(__name__)


class CopyEnded(Exception):  # noqa: N818 - not an error: the lane ends, or the copy is withdrawn
    """Nothing more is to be copied here."""


class LiveCopies:
    """Serves them for one opening of the log.

    Args:
        context: the lane's; its fence guards every write.
        stats: the lane's.
        heartbeat: knows what is asked for, and when to end.
        log: what the lane delivers.
        is_ready: asked whether every sink is where the lane is.
    """

    def __init__(
        self,
        context: TaskContext,
        stats: LaneStats,
        heartbeat: Heartbeat,
        log: WatchedLog,
        is_ready: Callable[[], bool],
    ) -> None:
        self._context, self._stats, self._heartbeat = context, stats, heartbeat
        self._source = context.pipeline.spec.source
        self._gaps = Gaps(context.store, context.pipeline.name)
        self.log, self.is_ready = log, is_ready
        self.chunk_bytes = context.job.tuning.chunk_bytes
        self._ending = threading.Event()
        self._withdrawn = threading.Event()
        self._is_busy = False
        self._due: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)

    def start(self) -> None:
        """Begin to look for what is asked for."""
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Return whether a copy is under way."""
        return self._is_busy

    def close(self) -> None:
        """End; the next lane goes on with what is left."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    @property
    def is_over(self) -> bool:
        """Return whether the lane ends."""
        return self._ending.is_set() or self._heartbeat.ending.is_set()

    def _run(self) -> None:
        while not self.is_over:
            try:
                self._look()
            except (RetryableError, CopyEnded):
                pass  # The store is away, or the lane ends.
            except FencedError:
                return  # The lane will notice.
            except Exception as error:  # noqa: BLE001 - the stream goes on without it
                _log.exception(
                    "a copy that is asked for cannot be served: %s", redacted(str(error))
                )
            self._ending.wait(_LOOK_S)

    def _look(self) -> None:
        now = time.monotonic()
        requests = [
            request
            for request in self._heartbeat.requests
            if request.cancelled is not None or now >= self._due.get(request.ticket, now)
        ]
        if not requests or self._stats.lagging:
            return
        request = requests[0]
        awaits = not self.is_ready() or self._gaps.resumes()
        if request.cancelled is None and awaits:
            return
        if request.cancelled is None and needs_the_log_to_wait(self._context):
            if may_be_copied(self._context, request):
                self._heartbeat.end("request")
            return
        self._is_busy = True
        try:
            self._serve(request)
        finally:
            self._is_busy = False

    def _serve(self, request: SnapshotRequest) -> None:
        """Make a copy, write what became of it, and forget the request."""
        control = self._context.control
        record = control.read()
        if record is None or request.ticket not in [other.ticket for other in record.requests]:
            return  # Served since the last beat.
        results = SnapshotResults(self._context.store, self._context.pipeline.name)
        if results.of(request.ticket) is None:
            run = SnapshotRun(self._context, request, is_live=True)
            _log.info("snapshot request %s, asked for by %s", request.id, request.by)
            outcome = self._outcome(run, request)
            if outcome.why == "cancelled":
                reason = control.why_cancelled(request.ticket) or "withdrawn"
                run.end(request, "cancelled", reason)
            elif outcome.why == "failed" and request.by == ASKER:
                # Nobody would ask again: the statement that brought its rows has passed.
                again_s = self._context.job.tuning.copied_again_s
                self._due[request.ticket] = time.monotonic() + again_s
                why = f"{', '.join(request.tables)} lacks its former rows: {outcome.reason}"
                _log.warning("%s; they are copied again in %g s", why, again_s)
                return
            elif outcome.why == "failed":
                run.end(request, "failed", outcome.reason, outcome.error_class)
            _log.info("snapshot request %s: %s %s", request.id, outcome.why, outcome.reason or "")
        control.remove_request(request.ticket)
        reach(CrashPoint.REQUEST_REMOVED)

    def _outcome(self, run: SnapshotRun, request: SnapshotRequest) -> Outcome:
        """Copy what is left; return why it ended.

        Raises:
            CopyEnded: the lane ends.
            FencedError: another lane is there.
        """
        deaths = Restarts()
        self._withdrawn.clear()
        while True:
            if self.is_over:
                raise CopyEnded
            try:
                if self._is_withdrawn(request):
                    return Outcome("cancelled")
                plan = run.prepare()
                self._copy_all(plan, request)
                run.finish(plan)
                return Outcome("finished")
            except FencedError:
                raise
            except CopyEnded:
                if not self._withdrawn.is_set():
                    raise
            except Exception as error:
                if self.is_over:
                    raise CopyEnded from error
                outcome = Outcome.of(error)
                if not outcome.is_retryable or not deaths.may_go_on():
                    return outcome
                _log.warning("the copy is tried again: %s", outcome.reason)
                deaths.wait(self._context.job)

    def _is_withdrawn(self, request: SnapshotRequest) -> bool:
        if request.cancelled or self._context.control.why_cancelled(request.ticket) is not None:
            self._withdrawn.set()
        return self._withdrawn.is_set()

    def _copy_all(self, plan: SnapshotPlan, request: SnapshotRequest) -> None:
        dealt = CopyPlan.of(self._source.snapshot, plan.remaining.values())
        shares = [share for table in dealt.tables for share in table]
        if not shares:
            return
        over = threading.Event()
        with closing(_Renderer(self._context, self._stats, lambda: self.is_over)) as renderer:
            renderer.open()

            def copy(chunks: Sequence[TableChunk]) -> None:
                with closing(self._source.open_snapshot()) as snapshotter:
                    splitter = ChunkSplitter(self._context, plan.run.id, snapshotter)
                    joining = _ChunkJoin(self, plan.run.id, renderer, over, splitter)
                    copy_in_parts(chunks, lambda c: joining.copy(c, snapshotter, dealt.rate))

            pool = ThreadPoolExecutor(min(dealt.workers, len(shares)), "copy")
            try:
                self._await_all([pool.submit(copy, share) for share in shares], request)
            finally:
                over.set()
                pool.shutdown(wait=True, cancel_futures=True)

    def _await_all(self, copying: Collection[Future[None]], request: SnapshotRequest) -> None:
        """Wait for all shares; raise what one has failed with.

        Raises:
            CopyEnded: the lane ends, or the request is withdrawn.
        """
        looked_at = time.monotonic()
        left = list(copying)
        while left:
            for share in [share for share in left if share.done()]:
                share.result()
                left.remove(share)
            if self.is_over:
                raise CopyEnded
            if time.monotonic() - looked_at > self._context.job.tuning.listen_s:
                looked_at = time.monotonic()
                if self._is_withdrawn(request):
                    raise CopyEnded
            self._ending.wait(_READ_AGAIN_S)


class _ChunkJoin:
    """Has chunks join the log, one after the other. Used by one thread that copies.

    Args:
        copies: of the lane.
        run_id: the snapshot run.
        renderer: of the run.
        over: set when another thread that copies has failed.
        splitter: splits those that sinks cannot take at once.
    """

    def __init__(
        self,
        copies: LiveCopies,
        run_id: str,
        renderer: "_Renderer",
        over: threading.Event,
        splitter: ChunkSplitter,
    ) -> None:
        self._copies, self._run_id, self._splitter = copies, run_id, splitter
        self._renderer, self._over = renderer, over

    def copy(self, chunk: TableChunk, snapshotter: Snapshotter, rate: ReadRate) -> None:
        """Read a chunk and wait until every sink holds it, and until the rate allows the next.

        Raises:
            CopyEnded: nobody waits for it any more.
            LargeChunk: it is to be copied in parts.
            RetryableError: the source is away, or the table is changed all the time.
        """
        deadline, attempts = time.monotonic() + _SETTLE_S, 0
        while attempts < _ATTEMPTS:
            window, begun_s, is_done = self._opened(chunk), time.monotonic(), False
            try:
                rows = self._read(window, snapshotter)
                is_done = rows is not None and self._joins(window, rows)
                attempts += rows is not None
            finally:
                self._copies.log.drop(window)
            if rows is not None:  # The log does not wait for it any more.
                due_s = begun_s + rate.seconds(rows.num_rows, rows.column("after").nbytes)
                self._rest(max(0.0, due_s - time.monotonic()))
            if is_done:
                return
            if rows is None and time.monotonic() > deadline:
                raise RetryableError(
                    f"{chunk.full_name}: for {_SETTLE_S:g} s, no view has shown what the log holds "
                    "already; does a replica not acknowledge commits?"
                )
            self._rest(_READ_AGAIN_S)
        raise RetryableError(
            f"{chunk.full_name}: its rows and the log did not agree in {_ATTEMPTS} attempts; is it "
            "altered or truncated all the time, or are rows with large columns updated, or rows "
            "without a key deleted? Copy it in a quieter hour"
        )

    def _opened(self, chunk: TableChunk) -> CopyWindow:
        while True:
            window = None
            if self._copies.is_ready():
                window = self._copies.log.open(self._run_id, chunk)
            if window is not None:
                return window
            self._rest(_READ_AGAIN_S)

    def _read(self, window: CopyWindow, snapshotter: Snapshotter) -> pa.RecordBatch | None:
        """Return a chunk's rows; None if their view lacks what the log had delivered before."""
        snapshotter.settle()
        batches = snapshotter.read(window.chunk, self._run_id)
        parts: list[pa.RecordBatch] = []
        try:
            for batch in batches:
                if not parts and not self._copies.log.view(window, batch.end):
                    return None
                parts.append(self._renderer.admit(batch).rows)
                self._rest(0)
        finally:
            batches.close()  # type: ignore[attr-defined]
        rows = joined(parts)
        if len(parts) > 1 and rows.nbytes > self._copies.chunk_bytes:
            fits = rows.num_rows * self._copies.chunk_bytes // rows.nbytes
            self._splitter.check(window.chunk, fits, batches)
        return rows

    def _joins(self, window: CopyWindow, rows: pa.RecordBatch) -> bool:
        self._copies.log.read(window)
        self._await(window.closed.is_set)
        joining = window.as_of_now(rows)
        if joining is None:
            return False
        joining = with_deletes(self._run_id, window.chunk, joining, window.shown_keys())
        window.rendered.set_result(self._renderer.render(joining))
        self._await(window.delivered.done)
        return window.delivered.result()

    def _await(self, is_there: Callable[[], bool]) -> None:
        while not is_there():
            self._rest(_POLL_S)

    def _rest(self, seconds: float) -> None:
        if self._over.wait(seconds) or self._copies.is_over:
            raise CopyEnded


class _Renderer:
    """Registers and renders copied rows, for one thread at a time.

    Args:
        context: the lane's.
        stats: counts errors of processors and encodings.
        is_over: asked while one is tried again; True gives up.
    """

    def __init__(self, context: TaskContext, stats: LaneStats, is_over: Callable[[], bool]) -> None:
        pipeline, registry = context.pipeline, registry_of(context)
        self._lock = threading.Lock()
        self._stats, self._counted = stats, ProcessorStats()
        self._part_bytes = context.job.tuning.chunk_bytes
        self._registrar = Registrar(context, registry, lambda call: call())
        given_up = Gaps(context.store, pipeline.name).open()  # Those are given nothing.
        self._rendering = RenderStage(
            pipeline,
            context.origin,
            self._counted,
            stats,
            is_over,
            lookup(registry),
            [sink.id for sink in pipeline.spec.sinks if sink.id not in given_up],
        )
        self._drift_watch = drift_watch_of(pipeline, lookup(registry))
        self._senses = pipeline.spec.schema_sensing.enabled

    def open(self) -> None:
        """Start processors and encodings."""
        self._rendering.open()
        if self._drift_watch is not None:
            self._drift_watch.open()

    def admit(self, batch: ChangeBatch) -> ChangeBatch:
        """Register the schemas of a chunk's rows."""
        with self._lock:
            return self._registrar.admit(batch)

    def render(self, rows: pa.RecordBatch) -> RenderedRows:
        """Run processors and rendering, part by part where the rows are large."""
        parts, findings, samples = [], [], []
        count = max(1, rows.num_rows * self._part_bytes // max(rows.nbytes, 1))
        with self._lock:
            for first in range(0, rows.num_rows, count):
                part = rows.slice(first, count)
                rendered = self._rendering.render(part)
                parts.append((part, rendered))
                if self._drift_watch is not None:
                    findings += self._drift_watch.examine(part, rendered.processed)
                if self._senses:
                    samples += samples_of(rendered.processed.rows, counted_only=first > 0)
            self._stats.processors.add(self._counted.take())
        reach(CrashPoint.CHUNK_RENDERED)
        return RenderedRows(parts, findings, samples)

    def close(self) -> None:
        """Close processors and encodings."""
        self._rendering.close()
