"""Rows with an earlier event that is set aside, and what that means for their later events.

Sent again after a newer event of its row, an entry would make an old state the last one. So it is
recorded in an entry which sinks got something newer meanwhile (it was *overtaken*), or, with
``hold_keys``, the newer events are set aside behind it.
"""

import uuid
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.dead_letters.dead_letter import PreparedDeadLetter
from airflow_provider_deltaforge.engine.dead_letters.row_keys import (
    RowKey,
    RowKeys,
    place_of,
    places_of,
)
from airflow_provider_deltaforge.engine.render.processed_batch import ProcessedBatch
from airflow_provider_deltaforge.engine.render.render_stage import SinkMessages
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetter, DeadLetterRecords

HELD = "held"
"""The kind of an event that was set aside only because an earlier one of its row is."""

_HELD_REASON = "an earlier event of this row is set aside (journal.dlq.hold_keys)"


@dataclass(slots=True)
class QueueEntry:
    """An event that is set aside.

    Attributes:
        place: what it changed.
        processor_id: in front of which one it did so; None: behind all of them.
        seq: its number, 0 before it is stored.
        dead_letter: itself, before it is stored.
        event_id: of its event; read again, everything before it is older.
        at: the row of the source's batch that it stands for; -1 if that batch is behind.
    """

    place: RowKey
    processor_id: str | None = None
    seq: int = 0
    dead_letter: PreparedDeadLetter | None = None
    at: int = -1
    event_id: bytes = b""


@dataclass(slots=True)
class QueueEntries:
    """The entries that one sink misses, of one processor or of the sink itself."""

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


