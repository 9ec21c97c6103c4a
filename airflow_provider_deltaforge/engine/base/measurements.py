"""What a lane, or a task that copies, measures while it works. Nothing here costs per event."""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from airflow_provider_deltaforge.engine.base.processor_stats import slots_of
from airflow_provider_deltaforge.storage.records.measurements import (
    OTHER_TABLES,
    TABLES_MAX,
    Gauges,
    LogRetention,
    MeasuredCounts,
    ProcessMeasurements,
    SensingCounts,
    SinkGauges,
    SinkMeasurements,
    TableLatency,
)
from airflow_provider_deltaforge.storage.records.stats import LATENCY_BUCKETS_S, Latency
from airflow_provider_deltaforge.telemetry.client_counts import ClientCounts

_SLOTS = len(LATENCY_BUCKETS_S) + 1
_UNFORESEEN = "internal"


def note(latency: Latency, seconds: float) -> None:
    """Count one wait. Its owner keeps two threads from using a histogram at once."""
    latency.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
    latency.sum_s += seconds


class _TableTimes:
    """A histogram for each of the first tables, and one for the others."""

    def __init__(self) -> None:
        self.counts = np.zeros((TABLES_MAX + 1, _SLOTS), np.int64)
        self.sums_s = np.zeros(TABLES_MAX + 1)

    def add(self, tables: np.ndarray, seconds: np.ndarray) -> None:
        codes = tables * _SLOTS + slots_of(seconds)
        self.counts += np.bincount(codes, minlength=self.counts.size).reshape(self.counts.shape)
        self.sums_s += np.bincount(tables, weights=seconds, minlength=len(self.sums_s))

    def resume(self, table: int, former: Latency) -> None:
        if former.buckets_s == list(LATENCY_BUCKETS_S):
            self.counts[table] += former.counts
            self.sums_s[table] += former.sum_s

    def of(self, table: int) -> Latency:
        sum_s = round(float(self.sums_s[table]), 6)
        return Latency(counts=self.counts[table].tolist(), sum_s=sum_s)


class CountsSensing(Protocol):
    """Counts what schema sensing does."""

    def counts(self) -> dict[str, SensingCounts]:
        """Return what was counted since it began, by table and JSON column."""

    def dynamic_maps(self) -> int:
        """Return how many objects are maps."""


