"""How far the next micro-batch may go, and exactly what lies between two positions.

Knows nothing of Spark. A position is always one between two transactions, so a micro-batch holds
whole transactions; one that is larger than the limit is a micro-batch of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.reader_contract import LogReader

_POLL_S = 0.1
_SILENCE_S = 60.0
_EMPTY_S = 10.0
_DRAINED_S = 10.0


@dataclass(slots=True)
class Span:
    """A decoded batch, reduced to its transaction boundaries.

    ``stops`` holds the rows before each boundary, ascending; ``taken`` says how many boundaries
    were used, and ``from_row`` is the row behind the last of them.
    """

    stops: Any
    place: Callable[[int], Position]
    rows: int
    row_bytes: float
    taken: int = 0
    from_row: int = 0


class Budget:
    """What a micro-batch may still take.

    Args:
        events_max: so many events; None: no limit of this kind.
        nbytes_max: so many bytes of the log.
    """

    def __init__(self, events_max: int | None, nbytes_max: int | None) -> None:
        self._events_max, self._nbytes_max = events_max, nbytes_max
        self.events = 0
        self._bytes = 0.0

    def use(self, events: int, nbytes: float) -> None:
        """Take some of it."""
        self.events += events
        self._bytes += nbytes

    def fit(self, span: Span, open_rows: int, open_bytes: float, until: int, *, first: bool) -> int:
        """Return up to which boundary (exclusive) the span fits."""
        rows = span.stops[span.taken : until] - span.from_row + open_rows
        fits = np.ones(len(rows), bool)
        if self._events_max is not None:
            fits &= rows + self.events <= self._events_max
        if self._nbytes_max is not None:
            nbytes = (rows - open_rows) * span.row_bytes + open_bytes
            fits &= nbytes + self._bytes <= self._nbytes_max
        count = int(fits.sum())
        if first and not self.events and not count and len(rows):
            # With it go boundaries of transactions without events, which hold as many rows.
            count = int((rows == rows[0]).sum())
        return span.taken + count


def count_until(count: int, holds: Callable[[int], bool]) -> int:
    """Return how many of ``0 … count - 1`` hold, when those that hold come first."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _boundaries(batch: ChangeBatch) -> tuple[Any, Any]:
    """Return the rows before each transaction boundary, and the transaction behind it."""
    ends = np.flatnonzero(batch.rows.column("tx_end").to_numpy(zero_copy_only=False))
    return ends + 1, batch.rows.column("tx").to_numpy()[ends]


def span_of(batch: ChangeBatch) -> Span:
    """Reduce a batch to its boundaries; where it ends counts as one."""
    stops, transactions = _boundaries(batch)
    rows = batch.rows.num_rows
    # Rows without a boundary after them are complete, unless the transaction goes on.
    after_last = int(stops[-1]) if len(stops) else 0
    last = after_last if batch.open_tx else rows
    positions, end, count = batch.positions, batch.end, len(stops)

    def place(index: int) -> Position:
        return positions.after(int(transactions[index])) if index < count else end

    # An open transaction that began earlier leaves no boundary in this batch.
    closing = [] if batch.open_tx and not count and rows else [last]
    return Span(
        stops=np.concatenate([stops, np.array(closing, np.int64)]),
        place=place,
        rows=rows,
        row_bytes=batch.nbytes / max(1, rows),
    )


