"""What a lane knows of itself, gathered from its threads: the truth behind status and metrics."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.engine.tallies import Latency, LetterTallies, Tallies
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.telemetry.redaction import redacted

_LONG_CALL_S = 60.0


@dataclass(slots=True)
class Trouble:
    """Why something does not go on, and since when."""

    reason: str
    error_class: str
    since_ms: int


@dataclass(slots=True)
class SinkState:
    """One sink's counters."""

    events: int = 0
    bytes: int = 0
    batches: int = 0
    retries: int = 0
    position: Position | None = None
    checkpoint_ms: int | None = None
    trouble: Trouble | None = None


@dataclass(slots=True)
class BatchFacts:
    """Counts of one batch, taken in the decoder thread so that delivery does not wait for them."""

    events: int
    nbytes: int
    commit_ms: np.ndarray
    by_table: Counter[tuple[str, str]]

    @classmethod
    def of(cls, rows: pa.RecordBatch, nbytes: int) -> "BatchFacts":
        """Count the rows of a batch by table and op."""
        return cls(
            events=rows.num_rows,
            nbytes=nbytes,
            commit_ms=rows.column("ts_ms").to_numpy(),
            by_table=_by_table(rows),
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What one sink was given: events, and bytes of message values."""

    events: int
    nbytes: int

    def __add__(self, other: "Taken") -> "Taken":
        """Return both together."""
        return Taken(self.events + other.events, self.nbytes + other.nbytes)


@dataclass
class Board:
    """Counters and troubles of one lane. Every method may be called from any thread."""

    sinks: dict[str, SinkState] = field(default_factory=dict)
    events: int = 0
    bytes: int = 0
    batches: int = 0
    splits: int = 0
    last_commit_ms: int | None = None
    source_trouble_now: Trouble | None = None
    reconnects: int = 0
    slowest: Position | None = None
    by_table: Counter[tuple[str, str]] = field(default_factory=Counter)
    latency: Latency = field(default_factory=Latency)
    processors: Tallies = field(default_factory=Tallies)
    letters: LetterTallies = field(default_factory=LetterTallies)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    """Why something other than a sink or the source does not go on, by its name."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._lag_ms: int | None = None

    def resume(self, told: dict[str, Any]) -> None:
        """Go on counting from an earlier lane's progress, so that counters never fall."""
        self.events, self.bytes, self.batches = told["events"], told["bytes"], told["batches"]
        for table, counts in told["tables"].items():
            for op, count in counts.get("events", {}).items():
                self.by_table[table, op] += count
        for sink_id, sink in told["sinks"].items():
            state = self.sinks.get(sink_id)
            if state is None:
                continue  # Taken out of the document since.
            state.events, state.bytes = sink["events"], sink["bytes"]
            state.batches, state.retries = sink["batches"], sink["retries"]
        extra = told["extra"]
        self.splits = extra.get("transaction_splits", 0)
        self.reconnects = extra.get("source_reconnects", 0)
        self.latency.add(extra.get("latency"))
        self.processors.add(extra.get("processors") or {}, known_only=True)
        self.letters.add(extra.get("dlq") or {})

    def source_trouble(self, error: BaseException | None) -> None:
        """Note that the log cannot be read, or (None) that it can again."""
        with self._lock:
            self.source_trouble_now = _trouble(self.source_trouble_now, error)
            if error is None:
                self.reconnects += 1

    def sink_trouble(self, sink_id: str, error: BaseException | None) -> None:
        """Note that a sink does not take a batch, or (None) that it does again."""
        with self._lock:
            state = self.sinks.setdefault(sink_id, SinkState())
            state.trouble = _trouble(state.trouble, error)
            if error is not None:
                state.retries += 1

    def processor_trouble(self, processor_id: str, error: BaseException | None) -> None:
        """Note that a processor cannot work now, or (None) that it can again."""
        self.trouble(f"processor {processor_id}", error)

    def trouble(self, name: str, error: BaseException | None) -> None:
        """Note that something named does not go on, or (None) that it does again."""
        with self._lock:
            trouble = _trouble(self.troubles.get(name), error)
            if trouble is None:
                self.troubles.pop(name, None)
            else:
                self.troubles[name] = trouble

    def delivered(self, facts: BatchFacts, taken: Mapping[str, Taken]) -> None:
        """Count a batch that every sink has taken.

        Args:
            facts: of the source's batch, whatever processors made of it.
            taken: what each sink was given.
        """
        now_ms = time.time() * 1000
        with self._lock:
            self.batches += 1
            self.events += facts.events
            self.bytes += facts.nbytes
            self.by_table.update(facts.by_table)
            self._count(taken)
            if facts.events:
                self._measure(facts.commit_ms, now_ms)

    def copied(self, table: str, rows: int, taken: Mapping[str, Taken]) -> None:
        """Count the rows of a snapshot chunk that every sink has taken."""
        with self._lock:
            self.batches += 1
            self.events += rows
            self.by_table[table, "r"] += rows
            self._count(taken)

    def checkpointed(self, position: Position, sink_ids: list[str]) -> None:
        """Note the position that is durable now."""
        now_ms = int(time.time() * 1000)
        with self._lock:
            self.slowest = position
            for sink_id in sink_ids:
                state = self.sinks.setdefault(sink_id, SinkState())
                state.position, state.checkpoint_ms = position, now_ms

    def blocked_by(self) -> tuple[str, Trouble] | None:
        """Return what holds the pipeline up, named, or None."""
        with self._lock:
            for sink_id, state in self.sinks.items():
                if state.trouble is not None:
                    return f"sink {sink_id}", state.trouble
            for name, trouble in self.troubles.items():
                return name, trouble
            if self.source_trouble_now is not None:
                return "source", self.source_trouble_now
        return self._hangs()

    def position(self) -> dict[str, Any] | None:
        """Return a position that every sink has reached, or None before the first."""
        with self._lock:
            positions = [state.position for state in self.sinks.values()]
            return dict(self.slowest) if self.slowest and all(positions) else None

    def lag_ms(self) -> int | None:
        """Return how old the newest delivered event was at its delivery.

        While something blocks the pipeline the age goes on growing: newer events wait.
        """
        with self._lock:
            troubles = [state.trouble for state in self.sinks.values()]
            blocked = self.source_trouble_now is not None or any(troubles) or self.troubles
            if (blocked or self._hangs()) and self.last_commit_ms is not None:
                return max(0, int(time.time() * 1000) - self.last_commit_ms)
            return self._lag_ms

    def counters(self) -> dict[str, Any]:
        """Return everything as plain data."""
        with self._lock:
            tables: dict[str, dict[str, int]] = {}
            for (table, op), count in self.by_table.items():
                tables.setdefault(table, {})[op] = count
            return {
                "events": self.events,
                "bytes": self.bytes,
                "batches": self.batches,
                "transaction_splits": self.splits,
                "source_reconnects": self.reconnects,
                "last_commit_ms": self.last_commit_ms,
                "tables": tables,
                "latency": self.latency.as_dict(),
                "processors": self.processors.as_dict(),
                "dlq": self.letters.as_dict(),
            }

    def _hangs(self) -> tuple[str, Trouble] | None:
        """Return the processor that may never return: nothing comes behind its batch."""
        processor_id, seconds = self.processors.under_way() or ("", 0.0)
        if seconds < _LONG_CALL_S:
            return None
        reason = f"it has worked on one batch for more than {_LONG_CALL_S:.0f} s"
        since_ms = int((time.time() - seconds) * 1000)
        return f"processor {processor_id}", Trouble(reason, RetryableError.error_class, since_ms)

    def _count(self, taken: Mapping[str, Taken]) -> None:
        for sink_id, told in taken.items():
            state = self.sinks.setdefault(sink_id, SinkState())
            state.events += told.events
            state.bytes += told.nbytes
            state.batches += 1

    def _measure(self, commit_ms: np.ndarray, now_ms: float) -> None:
        self.latency.measure(np.maximum(now_ms - commit_ms, 0) / 1000)
        self.last_commit_ms = int(commit_ms[-1])
        self._lag_ms = max(0, int(now_ms) - self.last_commit_ms)


def _trouble(before: Trouble | None, error: BaseException | None) -> Trouble | None:
    if error is None:
        return None
    error_class = getattr(error, "error_class", "error")
    since_ms = before.since_ms if before else int(time.time() * 1000)
    return Trouble(redacted(str(error)), error_class, since_ms)


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
