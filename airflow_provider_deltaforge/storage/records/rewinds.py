"""Rewinds: sinks that get a part of the log again, from which position, and how that ended.

A rewind begins in the transaction that moves its sink's checkpoint back, and is done when the sink
gets every batch together with the others again. The last one of each sink is kept.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store, Write
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

Position = Mapping[str, Any]

Covers = Callable[[Position, Position], bool]

RewindState = Literal["running", "done", "refused", "failed"]


class Rewind(Record):
    """The log from a position on, delivered to one sink again."""

    v: Literal[1] = 1
    sink: str
    to: dict[str, Any]
    """Everything behind this position is delivered again."""
    tables: tuple[str, ...] = ()
    """Patterns of the tables whose changes are delivered again; empty: all."""
    until: dict[str, Any] | None = None
    """The sink's former position: behind it, changes of all tables are delivered."""
    state: RewindState
    reason: str | None = None
    """Why it was refused, or has failed."""
    by: str
    begun_ms: int
    ended_ms: int | None = None
    mark: str = ""
    """Part of its messages' ids where a destination leaves out repetitions: new in each rewind."""
    lane: dict[str, Any] | None = None
    """How far the pipeline has read while every sink was getting the log again."""

    @property
    def lane_at(self) -> dict[str, Any] | None:
        """Where the pipeline goes on if no other sink says so."""
        return self.lane or self.until

    @property
    def shown(self) -> str:
        """Return what it does, for people."""
        tables = f" of {', '.join(self.tables)}" if self.tables else ""
        return f"the log{tables} behind {self.to} is delivered again, requested by {self.by}"

    def is_limited_at(self, position: Position, covers: Covers) -> bool:
        """Return whether behind a position only changes of some tables are delivered.

        Args:
            position: of the sink.
            covers: the source's.
        """
        return bool(self.tables) and self.until is not None and not covers(position, self.until)


class _AloneAt(Record):
    """How far the pipeline has read while every sink was getting the log again.

    Stored apart: the lane writes it, and must not write over how the rewind has ended meanwhile.
    """

    v: Literal[1] = 1
    sink: str
    mark: str
    """Of the rewind."""
    lane: dict[str, Any]


class Rewinds:
    """The last rewind of each sink of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/rewind/"
        self._refused = f"{pipeline}/refused/"
        self._alone = f"{pipeline}/rewound_alone/"

    def all(self) -> dict[str, Rewind]:
        """Return the last rewind of each sink that had one."""
        found = self._below(self._prefix)
        for key, text in self._store.items(names.GAPS, self._alone):
            at = _AloneAt.from_stored(text, f"the rewind {key}")
            rewind = found.get(at.sink)
            if rewind is not None and rewind.mark == at.mark:
                found[at.sink] = rewind.model_copy(update={"lane": at.lane})
        return found

    def refused(self) -> dict[str, Rewind]:
        """Return, by sink, requests that were refused while its last rewind ran, or since."""
        last = self.all()
        return {
            name: refused
            for name, refused in self._below(self._refused).items()
            if name in last and last[name].begun_ms <= refused.begun_ms
        }

    def as_seen_by(self, by: str) -> dict[str, Rewind]:
        """Return the last rewind of each sink; what was refused to somebody instead of it."""
        refused = self.refused().items()
        return self.all() | {name: rewind for name, rewind in refused if rewind.by == by}

    def running(self) -> dict[str, Rewind]:
        """Return the rewinds that are not over, by sink."""
        return {name: rewind for name, rewind in self.all().items() if rewind.state == "running"}

    def begin(
        self, sink_id: str, to: Position, until: Position, tables: Sequence[str], by: str
    ) -> Rewind:
        """Return a rewind that begins now."""
        return Rewind(
            sink=sink_id,
            to=dict(to),
            tables=tuple(tables),
            until=dict(until),
            state="running",
            by=by,
            begun_ms=now_ms(),
            mark=uuid.uuid4().hex[:8],
        )

    def refuse(self, sink_id: str, to: Position, by: str, reason: str) -> Put:
        """Return the write that stores why a rewind was refused; one that is running stays."""
        now = now_ms()
        rewind = Rewind(
            sink=sink_id,
            to=dict(to),
            state="refused",
            reason=reason,
            by=by,
            begun_ms=now,
            ended_ms=now,
        )
        if sink_id not in self.running():
            return self.put(rewind)
        return Put(names.GAPS, f"{self._refused}{sink_id}", rewind.model_dump_json().encode())

    def end(self, rewind: Rewind, reason: str | None = None) -> Put:
        """Return the write that ends a rewind: done, or failed for a reason."""
        state = "done" if reason is None else "failed"
        update = {"state": state, "reason": reason, "ended_ms": now_ms()}
        return self.put(rewind.model_copy(update=update))

    def put(self, rewind: Rewind) -> Put:
        """Return the write that stores a rewind."""
        return Put(names.GAPS, self._key(rewind.sink), rewind.model_dump_json().encode())

    def passed_alone(self, rewind: Rewind, position: Position) -> Put:
        """Return the write that stores where the pipeline has come to without any sink."""
        at = _AloneAt(sink=rewind.sink, mark=rewind.mark, lane=dict(position))
        return Put(names.GAPS, f"{self._alone}{rewind.sink}", at.model_dump_json().encode())

    def forget(self, sink_id: str) -> list[Write]:
        """Return the writes that forget a sink's rewinds."""
        prefixes = (self._prefix, self._refused, self._alone)
        keys = [f"{prefix}{sink_id}" for prefix in prefixes]
        return [Delete(names.GAPS, key) for key in keys]

    def _below(self, prefix: str) -> dict[str, Rewind]:
        found = self._store.items(names.GAPS, prefix)
        rewinds = [Rewind.from_stored(text, f"the rewind {key}") for key, text in found]
        return {rewind.sink: rewind for rewind in rewinds}

    def _key(self, sink_id: str) -> str:
        return f"{self._prefix}{sink_id}"
