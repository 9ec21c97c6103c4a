"""Cuts what the decoder makes into batches for delivery, at transaction boundaries.

A transaction is split only above ``max_transaction_bytes``, or when ``respect_source_tx`` is off.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import ChangeBatch, Position, joined
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.policies import Batch

LEAST_EVENT_BYTES = 128
"""However few bytes of log an event has, around them it takes as much memory as one of so many."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full, and whether transactions stay whole."""

    max_events: int
    max_bytes: int
    max_age_s: float
    respect_source_tx: bool = True
    max_transaction_bytes: int = 8 << 20
    least_event_bytes: int = 1
    """What an event counts as at least, where bytes stand for memory."""

    @classmethod
    def of(cls, batch: Batch, sinks: Sequence[Sink] = ()) -> "BatchLimits":
        """Return what a document says; where it does not, a sink may wish for larger batches."""
        wishes = [sink.batch_events for sink in sinks if "max_events" not in batch.model_fields_set]
        return cls(
            max_events=max([batch.max_events, *wishes]),
            max_bytes=batch.max_bytes,
            max_age_s=batch.max_ms / 1000,
            respect_source_tx=batch.respect_source_tx,
            max_transaction_bytes=batch.max_transaction_bytes,
            least_event_bytes=LEAST_EVENT_BYTES,
        )


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """Rows to deliver together, and the position that is reached once they are durable.

    ``position`` is None when the batch ends inside a transaction: nothing may be checkpointed.
    """

    rows: pa.RecordBatch
    position: Position | None
    nbytes: int
    splits_transaction: bool = False
    boundary: Position | None = None
    """Behind the last transaction that is whole, of a batch that ends inside another."""
    trigger: str = ""
    """Why it goes out: ``events``, ``bytes`` or ``timer``, which are limits, ``idle`` sinks, or the
    ``end`` of what is read at once."""


@dataclass(frozen=True, slots=True)
class _Piece:
    rows: pa.RecordBatch
    position: Position | None
    """None: the piece ends inside a transaction."""
    nbytes: int
    boundary: Position | None
    """Behind the last transaction that ends in it."""
    weight: int
    """Its bytes, as they count against the limit of a transaction."""