class LaneMeasurements:
    """Measurements of one lane. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = MeasuredCounts()
        self._tables: dict[str, int] = {}
        self._delivered, self._read = _TableTimes(), _TableTimes()
        self._table_lag_ms: dict[str, int] = {}
        self._buffered: dict[str, tuple[int, int]] = {}
        """Messages and bytes that sinks' clients hold."""
        self._clients: dict[str, dict[str, int]] = {}
        self._last_event_s: float | None = None
        self._depths: Callable[[], Mapping[str, int]] = dict
        self._retention: LogRetention | None = None
        self._encodings: Callable[[], Mapping[str, Mapping[str, int]]] = dict
        self._encoded: Mapping[str, Mapping[str, int]] = {}
        self._sensor: CountsSensing | None = None

    def resume(self, former: MeasuredCounts, sink_ids: Sequence[str]) -> None:
        """Go on counting from an earlier lane's numbers; sinks that are gone are left out."""
        with self._lock:
            tables = former.tables
            sinks = {name: sink for name, sink in former.sinks.items() if name in sink_ids}
            self._counts.add(former.model_copy(update={"tables": {}, "sinks": sinks}, deep=True))
            for name, table in tables.items():
                index = self._index(name)
                self._delivered.resume(index, table.delivered)
                self._read.resume(index, table.read)

    def reads_from(self, depths: Callable[[], Mapping[str, int]]) -> None:
        """Ask from now on how much waits between two stages."""
        self._depths = depths

    def encodes_by(self, counts: Callable[[], Mapping[str, Mapping[str, int]]]) -> None:
        """Ask from now on what the encoding of each sink counts itself."""
        self._encodings = counts

    def senses_by(self, sensor: "CountsSensing") -> None:
        """Ask from now on what a sensor has counted."""
        self._sensor = sensor

    def decoded(self, nbytes: int, seconds: float, schemas: int, *, has_events: bool) -> None:
        """Count a segment of the log that was decoded; its ``schemas`` were known."""
        with self._lock:
            self._counts.source_bytes += nbytes
            self._counts.schema_cache_hits += schemas
            self._note_stage("decode", "segment", seconds)
            if has_events:
                self._last_event_s = time.monotonic()

    def schemas_missed(self, count: int) -> None:
        """Count tables whose schema had to be registered or looked up."""
        with self._lock:
            self._counts.schema_cache_hits -= count
            self._counts.schema_cache_misses += count

    def stage(self, stage: str, trigger: str, seconds: float) -> None:
        """Count what one stage took for one batch."""
        with self._lock:
            self._note_stage(stage, trigger, seconds)

    def delivered(
        self,
        tables: Sequence[str],
        table_of: np.ndarray,
        commit_ms: np.ndarray,
        read_ms: float | np.ndarray,
        now_ms: float | np.ndarray,
    ) -> None:
        """Count changes that every sink has taken.

        Args:
            tables: full names.
            table_of: which of them each change is of.
            commit_ms: of each change, ms since the epoch.
            read_ms: when each was read.
            now_ms: when each was delivered.
        """
        waited_ms = np.maximum(now_ms - commit_ms, 0)
        lags_ms = np.zeros(len(tables), np.int64)
        lags_ms[table_of] = waited_ms  # Of several changes of one table the last one stays.
        with self._lock:
            indexes = np.array([self._index(name) for name in tables])
            of = indexes[table_of]
            self._delivered.add(of, waited_ms / 1000)
            self._read.add(of, np.maximum(read_ms - commit_ms, 0) / 1000)
            for name, index, lag_ms in zip(tables, indexes.tolist(), lags_ms.tolist(), strict=True):
                self._table_lag_ms[name if index < TABLES_MAX else OTHER_TABLES] = lag_ms

    def source_failed(self, error: BaseException) -> None:
        """Count a read that failed."""
        with self._lock:
            _count(self._counts.source_errors, class_of(error))

    def ended_by(self, error: BaseException) -> None:
        """Count that a lane ended by an error, if nobody has foreseen it."""
        with self._lock:
            self._counts.panics += class_of(error) == _UNFORESEEN

    def sink_failed(self, sink_id: str, error: BaseException) -> None:
        """Count a write that failed."""
        with self._lock:
            _count(self._sink(sink_id).errors, class_of(error))

    def sink_reconnected(self, sink_id: str) -> None:
        """Count that a sink takes batches again."""
        with self._lock:
            self._sink(sink_id).reconnects += 1

    def sink_timed_out(self, sink_id: str) -> None:
        """Count a batch that took longer than the document allows."""
        with self._lock:
            self._sink(sink_id).timeouts += 1

    def sink_begins(self, sink_id: str, messages: int, nbytes: int) -> None:
        """Note what a sink's client is given."""
        with self._lock:
            self._buffered[sink_id] = messages, nbytes

    def sink_ended(self, sink_id: str, seconds: float, client: ClientCounts) -> None:
        """Count a write that is durable, and what the sink's client did since the last one."""
        with self._lock:
            self._buffered[sink_id] = 0, 0
            self._clients[sink_id] = dict(client.gauges)
            sink = self._sink(sink_id)
            note(sink.latency, seconds)
            for what, count in client.counts.items():
                sink.counts[what] = sink.counts.get(what, 0) + count

    def retains(self, retention: LogRetention | None) -> None:
        """Note what the source keeps of its log for us."""
        self._retention = retention

    def add(self, counted: Mapping[str, Any]) -> None:
        """Add what was measured elsewhere, as ``take`` returned it."""
        more = MeasuredCounts.model_validate(counted)
        with self._lock:
            self._counts.add(more)

    def take(self) -> dict[str, Any]:
        """Return every count as plain data, and begin anew. Of a task, which times no tables."""
        taken = self.counts()
        with self._lock:
            self._counts = MeasuredCounts()
            self._encoded = {name: Counter(found) for name, found in self._encodings().items()}
        return taken.model_dump()

    def counts(self) -> MeasuredCounts:
        """Return a copy of every count."""
        with self._lock:
            counts = self._counts.model_copy(deep=True)
            for name, index in self._tables.items():
                shown = name if index < TABLES_MAX else OTHER_TABLES
                counts.tables[shown] = TableLatency(
                    delivered=self._delivered.of(index), read=self._read.of(index)
                )
        for sink_id, counted in self._encodings().items():
            encoding = counts.sinks.setdefault(sink_id, SinkMeasurements()).encoding
            taken = self._encoded.get(sink_id, {})
            for what, count in counted.items():
                encoding[what] = encoding.get(what, 0) + count - taken.get(what, 0)
        for name, sensed in ({} if self._sensor is None else self._sensor.counts()).items():
            is_shown = name in counts.sensing or len(counts.sensing) < TABLES_MAX
            counts.sensing.setdefault(name if is_shown else OTHER_TABLES, SensingCounts()).add(
                sensed
            )
        return counts

    def gauges(self) -> Gauges:
        """Return how it is now."""
        depths, sensor = dict(self._depths()), self._sensor
        with self._lock:
            last_s = self._last_event_s
            return Gauges(
                idle_s=None if last_s is None else round(time.monotonic() - last_s, 3),
                table_lag_ms=dict(self._table_lag_ms),
                channel_depth=depths,
                sensed_tables=None if sensor is None else len(sensor.counts()),
                dynamic_maps=None if sensor is None else sensor.dynamic_maps(),
                sinks={
                    name: SinkGauges(
                        buffer_messages=messages,
                        buffer_bytes=nbytes,
                        client=self._clients.get(name, {}),
                    )
                    for name, (messages, nbytes) in self._buffered.items()
                },
                processes=processes(),
                retention=self._retention,
            )

    def _index(self, table: str) -> int:
        """Return a table's row among the histograms; the last one stands for all others."""
        found = self._tables.get(table)
        if found is None:
            if len(self._tables) >= TABLES_MAX or table == OTHER_TABLES:
                self._tables[OTHER_TABLES] = TABLES_MAX
                return TABLES_MAX
            found = self._tables[table] = len(self._tables)
        return found

    def _sink(self, sink_id: str) -> SinkMeasurements:
        found = self._counts.sinks.get(sink_id)
        if found is None:
            found = self._counts.sinks[sink_id] = SinkMeasurements()
        return found

    def _note_stage(self, stage: str, trigger: str, seconds: float) -> None:
        triggers = self._counts.stages.setdefault(stage, {})
        latency = triggers.get(trigger)
        if latency is None:
            latency = triggers[trigger] = Latency()
        note(latency, seconds)