class RowOrdering:
    """Keeps the order of a row's events across the queue. Used by one thread.

    Args:
        queue: the pipeline's.
        sink_ids: its sinks.
        holds: set later events aside, instead of noting that they were delivered.
        behind: the one sink that stands behind the others. What processors refused may still lie
            in front of it, and holds nothing back before it is read again.
        also: called with every entry that is read.
    """

    def __init__(
        self,
        queue: DeadLetterRecords,
        sink_ids: Collection[str],
        *,
        holds: bool,
        behind: str | None = None,
        also: Callable[[DeadLetter], None] = lambda _: None,
    ) -> None:
        self._queue = queue
        self._also = also
        self._behind = behind
        self._sink_ids = list(sink_ids)
        self._holds = holds
        self._missing: dict[tuple[str, str | None], QueueEntries] = {}
        self._read_upto = 0
        self._ids: set[bytes] = set()
        self._unread: set[bytes] = set()
        self._overtaken: dict[bytes, list[tuple[QueueEntry, str]]] = {}
        self._marks: dict[int, dict[str, bool]] = {}

    def begin(self) -> None:
        """Read the queue; what was noted and not stored is forgotten.

        Raises:
            RetryableError: the store is away.
        """
        self._missing, self._overtaken, self._marks = {}, {}, {}
        self._ids, self._unread, self._read_upto = set(), set(), 0
        self.read_on()

    def read_on(self) -> None:
        """Read what was stored since the last time."""
        for stored in self._queue.stored(self._read_upto, damaged=False):
            self._also(stored.dead_letter)
            self._know(stored.dead_letter)
            self._read_upto = stored.dead_letter.seq

    def _know(self, dead_letter: DeadLetter) -> None:
        place = place_of(dead_letter)
        if place is None or (self._behind and dead_letter.meta.sink_id not in (None, self._behind)):
            return
        event_id = uuid.UUID(dead_letter.event_id).bytes
        processor_id = dead_letter.meta.processor_id
        entry = QueueEntry(place, processor_id, dead_letter.seq, event_id=event_id)
        self._ids.add(entry.event_id)
        if self._behind and dead_letter.meta.sink_id is None:
            self._unread.add(entry.event_id)
        for sink_id in dead_letter.missed_by(self._sink_ids):
            if sink_id in dead_letter.meta.overtaken:
                self._overtaken.setdefault(entry.event_id, []).append((entry, sink_id))
            else:
                self._misses(sink_id, entry)

    def held_back(
        self, rendered: SinkMessages, pending: Sequence[PreparedDeadLetter], sink_ids: Iterable[str]
    ) -> tuple[dict[str, Messages], dict[str, list[Rejection]]]:
        """Return what each sink is given of a batch, and what is set aside behind entries.

        Args:
            rendered: the batch.
            pending: what of earlier batches is not stored yet.
            sink_ids: the sinks that are to have it.

        Raises:
            RetryableError: the store is away.
        """
        messages = {name: rendered.messages[name] for name in sink_ids}
        held: dict[str, list[Rejection]] = {}
        again = self._read_again(rendered.processed) if self._holds else {}
        for name, sent in list(messages.items()) if self._holds else ():
            refused = [*_refused_by_processors(rendered.processed), *_unrendered(rendered, name)]
            entries = self._missed(name, [*_entries_of(pending, name), *refused])
            rows = self._rows_held(entries, rendered.processed, again) if entries else []
            held_back = np.isin(sent.event_rows.to_numpy(), rows)
            if held_back.any():
                there = np.unique(sent.event_rows.to_numpy()[held_back]).tolist()
                held[name] = [Rejection(row, HELD, _HELD_REASON) for row in there]
                messages[name] = sent.take(pa.array(np.flatnonzero(~held_back)))
        return messages, held

    def _rows_held(
        self,
        missed: Mapping[str | None, QueueEntries],
        processed: ProcessedBatch,
        again: Mapping[bytes, int],
    ) -> list[int]:
        places, at = RowKeys.of(processed.rows), _at(processed)
        self._unread -= again.keys()
        rows: set[int] = set()
        oldest: int | None = None
        # What concerns more rows than the entry's own holds back the later events of these, too.
        wide = places.wide
        for processor_id, entries in missed.items():
            there = RowKeys.of(processed.in_front_of(processor_id))
            wide = wide | there.wide
            for row, entry in newer(entries.met(there, at, rows), at, again):
                if entry.event_id in self._unread:
                    continue
                if entry.seq and oldest is None:
                    oldest = self._queue.oldest() or self._read_upto + 1
                # What somebody has made room of holds nothing back any more.
                if not 0 < entry.seq < (oldest or 0):
                    rows.add(row)
        spread: set[int] = set()
        while found := sorted(row for row in rows - spread if wide[row]):
            spread |= set(found)
            held = QueueEntries()
            for row in found:
                held.add(QueueEntry(places.at(row), at=int(at[row])))
            rows |= {later for later, _ in held.met(places, at)}
        return sorted(rows)

    def would_tell(self, rendered: SinkMessages, sink_ids: Iterable[str]) -> bool:
        """Return whether a batch overtakes anything in sinks; noted early it does no harm."""
        self.delivered(rendered, dict.fromkeys(sink_ids, ()), ())
        return bool(self._marks)

    def delivered(
        self,
        rendered: SinkMessages,
        refused: Mapping[str, Sequence[Rejection]],
        dead_letters: Sequence[PreparedDeadLetter],
    ) -> None:
        """Note which entries a batch has overtaken.

        Args:
            rendered: what was delivered.
            refused: what of it was not, by the sinks that were given it.
            dead_letters: what is set aside and not stored yet, with what was refused of this batch.
        """
        again = self._read_again(rendered.processed)
        for sink_id, rejections in refused.items():
            self._not_overtaken_yet(sink_id, again)
            missed = self._missed(sink_id, _entries_of(dead_letters, sink_id))
            if not missed:
                continue
            processed = rendered.processed
            rows = np.unique(rendered.messages[sink_id].event_rows.to_numpy())
            rows = rows[~np.isin(rows, [rejection.event_row for rejection in rejections])]
            ids, at = processed.rows["event_id"].take(pa.array(rows)), _at(processed)[rows]
            for processor_id, entries in missed.items():
                places = RowKeys.of(processed.in_front_of(processor_id).take(pa.array(rows)))
                for row, entry in entries.met(places, at):
                    # Killed after it was stored early, the event itself may be taken after all.
                    itself = bool(entry.event_id) and ids[row].as_py() == entry.event_id
                    if not itself and at[row] <= again.get(entry.event_id, -1):
                        continue
                    if entry.dead_letter is not None:
                        entry.dead_letter.overtaken_by(sink_id)
                    else:
                        self._marks.setdefault(entry.seq, {})[sink_id] = True

    def _read_again(self, processed: ProcessedBatch) -> dict[bytes, int]:
        """Return where in a batch the events of stored entries stand: the log is read again."""
        if not self._ids:
            return {}
        known = pa.array(list(self._ids), pa.binary(16))
        found: dict[bytes, int] = {}
        parts = [(refused.rows, refused.origins) for refused in processed.refused]
        for rows, at in [*parts, (processed.rows, _at(processed))]:
            ids = rows["event_id"]
            for row in np.flatnonzero(np.asarray(pc.is_in(ids, value_set=known))).tolist():
                found[ids[row].as_py()] = int(at[row])
        return found

    def _not_overtaken_yet(self, sink_id: str, again: Iterable[bytes]) -> None:
        """What had overtaken an entry comes once more, behind it."""
        for event_id in again:
            for entry, by in self._overtaken.get(event_id, ()):
                if by == sink_id:
                    self._marks.setdefault(entry.seq, {})[sink_id] = False
                    self._misses(sink_id, entry)
            left = [mark for mark in self._overtaken.get(event_id, ()) if mark[1] != sink_id]
            self._overtaken[event_id] = left

    @property
    def has_marks(self) -> bool:
        """Return whether there are such writes."""
        return bool(self._marks)

    def writes(self) -> list[Write]:
        """Return the writes that tell entries who has overtaken them.

        Raises:
            RetryableError: the store is away.
        """
        writes: list[Write] = []
        for seq, marks in self._marks.items():
            stored = self._queue.find(seq)
            if stored is not None:
                why = stored.dead_letter.meta
                marked = {**dict.fromkeys(why.overtaken, True), **marks}
                by = [sink_id for sink_id, overtaken in marked.items() if overtaken]
                writes.append(self._queue.amend(stored, why.model_copy(update={"overtaken": by})))
        return writes

    def written(self) -> None:
        """Go on after the writes are stored: who was overtaken once need not be watched."""
        if not self._marks:
            return
        for (sink_id, processor_id), entries in self._missing.items():
            gone = {seq for seq, marks in self._marks.items() if marks.get(sink_id)}
            for entry in entries.among(gone):
                self._overtaken.setdefault(entry.event_id, []).append((entry, sink_id))
            self._missing[sink_id, processor_id] = entries.without(gone)
        self._marks = {}

    def _misses(self, sink_id: str, entry: QueueEntry) -> None:
        self._missing.setdefault((sink_id, entry.processor_id), QueueEntries()).add(entry)

    def _missed(self, sink_id: str, more: Sequence[QueueEntry]) -> dict[str | None, QueueEntries]:
        """Return what a sink misses, by processor, with what is not stored yet."""
        found = {
            processor_id: entries
            for (name, processor_id), entries in self._missing.items()
            if name == sink_id and entries.tables
        }
        for processor_id in {entry.processor_id for entry in more}:
            both = found.get(processor_id, QueueEntries()).without(())
            for entry in more:
                if entry.processor_id == processor_id:
                    both.add(entry)
            found[processor_id] = both
        return found


