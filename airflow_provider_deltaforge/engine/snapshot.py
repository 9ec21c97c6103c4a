"""The snapshot of one pipeline: planned once, copied chunk by chunk, finished in one write.

Everything here runs without Spark. The driver prepares and finishes; a chunk can be copied in any
process. The stream later begins at the run's start position, which was taken before the first
row was read, so nothing that changes meanwhile is missed.
"""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.engine.borders import Border, crossing
from airflow_provider_deltaforge.engine.job import Bench
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sources.contract import Snapshotter, TableChunk
from airflow_provider_deltaforge.storage.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.snapshots import Run, Snapshots


@dataclass(frozen=True, slots=True)
class Plan:
    """A run and what is left of it, by full table name, tables in plan order."""

    run: Run
    remaining: dict[str, list[TableChunk]]


class SnapshotRun:
    """One snapshot run, on the driver.

    Args:
        bench: the opened job.
        wish: ``{"tables": [...], "where": ...}`` of an ad-hoc run; None for the pipeline's own.
    """

    def __init__(self, bench: Bench, wish: dict[str, Any] | None = None) -> None:
        self._bench = bench
        self._wish = wish
        self._source = bench.pipeline.spec.source
        self._records = Snapshots(bench.store, bench.pipeline.name)

    def due(self) -> bool:
        """Say whether there is anything to do."""
        if self._wish is not None:
            return True
        mode = self._source.snapshot.mode
        if mode == "never":
            return False
        run = self._records.current()
        if mode == "initial":
            return not (self._records.finished() or self._streamed())
        # ``always``: once for each generation, so not again when a driver is merely restarted.
        generation = self._bench.job.generation
        return run is None or run.finished_at_ms is None or run.generation != generation

    def prepare(self) -> Plan:
        """Go on with the unfinished run, or plan a new one.

        A cancelled run is not gone on with: its rows no longer meet the log.
        """
        snapshotter = self._source.open_snapshot()
        try:
            run = self._records.current()
            if run is None or not self._resumable(run):
                run = self._begin(snapshotter)
            else:
                snapshotter.guard(run.start_position)
        finally:
            snapshotter.close()
        done = self._records.done(run.id)
        remaining: dict[str, list[TableChunk]] = {}
        for told in self._records.plan(run.id):
            if told["id"] not in done:
                chunk = TableChunk(**told)
                remaining.setdefault(full_name(chunk), []).append(chunk)
        return Plan(run, remaining)

    def guard(self, plan: Plan) -> None:
        """Check that the stream could still begin at the run's start position.

        Raises:
            PositionLostError: it could not; the run is marked as cancelled.
        """
        snapshotter = self._source.open_snapshot()
        try:
            snapshotter.guard(plan.run.start_position)
        except PositionLostError as error:
            self._store([self._records.cancel(plan.run, str(error))])
            raise
        finally:
            snapshotter.close()

    def finish(self, plan: Plan) -> None:
        """Complete the run; the pipeline's own run also sets where its stream begins.

        A sink that has a checkpoint keeps it: moving it ahead would skip the deletes between.
        """
        self.guard(plan)
        writes = list(self._records.finish(plan.run))
        if self._wish is None:
            checkpoints = Checkpoints(self._bench.store, self._bench.pipeline.name, self._source.id)
            known = checkpoints.load()
            writes += [
                checkpoints.put(sink.id, plan.run.start_position)
                for sink in self._bench.pipeline.spec.sinks
                if sink.id not in known
            ]
        self._store(writes)
        crossing(Border.SNAPSHOT_FINISHED)

    def _streamed(self) -> bool:
        """Say whether the stream has begun before: its checkpoints are then ahead of any copy."""
        checkpoints = Checkpoints(self._bench.store, self._bench.pipeline.name, self._source.id)
        return bool(checkpoints.load())

    def _resumable(self, run: Run) -> bool:
        return run.finished_at_ms is None and run.cancelled is None and run.wish == self._wish

    def _begin(self, snapshotter: Snapshotter) -> Run:
        position = snapshotter.begin()
        chunks = list(self._wished(snapshotter))
        tables: dict[str, dict[str, int]] = {}
        for chunk in chunks:
            told = tables.setdefault(full_name(chunk), {"chunks": 0, "rows_estimate": 0})
            told["chunks"] += 1
            told["rows_estimate"] += chunk.rows_estimate
        run = Run(
            id=uuid.uuid4().hex[:12],
            generation=self._bench.job.generation,
            started_at_ms=int(time.time() * 1000),
            start_position=dict(position),
            chunk_count=len(chunks),
            tables=tables,
            wish=self._wish,
        )
        self._store(self._records.begin(run, chunks))
        crossing(Border.SNAPSHOT_STARTED)
        return run

    def _wished(self, snapshotter: Snapshotter) -> Sequence[TableChunk]:
        wish = self._wish or {}
        chunk_rows = self._source.snapshot.chunk_size
        return list(
            snapshotter.plan(chunk_rows, tuple(wish.get("tables") or ()), wish.get("where"))
        )

    def _store(self, writes: Sequence[Write]) -> None:
        self._bench.store.transact(writes, self._bench.fence)


def full_name(chunk: TableChunk) -> str:
    """Return ``schema.table`` where the source has schemas, else ``db.table``."""
    return f"{chunk.schema or chunk.db}.{chunk.table}"