def class_of(error: BaseException) -> str:
    """Return the word that status and metrics show for an error."""
    return str(getattr(error, "error_class", _UNFORESEEN))


def processes() -> dict[str, ProcessMeasurements]:
    """Return this process, and the JVM that it belongs to on this machine, by role."""
    found: dict[str, ProcessMeasurements] = {}
    with suppress(psutil.Error, OSError):
        own = psutil.Process()
        found["lane"] = _measured(own)
        for parent in own.parents():
            if Path(parent.name()).name == "java":
                found["jvm"] = _measured(parent)
                break
    return found


def _measured(process: psutil.Process) -> ProcessMeasurements:
    with process.oneshot():
        times = process.cpu_times()
        open_fds = None
        with suppress(psutil.Error, OSError, AttributeError):  # Of others' processes, of Windows.
            open_fds = process.num_fds()
        return ProcessMeasurements(
            rss_bytes=process.memory_info().rss,
            cpu_s=round(times.user + times.system, 2),
            open_fds=open_fds,
            threads=process.num_threads(),
            started_s=process.create_time(),
        )


def _count(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


def watch_retention(
    measured: LaneMeasurements,
    ask: Callable[[], LogRetention | None],
    ending: threading.Event,
    every_s: float,
) -> None:
    """Ask a source now and then what it keeps of its log, in a thread, until ``ending`` is set.

    Sooner at first: what has no position yet has no answer either.
    """

    def watch() -> None:
        pause_s = min(1.0, every_s)
        while True:
            retention = None
            with suppress(Exception):  # The reader says it, if the source is away.
                retention = ask()
            measured.retains(retention)
            if ending.wait(pause_s):
                return
            pause_s = min(2 * pause_s, every_s)

    threading.Thread(target=watch, name="retention", daemon=True).start()
