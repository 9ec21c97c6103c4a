"""What a replay does with each dead letter: decided in the order of the queue, row by row."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from airflow_provider_deltaforge.engine.dead_letters.row_keys import RowKey, place_of
from airflow_provider_deltaforge.spec.document import Spec
from airflow_provider_deltaforge.storage.records.checkpoints import Position
from airflow_provider_deltaforge.storage.records.dead_letters import (
    Damaged,
    DeadLetter,
    DeadLetterFilter,
)
from airflow_provider_deltaforge.storage.records.requests import Overtaken

Action = Literal["send", "overtaken", "drop", "behind", "away", "unfit"]


@dataclass(frozen=True, slots=True)
class ReplayDecision:
    """What becomes of one entry.

    Attributes:
        action: ``send`` it to ``sinks``; ``drop`` it, because something newer was delivered and it
            was asked to; or leave it: it was ``overtaken``, stands ``behind`` an earlier entry of
            its row that stays, its sink is ``away``, or it is ``unfit`` to be sent again.
        sinks: that are given it.
        why: in words.
        place: the row it changed.
    """

    action: Action
    sinks: tuple[str, ...] = ()
    why: str = ""
    place: RowKey | None = None


@dataclass(slots=True)
class _KeptEntry:
    """An entry that stays, for each row and table: one that may have to come first."""

    rows: dict[bytes, int] = field(default_factory=dict)
    whole: dict[bytes, int] = field(default_factory=dict)
    tables: dict[bytes, int] = field(default_factory=dict)

    def add(self, seq: int, place: RowKey) -> None:
        for name in place.names:
            self.tables.setdefault(name.table, seq)
            if name.whole:
                self.whole.setdefault(name.table, seq)
            for row in name.rows:
                self.rows.setdefault(row, seq)

    def ahead(self, place: RowKey) -> int | None:
        """Return an entry that meets a place; see ``RowKey.meets``."""
        rows = [row for name in place.names for row in name.rows]
        of_rows = [self.rows[row] for row in rows if row in self.rows and not place.whole]
        whole = self.tables if place.whole else self.whole
        found = of_rows or [whole[name.table] for name in place.names if name.table in whole]
        return min(found, default=None)


class ReplayPlan:
    """Judges the entries of a queue, oldest first, each once.

    Args:
        spec: the document's.
        which: the entries that are meant.
        overtaken: what becomes of those whose row has newer events in the sink.
        stands: the checkpoints of the sinks.
    """

    def __init__(
        self,
        spec: Spec,
        which: DeadLetterFilter,
        overtaken: Overtaken,
        stands: Mapping[str, Position],
    ) -> None:
        self._sink_ids = [sink.id for sink in spec.sinks]
        self._processor_ids = {processor.id for processor in spec.processors}
        self._which = which
        self._overtaken = overtaken
        self._stands = stands
        self._staying: dict[str, _KeptEntry] = {}

    def judge(self, dead_letter: DeadLetter) -> ReplayDecision | None:
        """Return what becomes of an entry; None if it is not meant."""
        chosen = self._which.fits(dead_letter)
        why = self._unfit(dead_letter)
        place = place_of(dead_letter)
        if why or place is None:
            return ReplayDecision("unfit", why=why or _OLD) if chosen else None
        missed = dead_letter.missed_by(self._sink_ids)
        fresh = [sink for sink in missed if sink not in dead_letter.meta.overtaken]
        if not chosen:
            self.stays(dead_letter.seq, place, fresh)
            return None
        if missed and not fresh and self._overtaken != "send":
            sinks = ", ".join(missed)
            why = f"{sinks} has this event or a newer one of its row"
            return ReplayDecision("drop" if self._overtaken == "drop" else "overtaken", why=why)
        to = missed if self._overtaken == "send" else fresh
        ahead = self._ahead(place, to)
        if ahead is not None:
            self.stays(dead_letter.seq, place, fresh)
            return ReplayDecision("behind", why=f"entry {ahead} of the same row comes first")
        # An exact sink was to hold the rest of its batch first, and does not: it is read again.
        positions = dead_letter.stood or {}
        early = [
            sink_id
            for sink_id in to
            if sink_id in positions and positions[sink_id] == self._stands.get(sink_id)
        ]
        if early:
            self.stays(dead_letter.seq, place, fresh)
            return ReplayDecision(
                "away", why=f"{early[0]} lacks older events; let the pipeline deliver them"
            )
        return ReplayDecision("send", tuple(to), place=place)

    def stays(self, seq: int, place: RowKey, sinks: Collection[str]) -> None:
        """Note that an entry is still missed by sinks: later ones of its row wait for it."""
        for sink in sinks:
            self._staying.setdefault(sink, _KeptEntry()).add(seq, place)

    def _ahead(self, place: RowKey, sinks: Collection[str]) -> int | None:
        found = (self._staying[sink].ahead(place) for sink in sinks if sink in self._staying)
        return next((seq for seq in found if seq is not None), None)

    def _unfit(self, dead_letter: DeadLetter) -> str:
        meta = dead_letter.meta
        if isinstance(dead_letter, Damaged):
            return meta.error_message
        if meta.sink_id is not None and meta.sink_id not in self._sink_ids:
            return f"the document has no sink {meta.sink_id} any more"
        if meta.processor_id is not None and meta.processor_id not in self._processor_ids:
            return f"the document has no processor {meta.processor_id} any more"
        if dead_letter.payload_truncated:
            why = _reason_text(dead_letter)
            return f"its row images were not kept: {why}; copy the row again instead"
        return ""


_OLD = "an earlier release stored it without what sending it again takes; copy the row again"


def _reason_text(dead_letter: DeadLetter) -> str:
    images = (dead_letter.event.get(name) for name in ("after", "before", "ddl"))
    return next((image.strip("<>") for image in images if isinstance(image, str)), "left out")