def rows_up_to(source: Source, batch: ChangeBatch, end: Position) -> pa.RecordBatch:
    """Return the rows of a batch whose transactions lie at or before ``end``."""
    stops, transactions = _boundaries(batch)
    after = batch.positions.after
    count = count_until(len(stops), lambda n: source.compare(after(int(transactions[n])), end) <= 0)
    if count == len(stops) and not batch.open_tx and source.compare(batch.end, end) <= 0:
        return batch.rows
    return batch.rows.slice(0, int(stops[count - 1]) if count else 0)


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What one micro-batch may hold; None: no limit of this kind."""

    events: int | None = None
    nbytes: int | None = None


class Frontier:
    """Reads ahead to learn where micro-batches may end. Used by one thread.

    Args:
        source: whose log.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reader: LogReader | None = None
        self._at: Position | None = None
        self._spans: deque[Span] = deque()
        self._open_rows = 0
        self._open_bytes = 0.0
        self._moved_at = time.monotonic()

    def advance(
        self, start: Position, limit: BatchLimit, target: Position | None
    ) -> Position | None:
        """Return where the micro-batch that begins at ``start`` ends; None when there is nothing.

        Waits a tenth of a second for something, so that polling costs little.

        Args:
            start: the end of the micro-batch before.
            limit: what it may hold; a first transaction is taken whatever its size.
            target: never go beyond this position, and do not give up before it: the log is read
                until nothing came for 10 s.

        Raises:
            RetryableError: the server stays away.
        """
        if target is not None and self._source.compare(start, target) >= 0:
            return None
        self._begin(start)
        room = Budget(limit.events, limit.nbytes)
        found: Position | None = None
        patience_s = _POLL_S if target is None else _DRAINED_S
        heard = time.monotonic()
        while True:
            span = self._next_span(wait=found is None)
            if span is None:
                if found is not None or time.monotonic() - heard >= patience_s:
                    break
                continue
            heard = time.monotonic()
            position, over = self._take(span, room, target, first=found is None)
            found = position or found
            if over:
                break
        if found is None or not (room.events or target is not None or self._may_move()):
            return None
        self._at = found
        self._moved_at = time.monotonic()
        return found

    def acknowledge(self, position: Position) -> None:
        """Acknowledge to the server that everything up to ``position`` is safe."""
        if self._reader is not None:
            self._reader.acknowledge(position)

    def close(self) -> None:
        """Close the connection."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _begin(self, start: Position) -> None:
        """Open the log at ``start``, unless that is where we are."""
        if self._reader is not None and self._at == start:
            return
        self.close()
        self._spans.clear()
        self._open_rows, self._open_bytes = 0, 0.0
        self._reader = retry(lambda: self._source.open(start))
        self._at = start

    def _next_span(self, *, wait: bool) -> Span | None:
        if self._spans:
            return self._spans[0]
        reader = self._reader
        if reader is None:
            return None
        chunk = retry(lambda: reader.read(_POLL_S if wait else 0.0))
        if chunk is None:
            return None
        self._spans.append(span_of(reader.decode(chunk)))
        return self._spans[0]

    def _take(
        self, span: Span, room: Budget, target: Position | None, *, first: bool
    ) -> tuple[Position | None, bool]:
        """Take as many borders of a span as there is room for.

        Returns:
            The position behind the last one, and whether the micro-batch is full.
        """
        compare = self._source.compare
        until = len(span.stops)
        if target is not None:
            until = span.taken + count_until(
                until - span.taken, lambda n: compare(span.place(span.taken + n), target) <= 0
            )
        count = room.fit(span, self._open_rows, self._open_bytes, until, first=first)
        if count == span.taken and count < len(span.stops):
            return None, True
        position = span.place(count - 1) if count > span.taken else None
        if position is not None:
            rows = int(span.stops[count - 1]) - span.from_row
            room.use(self._open_rows + rows, self._open_bytes + rows * span.row_bytes)
            self._open_rows, self._open_bytes = 0, 0.0
            span.taken, span.from_row = count, int(span.stops[count - 1])
        if count < len(span.stops):
            return position, True
        # What is left belongs to a transaction that goes on in the next span.
        self._open_rows += span.rows - span.from_row
        self._open_bytes += (span.rows - span.from_row) * span.row_bytes
        self._spans.popleft()
        return position, False

    def _may_move(self) -> bool:
        """Move over transactions without events now and then, not in a micro-batch each."""
        return time.monotonic() - self._moved_at >= _EMPTY_S


def between(source: Source, start: Position, end: Position) -> Iterator[pa.RecordBatch]:
    """Yield exactly the events after ``start`` up to ``end``, in CHANGE_SCHEMA.

    Raises:
        RetryableError: the server stays away, or the log says nothing for a minute.
        PositionLostError: the log no longer begins at ``start``.
    """
    reader = retry(lambda: source.open(start))
    try:
        heard = time.monotonic()
        while True:
            chunk = retry(lambda: reader.read(_POLL_S))
            if chunk is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise RetryableError(
                        f"source {source.id}: the log did not reach the end of the micro-batch; "
                        "is it still the same server?"
                    )
                continue
            heard = time.monotonic()
            batch = reader.decode(chunk)
            over = source.compare(batch.end, end) >= 0
            rows = rows_up_to(source, batch, end) if over else batch.rows
            if rows.num_rows:
                yield rows
            if over:
                return
    finally:
        reader.close()


def retry(call: Callable[[], Any]) -> Any:
    """Repeat a call while the server is away, for a minute.

    Raises:
        RetryableError: it stayed away.
    """
    attempts = Retrying(
        retry=retry_if_exception_type(RetryableError),
        wait=wait_random_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(_SILENCE_S),
        reraise=True,
    )
    return attempts(call)
