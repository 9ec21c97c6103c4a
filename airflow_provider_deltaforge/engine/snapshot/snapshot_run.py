"""The snapshot of one pipeline: planned once, copied chunk by chunk, finished in one write.

Everything here runs without Spark. The driver prepares and finishes; a chunk can be copied in any
process. The stream later begins at the run's start position, which was taken before the first
row was read, so nothing that changes meanwhile is missed.
"""

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.catch_up.start_positions import (
    copied_before,
    resume_sinks,
)
from airflow_provider_deltaforge.engine.catch_up.table_watch import learn, names_kept
from airflow_provider_deltaforge.engine.deliver.row_marks import lost_chunks
from airflow_provider_deltaforge.engine.deliver.sink_positions import is_reset
from airflow_provider_deltaforge.engine.read.registrar import registry_of
from airflow_provider_deltaforge.engine.read.source_identity import SourceIdentity
from airflow_provider_deltaforge.engine.snapshot.repair import (
    delete_chunks,
    is_of_deletes,
    repair_chunks,
)
from airflow_provider_deltaforge.errors import PositionLostError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Snapshotter, TableChunk
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.requests import (
    SnapshotRequest,
    SnapshotResults,
    State,
    result_of,
)
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from airflow_provider_deltaforge.storage.records.tables import TableRecords

FindExtra = Callable[
    [Pipeline, Collection[str], Mapping[str, Sequence[TableChunk]], Callable[[], None]],
    tuple[Mapping[str, Sequence[str]], Sequence[str]],
]
"""Of a pipeline, ids of sinks, and the chunks of tables: returns by table the keys of rows that
some of these sinks hold and the table does not, and what could not be looked at. It calls its last
argument often, which raises to end it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A run and what is left of it, by full table name, tables in plan order."""

    run: SnapshotRecord
    remaining: dict[str, list[TableChunk]]

    @property
    def stages(self) -> Sequence[Mapping[str, Sequence[TableChunk]]]:
        """Return what is left in the order in which it is copied: deletes go before rows.

        Whoever takes a key of another shape for that of a row gets the row back.
        """
        stages = []
        for of_deletes in (True, False):
            left = {
                table: [chunk for chunk in chunks if is_of_deletes(chunk) == of_deletes]
                for table, chunks in self.remaining.items()
            }
            stages.append({table: chunks for table, chunks in left.items() if chunks})
        return [stage for stage in stages if stage]


