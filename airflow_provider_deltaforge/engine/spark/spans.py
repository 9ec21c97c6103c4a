"""Batches reduced to their transaction boundaries, and how much of them a micro-batch may take."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source


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
