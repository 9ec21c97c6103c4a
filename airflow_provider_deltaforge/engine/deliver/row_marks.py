"""Rows of snapshots that a sink has acknowledged, and came back without.

They have no position in the log, so a sink that delivers exactly once and lost them would not tell
it. Behind each chunk a mark is left in it and stored with the chunk: in the same step as the rows,
where the sink can do that.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.sink_thread import SinkResult, SinkWatcher
from airflow_provider_deltaforge.errors import DeltaForgeError, PositionLostError
from airflow_provider_deltaforge.events.message import Messages
from airflow_provider_deltaforge.sinks.contract import RowMarks, Sink
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.rewinds import Rewinds
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots


class RowMarkers:
    """Leaves marks behind the chunks that one process copies.

    Args:
        sinks: those that are written to, as the document describes them.
        pipeline: the pipeline's name.
        watcher: called with errors.
        ending: set when the process is to end.
    """

    def __init__(
        self, sinks: Sequence[Sink], pipeline: str, watcher: SinkWatcher, ending: threading.Event
    ) -> None:
        self._sinks = [sink for sink in sinks if sink.holds_position]
        self._pipeline, self._watcher, self._ending = pipeline, watcher, ending
        self._opened: dict[str, RowMarks] = {}

    def leave(self, left: Mapping[str, Sequence[str | None]]) -> dict[str, str]:
        """Return a mark behind a chunk, of each sink that can lose rows.

        Args:
            left: by sink, the marks that were left together with each part of the chunk; None of a
                part without.

        Raises:
            RetryableError: the process was asked to end.
            AccessError, FatalError: as a sink's write does.
        """
        marks: dict[str, str] = {}
        for sink in self._sinks:
            tell = partial(self._watcher.report_sink_error, sink.id)
            is_over, rest = self._ending.is_set, self._ending.wait
            leave = partial(self._leave, sink, left.get(sink.id, ()))
            mark = retry_until(leave, tell, is_over, rest)
            if mark is not None:
                marks[sink.id] = mark
        return marks

    def close(self) -> None:
        """Release the connections."""
        for opened in self._opened.values():
            with suppress(DeltaForgeError):
                opened.close()

    def _leave(self, sink: Sink, left: Sequence[str | None]) -> str | None:
        if len(left) == 1 and left[0] is not None:
            return left[0]
        if sink.id not in self._opened:
            opened = sink.open_row_marks(self._pipeline)
            if opened is None:
                return None
            self._opened[sink.id] = opened
        # Parts may be lost before the last one is written: the chunk is then known by their marks.
        parts = [mark for mark in left if mark is not None]
        lost = self._opened[sink.id].lost(parts) if parts else ()
        if lost:
            return min(lost)
        return self._opened[sink.id].leave() if None in left or not left else parts[-1]


def note_marks(
    marks: dict[str, list[str | None]],
    messages: Mapping[str, Messages],
    outcomes: Mapping[str, SinkResult],
) -> None:
    """Add what was left behind a part of a chunk in each sink that was given any of it."""
    for name, outcome in outcomes.items():
        if outcome.row_mark is not None or len(messages[name]):
            marks.setdefault(name, []).append(outcome.row_mark)


def lost_chunks(context: TaskContext, run: SnapshotRecord, sink: Sink) -> list[str]:
    """Return the chunks of a run whose rows a sink came back without.

    Rows from before somebody let it go on without what it had lost, or had the log delivered to it
    again, as to a sink that was emptied, do not count.

    Raises:
        RetryableError, AccessError, FatalError: as a sink's write does.
    """
    name = context.pipeline.name
    gaps = [gap for gap in Gaps(context.store, name).all() if gap.sink == sink.id]
    rewind = Rewinds(context.store, name).all().get(sink.id)
    rewound_ms = 0 if rewind is None or rewind.state == "refused" else rewind.begun_ms
    since_ms = max((gap.resumed_at_ms or 0 for gap in gaps), default=0)
    since_ms = max(since_ms, rewound_ms)
    marked = {
        chunk_id: done.marks[sink.id]
        for chunk_id, done in Snapshots(context.store, name).done(run.id).items()
        if sink.id in done.marks and done.finished_at_ms > since_ms
    }
    opened = sink.open_row_marks(name) if marked else None
    if opened is None:
        return []
    try:
        lost = opened.lost(marked.values())
    finally:
        opened.close()
    return [chunk_id for chunk_id, mark in marked.items() if mark in lost]


def check_rows(context: TaskContext, sink: Sink) -> None:
    """See that a sink holds the rows of snapshots that were completed.

    Raises:
        PositionLostError: it came back without some.
        RetryableError, AccessError, FatalError: as a sink's write does.
    """
    ended = [run for run in _runs(context) if run.finished_at_ms is not None]
    count = sum(len(lost_chunks(context, run, sink)) for run in ended)
    if count:
        raise PositionLostError(
            f"sink {sink.id} came back with older data: the rows of {count} chunks of a snapshot "
            "are gone"
        )


def has_unmarked_rows(context: TaskContext, sink_id: str) -> bool:
    """Return True if nobody knows that a sink still holds the rows of snapshots."""
    snapshots = Snapshots(context.store, context.pipeline.name)
    chunks = [done for run in _runs(context) for done in snapshots.done(run.id).values()]
    if not chunks:
        return snapshots.finished()
    return any(sink_id not in done.marks for done in chunks)


def _runs(context: TaskContext) -> list[SnapshotRecord]:
    snapshots = Snapshots(context.store, context.pipeline.name)
    runs = (snapshots.current(), snapshots.requested())
    return [run for run in runs if run is not None]
