"""Keeps a pipeline from going on at a position that a pipeline with another state store wrote.

Two pipelines of one name write their positions to the same place of a sink. Those of two PostgreSQL
servers compare, so one pipeline would skip changes of its own source up to the other's position.
Nobody can tell a second pipeline from a store that was lost, so a person says which it is.
"""

from collections.abc import Callable, Collection, Mapping

from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.exactly_once import PositionOwner, tells
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sinks.contract import SinkPosition
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import StoredPosition
from airflow_provider_deltaforge.storage.records.foreign_positions import ForeignPositions


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
