"""Checkpoints: per sink, the position up to which everything is durable there.

A checkpoint never moves backward unless a person resets it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Put, Store
from airflow_provider_deltaforge.storage.records.record import Record, now_ms

Position = Mapping[str, Any]

_OF_SINK = "::sink::"


class Checkpoint(Record):
    """One sink's position."""

    v: Literal[1] = 1
    position: dict[str, Any]
    updated_at_ms: int
    held: tuple[str, ...] | None = None
    """What a sink that holds the position itself may tell while it lacks nothing of this; None if
    it was not asked to hold it when this was stored."""
    begun: dict[str, Any] | None = None
    """Where the sink's part of the log begins: read from here, it lacks nothing of it. None if that
    is not known."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """Where a sink stands, and what it may tell of that itself."""

    position: Position
    held: tuple[str, ...] | None
    begun: Position | None = None


def has_begun(store: Store, pipeline: str, source_id: str) -> bool:
    """Return whether the stream of a source has stored where it begins."""
    return bool(Checkpoints(store, pipeline, source_id).load())


def why_source_is_refused(store: Store, pipeline: str, source_id: str) -> str | None:
    """Return why a pipeline cannot go on with a source's id; None if it can.

    Its positions stay with the former id, while "the snapshot is finished" and the gaps of sinks
    are the pipeline's: it would begin at the head of the log, with neither log nor rows.
    """
    prefix, own = f"{pipeline}/", f"{pipeline}/{source_id}{_OF_SINK}"
    keys = [key for key, _ in store.items(names.CHECKPOINTS, prefix)]
    if not keys or any(key.startswith(own) for key in keys):
        return None
    former = sorted({key.removeprefix(prefix).partition(_OF_SINK)[0] for key in keys})
    return (
        f"spec.source.config.id: {source_id!r}, but the positions of pipeline {pipeline!r} belong "
        f"to {' and '.join(map(repr, former))}: under another id the stream would begin at the "
        f"head of the log, without what lies between. Keep the id ({former[-1]}), or begin anew "
        f"with the new one: `deltaforge stop {pipeline}`, `deltaforge reset {pipeline} --confirm "
        f"{pipeline}`, and start it again"
    )


class Checkpoints:
    """The checkpoints of one pipeline and source.

    Args:
        store: the state store.
        pipeline: the pipeline's name.
        source_id: the source's id: a checkpoint belongs to one source's history.
        compare: orders two positions; None where positions are only read.
    """

    def __init__(
        self,
        store: Store,
        pipeline: str,
        source_id: str,
        compare: Callable[[Position, Position], int] | None = None,
    ) -> None:
        self._store = store
        self._prefix = f"{pipeline}/{source_id}{_OF_SINK}"
        self._compare = compare
        self._known: dict[str, Position] | None = None
        self._held: dict[str, tuple[str, ...] | None] = {}
        self._begun: dict[str, Position | None] = {}

    def records(self) -> dict[str, Checkpoint]:
        """Return the checkpoint of every sink that has one, as it is stored."""
        stored = self._store.items(names.CHECKPOINTS, self._prefix)
        return {
            key.removeprefix(self._prefix): Checkpoint.from_stored(text, f"checkpoint {key}")
            for key, text in stored
        }

    def load(self) -> dict[str, Position]:
        """Return the position of every sink that has one."""
        records = self.records()
        self._known = {name: record.position for name, record in records.items()}
        self._held = {name: record.held for name, record in records.items()}
        self._begun = {name: record.begun for name, record in records.items()}
        return dict(self._known)

    def stand(self, sink_id: str) -> StoredPosition | None:
        """Return a sink's checkpoint as it was loaded or last put; None without one."""
        known = self._known if self._known is not None else self.load()
        position = known.get(sink_id)
        if position is None:
            return None
        return StoredPosition(position, self._held.get(sink_id), self._begun.get(sink_id))

    def put(
        self,
        sink_id: str,
        position: Position,
        held: tuple[str, ...] | None = None,
        *,
        back: bool = False,
        begins: bool | None = None,
    ) -> Put:
        """Return the write that moves a sink's checkpoint, for a fenced transaction.

        Args:
            sink_id: the sink.
            position: up to where everything is durable there.
            held: what the sink may tell of it, where it holds the position itself.
            back: it has lost what it held behind this position.
            begins: True: the sink's part of the log begins here; False: nobody knows where it does.
                Without a word, the first position that is stored is where it begins.

        Raises:
            FatalError: the position lies before the one that is stored.
        """
        known = self._known if self._known is not None else self.load()
        former = known.get(sink_id)
        ordered = former is not None and self._compare is not None and not back
        if ordered and self._compare(position, former) < 0:  # type: ignore[misc,arg-type]
            raise FatalError(
                f"sink {sink_id}: the checkpoint {former} would move back to {dict(position)}; "
                "nothing was written. Reset it if that is meant"
            )
        if begins is None:
            begins = True if former is None else None
        if begins is not None:
            self._begun[sink_id] = position if begins else None
        begun = self._begun.get(sink_id)
        self._known = {**known, sink_id: position}
        self._held[sink_id] = held
        record = Checkpoint(
            position=dict(position),
            updated_at_ms=now_ms(),
            held=held,
            begun=None if begun is None else dict(begun),
        )
        text = record.model_dump_json().encode()
        return Put(names.CHECKPOINTS, self.key(sink_id), text)

    def key(self, sink_id: str) -> str:
        """Return under which key a sink's checkpoint is stored."""
        return f"{self._prefix}{sink_id}"


def begins_anew(pipeline: str) -> Put:
    """Return the write that goes with forgotten checkpoints: what sinks hold does not count."""
    return Put(names.CURSORS, pipeline, b"{}")
