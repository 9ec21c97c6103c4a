"""What the positions in sinks mean: whose they are, and whether a checkpoint allows them.

Two pipelines of one name write their positions to the same place of a sink. Those of two PostgreSQL
servers compare, so one pipeline would skip changes of its own source up to the other's position.
Nobody can tell a second pipeline from a store that was lost, so a person says which it is.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.position_contract import SinkPosition
from airflow_provider_deltaforge.storage.contract import Write, shown_identity
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition
from airflow_provider_deltaforge.storage.records.foreign_positions import ForeignPositions


@dataclass(frozen=True, slots=True)
class PositionOwner:
    """Whose positions in sinks are places in a pipeline's own log.

    Another pipeline of its name has a state store of its own, and perhaps another source: of its
    positions nothing follows for this one.

    Attributes:
        store: the identity of the state store; None of one without.
        source: the id of the source.
    """

    store: str | None = None
    source: str | None = None

    @classmethod
    def of(cls, context: TaskContext) -> "PositionOwner":
        """Return the owner of what this pipeline writes."""
        return cls(shown_identity(context.store), context.pipeline.spec.source.id)

    def at(self, position: Position, event_id: bytes | None = None) -> SinkPosition:
        """Return a position of this pipeline in a sink."""
        return SinkPosition(position, event_id, self.store, self.source)

    def owns(self, written: SinkPosition) -> bool:
        """Return whether this pipeline wrote a position, as far as that says who did."""
        return not self.is_of_another_store(written) and self.reads(written)

    def reads(self, written: SinkPosition) -> bool:
        """Return whether a position names this source."""
        return written.source in (None, self.source)

    def is_of_another_store(self, written: SinkPosition) -> bool:
        """Return whether a pipeline with another state store wrote a position."""
        return written.store not in (None, self.store)


def tells(found: SinkPosition | None, held: Sequence[str]) -> bool:
    """Return whether a sink holds what its checkpoint allows."""
    if found is None:
        return not held
    return known_as(found, held) is not None


def adopted(found: SinkPosition, owner: PositionOwner) -> tuple[str, ...]:
    """Return what a sink may tell whose cursor, of another store, is now this pipeline's own."""
    return as_texts(replace(found, store=owner.store, source=owner.source), found)


def holds_part(stand: StoredPosition, owner: PositionOwner) -> bool:
    """Return whether a sink may hold a part of the batch behind its checkpoint."""
    held = (SinkPosition.from_text(text, "a checkpoint") for text in stand.held or ())
    return any(lies_behind(known, stand, owner) for known in held)


def lies_behind(found: SinkPosition, stand: StoredPosition, owner: PositionOwner) -> bool:
    """Return whether an event that the sink holds comes with the log behind its checkpoint."""
    behind = found.event_id is not None and found.position == stand.position
    return behind and owner.owns(found)


def known_as(found: SinkPosition, held: Sequence[str]) -> SinkPosition | None:
    """Return what is stored of a cursor: it may have been adopted, or lie before a rewind."""
    known = [SinkPosition.from_text(text, "a checkpoint") for text in held]
    same = [
        candidate
        for candidate in known
        if found.event_id is not None and candidate.event_id == found.event_id
    ]
    if found not in known and not any(_wrote_alike(candidate, found) for candidate in same):
        return None
    return same[0] if same else found  # As an own one first, if it was adopted.


def _wrote_alike(first: SinkPosition, second: SinkPosition) -> bool:
    return (first.store, first.source) == (second.store, second.source)


def as_texts(*cursors: SinkPosition | None) -> tuple[str, ...]:
    """Return positions as a checkpoint holds them; see ``Checkpoint.held``."""
    return tuple(cursor.as_text().decode() for cursor in cursors if cursor is not None)


class OtherStores:
    """Judges what the sinks of one pipeline tell.

    Args:
        context: the opened job; its fence guards every write.
    """

    def __init__(self, context: TaskContext) -> None:
        self._context = context
        self._records = ForeignPositions(context.store, context.pipeline.name)
        self.owner = PositionOwner.of(context)

    def counts(self, sink_position: SinkPosition | None, stand: StoredPosition | None) -> bool:
        """Return whether a cursor says how far a sink holds this pipeline's log.

        Args:
            sink_position: what the sink holds.
            stand: the sink's checkpoint.
        """
        return (
            sink_position is None
            or self.owner.owns(sink_position)
            or _is_known(sink_position, stand)
        )

    def refuse(
        self,
        sink_positions: Mapping[str, SinkPosition | None],
        stand: Callable[[str], StoredPosition | None],
    ) -> None:
        """End the pipeline if a sink holds a position of another store that nobody has adopted.

        Args:
            sink_positions: what sinks hold, by their ids.
            stand: returns a sink's checkpoint.

        Raises:
            FatalError: one does. It is recorded, so that somebody can adopt it.
            RetryableError: the store is away.
        """
        adopted = {
            (name, record.store)
            for name, record in self._records.load().items()
            if record.adopted_by is not None
        }
        found = {
            name: cursor
            for name, cursor in sink_positions.items()
            if cursor is not None
            and self.owner.is_of_another_store(cursor)
            and not _is_known(cursor, stand(name))
            and (name, cursor.store) not in adopted
        }
        if not found:
            return
        writes = [
            self._records.put(name, str(cursor.store), cursor.position)
            for name, cursor in found.items()
        ]
        self._context.store.transact(writes, self._context.fence)
        whose = "; ".join(self._text(name, cursor, stand(name)) for name, cursor in found.items())
        raise FatalError(f"{whose}. {self._ways_out(found)}")

    def forget(self, names: Collection[str]) -> list[Write]:
        """Return the writes that forget what was found in sinks with which the pipeline goes on."""
        return [*self._records.forget(self._records.load().keys() & set(names))]

    def _text(self, name: str, cursor: SinkPosition, stand: StoredPosition | None) -> str:
        ours = f"{self.owner.store}, {self._context.job.location.shown()}"
        return (
            f"sink {name} holds the position {dict(cursor.position)} of state store "
            f"{cursor.store} (source {cursor.source}), and this pipeline's store is "
            f"{ours} (source {self.owner.source}). Adopted, the sink goes on "
            f"{self._where(cursor, stand)}"
        )

    def _where(self, cursor: SinkPosition, stand: StoredPosition | None) -> str:
        if stand is not None:
            return f"at its checkpoint here, {dict(stand.position)}, and gets again what is behind"
        if not self.owner.reads(cursor):
            return "where a new pipeline begins, because the position is of another source"
        return "at that position, or with a snapshot if one is due"

    def _ways_out(self, names: Collection[str]) -> str:
        pipeline = self._context.pipeline.name
        commands = ", ".join(f"`deltaforge sinks adopt {pipeline} {name}`" for name in names)
        return (
            f"If another pipeline named {pipeline} writes there, give one of the two another name. "
            f"If that store was lost, or replaced on purpose, run {commands}, and start this "
            f"pipeline again. To begin anew: deltaforge stop {pipeline}, "
            f"deltaforge reset {pipeline} --confirm {pipeline}, deltaforge run FILE"
        )


def _is_known(sink_position: SinkPosition, stand: StoredPosition | None) -> bool:
    return stand is not None and stand.held is not None and tells(sink_position, stand.held)
