"""What processors make of a batch, as a whole or in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection

PLACE_COLUMNS = ["db", "schema", "table", "op", "key", "former_key"]
"""What says which row of which table an event concerns."""

_TX_END = CHANGE_SCHEMA.get_field_index("tx_end")


@dataclass(frozen=True, slots=True)
class ProcessorInput:
    """Which rows of which tables events concerned in front of one processor.

    Attributes:
        processor_id: which one.
        parts: what it was given, only the columns of ``PLACE_COLUMNS``.
        origins: per event that came of it, the row of the parts, one behind the other, that it
            stands for; None: one for one.
    """

    processor_id: str
    parts: Sequence[pa.RecordBatch]
    origins: np.ndarray | None = None

    def rows(self) -> pa.RecordBatch:
        """Return the columns, a row per event that came of it."""
        rows = pa.concat_batches(self.parts)
        return rows if self.origins is None else rows.take(pa.array(self.origins))


@dataclass(frozen=True, slots=True)
class RefusedEvents:
    """Events that one processor could not process, as they came to it.

    Attributes:
        processor_id: which one.
        rows: the events, one per rejection.
        origins: per event, the row of the source's batch it stands for.
        rejections: why; ``event_row`` counts in ``rows``.
        masked: nothing in the rows is still to be masked.
        places: of the rows, in front of each earlier processor with nothing still to be masked.
    """

    processor_id: str
    rows: pa.RecordBatch
    origins: np.ndarray
    rejections: Sequence[Rejection]
    masked: bool = True
    places: Sequence[pa.RecordBatch] = ()


@dataclass(frozen=True, slots=True)
class ProcessedBatch:
    """What the chain made of a batch.

    Attributes:
        rows: change events, in the order of delivery.
        origins: per row, the row of the source's batch it stands for; None: one for one.
        refused: what processors could not process, by processor in the order of the chain.
        inputs: of the processors in front of which nothing is still to be masked, in their order.
    """

    rows: pa.RecordBatch
    origins: np.ndarray | None = None
    refused: Sequence[RefusedEvents] = ()
    inputs: Sequence[ProcessorInput] = ()

    def origin(self, row: int) -> int:
        """Return the row of the source's batch that a row stands for."""
        return row if self.origins is None else int(self.origins[row])

    def in_front_of(self, processor_id: str | None) -> pa.RecordBatch:
        """Return which rows of which tables the events concerned in front of a processor.

        Args:
            processor_id: None, or unknown: behind all of them.
        """
        found = [each for each in self.inputs if each.processor_id == processor_id]
        return found[0].rows() if found else self.rows


@dataclass(frozen=True, slots=True)
class BatchTransactions:
    """The transactions of a batch, or of a part.

    Attributes:
        of: per row, the ordinal of its transaction in the batch.
        ended: how many have ended in the batch.
    """

    of: np.ndarray
    ended: int

    @classmethod
    def of_batch(cls, rows: pa.RecordBatch) -> "BatchTransactions":
        """Return the transactions of a whole batch of change events."""
        ends = flags(rows.column("tx_end"))
        # Ordinals of transactions begin anew in the middle of a batch: the flags tell.
        return cls(np.cumsum(ends) - ends, int(ends.sum()))

    def part(self, rows: np.ndarray, ends_here: np.ndarray) -> "BatchTransactions":
        """Return those of some rows; all others than ``ends_here`` end in no row of them.

        Args:
            rows: which rows of the batch.
            ends_here: bool per transaction that has ended.
        """
        own = self.of[rows]
        return replace(self, of=np.where(np.append(ends_here, [False])[own], own, self.ended))

    def with_ends(self, rows: pa.RecordBatch, origins: np.ndarray | None) -> pa.RecordBatch:
        """Mark the last row of every transaction that has ended, and no other.

        Args:
            rows: what became of the rows.
            origins: per event, the row that it stands for; None: one for one.
        """
        own = self.of if origins is None else self.of[origins]
        last = np.full(self.ended + 1, -1, np.int64)  # The one that comes after is open.
        last[np.minimum(own, self.ended)] = np.arange(len(own))
        ends = np.zeros(rows.num_rows, np.bool_)
        ends[last[:-1][last[:-1] >= 0]] = True
        if np.array_equal(ends, flags(rows.column("tx_end"))):
            return rows
        return rows.set_column(_TX_END, CHANGE_SCHEMA.field(_TX_END), pa.array(ends))


def merged(
    parts: Sequence[np.ndarray],
    made: Sequence[ProcessedBatch],
    transactions: BatchTransactions,
    processor_ids: Sequence[str],
) -> ProcessedBatch:
    """Return what became of a batch in parts, in its own order.

    Args:
        parts: of which rows each part was.
        made: of each part.
        transactions: of the whole batch.
        processor_ids: in the order of the chain.
    """
    own = [
        at if each.origins is None else at[each.origins]
        for at, each in zip(parts, made, strict=True)
    ]
    origins = np.concatenate(own)
    order = np.argsort(origins, kind="stable")
    origins = origins[order]
    rows = pa.concat_batches([each.rows for each in made]).take(pa.array(order))
    refused = [
        _united(
            [
                replace(entry, origins=at[entry.origins])
                for at, each in zip(parts, made, strict=True)
                for entry in each.refused
                if entry.processor_id == processor_id
            ]
        )
        for processor_id in processor_ids
        if any(entry.processor_id == processor_id for each in made for entry in each.refused)
    ]
    inputs = [_joined(made, processor_id, order) for processor_id in processor_ids]
    kept = [each for each in inputs if each.parts]
    return ProcessedBatch(transactions.with_ends(rows, origins), origins, refused, kept)


def _joined(made: Sequence[ProcessedBatch], processor_id: str, order: np.ndarray) -> ProcessorInput:
    """Return what one processor was given of all parts; of a dropped part it was given nothing."""
    parts: list[pa.RecordBatch] = []
    origins = [np.zeros(0, np.int64)]
    for each in made:
        for own in each.inputs:
            if own.processor_id == processor_id:
                start = sum(part.num_rows for part in parts)
                at = np.arange(each.rows.num_rows) if own.origins is None else own.origins
                origins.append(at + start)
                parts += own.parts
    return ProcessorInput(processor_id, parts, np.concatenate(origins)[order] if parts else None)


def _united(entries: Sequence[RefusedEvents]) -> RefusedEvents:
    """Return what one processor refused of all parts, in the order of the batch."""
    origins = np.concatenate([entry.origins for entry in entries])
    order = np.argsort(origins, kind="stable")
    reasons = [rejection for entry in entries for rejection in entry.rejections]
    return replace(
        entries[0],
        rows=pa.concat_batches([entry.rows for entry in entries]).take(pa.array(order)),
        origins=origins[order],
        rejections=[replace(reasons[at], event_row=row) for row, at in enumerate(order.tolist())],
        places=[
            pa.concat_batches(rows).take(pa.array(order))
            for rows in zip(*(entry.places for entry in entries), strict=True)
        ],
    )


def flags(column: pa.BooleanArray) -> np.ndarray:
    """Return a column of flags for numpy."""
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found
