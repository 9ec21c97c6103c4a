"""Cuts batches where sinks stand that hold more than the place where the log is read from."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from airflow_provider_deltaforge.engine.read.batcher import Batcher, BatchLimits, SourceBatch
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.contract import Source


class CuttingBatcher(Batcher):
    """A batcher that lets a batch end at each of some positions.

    Read again, the log may be cut otherwise than before. A sink that is to be given nothing twice
    can only skip whole batches.

    Args:
        limits: as of every batch.
        source: compares positions.
        places: where to cut.
    """

    def __init__(self, limits: BatchLimits, source: Source, places: Sequence[Position]) -> None:
        super().__init__(limits)
        self._source = source
        self._places = list(places)

    def add(self, batch: ChangeBatch, now_s: float) -> Iterator[SourceBatch]:
        """Take in a decoded batch, and yield every batch that is full or ends at a place."""
        for place, upto in self._cuts(batch):
            front, batch = _split(batch, upto, place)
            yield from super().add(front, now_s)
            if (rest := self.rest()) is not None:
                yield rest
        yield from super().add(batch, now_s)

    def _cuts(self, batch: ChangeBatch) -> list[tuple[Position, int]]:
        """Return the places that lie in a batch, each with the row before which it lies."""
        covers = self._source.covers
        if not self._places or batch.end is None:
            return []
        found = []
        for place in list(self._places):
            if covers(place, batch.end) and not covers(batch.end, place):
                continue  # It lies behind this batch.
            self._places.remove(place)
            found.append((self._row_of(batch, place), place))
        found.sort(key=lambda cut: cut[0])
        passed = 0
        cuts = []
        for row, place in found:
            cuts.append((place, row - passed))
            passed = row
        return cuts

    def _row_of(self, batch: ChangeBatch, place: Position) -> int:
        """Return how many rows of a batch belong to transactions up to a place."""
        transactions = batch.rows.column("tx").to_numpy()
        ordinals = np.unique(transactions)
        if batch.open_tx and len(ordinals):
            ordinals = ordinals[:-1]
        covers, after = self._source.covers, batch.positions.after
        low, high = 0, len(ordinals)
        while low < high:
            middle = (low + high) // 2
            if covers(place, after(int(ordinals[middle]))):
                low = middle + 1
            else:
                high = middle
        return int(np.searchsorted(transactions, ordinals[low - 1], "right")) if low else 0


def _split(batch: ChangeBatch, row: int, place: Position) -> tuple[ChangeBatch, ChangeBatch]:
    """Return what lies up to a place and what lies behind it."""
    total = batch.rows.num_rows
    front = replace(batch.slice(0, row), end=place, open_tx=False)
    begun = batch.continues and row == 0
    return front, replace(batch.slice(row, total), continues=begun)
