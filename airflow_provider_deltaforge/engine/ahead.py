"""Sinks that hold more than where the lane begins to read: they skip what they hold."""

from collections.abc import Mapping, Sequence

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source


class Ahead:
    """Which sinks lack a batch. Used by the delivery thread.

    Args:
        source: compares positions.
        sink_ids: every sink.
        known: the sinks' checkpoints.
        start: where the lane begins to read.
    """

    def __init__(
        self,
        source: Source,
        sink_ids: Sequence[str],
        known: Mapping[str, Position] | None = None,
        start: Position | None = None,
    ) -> None:
        self._source = source
        self._sink_ids = list(sink_ids)
        self._rejoined: set[str] = set()
        self._ahead = {
            name: position
            for name, position in (known or {}).items()
            if start is not None and source.compare(position, start) > 0
        }

    @property
    def any(self) -> bool:
        """Say whether any sink is ahead still."""
        return bool(self._ahead)

    def behind(self, position: Position | None) -> list[str]:
        """Return the sinks that do not hold this batch yet.

        A sink that was given a part of a transaction is given all that follows as well, although
        it may hold it: the part alone would leave it with an older state.
        """
        if position is None:
            self._rejoined.update(self._ahead)
            return self._sink_ids
        ahead = self._still(position)
        return [name for name in self._sink_ids if name not in ahead or name in self._rejoined]

    def reached(self, position: Position) -> list[str]:
        """Return the sinks whose checkpoint moves to a position; forget that they were ahead."""
        ahead = self._still(position)
        return [name for name in self._sink_ids if name not in ahead]

    def _still(self, position: Position) -> set[str]:
        """Return the sinks whose checkpoint lies at or behind a position; forget the others."""
        for name, at in list(self._ahead.items()):
            if not self._source.covers(at, position):
                del self._ahead[name]
        return set(self._ahead)
