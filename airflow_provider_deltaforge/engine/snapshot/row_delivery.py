"""Gives the rows of a chunk to every sink, between two batches of the log."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait

import pyarrow as pa

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.processor_stats import SinkCounts
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.catch_up.second_reader import CatchUpContext
from airflow_provider_deltaforge.engine.dead_letters.queue import DeadLetterQueue
from airflow_provider_deltaforge.engine.deliver.row_marks import RowMarkers
from airflow_provider_deltaforge.engine.deliver.sink_fences import SinkFences
from airflow_provider_deltaforge.engine.deliver.sink_group import SinkGroup
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.engine.snapshot.chunk_sinks import ChunkSinks, exact_sinks
from airflow_provider_deltaforge.engine.snapshot.copy_window import CopyWindow, RenderedRows
from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, RetryableError
from airflow_provider_deltaforge.events.message import Rejection
from airflow_provider_deltaforge.sinks.chunk_rows import ChunkMark
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

_POLL_S = 0.05
_COPY = "the copy beside the stream"


class RowDelivery:
    """Delivers chunks for one opening of the log. Used by the lane's delivery thread.

    Rows have no position in the log, so they take connections of their own, also to a sink that
    holds our position; one that takes a chunk at once keeps a mark with it, and is not given it
    again. A sink that does not take a chunk while the others do ends the window: the
    next lane goes on without it, and the chunk is read again once it has caught up.

    Args:
        shared: of the lane.
        heartbeat: says when to give up.
        dead_letters: the lane's.
        is_ready: returns whether every sink is where the lane is.
    """

    def __init__(
        self,
        shared: CatchUpContext,
        heartbeat: Heartbeat,
        dead_letters: DeadLetterQueue,
        is_ready: Callable[[], bool],
    ) -> None:
        context = shared.context
        self._shared, self._context, self._stats = shared, context, shared.stats
        self._heartbeat, self._dead_letters, self._is_ready = heartbeat, dead_letters, is_ready
        self._records = Snapshots(context.store, context.pipeline.name)
        self._gaps = Gaps(context.store, context.pipeline.name)
        self._policy = RequiredSinks.of(context.pipeline.spec)
        self._given_up: frozenset[str] | None = None
        self._sinks: ChunkSinks | None = None
        self._marks: RowMarkers | None = None

    def deliver(self, window: CopyWindow) -> RenderedRows | None:
        """Deliver a chunk at its place in the log; return what every sink holds now, if it does.

        Raises:
            FencedError: a newer lane is there.
        """
        try:
            rendered = self._rendered(window)
            is_done = rendered is not None and self._is_ready() and self._give(window, rendered)
        except FencedError:
            window.delivered.set_result(False)
            raise
        except Exception as error:  # noqa: BLE001 - it concerns the copy, not the stream
            window.delivered.set_exception(error)
            return None
        window.delivered.set_result(is_done)
        return rendered if is_done else None

    def close(self) -> None:
        """Close every connection."""
        if self._sinks is not None and self._marks is not None:
            self._sinks.group.close()
            self._marks.close()
        self._sinks = self._marks = None

    def _rendered(self, window: CopyWindow) -> RenderedRows | None:
        """Wait for the rows, which are chosen and rendered now."""
        is_late, late_at = False, time.monotonic() + self._context.job.tuning.long_call_s
        while not window.rendered.done() and not self._heartbeat.ending.is_set():
            wait([window.rendered], _POLL_S)
            if not is_late and time.monotonic() > late_at:
                is_late = True
                reason = f"rows of {window.chunk.full_name} are not rendered yet, the log waits"
                self._stats.report_error(_COPY, RetryableError(reason))
        if is_late:
            self._stats.report_error(_COPY, None)
        return window.rendered.result(0) if window.rendered.done() else None

    def _give(self, window: CopyWindow, rendered: RenderedRows) -> bool:
        sinks, marks = self._opened()
        taken: dict[str, SinkCounts] = {}
        row_marks: dict[str, list[str | None]] = {}
        rows = row_bytes = 0
        mark = None
        if len(rendered.parts) == 1:  # Larger ones are more than a sink takes at once.
            text = json.dumps(dict(window.cut or {}), sort_keys=True)
            mark = ChunkMark(f"{window.run_id}/{window.chunk.id}", text, is_first=False)
        for source, messages in rendered.parts:
            self._dead_letters.check(messages, source)
            outcomes = self._outcomes(sinks, source, messages, mark, row_marks)
            if outcomes is None:
                return False
            self._dead_letters.take(messages, source, outcomes)
            for name, refused in outcomes.items():
                counts = messages.taken(name, refused)
                taken[name] = taken.get(name, SinkCounts(0, 0)) + counts
            rows += source.num_rows
            row_bytes += source.column("after").nbytes
        reach(CrashPoint.CHUNK_WRITTEN)
        done = window.done(self._records, marks.leave(row_marks), rows, row_bytes)
        if not self._store(done):
            return False
        reach(CrashPoint.CHUNK_STORED)
        self._stats.copied(window.chunk.full_name, rows, taken, window.op)
        return True

    def _outcomes(
        self,
        sinks: ChunkSinks,
        source: pa.RecordBatch,
        rendered: SinkMessages,
        mark: ChunkMark | None,
        row_marks: dict[str, list[str | None]],
    ) -> Mapping[str, list[Rejection]] | None:
        """Give every sink its rows; return what each refuses, None if one does not take them.

        Raises:
            DeltaForgeError: a sink cannot do it.
        """
        self._heartbeat.confirm()
        try:
            written = sinks.write(
                source, rendered, mark, row_marks, self._heartbeat.gives_up, self._policy.holds
            )
        except DeltaForgeError:
            for name in sinks.ids:  # The copy has ended; the stream's own writers go on.
                self._stats.show_sink_error(name, None)
            raise
        finally:
            if sinks.group.unanswered:  # What is on its way must not arrive behind the log.
                self._heartbeat.end("window")
        return None if written is None or sinks.group.unanswered else written.refused

    def _store(self, writes: Sequence[Write]) -> bool:
        """Store, with what is set aside, once there is room; False if the lane ends before that."""
        if not self._shared.retry(self._dead_letters.awaits_room):
            return False
        with self._shared.storing:
            self._shared.retry(lambda: self._dead_letters.transact(writes))
            self._shared.retry(self._dead_letters.stored)
        return True

    def _opened(self) -> tuple[ChunkSinks, RowMarkers]:
        """Return the connections to all sinks that were not given up."""
        given_up = frozenset(self._gaps.open())
        if self._sinks is None or self._marks is None or given_up != self._given_up:
            self.close()
            context, ending = self._context, self._heartbeat.ending
            sinks = [sink for sink in context.pipeline.spec.sinks if sink.id not in given_up]
            name, stats = context.pipeline.name, self._stats
            plain = [sink.without_position() for sink in sinks]
            group = SinkGroup(plain, name, stats, ending, claims=SinkFences(context))
            self._sinks = ChunkSinks(
                group,
                [sink.id for sink in sinks],
                exact_sinks(sinks),
                self._dead_letters,
                lambda: self._store([]),
            )
            self._marks = RowMarkers(sinks, name, stats, ending)
            self._given_up = given_up
        return self._sinks, self._marks
