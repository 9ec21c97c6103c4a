"""The rows of which an earlier event is set aside, and what that means for their later events.

Sent again after a newer event of its row, an entry would make an old state the last one. So an
entry is told which sinks were given something newer meanwhile (it was *overtaken*), or, with
``hold_keys``, the newer events are set aside behind it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_deltaforge.engine.letters import Letter
from airflow_provider_deltaforge.engine.places import Place, Places, place_of, places_of
from airflow_provider_deltaforge.engine.processing import Chained
from airflow_provider_deltaforge.engine.render import take
from airflow_provider_deltaforge.engine.rendering import Rendered
from airflow_provider_deltaforge.events.message import Messages, Rejection
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.dead_letters import DeadLetter, DeadLetters

HELD = "held"
"""The kind of an event that was set aside only because an earlier one of its row is."""

_HELD_REASON = "an earlier event of this row is set aside (journal.dlq.hold_keys)"


@dataclass(slots=True)
class _Entry:
    """An event that is set aside.

    Attributes:
        place: what it changed.
        seq: its number, 0 before it is stored.
        letter: itself, before it is stored.
        at: the row of the source's batch that it stands for; -1 if that batch is behind.
    """

    place: Place
    seq: int = 0
    letter: Letter | None = None
    at: int = -1


@dataclass(slots=True)
class _Entries:
    """The entries that one sink misses."""

    tables: dict[bytes, list[_Entry]] = field(default_factory=dict)
    rows: dict[bytes, list[_Entry]] = field(default_factory=dict)
    whole: dict[bytes, list[_Entry]] = field(default_factory=dict)

    def add(self, entry: _Entry) -> None:
        place = entry.place
        self.tables.setdefault(place.table, []).append(entry)
        if place.whole:
            self.whole.setdefault(place.table, []).append(entry)
        if place.row is not None:
            self.rows.setdefault(place.row, []).append(entry)

    def without(self, gone: Collection[int]) -> "_Entries":
        """Return a copy without some stored entries."""
        left = _Entries()
        for entries in self.tables.values():
            for entry in entries:
                if entry.seq not in gone:
                    left.add(entry)
        return left

    def met(self, places: Places, at: np.ndarray) -> Iterable[tuple[int, _Entry]]:
        """Yield every event of a batch with each earlier entry whose order with it matters."""
        hits = [(_among(places.rows, self.rows), places.rows, self.rows)]
        if self.whole:
            hits.append((_among(places.tables, self.whole), places.tables, self.whole))
        if places.whole.any():
            hits.append((places.whole, places.tables, self.tables))
        for mask, texts, entries in hits:
            for row in np.flatnonzero(mask & places.named).tolist():
                for entry in entries.get(texts[row].as_py(), ()):
                    if at[row] > entry.at:
                        yield row, entry


class RowOrder:
    """Keeps the order of a row's events across the queue. Used by one thread.

    Args:
        queue: the pipeline's.
        sink_ids: its sinks.
        holds: set later events aside, instead of noting that they were delivered.
        behind: the one sink that stands behind the others: what processors refused may lie in
            front of it, so only its own entries count.
    """

    def __init__(
        self,
        queue: DeadLetters,
        sink_ids: Collection[str],
        *,
        holds: bool,
        behind: str | None = None,
    ) -> None:
        self._queue = queue
        self._behind = behind
        self._sink_ids = list(sink_ids)
        self._holds = holds
        self._missing: dict[str, _Entries] = {}
        self._read_upto = 0
        self._marks: dict[int, set[str]] = {}

    def begin(self) -> None:
        """Read the queue; what was noted and not stored is forgotten.

        Raises:
            RetryableError: the store is away.
        """
        self._missing, self._marks, self._read_upto = {}, {}, 0
        self.read_on()

    def read_on(self) -> None:
        """Read what was stored since the last time."""
        for stored in self._queue.stored(self._read_upto, damaged=False):
            self._know(stored.letter)
            self._read_upto = stored.letter.seq

    def _know(self, letter: DeadLetter) -> None:
        place = place_of(letter)
        if place is None or self._behind not in (None, letter.meta.sink_id):
            return
        entry = _Entry(place, letter.seq)
        for sink_id in letter.missed_by(self._sink_ids):
            if sink_id not in letter.meta.overtaken:
                self._missing.setdefault(sink_id, _Entries()).add(entry)

    def held_back(
        self, rendered: Rendered, pending: Sequence[Letter], sink_ids: Iterable[str]
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
        for name, given in list(messages.items()) if self._holds else ():
            refused = [*_refused_by_processors(rendered.chained), *_unrendered(rendered, name)]
            entries = self._missed(name, [*_entries_of(pending, name), *refused])
            rows = self._rows_held(entries, rendered.chained) if entries.tables else []
            held_back = np.isin(given.event_rows.to_numpy(), rows)
            if held_back.any():
                there = np.unique(given.event_rows.to_numpy()[held_back]).tolist()
                held[name] = [Rejection(row, HELD, _HELD_REASON) for row in there]
                messages[name] = take(given, pa.array(np.flatnonzero(~held_back)))
        return messages, held

    def _rows_held(self, entries: _Entries, chained: Chained) -> list[int]:
        places, at = Places.of(chained.rows), _at(chained)
        met = list(entries.met(places, at))
        if any(entry.seq for _, entry in met):
            # What somebody has made room of holds nothing back any more.
            oldest = self._queue.oldest() or self._read_upto + 1
            met = [(row, entry) for row, entry in met if not 0 < entry.seq < oldest]
        rows = {row for row, _ in met}
        for row in sorted(row for row in rows if places.whole[row]):
            truncation = _Entries()
            truncation.add(_Entry(places.at(row), at=int(at[row])))
            rows |= {later for later, _ in truncation.met(places, at)}
        return sorted(rows)

    def delivered(
        self,
        rendered: Rendered,
        refused: Mapping[str, Sequence[Rejection]],
        letters: Sequence[Letter],
    ) -> None:
        """Note which entries a batch has overtaken.

        Args:
            rendered: what was delivered.
            refused: what of it was not, by the sinks that were given it.
            letters: what is set aside and not stored yet, with what was refused of this batch.
        """
        for sink_id, rejections in refused.items():
            entries = self._missed(sink_id, _entries_of(letters, sink_id))
            if not entries.tables:
                continue
            chained = rendered.chained
            rows = np.unique(rendered.messages[sink_id].event_rows.to_numpy())
            rows = rows[~np.isin(rows, [one.event_row for one in rejections])]
            places = Places.of(chained.rows.take(pa.array(rows)))
            for _, entry in entries.met(places, _at(chained)[rows]):
                if entry.letter is not None:
                    entry.letter.overtaken_by(sink_id)
                else:
                    self._marks.setdefault(entry.seq, set()).add(sink_id)

    def writes(self) -> list[Write]:
        """Return the writes that tell entries who has overtaken them.

        Raises:
            RetryableError: the store is away.
        """
        told: list[Write] = []
        for seq, sink_ids in self._marks.items():
            stored = self._queue.find(seq)
            if stored is not None:
                why = stored.letter.meta
                by = [*why.overtaken, *sorted(sink_ids - {*why.overtaken})]
                told.append(self._queue.amend(stored, why.model_copy(update={"overtaken": by})))
        return told

    def written(self) -> None:
        """Go on after the writes are stored: who was overtaken once need not be watched."""
        if not self._marks:
            return
        for sink_id, entries in self._missing.items():
            gone = {seq for seq, by in self._marks.items() if sink_id in by}
            self._missing[sink_id] = entries.without(gone)
        self._marks = {}

    def _missed(self, sink_id: str, more: Sequence[_Entry]) -> _Entries:
        """Return the entries that a sink misses, with those that are not stored yet."""
        stored = self._missing.get(sink_id, _Entries())
        if not more:
            return stored
        both = stored.without(())
        for entry in more:
            both.add(entry)
        return both


def _entries_of(letters: Sequence[Letter], sink_id: str) -> list[_Entry]:
    return [
        _Entry(letter.place, letter=letter, at=letter.at)
        for letter in letters
        if letter.place is not None
        and letter.refusal.sink_id in (None, sink_id)
        and sink_id not in letter.refusal.overtaken
    ]


def _refused_by_processors(chained: Chained) -> Iterable[_Entry]:
    """Yield what processors refused of a batch; what was not masked is never sent again."""
    for refused in chained.refused:
        if refused.masked:
            for place, at in zip(places_of(refused.rows), refused.origins.tolist(), strict=True):
                yield _Entry(place, at=at)


def _unrendered(rendered: Rendered, sink_id: str) -> Iterable[_Entry]:
    chained = rendered.chained
    rows = sorted({one.event_row for one in rendered.rejections[sink_id]})
    places = places_of(chained.rows.take(pa.array(rows, pa.int32())))
    for row, place in zip(rows, places, strict=True):
        yield _Entry(place, at=chained.origin(row))


def _among(texts: pa.BinaryArray, known: Mapping[bytes, object]) -> np.ndarray:
    found: np.ndarray = np.asarray(pc.is_in(texts, value_set=pa.array(list(known), pa.binary())))
    return found


def _at(chained: Chained) -> np.ndarray:
    """Return per event the row of the source's batch that it stands for."""
    return np.arange(chained.rows.num_rows) if chained.origins is None else chained.origins
