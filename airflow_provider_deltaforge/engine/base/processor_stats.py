"""What batches, processors and dead letters did, counted: the truth behind their metrics."""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

LATENCY_BUCKETS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_DEAD_LETTER_COUNTS = ("evicted", "rejected", "expired", "replayed", "write_failures")


class Latency:
    """A histogram of seconds. Its owner keeps two threads from using it at once."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(LATENCY_BUCKETS_S) + 1, dtype=np.int64)
        self._sum_s = 0.0

    def measure(self, seconds: np.ndarray) -> None:
        """Count so many waits."""
        slots = np.searchsorted(LATENCY_BUCKETS_S, seconds)
        self._counts += np.bincount(slots, minlength=self._counts.size)
        self._sum_s += float(seconds.sum())

    def add(self, former: Mapping[str, Any] | None) -> None:
        """Add what ``as_dict`` said elsewhere; of another release's buckets nothing is known."""
        if former is not None and former["buckets_s"] == list(LATENCY_BUCKETS_S):
            self._counts += np.asarray(former["counts"], dtype=np.int64)
            self._sum_s += former["sum_s"]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "buckets_s": list(LATENCY_BUCKETS_S),
            "counts": self._counts.tolist(),
            "sum_s": self._sum_s,
        }


@dataclass(slots=True)
class _Counters:
    events_in: int = 0
    events_out: int = 0
    errors: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    latency: Latency = field(default_factory=Latency)

    def add(self, former: Mapping[str, Any]) -> None:
        self.events_in += former["events_in"]
        self.events_out += former["events_out"]
        self.errors += former["errors"]
        self.counts.update(former["counts"])
        self.latency.add(former["latency"])

    def as_dict(self) -> dict[str, Any]:
        return {
            "events_in": self.events_in,
            "events_out": self.events_out,
            "errors": self.errors,
            "counts": dict(self.counts),
            "latency": self.latency.as_dict(),
        }


class ProcessorStats:
    """Counters by processor. Every method may be called from any thread."""

    def __init__(self, processor_ids: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._counters = {processor_id: _Counters() for processor_id in processor_ids}
        self._under_way: tuple[str, float] | None = None

    def processed(
        self, processor_id: str, events: tuple[int, int], refused: int, counts: Mapping[str, int]
    ) -> None:
        """Count a batch: events that went in and came out, and those that were refused."""
        with self._lock:
            counters = self._counters.setdefault(processor_id, _Counters())
            counters.events_in += events[0]
            counters.events_out += events[1]
            counters.errors += refused
            counters.counts.update(counts)

    def calls(self, processor_id: str) -> None:
        """Note that a processor is given a batch; ``called`` says that it is back."""
        self._under_way = processor_id, time.monotonic()

    def under_way(self) -> tuple[str, float] | None:
        """Return which processor works on a batch, and for how many seconds."""
        now = self._under_way
        return None if now is None else (now[0], time.monotonic() - now[1])

    def called(self, processor_id: str, seconds: float, *, failed: bool) -> None:
        """Count one call of a processor."""
        self._under_way = None
        with self._lock:
            counters = self._counters.setdefault(processor_id, _Counters())
            counters.latency.measure(np.array([seconds]))
            counters.errors += failed

    def add(self, former: Mapping[str, Any], *, known_only: bool = False) -> None:
        """Add what ``as_dict`` said elsewhere.

        Args:
            former: by processor id.
            known_only: leave out processors that are not in the document any more.
        """
        with self._lock:
            for processor_id, counted in former.items():
                if not known_only or processor_id in self._counters:
                    self._counters.setdefault(processor_id, _Counters()).add(counted)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data, by processor id."""
        with self._lock:
            return {name: counters.as_dict() for name, counters in self._counters.items()}

    def take(self) -> dict[str, Any]:
        """Return everything as plain data, and begin anew."""
        with self._lock:
            taken, self._counters = self._counters, {}
        return {name: counters.as_dict() for name, counters in taken.items()}


class DeadLetterStats:
    """Counters of the dead-letter queue. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: Counter[tuple[str, str, str]] = Counter()
        self._totals: Counter[str] = Counter()

    def set_aside(self, sink_id: str | None, processor_id: str | None, kind: str) -> None:
        """Count an event that is durable in the queue."""
        with self._lock:
            self._events[sink_id or "", processor_id or "", kind] += 1

    def count(self, what: str, events: int) -> None:
        """Count what became of events otherwise, by a name of ``_DEAD_LETTER_COUNTS``."""
        with self._lock:
            self._totals[what] += events

    def add(self, former: Mapping[str, Any]) -> None:
        """Add what ``as_dict`` said elsewhere."""
        with self._lock:
            for series in former.get("events", ()):
                self._events[series["sink"], series["processor"], series["error_kind"]] += series[
                    "count"
                ]
            self._totals.update({key: former[key] for key in former if key in _DEAD_LETTER_COUNTS})

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        with self._lock:
            events = [
                {"sink": sink, "processor": processor, "error_kind": kind, "count": count}
                for (sink, processor, kind), count in sorted(self._events.items())
            ]
            return {"events": events, **{what: self._totals[what] for what in _DEAD_LETTER_COUNTS}}

    def take(self) -> dict[str, Any]:
        """Return everything as plain data, and begin anew."""
        taken = self.as_dict()
        with self._lock:
            self._events.clear()
            self._totals.clear()
        return taken


@dataclass(slots=True)
class BatchStats:
    """Counts of one batch, taken in the decoder thread so that delivery does not wait for them."""

    events: int
    nbytes: int
    commit_ms: np.ndarray
    by_table: Counter[tuple[str, str]]

    @classmethod
    def of(cls, rows: pa.RecordBatch, nbytes: int) -> "BatchStats":
        """Count the rows of a batch by table and op."""
        return cls(
            events=rows.num_rows,
            nbytes=nbytes,
            commit_ms=rows.column("ts_ms").to_numpy(),
            by_table=_by_table(rows),
        )


@dataclass(frozen=True, slots=True)
class SinkCounts:
    """What one sink was given: events, and bytes of message values."""

    events: int
    nbytes: int

    def __add__(self, other: "SinkCounts") -> "SinkCounts":
        """Return both together."""
        return SinkCounts(self.events + other.events, self.nbytes + other.nbytes)


def _by_table(rows: pa.RecordBatch) -> Counter[tuple[str, str]]:
    """Count rows by (qualified table, op) over dictionary codes, without touching each row."""
    columns = [rows.column(name) for name in ("db", "schema", "table", "op")]
    code = np.zeros(rows.num_rows, dtype=np.int64)
    for column in columns:
        size = len(column.dictionary) + 1
        indices = column.indices.fill_null(size - 1).to_numpy(zero_copy_only=False)
        code = code * size + indices
    counted: Counter[tuple[str, str]] = Counter()
    _, first, counts = np.unique(code, return_index=True, return_counts=True)
    for row, count in zip(first.tolist(), counts.tolist(), strict=True):
        db, schema, table, op = (column[row].as_py() for column in columns)
        counted[f"{schema or db}.{table}", op] += count
    return counted
