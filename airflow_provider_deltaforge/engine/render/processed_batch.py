"""What processors make of a batch, as a whole or in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA
from airflow_provider_deltaforge.events.message import Rejection

_TX_END = CHANGE_SCHEMA.get_field_index("tx_end")


@dataclass(frozen=True, slots=True)
class RefusedEvents:
    """Events that one processor could not process, as they came to it.

    Attributes:
        processor_id: which one.
        rows: the events, one per rejection.
        origins: per event, the row of the source's batch it stands for.
        rejections: why; ``event_row`` counts in ``rows``.
        masked: nothing in the rows is still to be masked.
    """

    processor_id: str
    rows: pa.RecordBatch
    origins: np.ndarray
    rejections: Sequence[Rejection]
    masked: bool = True


@dataclass(frozen=True, slots=True)
class ProcessedBatch:
    """What the chain made of a batch.

    Attributes:
        rows: change events, in the order of delivery.
        origins: per row, the row of the source's batch it stands for; None: one for one.
        refused: what processors could not process, by processor in the order of the chain.
    """

    rows: pa.RecordBatch
    origins: np.ndarray | None = None
    refused: Sequence[RefusedEvents] = ()

    def origin(self, row: int) -> int:
        """Return the row of the source's batch that a row stands for."""
        return row if self.origins is None else int(self.origins[row])


@dataclass(frozen=True, slots=True)
class BatchTransactions:
    """The transactions of a batch, or of a part.

    Attributes:
        of: per row, the ordinal of its transaction in the batch.
        ended: how many have ended in the batch.
    """

    of: np.ndarray
    ended: int

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
    # What a processor moved to the front or the back of its part stays there.
    turns = np.concatenate([np.maximum.accumulate(origins) for origins in own])
    order = np.argsort(turns, kind="stable")
    origins = np.concatenate(own)[order]
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
    return ProcessedBatch(transactions.with_ends(rows, origins), origins, refused)


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
    )


def flags(column: pa.BooleanArray) -> np.ndarray:
    """Return a column of flags for numpy."""
    found: np.ndarray = column.to_numpy(zero_copy_only=False)
    return found