class Batcher:
    """Collects decoded rows and gives them out as batches. Used by one thread."""

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._pieces: list[_Piece] = []
        self._events = 0
        self._bytes = 0
        self._weight = 0
        self._since_s: float | None = None
        self._in_split = False

    def add(self, batch: ChangeBatch, now_s: float) -> Iterator[SourceBatch]:
        """Take in a decoded batch, and yield every batch that is full because of it."""
        if batch.continues:
            self._finish_open_transaction(batch)
        reached: Position | None = None
        for piece in self._cut(batch):
            for full in self._take(piece, now_s):
                reached = full.position
                yield full
        self._move_end(batch)
        if self._pieces or batch.open_tx:
            return
        # Transactions without rows for us, behind all that is given out already.
        if batch.rows.num_rows == 0 or reached != batch.end:
            yield SourceBatch(batch.rows.slice(0, 0), batch.end, 0)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing waits. Called from any thread."""
        return self._since_s is None

    def due(self, now_s: float, *, is_idle: bool = False) -> SourceBatch | None:
        """Return what has waited for ``max_age_s``, up to the last transaction boundary.

        Args:
            now_s: the present.
            is_idle: who delivers has nothing to do: whatever waits is due.
        """
        if self._since_s is None:
            return None
        if now_s - self._since_s >= self._limits.max_age_s:
            return self._flush_to_boundary("timer")
        return self._flush_to_boundary("idle") if is_idle else None

    def rest(self) -> SourceBatch | None:
        """Return what waits, up to the last transaction boundary: nothing more comes."""
        return self._flush_to_boundary("end") if self._has_boundary() else None

    def wait_s(self, now_s: float) -> float | None:
        """Return how long until something is due; None when nothing can become due by waiting."""
        if self._since_s is None or not self._has_boundary():
            return None
        return max(0.0, self._since_s + self._limits.max_age_s - now_s)

    def _cut(self, batch: ChangeBatch) -> Iterator[_Piece]:
        """Cut a decoded batch into pieces no larger than a delivery, at boundaries where it can.

        A piece that holds a transaction which fits no batch is larger, up to the limit of one.
        """
        rows = batch.rows
        if rows.num_rows == 0:
            return
        row_bytes = max(1.0, batch.nbytes / rows.num_rows)
        most = max(1, min(self._limits.max_events, int(self._limits.max_bytes / row_bytes)))
        row_weight = max(row_bytes, self._limits.least_event_bytes)
        whole = max(most, int(self._limits.max_transaction_bytes / row_weight))
        open_piece = bool(self._pieces) and self._pieces[-1].position is None
        inside = self._limits.respect_source_tx and open_piece
        if not inside and rows.num_rows <= most - self._events and rows["tx_end"][-1].as_py():
            end = batch.positions.after(rows["tx"][-1].as_py())  # It fits whole, as most do.
            weight = int(rows.num_rows * row_weight)
            yield _Piece(rows, end, batch.nbytes, end, weight)
            return
        boundaries = np.flatnonzero(rows.column("tx_end").to_numpy(zero_copy_only=False)) + 1
        transactions = rows.column("tx").to_numpy()
        start = 0
        while start < rows.num_rows:
            room = max(1, most - self._events) if start == 0 and self._pieces else most
            if inside:
                room = 1  # The transaction's end comes first, alone.
            stop = min(self._stop(boundaries, start, start + room, rows.num_rows), start + whole)
            ends = int(np.searchsorted(boundaries, stop, side="right"))
            boundary = int(boundaries[ends - 1]) if ends else 0
            after = (
                batch.positions.after(int(transactions[boundary - 1])) if boundary > start else None
            )
            at_boundary = boundary == stop
            yield _Piece(
                rows.slice(start, stop - start),
                after if at_boundary else None,
                int((stop - start) * row_bytes),
                after,
                int((stop - start) * row_weight),
            )
            start = stop
            inside = self._limits.respect_source_tx and not at_boundary

    def _stop(self, boundaries: np.ndarray, start: int, wanted: int, rows: int) -> int:
        """Return the row to cut before: the last boundary within reach, else the next one."""
        if not self._limits.respect_source_tx:
            return min(wanted, rows)
        index = int(np.searchsorted(boundaries, wanted, side="right")) - 1
        if index >= 0 and boundaries[index] > start:
            return int(boundaries[index])
        return int(boundaries[index + 1]) if index + 1 < boundaries.size else rows

    def _take(self, piece: _Piece, now_s: float) -> Iterator[SourceBatch]:
        limits = self._limits
        events, nbytes = piece.rows.num_rows, piece.nbytes
        too_many = self._events + events > limits.max_events
        over = too_many or self._bytes + nbytes > limits.max_bytes
        trigger = "events" if too_many else "bytes"
        if self._pieces and over and (full := self._flush_to_boundary(trigger)):
            yield full
        if self._since_s is None:
            self._since_s = now_s
        self._pieces.append(piece)
        self._events += events
        self._bytes += nbytes
        self._weight += piece.weight
        if self._events >= limits.max_events or self._bytes >= limits.max_bytes:
            trigger = "events" if self._events >= limits.max_events else "bytes"
            if not limits.respect_source_tx:
                yield self._flush(len(self._pieces), trigger)
            elif full := self._flush_to_boundary(trigger):
                yield full
        if self._weight > limits.max_transaction_bytes:
            if full := self._flush_to_boundary("bytes"):
                yield full
            if self._weight > limits.max_transaction_bytes:
                yield self._flush(len(self._pieces), "bytes")

    def _has_boundary(self) -> bool:
        if not self._limits.respect_source_tx:
            return bool(self._pieces)
        return any(piece.position is not None for piece in self._pieces)

    def _flush_to_boundary(self, trigger: str) -> SourceBatch | None:
        if not self._limits.respect_source_tx and self._pieces:
            return self._flush(len(self._pieces), trigger)
        for count in range(len(self._pieces), 0, -1):
            if self._pieces[count - 1].position is not None:
                return self._flush(count, trigger)
        return None

    def _flush(self, count: int, trigger: str) -> SourceBatch:
        out, self._pieces = self._pieces[:count], self._pieces[count:]
        self._events = sum(piece.rows.num_rows for piece in self._pieces)
        self._bytes = sum(piece.nbytes for piece in self._pieces)
        self._weight = sum(piece.weight for piece in self._pieces)
        if not self._pieces:
            self._since_s = None
        position = out[-1].position
        self._in_split = position is None
        nbytes = sum(piece.nbytes for piece in out)
        ends = (piece.boundary for piece in reversed(out) if piece.boundary is not None)
        boundary = next(ends, None) if position is None else None
        rows = joined([piece.rows for piece in out])
        return SourceBatch(rows, position, nbytes, self._in_split, boundary, trigger)

    def _finish_open_transaction(self, batch: ChangeBatch) -> None:
        """Mark the end of a transaction whose remaining rows nobody captures."""
        rows = batch.rows
        goes_on = rows.num_rows > 0 and rows.column("tx")[0].as_py() == 0
        if goes_on or (rows.num_rows == 0 and batch.open_tx):
            return
        if not self._pieces or self._pieces[-1].position is not None:
            return
        last = self._pieces[-1]
        self._pieces[-1] = replace(last, rows=_ended(last.rows), position=batch.positions.after(0))

    def _move_end(self, batch: ChangeBatch) -> None:
        """Move the end of the last piece to the end of the batch: empty transactions count too."""
        if self._pieces and self._pieces[-1].position is not None and not batch.open_tx:
            last = self._pieces[-1]
            self._pieces[-1] = replace(last, position=batch.end)


def _ended(rows: pa.RecordBatch) -> pa.RecordBatch:
    flags = rows.column("tx_end").to_numpy(zero_copy_only=False).copy()
    flags[-1] = True
    index = rows.schema.get_field_index("tx_end")
    return rows.set_column(index, rows.schema.field(index), pa.array(flags))


class CuttingBatcher(Batcher):
    """A batcher that ends a batch at each of some positions: where sinks stand that hold more.

    Read again, the log may be cut otherwise than before. A sink that is to be given nothing twice
    can only skip whole batches. Where positions have no total order, a place may lie beside what is
    read: a batch that ended there would claim changes that are still to come.

    Args:
        limits: as of every batch.
        source: compares positions.
        start: where the log is read from.
        places: where to cut.
    """

    def __init__(
        self, limits: BatchLimits, source: Source, start: Position, places: Sequence[Position]
    ) -> None:
        super().__init__(limits)
        self._source = source
        self._end = start
        self._places = list(places)

    def add(self, batch: ChangeBatch, now_s: float) -> Iterator[SourceBatch]:
        """Take in a decoded batch, and yield every batch that is full or ends at a place."""
        cuts = self._cuts(batch)
        self._end = batch.end
        for place, upto in cuts:
            front, batch = split_at(batch, upto, place)
            yield from super().add(front, now_s)
            if (rest := self.rest()) is not None:
                yield rest
        yield from super().add(batch, now_s)

    def _cuts(self, batch: ChangeBatch) -> list[tuple[Position, int]]:
        """Return the places that lie in a batch, each with the row before which it lies."""
        covers = self._source.covers
        found = []
        for place in list(self._places):
            if not covers(batch.end, place):
                continue  # It lies behind this batch.
            self._places.remove(place)
            row = rows_upto(batch, place, covers)
            if self._lies_at(batch, row, place):
                found.append((row, place))
        found.sort(key=lambda cut: cut[0])
        passed = 0
        cuts = []
        for row, place in found:
            cuts.append((place, row - passed))
            passed = row
        return cuts

    def _lies_at(self, batch: ChangeBatch, row: int, place: Position) -> bool:
        """Return whether everything in front of a row is before a place, and nothing else is."""
        covers = self._source.covers
        if row == 0 and not covers(place, self._end):
            return False
        if row == batch.rows.num_rows:
            return True
        rows, following = batch.rows, batch.rows["tx"][row].as_py()
        is_open = batch.open_tx and not rows["tx_end"][-1].as_py()
        if is_open and following == rows["tx"][-1].as_py():
            return True
        return covers(batch.positions.after(following), place)


def rows_upto(
    batch: ChangeBatch, place: Position, covers: Callable[[Position, Position], bool]
) -> int:
    """Return how many rows of a batch belong to transactions up to a place."""
    transactions = batch.rows.column("tx").to_numpy()
    ordinals = np.unique(transactions)
    if batch.open_tx and len(ordinals) and not batch.rows.column("tx_end")[-1].as_py():
        ordinals = ordinals[:-1]
    low, high = 0, len(ordinals)
    while low < high:
        middle = (low + high) // 2
        if covers(place, batch.positions.after(int(ordinals[middle]))):
            low = middle + 1
        else:
            high = middle
    return int(np.searchsorted(transactions, ordinals[low - 1], "right")) if low else 0


def split_at(batch: ChangeBatch, row: int, place: Position) -> tuple[ChangeBatch, ChangeBatch]:
    """Return what lies up to a place and what lies behind it."""
    total = batch.rows.num_rows
    front = replace(batch.slice(0, row), end=place, open_tx=False)
    begun = batch.continues and row == 0
    return front, replace(batch.slice(row, total), continues=begun)
