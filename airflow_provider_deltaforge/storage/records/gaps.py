"""Sinks that were given up: what of the log they lack, why, and what people want of them.

A gap is open while its sink is given up. It is written in the transaction that gives the sink up,
and closed in the one that moves the sink's checkpoint behind it.
"""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

Position = Mapping[str, Any]

Wanted = Literal["give_up", "resume", "rewind"]


class Gap(Record):
    """What one sink was not given."""

    v: Literal[1] = 1
    sink: str
    start: dict[str, Any]
    """The sink holds everything up to here."""
    end: dict[str, Any] | None = None
    """The sink was given what comes behind this; None while it is given up."""
    why: str
    error_class: str
    since_ms: int
    """When it was given up."""
    resumed_at_ms: int | None = None
    goes_on: dict[str, Any] | None = None
    """The sink lost what it held, and the pipeline cannot do without it: resumed, it goes on here,
    at its checkpoint."""


class SinkCommand(Record):
    """What somebody wants of a sink."""

    v: Literal[1] = 1
    sink: str
    wanted: Wanted
    by: str
    at_ms: int
    to: dict[str, Any] | None = None
    """Of a rewind: everything behind this position is delivered again."""
    tables: tuple[str, ...] = ()
    """Of a rewind: patterns of the tables whose changes are delivered; empty: all."""
    keys: tuple[str, ...] = Field(default=(), exclude=True)
    """Where it is stored, with the earlier commands for its sink that it replaces."""


class Gaps:
    """The gaps of one pipeline's sinks, and what is wanted of them."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._gaps = f"{pipeline}/gap/"
        self._wishes = f"{pipeline}/wish/"

    def all(self) -> list[Gap]:
        """Return every gap, those of one sink in the order of time."""
        found = self._store.items(names.GAPS, self._gaps)
        return [Gap.from_stored(text, f"the gap {key}") for key, text in found]

    def open(self) -> dict[str, Gap]:
        """Return the gap of every sink that is given up now."""
        return {gap.sink: gap for gap in self.all() if gap.end is None}

    def give_up(
        self,
        sink_id: str,
        start: Position,
        why: str,
        error_class: str,
        goes_on: Position | None = None,
    ) -> Put:
        """Return the write that gives a sink up."""
        gap = Gap(
            sink=sink_id,
            start=dict(start),
            why=why,
            error_class=error_class,
            since_ms=now_ms(),
            goes_on=None if goes_on is None else dict(goes_on),
        )
        return self._put(gap)

    def close(self, gap: Gap, end: Position) -> Put:
        """Return the write that ends a gap: the sink goes on behind ``end``."""
        update = {"end": dict(end), "resumed_at_ms": now_ms()}
        return self._put(gap.model_copy(update=update))

    def wishes(self) -> list[SinkCommand]:
        """Return what is wanted and not done yet: of each sink the last command."""
        last: dict[str, SinkCommand] = {}
        for key, text in self._store.items(names.GAPS, self._wishes):
            command = SinkCommand.from_stored(text, f"the wish {key}")
            former = last.get(command.sink)
            keys = (*(() if former is None else former.keys), key)
            last[command.sink] = command.model_copy(update={"keys": keys})
        return [*last.values()]

    def resumes(self) -> list[SinkCommand]:
        """Return the wishes to resume sinks that are given up."""
        given_up = self.open()
        return [w for w in self.wishes() if w.wanted == "resume" and w.sink in given_up]

    def wish(self, sink_id: str, wanted: Wanted, by: str) -> Put:
        """Return the write that wants something of a sink; the last one counts."""
        return self._put_wish(SinkCommand(sink=sink_id, wanted=wanted, by=by, at_ms=now_ms()))

    def rewind(self, sink_id: str, to: Position, tables: Sequence[str], by: str) -> Put:
        """Return the write that asks for the log again for a sink; the last command counts."""
        return self._put_wish(
            SinkCommand(
                sink=sink_id,
                wanted="rewind",
                by=by,
                at_ms=now_ms(),
                to=dict(to),
                tables=tuple(tables),
            )
        )

    def granted(self, wish: SinkCommand) -> list[Write]:
        """Return the writes that take a wish out; one that came since it was read stays."""
        return [Delete(names.GAPS, key) for key in wish.keys]

    def forget(self, sink_id: str) -> list[Write]:
        """Return the writes that forget a sink which is not in the document any more."""
        gaps = [Delete(names.GAPS, self._key(gap)) for gap in self.all() if gap.sink == sink_id]
        wishes = [wish for wish in self.wishes() if wish.sink == sink_id]
        return [*gaps, *(write for wish in wishes for write in self.granted(wish))]

    def _put_wish(self, wish: SinkCommand) -> Put:
        key = f"{self._wishes}{wish.sink}/{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        return Put(names.GAPS, key, wish.model_dump_json().encode())

    def _key(self, gap: Gap) -> str:
        return f"{self._gaps}{gap.sink}/{gap.since_ms:015d}"

    def _put(self, gap: Gap) -> Put:
        return Put(names.GAPS, self._key(gap), gap.model_dump_json().encode())
