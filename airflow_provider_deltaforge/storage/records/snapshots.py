"""Snapshot runs: their start position, their plan, and which chunks are durable.

A pipeline has two at most: its own snapshot, and the copy that was asked for and is being served.
A run's plan is written once, in pages; each finished chunk is one record, so that a killed run
goes on at the next chunk. Every write is also available as a ``Write`` for a fenced transaction.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from airflow_provider_deltaforge.events.table_names import qualified_name, unquoted
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

PAGE_CHUNKS = 500
PACE_CHUNKS = 200
"""How many of the latest chunks a copy's pace is told by."""
PACE_GAP_MS = 600_000
"""Chunks that end so far apart belong to two attempts."""


class SnapshotRecord(Record):
    """One snapshot run."""

    v: Literal[1] = 1
    id: str
    generation: int
    started_at_ms: int
    source_id: str | None = None
    """Of the source whose rows and position these are; None: an earlier release began it."""
    start_position: dict[str, Any]
    """Where the stream must begin after this run."""
    chunk_count: int
    tables: dict[str, dict[str, int]]
    """By full table name: ``{"chunks": n, "rows_estimate": n}``."""
    wish: dict[str, Any] | None = None
    """Chosen tables and ``where`` of a requested run; None for the pipeline's own snapshot."""
    finished_at_ms: int | None = None
    cancelled: str | None = None
    ticket: str | None = None
    """Of the request that this run serves; None for the pipeline's own snapshot."""
    fresh_sinks: list[str] = Field(default_factory=list)
    """Sinks that are given all rows of the run, and were given nothing before."""

    sinks: dict[str, int] | None = None
    """Those that are given its rows: how many gaps of each were closed when it was begun. None: an
    earlier release began it."""

    @property
    def is_open(self) -> bool:
        """Return whether the run goes on where it is."""
        return self.finished_at_ms is None and self.cancelled is None

    limits: dict[str, int] = Field(default_factory=dict)
    """What the document limits the copy to, by the setting's name."""
    stopped: list[str] = Field(default_factory=list)
    """Of its tables those that had stopped when it was begun."""
    notes: list[str] = Field(default_factory=list)
    """Why deletes that were passed over while tables were stopped may not all be among it."""

    @model_serializer(mode="wrap")
    def _as_stored(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what only copies of tables that stopped have."""
        fields: dict[str, Any] = dump(self)
        for name in ("stopped", "notes"):
            if not fields[name]:
                del fields[name]
        return fields


class ChunkBegun(Record):
    """One chunk that sinks may have got rows of, in this attempt or a former one."""

    v: Literal[1] = 1
    cut: dict[str, Any]
    """Of the first view whose rows they may have got."""
    is_marked: bool
    """Each attempt gave each sink all rows, with a mark, or none."""


class ChunkDone(Record):
    """One chunk that every required sink holds."""

    v: Literal[1] = 1
    table: str
    rows: int
    cut: dict[str, Any]
    finished_at_ms: int
    marks: dict[str, str] = Field(default_factory=dict)
    """By sink: the mark behind the rows, in those that may come back without them."""
    is_single_view: bool = False
    """The sinks hold the rows of the view at ``cut``, and of no former attempt."""
    row_bytes: int = 0
    """Of the rows as JSON, before processors."""


class _Pace:
    """How fast chunks become durable, by the latest of them.

    A copy that was interrupted is not judged by the time that it was not running.
    """

    def __init__(self) -> None:
        self._latest: deque[ChunkDone] = deque(maxlen=PACE_CHUNKS)

    def see(self, chunk: ChunkDone) -> None:
        """Take note of the next chunk that became durable."""
        if self._latest and chunk.finished_at_ms - self._latest[-1].finished_at_ms > PACE_GAP_MS:
            self._latest.clear()
        self._latest.append(chunk)

    @property
    def rows_per_s(self) -> int | None:
        """Rows per second; None while fewer than three chunks tell."""
        if len(self._latest) < 3:
            return None
        first, *others = self._latest
        took_ms = max(1, others[-1].finished_at_ms - first.finished_at_ms)
        return round(sum(chunk.rows for chunk in others) * 1000 / took_ms)

    def seconds(self, rows: int) -> int | None:
        """Return how long so many more rows will take; None while that cannot be told."""
        pace = self.rows_per_s
        if rows == 0:
            return 0
        return round(rows / pace) if pace else None


class Snapshots:
    """The snapshot records of one pipeline: of its own run, and of the one that serves a request.

    They differ by ``wish``: the pipeline's own snapshot has none.
    """

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def current(self) -> SnapshotRecord | None:
        """Return the latest run of the pipeline's own snapshot, finished or not."""
        return self._run("run")

    def requested(self) -> SnapshotRecord | None:
        """Return the latest run that serves, or served, a request."""
        return self._run("requested")

    def run(self, run_id: str) -> SnapshotRecord | None:
        """Return a run by its id, or None when another took its place."""
        runs = (self.current(), self.requested())
        return next((run for run in runs if run is not None and run.id == run_id), None)

    def finished(self) -> bool:
        """Return whether the pipeline's own snapshot was completed at any time."""
        return self._store.get(names.SNAPSHOTS, f"{self._prefix}initial") is not None

    def begin(self, run: SnapshotRecord, chunks: Iterable[Any]) -> list[Write]:
        """Return the writes that start a run and forget the former one of its kind.

        Args:
            run: its ``chunk_count`` and ``tables`` describe ``chunks``.
            chunks: dataclasses of the source, JSON-able.
        """
        other = self.current() if run.wish is not None else self.requested()
        kept = other.id if other is not None else None
        stale = [
            Delete(names.SNAPSHOTS, key)
            for kind in ("plan", "split", "begun", "done", "seam", "notes")
            for key, _ in self._store.items(names.SNAPSHOTS, f"{self._prefix}{kind}/")
            if key.removeprefix(f"{self._prefix}{kind}/").split("/", 1)[0] != kept
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
        """Return every chunk of a run, as plain data, in plan order; of a split one its parts."""
        pages = self._store.items(names.SNAPSHOTS, f"{self._prefix}plan/{run_id}/")
        left = [chunk for _, page in pages for chunk in json.loads(page)]
        splits, found = self._splits(run_id), []
        left.reverse()
        while left:
            chunk = left.pop()
            if chunk["id"] in splits:
                left += reversed(splits[chunk["id"]])
            else:
                found.append(chunk)
        return found

    def chunk_split(self, run_id: str, chunk_id: str, parts: Iterable[Any]) -> Put:
        """Return the write that puts parts in the place of a chunk that was not begun.

        Args:
            run_id: of the run.
            chunk_id: of the chunk.
            parts: as the chunks of ``begin``, in key order.
        """
        text = json.dumps([asdict(part) for part in parts], separators=(",", ":"))
        return Put(names.SNAPSHOTS, f"{self._prefix}split/{run_id}/{chunk_id}", text.encode())

    def _splits(self, run_id: str) -> dict[str, list[dict[str, Any]]]:
        prefix = f"{self._prefix}split/{run_id}/"
        found = self._store.items(names.SNAPSHOTS, prefix)
        return {key.removeprefix(prefix): json.loads(text) for key, text in found}

    def chunk_begun(
        self, run_id: str, chunk_id: str, cut: Mapping[str, Any], *, is_marked: bool = False
    ) -> Put:
        """Return the write that keeps the cut of the first rows that sinks may get of a chunk."""
        begun = ChunkBegun(cut=dict(cut), is_marked=is_marked)
        key = f"{self._prefix}begun/{run_id}/{chunk_id}"
        return Put(names.SNAPSHOTS, key, begun.model_dump_json().encode())

    def begun(self, run_id: str, chunk_id: str) -> ChunkBegun | None:
        """Return what is known of a chunk that sinks may have got rows of; None of another one."""
        key = f"{self._prefix}begun/{run_id}/{chunk_id}"
        text = self._store.get(names.SNAPSHOTS, key)
        return None if text is None else ChunkBegun.from_stored(text, f"chunk {key}")

    def cuts(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Return by chunk id the cut of the first view whose rows a sink may hold."""
        prefix = f"{self._prefix}begun/{run_id}/"
        first = {
            key.removeprefix(prefix): ChunkBegun.from_stored(text, f"chunk {key}").cut
            for key, text in self._store.items(names.SNAPSHOTS, prefix)
        }
        done = self.done(run_id).items()
        return first | {chunk_id: each.cut for chunk_id, each in done if each.is_single_view}

    def chunk_done(  # noqa: PLR0913 - a record's fields
        self,
        run_id: str,
        chunk_id: str,
        table: str,
        rows: int,
        cut: Mapping[str, Any],
        marks: Mapping[str, str] | None = None,
        *,
        is_single_view: bool = False,
        row_bytes: int = 0,
    ) -> Put:
        """Return the write that marks a chunk durable."""
        done = ChunkDone(
            table=table,
            rows=rows,
            cut=dict(cut),
            finished_at_ms=now_ms(),
            marks=dict(marks or {}),
            is_single_view=is_single_view,
            row_bytes=row_bytes,
        )
        key = f"{self._prefix}done/{run_id}/{chunk_id}"
        return Put(names.SNAPSHOTS, key, done.model_dump_json().encode())

    def undone(self, run_id: str, chunk_id: str) -> Delete:
        """Return the write that has a chunk copied again."""
        return Delete(names.SNAPSHOTS, f"{self._prefix}done/{run_id}/{chunk_id}")

    def done(self, run_id: str) -> dict[str, ChunkDone]:
        """Return the finished chunks of a run by chunk id."""
        prefix = f"{self._prefix}done/{run_id}/"
        return {
            key.removeprefix(prefix): ChunkDone.from_stored(text, f"chunk {key}")
            for key, text in self._store.items(names.SNAPSHOTS, prefix)
        }

    def notes_key(self, run_id: str, sink_id: str, name: str) -> str:
        """Return the key of a note that a sink's writer keeps of a run."""
        return f"{self._prefix}notes/{run_id}/{sink_id}/{name}"

    def end_seam(self, run_id: str, table: str, position: Mapping[str, Any]) -> Put:
        """Return the write that has all changes of a table delivered behind a position."""
        key = f"{self._prefix}seam/{run_id}/{table}"
        return Put(names.SNAPSHOTS, key, json.dumps(position).encode())

    def seam_ends(self, run_id: str) -> dict[str, dict[str, Any]]:
        """Return by table the position behind which all its changes are delivered."""
        prefix = f"{self._prefix}seam/{run_id}/"
        found = self._store.items(names.SNAPSHOTS, prefix)
        return {key.removeprefix(prefix): json.loads(text) for key, text in found}

    def finish(self, run: SnapshotRecord) -> Sequence[Write]:
        """Return the writes that complete a run."""
        ended = run.model_copy(update={"finished_at_ms": now_ms(), "cancelled": None})
        writes = [self._put_run(ended)]
        if run.wish is None:
            text = ended.model_dump_json().encode()
            writes.append(Put(names.SNAPSHOTS, f"{self._prefix}initial", text))
        return writes

    def cancel(self, run: SnapshotRecord, reason: str) -> Put:
        """Return the write that ends a run as worthless, with the reason."""
        return self._put_run(run.model_copy(update={"cancelled": reason}))

    def forget(self) -> None:
        """Forget every run, so that ``initial`` snapshots again."""
        keys = [key for key, _ in self._store.items(names.SNAPSHOTS, self._prefix)]
        self._store.transact([Delete(names.SNAPSHOTS, key) for key in keys])

    def progress(self, run: SnapshotRecord | None = None) -> dict[str, Any] | None:
        """Return a run's progress: the latest one's if none is given; None without any.

        Returns:
            ``{"run", "ticket", "finished", "cancelled", "chunks", "chunks_done", "rows", "bytes",
            "rows_per_s", "eta_s", "limits", "started_at_ms", "tables": {name: {"chunks",
            "chunks_done", "chunks_inexact", "rows", "bytes", "rows_estimate", "eta_s"}}}``. Bytes
            are of rows as JSON; ``eta_s`` is in seconds, None while there is nothing to go by. Of
            ``chunks_inexact`` the views may contain more than is known, so that changes around
            them may be repeated.
        """
        run = run or self._latest()
        if run is None:
            return None
        tables = {
            name: {**counts, "chunks_done": 0, "chunks_inexact": 0, "rows": 0, "bytes": 0}
            for name, counts in run.tables.items()
        }
        more = 0
        for parts in self._splits(run.id).values():
            name = qualified_name(parts[0]["schema"] or parts[0]["db"], parts[0]["table"])
            tables[name]["chunks"] += len(parts) - 1
            more += len(parts) - 1
        done = self.done(run.id)
        paces: dict[str, _Pace] = {name: _Pace() for name in tables}
        whole = _Pace()
        for chunk in sorted(done.values(), key=lambda chunk: chunk.finished_at_ms):
            # A run that an early release planned has names with dots unquoted.
            name = chunk.table if chunk.table in tables else unquoted(chunk.table)
            tables[name]["chunks_done"] += 1
            tables[name]["chunks_inexact"] += bool(chunk.cut.get("inexact"))
            tables[name]["rows"] += chunk.rows
            tables[name]["bytes"] += chunk.row_bytes
            paces[name].see(chunk)
            whole.see(chunk)
        left = {
            name: max(0, counts["rows_estimate"] - counts["rows"])
            * (counts["chunks_done"] < counts["chunks"])
            for name, counts in tables.items()
        }
        return {
            "run": run.id,
            "ticket": run.ticket,
            "started_at_ms": run.started_at_ms,
            "finished": run.finished_at_ms is not None,
            "cancelled": run.cancelled,
            "chunks": run.chunk_count + more,
            "chunks_done": len(done),
            "rows": sum(chunk.rows for chunk in done.values()),
            "bytes": sum(chunk.row_bytes for chunk in done.values()),
            "rows_per_s": whole.rows_per_s,
            "eta_s": whole.seconds(sum(left.values())),
            "limits": run.limits,
            "tables": {
                name: {**counts, "eta_s": paces[name].seconds(left[name])}
                for name, counts in tables.items()
            },
        }

    def _latest(self) -> SnapshotRecord | None:
        runs = [run for run in (self.current(), self.requested()) if run is not None]
        return max(runs, key=lambda run: run.started_at_ms, default=None)

    def _run(self, kind: str) -> SnapshotRecord | None:
        text = self._store.get(names.SNAPSHOTS, f"{self._prefix}{kind}")
        if text is None:
            return None
        return SnapshotRecord.from_stored(text, f"the run of {self._prefix[:-1]}")

    def _put_run(self, run: SnapshotRecord) -> Put:
        kind = "run" if run.wish is None else "requested"
        return Put(names.SNAPSHOTS, f"{self._prefix}{kind}", run.model_dump_json().encode())
