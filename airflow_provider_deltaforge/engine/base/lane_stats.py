"""What a lane knows of itself, gathered from its threads: the truth behind status and metrics."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_provider_deltaforge.engine.base.last_error import LastError, last_error
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.processor_stats import (
    BatchStats,
    DeadLetterStats,
    EventCounts,
    ProcessorStats,
    SinkCounts,
    measure,
)
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.sink_stats import (
    CatchUpWait,
    SinkStats,
    SinkStatus,
    held_up,
)
from airflow_provider_deltaforge.engine.base.tuning import TUNING
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.reader_contract import LogReader, ReportsSilence
from airflow_provider_deltaforge.storage.records.stats import (
    ArchiveProgress,
    DataDriftCounts,
    Stats,
    TableCounts,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted

_UNCOUNTED_MAX = 4096
"""Events that wait to be counted; a larger batch is counted alone."""


@dataclass(frozen=True, slots=True)
class _Delivered:
    """A batch that is not counted yet, what each sink was given of it, and when they had it."""

    batch: BatchStats
    taken: Mapping[str, SinkCounts]
    at_ms: float


@dataclass
class LaneStats:
    """Counters and troubles of one lane. Every method may be called from any thread."""

    sinks: dict[str, SinkStats] = field(default_factory=dict)
    counted: Stats = field(default_factory=Stats)
    """The lane's own numbers; those of sinks, tables, processors and dead letters join them in
    ``report``."""
    source_error: LastError | None = None
    slowest: Position | None = None
    by_table: Counter[tuple[str, str]] = field(default_factory=Counter)
    durable: Counter[str] = field(default_factory=Counter)
    """Events by table that a stored checkpoint covers."""
    processors: ProcessorStats = field(default_factory=ProcessorStats)
    dead_letters: DeadLetterStats = field(default_factory=DeadLetterStats)
    policy: RequiredSinks | None = None
    """Which sinks are waited for; None: all."""
    errors: dict[str, LastError] = field(default_factory=dict)
    """Why something other than a sink or the source does not go on, by its name."""
    long_call_s: float = TUNING.long_call_s
    """A processor that works on one batch for longer is shown as hanging."""
    measured: LaneMeasurements = field(default_factory=LaneMeasurements)

    data_drift: Callable[[], DataDriftCounts] = DataDriftCounts
    """Returns what was counted of it."""

    archive: ArchiveProgress | None = None
    """None where the pipeline has none."""

    def __post_init__(self) -> None:
        self._delivered: list[_Delivered] = []
        self._uncounted = 0
        """Events of these."""
        self._unstored: Counter[str] = Counter()
        """Events by table that were delivered since the last checkpoint."""
        self.catch_up_wait = CatchUpWait()
        self._archive_error: LastError | None = None
        self._archive_blocks = False
        self._unarchived_ms: int | None = None
        self._lock = threading.Lock()
        self._lag_ms: int | None = None
        self._reader: LogReader | None = None

    def read_by(self, reader: LogReader | None) -> None:
        """Ask a reader from now on whether its server is heard; None: there is none."""
        self._reader = reader

    def resume(self, former: Stats) -> None:
        """Go on counting from an earlier lane's numbers, so that they never fall."""
        counted = former.counted()
        for table, counts in counted.pop("tables").items():
            self.by_table.update({(table, op): count for op, count in counts.events.items()})
            self.durable[table] += counts.durable
        for sink_id, sink in counted.pop("sinks").items():
            state = self.sinks.get(sink_id)
            if state is None:
                continue  # Taken out of the document since.
            state.counted = state.counted.model_copy(update=sink.counted())
            if sink.status in ("behind", "catching_up"):
                state.status_since_ms, state.former_s = sink.since_ms, sink.behind_s or 0.0
        self.processors.add(counted.pop("processors"), known_only=True)
        self.dead_letters.add(counted.pop("dlq"))
        archived = counted.pop("archive")
        if self.archive is not None and archived is not None:
            self.archive = archived.model_copy(update={"reason": None, "since_ms": None})
        histograms = {"latency", "batch_events", "batch_bytes"}
        begun = Stats(**{name: value for name, value in counted.items() if name not in histograms})
        for name in histograms:
            getattr(begun, name).add(getattr(former, name))
        self.counted = begun

    def report_source_error(self, error: BaseException | None) -> None:
        """Note that the log cannot be read, or (None) that it can again."""
        with self._lock:
            self.source_error = last_error(self.source_error, error)

    def report_read_error(self, error: BaseException | None) -> None:
        """Count that the source did not answer, or (None) that it does again."""
        self.report_source_error(error)
        if error is not None:
            self.measured.source_failed(error)
            return
        with self._lock:
            self.counted.source_reconnects += 1

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Count that a sink does not take a batch, or (None) that it does again."""
        state = self.sinks.get(sink_id)
        if error is not None:
            self.measured.sink_failed(sink_id, error)
        elif state is not None and state.last_error is not None:
            self.measured.sink_reconnected(sink_id)
        self.show_sink_error(sink_id, error)

    def show_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Note that a sink does not take a batch, or (None) that it does again."""
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkStats())
            state.last_error = last_error(state.last_error, error)
            if error is not None:
                state.counted.retries += 1

    def set_status(self, sink_id: str, status: SinkStatus, lacks_ms: int | None = None) -> None:
        """Note whether a sink goes with the others; one that is caught up is well again.

        Args:
            sink_id: the sink.
            status: how it stands from now on.
            lacks_ms: when the oldest event was committed that it lacks, if that is known.
        """
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkStats())
            state.status = status
            if status == "running":
                state.joins()
                return
            if state.status_since_ms is None or status == "given_up":
                state.status_since_ms = int(time.time() * 1000)
            if status == "given_up":
                state.former_s, state.caught_up_since_s = 0.0, None
            if lacks_ms is not None:
                state.lacks_ms = lacks_ms

    def counts_behind(self, sink_id: str) -> None:
        """Count from now on for how long a sink is caught up."""
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkStats())
            if state.caught_up_since_s is None:
                state.caught_up_since_s = time.monotonic()

    def show_rewind(self, sink_id: str, rewind: str | None) -> None:
        """Note that a sink is given a part of the log again, in words, or (None) that it is not."""
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkStats())
            state.rewind = rewind
            if rewind is not None:
                state.last_error, state.lacks_ms = None, None
                state.status_since_ms = int(time.time() * 1000)

    def given_up(self, sink_id: str, since_ms: int, why: str) -> None:
        """Note that a sink was given up by an earlier lane."""
        self.set_status(sink_id, "given_up")
        with self._lock:
            state = self.sinks[sink_id]
            state.status_since_ms = since_ms
            state.last_error = LastError(why, "given_up", since_ms)

    def lacking_s(self, sink_id: str, *, unread: bool = False) -> float | None:
        """Return for how long a sink has lacked what it lacks; None if that is unknown.

        Not longer than it has been behind: the log itself may be read late.

        Args:
            sink_id: the sink.
            unread: nobody can read what it lacks; it counts as all it missed since it was left.
        """
        with self._lock:
            state = self.sinks.get(sink_id)
            if state is None or (state.lacks_ms is None and not unread):
                return None
            return min(state.behind_s, time.time() - (state.lacks_ms or 0) / 1000)

    @property
    def lagging(self) -> list[str]:
        """The sinks that are behind and are to be caught up."""
        with self._lock:
            words = ("behind", "catching_up")
            return [name for name, state in self.sinks.items() if state.status in words]

    def caught_up(self, sink_id: str, position: Position | None, taken: SinkCounts | None) -> None:
        """Note what a sink that is behind was given, and how far it is now."""
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkStats())
            if taken is not None:
                self._count(sink_id, [taken])
            if position is not None:
                state.counted.position = dict(position)
                state.counted.checkpoint_ms = int(time.time() * 1000)

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Note that a processor cannot work now, or (None) that it can again."""
        self.report_error(f"processor {processor_id}", error)

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Note that something named does not go on, or (None) that it does again."""
        with self._lock:
            latest = last_error(self.errors.get(name), error)
            if latest is None:
                self.errors.pop(name, None)
            else:
                self.errors[name] = latest

    def archived(self, rows: int, nbytes: int, files: int, position: Position) -> None:
        """Count what is durable in the archive now, and up to where."""
        with self._lock:
            if (archive := self.archive) is not None:
                archive.rows += rows
                archive.bytes += nbytes
                archive.files += files
                archive.position = dict(position)
                archive.written_ms = int(time.time() * 1000) if files else archive.written_ms

    def archive_hole(self) -> None:
        """Count a stretch of the log that the archive lacks."""
        with self._lock:
            if self.archive is not None:
                self.archive.holes += 1

    def archive_lacks(self, first_ms: int | None) -> None:
        """Note when the oldest change was committed that waits for the archive; None: none does."""
        self._unarchived_ms = first_ms

    def archive_error(self, error: BaseException | None) -> None:
        """Note that the archive cannot be written, or (None) that it can again."""
        with self._lock:
            self._archive_error = last_error(self._archive_error, error)

    def archive_blocks(self, *, is_full: bool) -> None:
        """Note whether the lane waits for the archive."""
        self._archive_blocks = is_full

    def delivered(self, batch: BatchStats, taken: Mapping[str, SinkCounts]) -> None:
        """Take a batch that every sink has taken; it is counted before anybody looks.

        Args:
            batch: the source's batch, whatever processors made of it.
            taken: what each sink was given.
        """
        with self._lock:
            self._delivered.append(_Delivered(batch, taken, time.time() * 1000))
            self._uncounted += batch.rows.num_rows
            if self._uncounted > _UNCOUNTED_MAX:
                self._count_delivered()

    def _count_delivered(self) -> None:
        """Count together what was delivered since the last time; called under the lock."""
        delivered, self._delivered, self._uncounted = self._delivered, [], 0
        if not delivered:
            return
        batches = [each.batch for each in delivered]
        sizes = [batch.rows.num_rows for batch in batches]
        self.counted.batches += len(batches)
        self.counted.events += sum(sizes)
        self.counted.bytes += sum(batch.nbytes for batch in batches)
        for batch, size in zip(batches, sizes, strict=True):
            self.counted.batch_events.note(size)
            self.counted.batch_bytes.note(batch.nbytes)
        for sink_id in {name for each in delivered for name in each.taken}:
            self._count(
                sink_id, [each.taken[sink_id] for each in delivered if sink_id in each.taken]
            )
        if any(sizes):
            read_ms = np.repeat([batch.read_ms for batch in batches], sizes)
            now_ms = np.repeat([each.at_ms for each in delivered], sizes)
            self._measure(EventCounts.of(batches), read_ms, now_ms)

    def copied(self, table: str, rows: int, taken: Mapping[str, SinkCounts], op: str = "r") -> None:
        """Count the rows of a snapshot chunk, or other events, that every sink has taken."""
        with self._lock:
            self.counted.batches += 1
            self.counted.events += rows
            self.by_table[table, op] += rows
            self.durable[table] += rows
            for sink_id, counts in taken.items():
                self._count(sink_id, [counts])

    def checkpointed(self, position: Position, sink_ids: list[str]) -> None:
        """Note the position that is durable now."""
        now_ms = int(time.time() * 1000)
        with self._lock:
            self._count_delivered()
            self.slowest = position
            self.counted.checkpoints += bool(sink_ids)
            if sink_ids:
                self.durable.update(self._unstored)
                self._unstored.clear()
            for sink_id in sink_ids:
                counted = self.sinks.setdefault(sink_id, SinkStats()).counted
                counted.position, counted.checkpoint_ms = dict(position), now_ms

    def blocked_by(self) -> tuple[str, LastError] | None:
        """Return what holds the pipeline up, named, or None."""
        with self._lock:
            waited_for = held_up(self.sinks, self.policy, self.catch_up_wait.since_ms)
            if waited_for is not None:
                return waited_for
            for name, blocking in self.errors.items():
                return name, blocking
            if self._archive_blocks and self._archive_error is not None:
                return "archive", self._archive_error
            if self.source_error is not None:
                return "source", self.source_error
        silence = self._silence()
        return ("source", silence) if silence is not None else self._hangs()

    def lag_ms(self) -> int | None:
        """Return how old the newest delivered event was at its delivery.

        While something blocks the pipeline the age goes on growing: newer events wait. Where the
        source is not heard they may have been written since: the lag is as long as the silence.
        """
        with self._lock:
            self._count_delivered()
        blocked = self.blocked_by()
        if blocked is None:
            return self._lag_ms
        what, blocking = blocked
        with self._lock:
            begun_ms = self.counted.last_commit_ms
            if begun_ms is None or what == "source":
                begun_ms = max(begun_ms or 0, blocking.since_ms)
            grown_ms = max(0, int(time.time() * 1000) - begun_ms)
            return max(grown_ms, self._lag_ms or 0) if what == "source" else grown_ms

    def report(self, *, begins: bool = False) -> Stats:
        """Return a copy of everything counted, and how each sink stands.

        Args:
            begins: where the stream begins is not durable yet.
        """
        with self._lock:
            self._count_delivered()
            report = self.counted.model_copy(deep=True)
            by_table, durable = dict(self.by_table), dict(self.durable)
            report.position = self._position()
            report.sinks = {name: sink.report(begins=begins) for name, sink in self.sinks.items()}
        tables: dict[str, dict[str, int]] = {}
        for (table, op), count in by_table.items():
            tables.setdefault(table, {})[op] = count
        report.tables = {
            table: TableCounts(events=ops, durable=durable.get(table, 0))
            for table, ops in tables.items()
        }
        report.processors = self.processors.report()
        report.dlq = self.dead_letters.report()
        report.data_drift = self.data_drift()
        report.archive = self._archive_report()
        report.lag_ms = self.lag_ms()
        return report

    def _position(self) -> dict[str, Any] | None:
        """Return a position that every sink has reached but those that are behind."""
        sinks = [state for state in self.sinks.values() if state.status == "running"]
        positions = [state.counted.position for state in sinks]
        return dict(self.slowest) if self.slowest and all(positions) else None

    def _archive_report(self) -> ArchiveProgress | None:
        if self.archive is None:
            return None
        with self._lock:
            report, error = self.archive.model_copy(), self._archive_error
        if self._unarchived_ms is not None:
            report.lag_ms = max(0, int(time.time() * 1000) - self._unarchived_ms)
        if error is not None:
            report.reason, report.since_ms = error.reason, error.since_ms
        return report

    def _silence(self) -> LastError | None:
        """Return that the source's server is not heard, though its connection stands."""
        reader = self._reader
        silence = reader.silence() if isinstance(reader, ReportsSilence) else None
        if silence is None:
            return None
        silent_s, reason = silence
        since_ms = int((time.time() - silent_s) * 1000)
        return LastError(redacted(reason), RetryableError.error_class, since_ms)

    def _hangs(self) -> tuple[str, LastError] | None:
        """Return the processor that may never return: nothing comes behind its batch."""
        processor_id, seconds = self.processors.under_way() or ("", 0.0)
        if seconds < self.long_call_s:
            return None
        reason = f"it has worked on one batch for more than {self.long_call_s:.0f} s"
        since_ms = int((time.time() - seconds) * 1000)
        return f"processor {processor_id}", LastError(reason, RetryableError.error_class, since_ms)

    def _count(self, sink_id: str, taken: Sequence[SinkCounts]) -> None:
        counted = self.sinks.setdefault(sink_id, SinkStats()).counted
        counted.events += sum(each.events for each in taken)
        counted.bytes += sum(each.nbytes for each in taken)
        counted.batches += len(taken)

    def _measure(self, found: EventCounts, read_ms: np.ndarray, now_ms: np.ndarray) -> None:
        """Count events, by when each was read and delivered."""
        self.by_table.update(found.by_table)
        for (table, _), count in found.by_table.items():
            self._unstored[table] += count
        measure(self.counted.latency, np.maximum(now_ms - found.commit_ms, 0) / 1000)
        last_ms = self.counted.last_commit_ms = int(found.commit_ms[-1])
        self._lag_ms = max(0, int(now_ms[-1]) - last_ms)
        self.measured.delivered(found.tables, found.table_of, found.commit_ms, read_ms, now_ms)
