"""The entries that a sink misses, found by the rows that their events changed."""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.dead_letters.dead_letter import PreparedDeadLetter
from airflow_provider_deltaforge.engine.dead_letters.row_keys import RowKey, RowKeys


@dataclass(slots=True)
class QueueEntry:
    """An event that is set aside.

    Attributes:
        place: what it changed.
        seq: its number, 0 before it is stored.
        dead_letter: itself, before it is stored.
        event_id: of its event; read again, everything before it is older.
        at: the row of the source's batch that it stands for; -1 if that batch is behind.
    """

    place: RowKey
    seq: int = 0
    dead_letter: PreparedDeadLetter | None = None
    at: int = -1
    event_id: bytes = b""


@dataclass(slots=True)
class QueueEntries:
    """The entries that one sink misses."""

    tables: dict[bytes, list[QueueEntry]] = field(default_factory=dict)
    rows: dict[bytes, list[QueueEntry]] = field(default_factory=dict)
    whole: dict[bytes, list[QueueEntry]] = field(default_factory=dict)

    def add(self, entry: QueueEntry) -> None:
        """Take in an entry."""
        place = entry.place
        self.tables.setdefault(place.table, []).append(entry)
        if place.whole:
            self.whole.setdefault(place.table, []).append(entry)
        for row in place.rows:
            self.rows.setdefault(row, []).append(entry)

    def without(self, gone: Collection[int]) -> "QueueEntries":
        """Return a copy without some stored entries."""
        left = QueueEntries()
        for entries in self.tables.values():
            for entry in entries:
                if entry.seq not in gone:
                    left.add(entry)
        return left

    def among(self, chosen: Collection[int]) -> list[QueueEntry]:
        """Return some stored entries."""
        every = (entry for entries in self.tables.values() for entry in entries)
        return [entry for entry in every if entry.seq in chosen]

    def met(
        self, places: RowKeys, at: np.ndarray, done: Container[int] = ()
    ) -> Iterable[tuple[int, QueueEntry]]:
        """Yield every event of a batch with each earlier entry whose order with it matters.

        Args:
            places: of the events.
            at: the rows of the source's batch that they stand for.
            done: events that need no more entries; may grow meanwhile.
        """
        hits = [(_among(places.rows, self.rows), places.rows, self.rows)]
        if places.former.null_count < len(places.former):
            hits.append((_among(places.former, self.rows), places.former, self.rows))
        if self.whole:
            hits.append((_among(places.tables, self.whole), places.tables, self.whole))
        if places.whole.any():
            hits.append((places.whole, places.tables, self.tables))
        for mask, texts, entries in hits:
            for row in np.flatnonzero(mask & places.named).tolist():
                # The newest first: it is the last to leave the queue.
                for entry in reversed(entries.get(texts[row].as_py(), ())):
                    if row in done:
                        break
                    if at[row] > entry.at:
                        yield row, entry


def newer(
    met: Iterable[tuple[int, QueueEntry]], at: np.ndarray, again: Mapping[bytes, int]
) -> Iterable[tuple[int, QueueEntry]]:
    """Leave out what stands in front of the entry's own event, where that is read again."""
    return ((row, entry) for row, entry in met if at[row] > again.get(entry.event_id, -1))


def _among(texts: pa.BinaryArray, known: Mapping[bytes, object]) -> np.ndarray:
    found: np.ndarray = np.asarray(pc.is_in(texts, value_set=pa.array(list(known), pa.binary())))
    return found
