"""A lane: one connection to the log, and everything from there to the checkpoint.

    log bytes > chunk > change batch > processors > messages > every sink > checkpoint > source

A lane runs as one long Spark task, in a thread or in a plain process: it knows nothing of Spark.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from airflow_provider_deltaforge.engine.archive.lane_archive import LaneArchive, LogTap
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.data_drift import DataDriftCounter, drift_watch_of
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.measurements import watch_retention
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.processor_stats import BatchStats, ProcessorStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.schema_sensing import LaneSensing
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.catch_up.rejoin_point import RejoinPoint
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext, RenderedBatch
from airflow_provider_deltaforge.engine.catch_up.skip_list import SkipList
from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import SnapshotSeam
from airflow_provider_deltaforge.engine.catch_up.start_positions import (
    StartPositions,
    beginning,
    find_start_positions,
    show_lagging,
)
from airflow_provider_deltaforge.engine.catch_up.table_watch import TableWatch, learn
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.sink_positions import SinkPositions
from airflow_provider_deltaforge.engine.lane.commits import Commits, StoredWithCheckpoint
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.engine.read.batcher import BatchLimits, CuttingBatcher, SourceBatch
from airflow_provider_deltaforge.engine.read.read_ahead import ReadAhead
from airflow_provider_deltaforge.engine.read.registrar import Registrar, lookup, registry_of
from airflow_provider_deltaforge.engine.read.source_identity import SourceIdentity, advised
from airflow_provider_deltaforge.engine.render.render_stage import RenderAhead, RenderStage
from airflow_provider_deltaforge.engine.snapshot.copy_window import (
    CopyWindow,
    RenderedRows,
    WatchedLog,
)
from airflow_provider_deltaforge.engine.snapshot.live_copies import LiveCopies
from airflow_provider_deltaforge.engine.snapshot.row_delivery import RowDelivery
from airflow_provider_deltaforge.engine.snapshot.schema_events import SchemaEvents
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FencedError,
    PositionLostError,
    RetryableError,
    ServerChangedError,
    TableError,
)
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.reader_contract import LogReader
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.measurements import LogRetention
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_log = logging.getLogger(__name__)

_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class OpenLog:
    """The log, open at where the lane begins."""

    reader: LogReader
    registrar: Registrar
    start_positions: StartPositions
    start: Position
    seam: SnapshotSeam
    tap: LogTap

    def admit(self, batch: ChangeBatch) -> ChangeBatch | None:
        """Return what is to be delivered of a batch, its schemas registered; None: nothing."""
        self.tap.take(batch)
        rest = self.tap.undelivered(self.registrar.admit(batch))
        return None if rest is None else self.seam.without_shown(rest)


class Lane:
    """Carries one pipeline's changes until its window is over or the control record says so."""

    def __init__(self, context: TaskContext, window_s: float) -> None:
        spec = context.pipeline.spec
        self._context = context
        self._source = spec.source
        self._sink_ids = [sink.id for sink in spec.sinks]
        self._policy = RequiredSinks.of(spec)
        self._stats = LaneStats(
            {sink_id: SinkStats() for sink_id in self._sink_ids},
            policy=self._policy,
            processors=ProcessorStats(processor.id for processor in spec.processors),
            long_call_s=context.job.tuning.long_call_s,
        )
        self._heartbeat = Heartbeat(context, self._stats, window_s, "running")
        self._registry = registry_of(context)
        self._rendering = RenderStage(
            context.pipeline,
            context.origin,
            self._stats.processors,
            self._stats,
            self._heartbeat.ending.is_set,
            lookup(self._registry),
        )
        self._measured = self._stats.measured
        self._measured.encodes_by(self._rendering.encoding_counts)
        self._checkpoints = Checkpoints(
            context.store, context.pipeline.name, spec.source.id, self._progress
        )
        self._drift_watch = drift_watch_of(context.pipeline, lookup(self._registry))
        self._data_drift = DataDriftCounter(context)
        self._stats.data_drift = self._data_drift.report
        self._source_identity = SourceIdentity(context, self._registry)
        self._tables = TableWatch(context, self._registry)
        self._dead_letters = DeadLetterQueue(
            context,
            self._stats.dead_letters,
            self._stats.report_error,
            self._heartbeat.ending,
            self._heartbeat.confirm,
        )
        self._stored_with_checkpoint = StoredWithCheckpoint(
            self._dead_letters, self._source_identity, self._tables, self._data_drift
        )
        self._sink_positions = SinkPositions(context, self._stats, self._heartbeat)
        self._skip_list = SkipList(self._source, self._sink_ids)
        self._sensing = (
            LaneSensing(context, self._measured, lookup(self._registry))
            if spec.schema_sensing.enabled
            else None
        )
        self._archive = LaneArchive(context, self._stats, self._heartbeat)
        self._storing = threading.Lock()
        self._may_arrive: Sequence[str] = ()
        """Sinks to which something may be under way of what the last opening gave them."""

    def run(self) -> Outcome:
        """Carry changes; return why it ended. Never raises for what a pipeline can meet."""
        try:
            show_lagging(self._context.store, self._context.pipeline, self._stats)
            self._heartbeat.start(begins=True)
            outcome = self._stream()
        except Exception as error:  # noqa: BLE001 - an outcome must reach the driver as data
            outcome = self._ended_by(error)
        finally:
            self._rendering.close()
            if self._sensing is not None:
                self._sensing.close()
            self._archive.close()
        self._keep_data_drift()
        self._dead_letters.log_counts()
        self._heartbeat.finish(outcome)
        return outcome

    def _keep_data_drift(self) -> None:
        """Store what was counted of late, if the store takes it at once."""
        late = self._data_drift.late_writes(now=True)
        if late:
            with suppress(DeltaForgeError):
                self._context.job.in_time(
                    lambda: self._context.store.transact(late, self._context.fence)
                )

    def _ended_by(self, error: Exception) -> Outcome:
        """Return what an error makes of the lane; one that was asked to end ends as asked."""
        asked = self._heartbeat.ending.is_set() and self._heartbeat.failure is None
        if asked and isinstance(error, (RetryableError, ServerChangedError)):
            return Outcome(self._heartbeat.why)
        if isinstance(error, ServerChangedError):
            _log.warning("%s", redacted(str(error)))
        else:
            # A sentence says what people can mend; where it arose says more only of the rest.
            whole = redacted("".join(traceback.format_exception(error)))
            is_foreseen = isinstance(error, DeltaForgeError)
            _log.error("%s", redacted(str(error)) if is_foreseen else whole)
            if is_foreseen:
                _log.debug("%s", whole)
            self._measured.ended_by(error)
        return Outcome.of(advised(error, self._context.pipeline))

    def _stream(self) -> Outcome:
        """Carry changes; a table that cannot be decoded is left out, and the others go on."""
        if self._heartbeat.ending.is_set():
            return Outcome(self._heartbeat.why)  # Asked for before the lane was there.
        retention_s = self._context.job.tuning.retention_s
        watch_retention(self._measured, self._retained, self._heartbeat.ending, retention_s)
        self._retry(partial(self._rendering.open, self._context.pipeline.spec.delivery.parallelism))
        if self._drift_watch is not None:
            self._drift_watch.open()
        if self._sensing is not None:
            self._retry(self._sensing.open)
        while not self._may_arrive:
            self._stats.report_source_error(None)  # Of the former opening.
            try:
                opened = self._retry(self._open)
                try:
                    return self._carry(opened)
                except TableError as error:
                    stopped = error
                except FencedError as error:
                    self._retry(self._heartbeat.confirm)
                    self._sink_positions.taken_over(error)  # Only a sink has to be.
                    continue
            except PositionLostError as error:
                self._archive.forgo(error)
                continue
            self._retry(lambda: self._tables.stop(stopped, opened.reader))  # noqa: B023 - called here
        # Sent now, what follows could be overtaken by that. The next lane waits until it cannot.
        _log.warning("no answer of sink %s: the next lane goes on", ", ".join(self._may_arrive))
        self._heartbeat.end("window")
        return self._asked_to_end()

    def _asked_to_end(self) -> Outcome:
        """Return why the lane ends; raise what ended its heartbeat."""
        if self._heartbeat.failure is not None:
            raise self._heartbeat.failure
        return Outcome(self._heartbeat.why)

    def _carry(self, opened: OpenLog) -> Outcome:
        reader, log = opened.reader, WatchedLog(self._source, opened.start, opened.admit)
        pump = self._read_ahead(reader, log, opened.start)
        shared = CatchUpContext(
            self._context,
            self._stats,
            RejoinPoint(self._source, opened.start),
            self._heartbeat.ending.is_set,
            self._heartbeat.confirm,
            self._storing,
            self._retry,
            opened.seam.is_over,
            lambda: commits.settle(),  # noqa: PLW0108 - made below
        )
        stored = (self._checkpoints, self._dead_letters)
        delivery = Delivery(shared, self._skip_list, *stored, self._heartbeat, self._archive)
        commits = Commits(
            shared, delivery, reader, self._skip_list, self._stored_with_checkpoint, self._store
        )
        rows = RowDelivery(shared, self._heartbeat, self._dead_letters, delivery.takes_rows)
        joins = (self._context, self._stats, self._heartbeat, log, delivery.takes_rows)
        copies, schema_events = LiveCopies(*joins), SchemaEvents(*joins, self._sensing)
        try:
            delivery.begin(opened.start_positions)
            copies.start()
            schema_events.start()
            while not self._heartbeat.ending.is_set():
                self._step(pump, delivery, commits, reader, rows)
                # Not while a batch is unanswered: what a network holds of it could arrive behind
                # what the next lane's sinks send. Nor while a chunk is read, which would be lost.
                if not copies.is_busy:
                    self._heartbeat.end_window()
            commits.settle()
        except DeltaForgeError as error:
            if not isinstance(error, FencedError):
                with suppress(DeltaForgeError):  # The sinks hold it, whatever happened behind it.
                    commits.settle()
            raise
        finally:
            self._stats.read_by(None)
            self._measured.reads_from(dict)
            pump.close()
            for part in (opened.seam, copies, schema_events, rows, delivery):
                part.close()
            self._may_arrive = delivery.may_arrive
        return self._asked_to_end()

    def _read_ahead(
        self, reader: LogReader, log: WatchedLog, start: Position
    ) -> ReadAhead[RenderedBatch | CopyWindow]:
        spec = self._context.pipeline.spec
        limits = BatchLimits.of(spec.batch, spec.sinks)
        pump: ReadAhead[RenderedBatch | CopyWindow] = ReadAhead(
            reader,
            CuttingBatcher(limits, self._source, start, self._skip_list.places),
            partial(self._prepare, self._rendering.ahead(self._skip_list.goes)),
            spec.batch.max_inflight,
            self._stats.report_read_error,
            log,
            self._measured,
        )
        self._measured.reads_from(pump.depths)
        return pump

    def _retained(self) -> LogRetention | None:
        """Return what the source keeps of its log behind the slowest sink."""
        at = self._stats.slowest
        commit_ms = self._stats.counted.last_commit_ms
        return None if at is None else self._source.log_retention(at, commit_ms)

    def _step(
        self,
        pump: ReadAhead[RenderedBatch | CopyWindow],
        delivery: Delivery,
        commits: Commits,
        reader: LogReader,
        rows: RowDelivery,
    ) -> None:
        """Deliver what is ready; nothing of it is held afterwards."""
        if delivery.rejoin() or self._archive.has_news():
            delivery.acknowledge(reader)
        if self._dead_letters.is_due:
            self._retry(self._dead_letters.tend)
        batch = pump.next(commits.wait_s(_WAIT_S))
        if isinstance(batch, CopyWindow):
            commits.settle()  # Read again, what came before the rows must not come behind them.
            self._copied(rows.deliver(batch))
        elif batch is not None:
            self._deliver(batch, delivery, commits)
        else:
            commits.tend()

    def _open(self) -> OpenLog:
        """Open the log where enough sinks stand; a new stream begins where the source says."""
        self._dead_letters.begin()  # What was refused behind the checkpoint is read again.
        self._sink_positions.settle()
        self._checkpoints.load()
        positions = find_start_positions(self._context.store, self._context.pipeline, self._policy)
        held = [at for name, at in positions.known.items() if name not in positions.behind]
        settled = [*self._source_identity.settle(positions.start, held), *positions.writes]
        start, is_new = positions.start, positions.start is None
        if start is None:
            start = self._of_source(lambda: beginning(self._context))
        learn(self._context, self._registry, start, anew=is_new)
        # Stored before the first read: a lane killed before its first batch must not begin at a
        # later head.
        missing = [name for name in self._sink_ids if is_new]
        if missing or settled:
            self._store([*settled, *(self._checkpoints.put(name, start) for name in missing)])
        self._sink_positions.adopt()
        self._data_drift.load()
        stored = self._checkpoints.load()
        reach(CrashPoint.START_POSITION_STORED)
        # Without an order, another reading may not come by the place where a sink stands.
        once = [*self._sink_positions.sink_ids, *positions.fresh]
        cut = self._sink_ids if self._source.is_ordered(start) else once
        left = (*positions.behind, *positions.given_up)
        self._skip_list = SkipList(self._source, self._sink_ids, positions.known, start, cut, left)
        self._stats.checkpointed(start, [])
        for name, at in stored.items():
            self._stats.caught_up(name, at, None)
        tap = self._archive.begin(start, anew=is_new)
        registrar = Registrar(
            self._context, self._registry, self._retry, tap.read_from, self._measured.schemas_missed
        )
        ending = self._heartbeat.ending.is_set
        reader = self._of_source(lambda: self._tables.open(self._source, tap.read_from, ending))
        self._stats.read_by(reader)
        self._heartbeat.begun()
        seam = SnapshotSeam.of(self._context, start, self._retry)
        return OpenLog(reader, registrar, positions, start, seam, tap)

    def _prepare(self, ahead: RenderAhead, batch: SourceBatch) -> RenderedBatch:
        """Run processors and rendering, in the decoder thread."""
        read_ms, begun_s = time.time() * 1000, time.perf_counter()
        rendered = ahead.render(batch.rows)
        if batch.rows.num_rows:
            self._measured.stage("process", batch.trigger, time.perf_counter() - begun_s)
        self._dead_letters.check(rendered, batch.rows)
        if self._sensing is not None:
            self._sensing.observe(rendered.processed.rows, batch.trigger)
        reach(CrashPoint.BATCH_RENDERED)
        stats = BatchStats.of(batch.rows, batch.nbytes, read_ms)
        if self._drift_watch is None:
            return RenderedBatch(batch, rendered, stats)
        findings = self._drift_watch.examine(batch.rows, rendered.processed)
        return RenderedBatch(batch, rendered, stats, findings)

    def _deliver(self, batch: RenderedBatch, delivery: Delivery, commits: Commits) -> None:
        source = batch.source
        if source.rows.num_rows == 0:
            if source.position is not None and not self._is_given_up(batch, delivery):
                delivery.passed(batch)
                commits.passed_empty(source.position)
            return
        if source.position is None:
            commits.settle()  # What is refused of this transaction is stored with its end.
        begun_s = time.perf_counter()
        refused = delivery.deliver(batch)
        if refused is None:
            return
        commits.counts()
        self._measured.stage("deliver", source.trigger, time.perf_counter() - begun_s)
        self._dead_letters.take(batch.rendered, source.rows, refused)
        reach(CrashPoint.SINK_WRITTEN)
        taken = {name: batch.rendered.taken(name, refused[name]) for name in refused}
        if batch.stats is not None:
            self._stats.delivered(batch.stats, taken)
        self._data_drift.add(batch.findings)
        self._source_identity.watch(source.rows)
        self._retry(lambda: self._tables.watch(source.rows))
        self._stats.counted.transaction_splits += source.splits_transaction
        delivery.passed(batch)
        if source.position is not None:
            commits.delivered(source.position, source.trigger)
        elif self._dead_letters.overflows and self._retry(self._dead_letters.awaits_room):
            self._store([])

    def _is_given_up(self, empty: RenderedBatch, delivery: Delivery) -> bool:
        """Show sinks that look for an event how far the log was read without it."""
        return bool(delivery.searching) and delivery.deliver(empty) is None

    def _copied(self, rows: RenderedRows | None) -> None:
        """Take note of what copied rows show."""
        if rows is not None:
            self._data_drift.add(rows.findings)
            if self._sensing is not None:
                self._sensing.observe_samples(rows.samples)

    def _progress(self, position: Position, former: Position) -> int:
        """Return -1 for a step back; two positions that lack something each are none."""
        covers = self._source.covers
        return -1 if covers(former, position) and not covers(position, former) else 1

    def _store(self, writes: Sequence[Write]) -> None:
        """Store, together with what is set aside, under the lane's fence."""
        with self._storing:
            self._retry(lambda: self._dead_letters.transact(writes))
            self._retry(self._dead_letters.stored)

    def _of_source(self, call: Callable[[], Result]) -> Result:
        """Ask the source something, and count a failure as one of its."""
        try:
            return call()
        except Exception as error:
            self._measured.source_failed(error)
            raise

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to source or store until it works or the lane ends."""
        ending = self._heartbeat.ending
        return retry_until(call, self._stats.report_source_error, ending.is_set, ending.wait)