def _entries_of(dead_letters: Sequence[PreparedDeadLetter], sink_id: str) -> list[QueueEntry]:
    return [
        QueueEntry(
            dead_letter.place,
            dead_letter.refusal.processor_id,
            dead_letter=dead_letter,
            at=dead_letter.at,
        )
        for dead_letter in dead_letters
        if dead_letter.place is not None
        and dead_letter.refusal.sink_id in (None, sink_id)
        and sink_id not in dead_letter.refusal.overtaken
    ]


def _refused_by_processors(processed: ProcessedBatch) -> Iterable[QueueEntry]:
    """Yield what processors refused of a batch; what was not masked is never sent again."""
    for refused in processed.refused:
        if refused.masked:
            for place, at in zip(places_of(refused.rows), refused.origins.tolist(), strict=True):
                yield QueueEntry(place, refused.processor_id, at=at)


def _unrendered(rendered: SinkMessages, sink_id: str) -> Iterable[QueueEntry]:
    processed = rendered.processed
    rows = sorted({rejection.event_row for rejection in rendered.rejections[sink_id]})
    places = places_of(processed.rows.take(pa.array(rows, pa.int32())))
    for row, place in zip(rows, places, strict=True):
        yield QueueEntry(place, at=processed.origin(row))


def _at(processed: ProcessedBatch) -> np.ndarray:
    """Return per event the row of the source's batch that it stands for."""
    return np.arange(processed.rows.num_rows) if processed.origins is None else processed.origins
