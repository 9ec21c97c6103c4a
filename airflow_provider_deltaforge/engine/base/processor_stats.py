"""What batches, processors and dead letters did, counted by several threads."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.columns.value_codes import combinations
from airflow_provider_deltaforge.events.change import joined
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.storage.records.stats import (
    LATENCY_BUCKETS_S,
    DeadLetterCounts,
    DeadLetterSeries,
    Latency,
    ProcessorCounts,
)

_COUNTED = ("db", "schema", "table", "op")
_MEASURED = [*_COUNTED, "ts_ms"]
_BUCKETS_S = np.array(LATENCY_BUCKETS_S)


def slots_of(seconds: np.ndarray) -> np.ndarray:
    """Return the bucket of each wait."""
    return _BUCKETS_S.searchsorted(seconds)


def measure(latency: Latency, seconds: np.ndarray) -> None:
    """Count so many waits. Its owner keeps two threads from using a histogram at once."""
    counted = np.bincount(slots_of(seconds))
    for slot in np.flatnonzero(counted).tolist():
        latency.counts[slot] += int(counted[slot])
    latency.sum_s += float(seconds.sum())


class ProcessorStats:
    """Counters by processor. Every method may be called from any thread."""

    def __init__(self, processor_ids: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._counters = {processor_id: ProcessorCounts() for processor_id in processor_ids}
        self._under_way: dict[int, tuple[str, float]] = {}
        """By thread: parts of a batch are processed at the same time."""

    def processed(
        self, processor_id: str, events: tuple[int, int], refused: int, counts: Mapping[str, int]
    ) -> None:
        """Count a batch: events that went in and came out, and those that were refused."""
        with self._lock:
            counters = self._counters.setdefault(processor_id, ProcessorCounts())
            counters.events_in += events[0]
            counters.events_out += events[1]
            counters.errors += refused
            for what, count in counts.items():
                counters.counts[what] = counters.counts.get(what, 0) + count

    def calls(self, processor_id: str) -> None:
        """Note that a processor is given a batch; ``called`` says that it is back."""
        with self._lock:
            self._under_way[threading.get_ident()] = processor_id, time.monotonic()

    def under_way(self) -> tuple[str, float] | None:
        """Return which processor has worked longest on a batch, and for how many seconds."""
        with self._lock:
            now = list(self._under_way.values())
        if not now:
            return None
        processor_id, since_s = min(now, key=lambda each: each[1])
        return processor_id, time.monotonic() - since_s

    def called(self, processor_id: str, seconds: float, *, failed: bool) -> None:
        """Count one call of a processor."""
        with self._lock:
            self._under_way.pop(threading.get_ident(), None)
            counters = self._counters.setdefault(processor_id, ProcessorCounts())
            measure(counters.latency, np.array([seconds]))
            counters.errors += failed

    def add(self, former: Mapping[str, Any], *, known_only: bool = False) -> None:
        """Add what was counted elsewhere.

        Args:
            former: by processor id, records or what ``take`` returned.
            known_only: leave out processors that are not in the document any more.
        """
        with self._lock:
            for processor_id, counted in former.items():
                if not known_only or processor_id in self._counters:
                    counters = self._counters.setdefault(processor_id, ProcessorCounts())
                    counters.add(ProcessorCounts.model_validate(counted))

    def report(self) -> dict[str, ProcessorCounts]:
        """Return a copy of everything, by processor id."""
        with self._lock:
            return {name: found.model_copy(deep=True) for name, found in self._counters.items()}

    def take(self) -> dict[str, Any]:
        """Return everything as plain data, and begin anew."""
        with self._lock:
            taken, self._counters = self._counters, {}
        return {name: counters.model_dump() for name, counters in taken.items()}


class DeadLetterStats:
    """Counters of the dead-letter queue. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: Counter[tuple[str, str, str]] = Counter()
        self._counted = DeadLetterCounts()

    def set_aside(self, sink_id: str | None, processor_id: str | None, kind: str) -> None:
        """Count an event that is durable in the queue."""
        with self._lock:
            self._events[sink_id or "", processor_id or "", kind] += 1

    def count(self, what: str, events: int) -> None:
        """Count what became of events otherwise, by a field of ``DeadLetterCounts``."""
        with self._lock:
            setattr(self._counted, what, getattr(self._counted, what) + events)

    def add(self, former: Any) -> None:
        """Add what was counted elsewhere: a record, or what ``take`` returned."""
        counted = DeadLetterCounts.model_validate(former)
        with self._lock:
            for series in counted.events:
                self._events[series.sink, series.processor, series.error_kind] += series.count
            self._counted.add(counted.model_copy(update={"events": []}))

    def report(self) -> DeadLetterCounts:
        """Return a copy of everything."""
        with self._lock:
            return self._report()

    def take(self) -> dict[str, Any]:
        """Return everything as plain data, and begin anew."""
        with self._lock:
            taken = self._report()
            self._events.clear()
            self._counted = DeadLetterCounts()
        return taken.model_dump()

    def _report(self) -> DeadLetterCounts:
        events = [
            DeadLetterSeries(sink=sink, processor=processor, error_kind=kind, count=count)
            for (sink, processor, kind), count in sorted(self._events.items())
        ]
        return self._counted.model_copy(update={"events": events})


@dataclass(frozen=True, slots=True)
class BatchStats:
    """What is counted of one batch, once every sink has taken it.

    Attributes:
        rows: what says of each event its table, its op and when it was committed.
        nbytes: of log.
        read_ms: when it was read.
    """

    rows: pa.RecordBatch
    nbytes: int
    read_ms: float

    @classmethod
    def of(cls, rows: pa.RecordBatch, nbytes: int, read_ms: float) -> "BatchStats":
        """Keep what is counted of change events, without their images."""
        return cls(rows.select(_MEASURED), nbytes, read_ms)


@dataclass(frozen=True, slots=True)
class EventCounts:
    """Change events of some batches, counted.

    Attributes:
        by_table: how many, by full name and op.
        tables: full names of their tables.
        table_of: which of these each is of.
        commit_ms: of each.
    """

    by_table: Counter[tuple[str, str]]
    tables: list[str]
    table_of: np.ndarray
    commit_ms: np.ndarray

    @classmethod
    def of(cls, batches: Sequence[BatchStats]) -> "EventCounts":
        """Count the events of batches together: of small ones, each alone costs as much."""
        rows = joined([batch.rows for batch in batches])
        return cls(*_by_table(rows), rows.column("ts_ms").to_numpy())


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """What one sink was given: events, and bytes of message values."""

    events: int
    nbytes: int

    def __add__(self, other: "SinkCounts") -> "SinkCounts":
        """Return both together."""
        return SinkCounts(self.events + other.events, self.nbytes + other.nbytes)


def _by_table(rows: pa.RecordBatch) -> tuple[Counter[tuple[str, str]], list[str], np.ndarray]:
    """Count rows by (qualified table, op) over dictionary codes, without touching each row.

    Returns:
        The counts, the tables, and which of these each row is of.
    """
    combined, found = combinations([rows.column(name) for name in _COUNTED])
    counted: Counter[tuple[str, str]] = Counter()
    tables: dict[str, int] = {}
    table_of = []
    for (db, schema, table, op), count in zip(found, np.bincount(combined).tolist(), strict=True):
        name = qualified_name(schema or db, table)
        counted[name, op] += count
        table_of.append(tables.setdefault(name, len(tables)))
    return counted, list(tables), np.array(table_of, np.int64)[combined]
