"""Snapshot runs: their start position, their plan, and which chunks are durable.

A run's plan is written once, in pages; each finished chunk is one record, so that a killed run
goes on at the next chunk. Every write is also available as a ``Write`` for a fenced transaction.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records import Record

PAGE_CHUNKS = 500


class Run(Record):
    """One snapshot run."""

    v: Literal[1] = 1
    id: str
    generation: int
    started_at_ms: int
    start_position: dict[str, Any]
    """Where the stream must begin after this run."""
    chunk_count: int
    tables: dict[str, dict[str, int]]
    """By full table name: ``{"chunks": n, "rows_estimate": n}``."""
    wish: dict[str, Any] | None = None
    """Chosen tables and ``where`` of an ad-hoc run; None for the pipeline's own snapshot."""
    finished_at_ms: int | None = None
    cancelled: str | None = None


class ChunkDone(Record):
    """One chunk that every required sink holds."""

    v: Literal[1] = 1
    table: str
    rows: int
    cut: dict[str, Any]
    finished_at_ms: int


class Snapshots:
    """The snapshot records of one pipeline; it has at most one run that is not finished."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def current(self) -> Run | None:
        """Return the latest run, finished or not."""
        text = self._store.get(names.SNAPSHOTS, f"{self._prefix}run")
        return (
            Run.from_stored(text, f"the run of {self._prefix[:-1]}") if text is not None else None
        )

    def finished(self) -> bool:
        """Say whether the pipeline's own snapshot was completed at any time."""
        return self._store.get(names.SNAPSHOTS, f"{self._prefix}initial") is not None

    def begin(self, run: Run, chunks: Iterable[Any]) -> list[Write]:
        """Return the writes that start a run and forget the former one.

        Args:
            run: its ``chunk_count`` and ``tables`` describe ``chunks``.
            chunks: dataclasses of the source, JSON-able.
        """
        stale = [
            Delete(names.SNAPSHOTS, key)
            for key, _ in self._store.items(names.SNAPSHOTS, self._prefix)
            if key not in (f"{self._prefix}run", f"{self._prefix}initial")
        ]
        plan = [asdict(chunk) for chunk in chunks]
        pages = [
            Put(
                names.SNAPSHOTS,
                f"{self._prefix}plan/{run.id}/{start // PAGE_CHUNKS:06d}",
                json.dumps(plan[start : start + PAGE_CHUNKS], separators=(",", ":")).encode(),
            )
            for start in range(0, len(plan), PAGE_CHUNKS)
        ]
        return [*stale, *pages, self._put_run(run)]

    def plan(self, run_id: str) -> list[dict[str, Any]]:
        """Return every chunk of a run, as plain data, in plan order."""
        pages = self._store.items(names.SNAPSHOTS, f"{self._prefix}plan/{run_id}/")
        return [chunk for _, page in pages for chunk in json.loads(page)]

    def chunk_done(
        self, run_id: str, chunk_id: str, table: str, rows: int, cut: Mapping[str, Any]
    ) -> Put:
        """Return the write that marks a chunk durable."""
        done = ChunkDone(table=table, rows=rows, cut=dict(cut), finished_at_ms=_now_ms())
        key = f"{self._prefix}done/{run_id}/{chunk_id}"
        return Put(names.SNAPSHOTS, key, done.model_dump_json().encode())

    def done(self, run_id: str) -> dict[str, ChunkDone]:
        """Return the finished chunks of a run by chunk id."""
        prefix = f"{self._prefix}done/{run_id}/"
        return {
            key.removeprefix(prefix): ChunkDone.from_stored(text, f"chunk {key}")
            for key, text in self._store.items(names.SNAPSHOTS, prefix)
        }

    def finish(self, run: Run) -> Sequence[Write]:
        """Return the writes that complete a run."""
        ended = run.model_copy(update={"finished_at_ms": _now_ms(), "cancelled": None})
        writes = [self._put_run(ended)]
        if run.wish is None:
            text = ended.model_dump_json().encode()
            writes.append(Put(names.SNAPSHOTS, f"{self._prefix}initial", text))
        return writes

    def cancel(self, run: Run, reason: str) -> Put:
        """Return the write that ends a run as worthless, with the reason."""
        return self._put_run(run.model_copy(update={"cancelled": reason}))

    def forget(self) -> None:
        """Forget every run, so that ``initial`` snapshots again."""
        keys = [key for key, _ in self._store.items(names.SNAPSHOTS, self._prefix)]
        self._store.transact([Delete(names.SNAPSHOTS, key) for key in keys])

    def progress(self) -> dict[str, Any] | None:
        """Return the latest run's progress, or None when none was planned.

        Returns:
            ``{"run", "finished", "cancelled", "chunks", "chunks_done", "rows", "started_at_ms",
            "tables": {name: {"chunks", "chunks_done", "rows", "rows_estimate"}}}``.
        """
        run = self.current()
        if run is None:
            return None
        tables = {name: {**told, "chunks_done": 0, "rows": 0} for name, told in run.tables.items()}
        done = self.done(run.id)
        for chunk in done.values():
            tables[chunk.table]["chunks_done"] += 1
            tables[chunk.table]["rows"] += chunk.rows
        return {
            "run": run.id,
            "started_at_ms": run.started_at_ms,
            "finished": run.finished_at_ms is not None,
            "cancelled": run.cancelled,
            "chunks": run.chunk_count,
            "chunks_done": len(done),
            "rows": sum(chunk.rows for chunk in done.values()),
            "tables": tables,
        }

    def _put_run(self, run: Run) -> Put:
        return Put(names.SNAPSHOTS, f"{self._prefix}run", run.model_dump_json().encode())


def _now_ms() -> int:
    return int(time.time() * 1000)