class SnapshotRun:
    """One snapshot run, on the driver.

    Args:
        context: the opened job.
        request: what was asked for; None for the pipeline's own snapshot.
        is_live: its rows join a stream that goes on meanwhile, so that no log is kept for it.
        find_extra: finds the rows that sinks hold and tables that stopped do not; see
            ``FindExtra``.
        check: called while it is planned; raises to end that.
    """

    def __init__(
        self,
        context: TaskContext,
        request: SnapshotRequest | None = None,
        *,
        is_live: bool = False,
        find_extra: FindExtra | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._is_live = is_live
        self._find_extra, self._check = find_extra, check
        self._context = context
        self._request = request
        self._source = context.pipeline.spec.source
        self._records = Snapshots(context.store, context.pipeline.name)
        self._results = SnapshotResults(context.store, context.pipeline.name)

    def due(self) -> bool:
        """Return whether there is anything to do."""
        if self._request is not None:
            return True
        mode = self._source.snapshot.mode
        if mode == "never":
            return False
        run = self._records.current()
        if mode == "initial":
            return not (self._records.finished() or self._streamed())
        # ``always``: once for each generation, so not again when a driver is merely restarted.
        generation = self._context.job.generation
        return run is None or run.finished_at_ms is None or run.generation != generation

    def prepare(self) -> SnapshotPlan:
        """Go on with the unfinished run, or plan a new one.

        A cancelled run is not gone on with: its rows no longer meet the log. Neither is one of a
        source that had another id, and may have been another one. Sinks that are to be
        resumed are given its rows; where a lane runs, that has resumed them.
        """
        if not self._is_live:
            resume_sinks(self._context)
        snapshotter = self._source.open_snapshot()
        try:
            run = self._latest()
            if run is None or not self._resumable(run) or self._is_outdated(run):
                run = self._begin(snapshotter)
            elif not self._is_live:
                snapshotter.guard(self._needed_from(run))
        finally:
            snapshotter.close()
        done = self._records.done(run.id)
        remaining: dict[str, list[TableChunk]] = {}
        for stored in self._records.plan(run.id):
            if stored["id"] not in done:
                chunk = TableChunk(**stored)
                remaining.setdefault(chunk.full_name, []).append(chunk)
        for table, chunks in [*remaining.items()]:
            if not self._source.captures(chunks[0].schema or chunks[0].db, chunks[0].table):
                _log.warning("%s is not captured any more; the rest of it is not copied", table)
                del remaining[table]
        return SnapshotPlan(run, remaining)

    def _is_outdated(self, run: SnapshotRecord) -> bool:
        """Return whether a run has to begin anew, because of a sink or of a table that stopped.

        A sink that was resumed, or added, since it was begun lacks chunks that are done. And a lane
        that ran since then has passed over changes of the table behind the views of such chunks.
        """
        if self._lacking(run):
            return True
        stopped = self._stopped(run.tables)
        if stopped != run.stopped:
            return True
        if not stopped:
            return False
        at = self._delivered() if self._request is not None else None
        return self._is_live or (at is not None and dict(at) != run.start_position)

    def _lacking(self, run: SnapshotRecord) -> list[str]:
        """Return the sinks that go on, and were not, or not all the time, given rows of a run."""
        if run.sinks is None:
            return []
        return [name for name, gaps in self._receivers().items() if run.sinks.get(name) != gaps]

    def _stopped(self, tables: Iterable[str]) -> list[str]:
        """Return which of some tables are stopped now, and whole when the copy is."""
        wish = {} if self._request is None else self._request.wish
        if wish.get("where") or wish.get("repairs"):
            return []
        records = TableRecords(self._context.store, self._context.pipeline.name)
        return sorted(records.stopped_among(tables))

    def guard(self, plan: SnapshotPlan) -> None:
        """Check that the stream could still begin at the run's start position.

        Raises:
            PositionLostError: it could not; the run is marked as cancelled.
        """
        snapshotter = self._source.open_snapshot()
        try:
            snapshotter.guard(self._needed_from(plan.run))
        except PositionLostError as error:
            self._store([self._records.cancel(plan.run, str(error))])
            raise
        finally:
            snapshotter.close()

    def finish(self, plan: SnapshotPlan) -> None:
        """Complete the run, with the result of its request in the same transaction.

        The pipeline's own run sets where its stream begins instead. A sink that has a checkpoint
        keeps it: moving it ahead would skip the deletes between.
        """
        if not self._is_live:
            self.guard(plan)
        self._see_rows(plan.run)
        if lacking := self._lacking(plan.run):
            raise RetryableError(f"sink {', '.join(lacking)} goes on now; the copy begins anew")
        gaps = {gap.sink for gap in Gaps(self._context.store, self._context.pipeline.name).all()}
        fresh = [sink_id for sink_id in plan.run.fresh_sinks if sink_id not in gaps]
        if self._records.requested() is not None:  # Served by a job in between.
            fresh = []
        run = plan.run.model_copy(update={"fresh_sinks": fresh})
        writes = list(self._records.finish(run))
        wish = plan.run.wish or {}
        if not (wish.get("where") or wish.get("repairs")):
            writes += TableRecords(self._context.store, self._context.pipeline.name).repair(
                [*plan.run.tables]
            )
        reason = "; ".join(plan.run.notes)
        if reason:
            _log.warning("%s", reason)
        if self._request is not None:
            done = self._result(self._request, "done", plan.run, reason=reason or None)
            self._store([*writes, *done])
            reach(CrashPoint.REQUEST_RECORDED)
            return
        known = self._checkpoints.load()
        writes += [
            self._checkpoints.put(sink.id, plan.run.start_position)
            for sink in self._context.pipeline.spec.sinks
            if sink.id not in known
        ]
        self._store([*writes, *names_kept(self._context)])
        reach(CrashPoint.SNAPSHOT_FINISHED)

    def _see_rows(self, run: SnapshotRecord) -> None:
        """Have chunks copied again whose rows a sink came back without.

        A sink that is away is asked when the stream begins.

        Raises:
            RetryableError: there are such chunks; they are not done any more.
        """
        given_up = Gaps(self._context.store, self._context.pipeline.name).open()
        for sink in self._context.pipeline.spec.sinks:
            lost: list[str] = []
            with suppress(RetryableError):
                if sink.id not in given_up and sink.holds_position:
                    lost = lost_chunks(self._context, run, sink)
            if lost:
                self._store([self._records.undone(run.id, chunk_id) for chunk_id in lost])
                raise RetryableError(
                    f"sink {sink.id} came back without the rows of {len(lost)} chunks of the "
                    "snapshot; they are copied again"
                )

    def end(
        self,
        request: SnapshotRequest,
        state: State,
        reason: str | None,
        error_class: str | None = None,
    ) -> None:
        """End the request without completing it; copied chunks are counted and forgotten."""
        run = self._latest()
        mine = run if run is not None and self._resumable(run) else None
        writes = [self._records.cancel(mine, reason or state)] if mine is not None else []
        result = self._result(request, state, mine, reason=reason, error_class=error_class)
        self._store([*writes, *result])
        reach(CrashPoint.REQUEST_RECORDED)

    def _result(
        self, request: SnapshotRequest, state: State, run: SnapshotRecord | None, **details: Any
    ) -> list[Write]:
        counts = self._records.progress(run) if run is not None else None
        tables = counts["tables"] if counts is not None else {}
        record = self._context.control.read()
        needed = [other.ticket for other in record.requests] if record is not None else []
        result = result_of(
            request,
            state,
            started_at_ms=run.started_at_ms if run is not None else None,
            tables={
                name: {
                    "chunks": counts["chunks_done"],
                    "rows": counts["rows"],
                    "bytes": counts["bytes"],
                }
                for name, counts in tables.items()
            },
            **details,
        )
        waits = TableRecords(self._context.store, self._context.pipeline.name)
        return [*self._results.put(result, needed), waits.forget_awaited(request.ticket)]

    def _latest(self) -> SnapshotRecord | None:
        own = self._request is None
        return self._records.current() if own else self._records.requested()

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._context.store, self._context.pipeline.name, self._source.id)

    def _streamed(self) -> bool:
        """Return whether the stream has begun: its checkpoints are then ahead of any copy."""
        return bool(self._checkpoints.load())

    def _resumable(self, run: SnapshotRecord) -> bool:
        ticket = self._request.ticket if self._request is not None else None
        same = run.ticket == ticket and (run.wish is None) == (self._request is None)
        return same and run.is_open and run.source_id in (None, self._source.id)

    def _fresh_sinks(self) -> list[str]:
        """Return the sinks that were given nothing yet, not even rows of a cancelled run."""
        is_first = self._request is None and self._latest() is None
        if not is_first or self._records.requested() is not None or is_reset(self._context):
            return []
        known = self._checkpoints.load()
        return [sink.id for sink in self._context.pipeline.spec.sinks if sink.id not in known]

    def _start_position(self, snapshotter: Snapshotter) -> Position:
        """Return where the log must still begin: where the stream stands, if it began before.

        Else in front of rows that were copied before it: what has changed since is in the log.
        """
        if self._request is not None:
            earliest = self._delivered()
            if earliest is not None:
                if not self._is_live:
                    snapshotter.guard(earliest)
                return earliest
        copied_from = None if self._streamed() else copied_before(self._context)
        if copied_from is not None:
            with suppress(PositionLostError):
                snapshotter.guard(copied_from)
                return copied_from
        return snapshotter.begin()

    def _needed_from(self, run: SnapshotRecord) -> Position:
        """Return where the log must still begin while a run goes on."""
        at = self._delivered() if self._request is not None else None
        return run.start_position if at is None else at

    def _delivered(self) -> Position | None:
        """Return up to where every sink has the log; None before the stream has begun."""
        known, sink_ids = self._checkpoints.load(), self._receivers()
        stands = [known[sink_id] for sink_id in sink_ids if sink_id in known]
        earliest: Position | None = self._source.earliest(stands)
        return earliest

    def _receivers(self) -> dict[str, int]:
        """Return the sinks that are not given up, and how many gaps of each are closed."""
        gaps = Gaps(self._context.store, self._context.pipeline.name).all()
        given_up = {gap.sink for gap in gaps if gap.end is None}
        closed = Counter(gap.sink for gap in gaps if gap.end is not None)
        sinks = [sink.id for sink in self._context.pipeline.spec.sinks]
        return {name: closed[name] for name in sinks if name not in given_up}

    def _begin(self, snapshotter: Snapshotter) -> SnapshotRecord:
        position = self._start_position(snapshotter)
        if self._request is None and not self._streamed():
            registry = registry_of(self._context)
            learn(self._context, registry, position, anew=True, is_of_copy=True)
        chunks = list(self._wished(snapshotter))
        stopped = self._stopped({chunk.full_name for chunk in chunks})
        deletes, notes = self._passed_over(stopped, chunks, position)
        chunks = [*deletes, *chunks]
        tables: dict[str, dict[str, int]] = {}
        for chunk in chunks:
            counts = tables.setdefault(chunk.full_name, {"chunks": 0, "rows_estimate": 0})
            counts["chunks"] += 1
            counts["rows_estimate"] += chunk.rows_estimate
        run = SnapshotRecord(
            id=uuid.uuid4().hex[:12],
            generation=self._context.job.generation,
            started_at_ms=int(time.time() * 1000),
            source_id=self._source.id,
            start_position=dict(position),
            chunk_count=len(chunks),
            tables=tables,
            wish=self._request.wish if self._request is not None else None,
            ticket=self._request.ticket if self._request is not None else None,
            fresh_sinks=self._fresh_sinks(),
            sinks=self._receivers(),
            limits=self._source.snapshot.limits(),
            stopped=stopped,
            notes=notes,
        )
        writes = self._records.begin(run, chunks)
        if self._request is None and not self._streamed():
            writes += SourceIdentity(self._context, registry_of(self._context)).begin()
        self._store(writes)
        reach(CrashPoint.SNAPSHOT_STARTED)
        return run

    def _passed_over(
        self, stopped: Sequence[str], chunks: Sequence[TableChunk], position: Position
    ) -> tuple[Sequence[TableChunk], list[str]]:
        """Return deletes of what tables that stopped have no more, and what is not known of it.

        Their log was passed over; what sinks hold of them tells which rows they are.
        """
        if not stopped or self._find_extra is None or self._is_live:
            return [], []
        of_tables = {
            name: [chunk for chunk in chunks if chunk.full_name == name] for name in stopped
        }
        pipeline = self._context.pipeline
        keys, notes = self._find_extra(pipeline, [*self._receivers()], of_tables, self._check)
        deletes: list[TableChunk] = []
        for name, gone in keys.items():
            _log.info("%s: deletes of %d rows were passed over", name, len(gone))
            deletes += delete_chunks(of_tables[name][0], gone, position)
        tables = ", ".join(stopped)
        prefix = f"deletes of {tables} that were passed over may be missing"
        return deletes, [f"{prefix}: {'; '.join(notes)}"] if notes else []

    def _wished(self, snapshotter: Snapshotter) -> Sequence[TableChunk]:
        chunk_rows, request = self._source.snapshot.chunk_size, self._request
        if request is None:
            return list(snapshotter.plan(chunk_rows))
        if request.repairs is None:
            return list(snapshotter.plan(chunk_rows, tuple(request.tables), request.where))
        if not self._is_live:
            raise SpecError(
                "a repair joins the log of a running stream, and this one cannot be joined (see "
                "'Copying again' in docs/operations.md); copy the tables: deltaforge snapshot FILE"
            )
        registry = registry_of(self._context)
        return list(repair_chunks(self._context, registry, snapshotter, request.repairs))

    def _store(self, writes: Sequence[Write]) -> None:
        self._context.store.transact(writes, self._context.fence)
