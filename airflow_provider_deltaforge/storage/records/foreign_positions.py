"""Positions of other state stores that a pipeline has found in its sinks.

A record is written when the pipeline refuses to go on for one, and taken out once it goes on.
Between, a person may let the pipeline take the sink over from that one store.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Delete, Put, Store
from airflow_provider_deltaforge.storage.records.record import Record, now_ms


class ForeignPosition(Record):
    """What one sink holds of a pipeline of this name with another state store."""

    v: Literal[1] = 1
    sink: str
    store: str
    """The identity of the store that wrote it."""
    position: dict[str, Any]
    found_at_ms: int
    adopted_by: str | None = None
    """Who lets the pipeline take the sink over from that store."""


class ForeignPositions:
    """The records of one pipeline."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/"

    def load(self) -> dict[str, ForeignPosition]:
        """Return the records by sink."""
        found = self._store.items(names.CURSORS, self._prefix)
        return {
            key.removeprefix(self._prefix): ForeignPosition.from_stored(text, f"position {key}")
            for key, text in found
        }

    def put(self, sink_id: str, store: str, position: Mapping[str, Any]) -> Put:
        """Return the write that records what was found in a sink, and which store wrote it."""
        found = ForeignPosition(
            sink=sink_id,
            store=store,
            position=dict(position),
            found_at_ms=now_ms(),
        )
        return self._put(found)

    def adopt(self, found: ForeignPosition, by: str) -> Put:
        """Return the write that lets the pipeline take the sink over."""
        return self._put(found.model_copy(update={"adopted_by": by}))

    def forget(self, sink_ids: Iterable[str]) -> list[Delete]:
        """Return the writes that take the records of these sinks out."""
        return [Delete(names.CURSORS, f"{self._prefix}{sink_id}") for sink_id in sink_ids]

    def _put(self, found: ForeignPosition) -> Put:
        key = f"{self._prefix}{found.sink}"
        return Put(names.CURSORS, key, found.model_dump_json().encode())
