"""What the archive has taken and not written yet, and where it may be cut."""

import time
from dataclasses import replace

from airflow_provider_deltaforge.events.change import ChangeBatch, Position


class WaitingBatches:
    """Batches in the order of the log. Its owner's lock guards it.

    Args:
        end: of what lies before them.
    """

    def __init__(self, end: Position) -> None:
        self.batches: list[ChangeBatch] = []
        self.nbytes = 0
        self.rows = 0
        self.since_s: float | None = None
        self.end = end

    def add(self, batch: ChangeBatch) -> None:
        """Add the batch that comes next."""
        if self.since_s is None:
            self.since_s = time.monotonic()
        self.batches.append(batch)
        self.nbytes += batch.rows.nbytes
        self.rows += batch.rows.num_rows

    @property
    def first_ms(self) -> int | None:
        """When the first change was committed; None without changes."""
        rows = next((batch.rows for batch in self.batches if batch.rows.num_rows), None)
        return None if rows is None else int(rows.column("ts_ms")[0].as_py())

    def cut(self) -> tuple[list[ChangeBatch], list[ChangeBatch]]:
        """Return what lies before the last end of a transaction, and what lies behind it."""
        ends = [self.end, *(batch.end for batch in self.batches)]
        for at in range(len(self.batches) - 1, -1, -1):
            batch = self.batches[at]
            if not batch.open_tx:
                return self.batches[: at + 1], self.batches[at + 1 :]
            done = _rows_done(batch)
            if done or ends[at + 1] != ends[at]:
                total = batch.rows.num_rows
                front = replace(batch.slice(0, done), open_tx=False)
                tail = batch.slice(done, total)
                tail = replace(tail, continues=batch.continues and not done and bool(total))
                return [*self.batches[:at], front], [tail, *self.batches[at + 1 :]]
        return [], self.batches


def _rows_done(batch: ChangeBatch) -> int:
    """Return how many rows of a batch belong to transactions that end in it."""
    flags = batch.rows.column("tx_end").to_numpy(zero_copy_only=False)
    return int(flags.nonzero()[0][-1]) + 1 if flags.any() else 0
