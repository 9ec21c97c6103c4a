"""Sinks that hold more than where the lane begins to read: they skip what they hold."""

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source


class SkipList:
    """Which sinks lack a batch. Used by the delivery thread.

    Args:
        source: compares positions.
        sink_ids: every sink.
        known: the sinks' checkpoints.
        start: where the lane begins to read.
        exact: sinks that are given nothing twice; batches are cut where they stand.
        left: sinks that the lane begins without.
    """

    def __init__(
        self,
        source: Source,
        sink_ids: Sequence[str],
        known: Mapping[str, Position] | None = None,
        start: Position | None = None,
        exact: Collection[str] = (),
        left: Collection[str] = (),
    ) -> None:
        self._source = source
        self._sink_ids = list(sink_ids)
        self._exact = frozenset(exact).difference(left)
        self._rejoined: set[str] = set()
        self._left: set[str] = set(left)
        self._ahead = {
            name: position
            for name, position in (known or {}).items()
            if start is not None and not source.covers(start, position)
        }

    @property
    def places(self) -> list[Position]:
        """Return where batches are cut."""
        return [at for name, at in self._ahead.items() if name in self._exact]

    def goes(self, name: str) -> bool:
        """Return whether a sink goes with the lane. Called from any thread."""
        return name not in self._left

    def leave(self, name: str) -> None:
        """Go on without a sink, until it joins."""
        self._left.add(name)
        self._rejoined.discard(name)
        self._ahead.pop(name, None)
        self._exact -= {name}  # No batch is cut where it joins again: what follows there it lacks.

    def join(self, name: str, position: Position, lane_at: Position | None = None) -> None:
        """Go on with a sink that holds everything up to a position.

        Args:
            name: the sink.
            position: its position.
            lane_at: the lane's; if the sink is not ahead of that, it has nothing to skip.
        """
        self._left.discard(name)
        if lane_at is None or not self._source.covers(lane_at, position):
            self._ahead[name] = position

    def holders(self, position: Position | None) -> list[str]:
        """Return the sinks that hold a batch already."""
        if not self._ahead:
            return []
        lacking = self.behind(position)
        return [name for name in self._going if name not in lacking]

    @property
    def _going(self) -> list[str]:
        return [name for name in self._sink_ids if name not in self._left]

    @property
    def any(self) -> bool:
        """Return whether any sink is ahead still."""
        return bool(self._ahead)

    def behind(self, position: Position | None) -> list[str]:
        """Return the sinks that do not hold this batch yet.

        A sink that was given a part of a transaction is given all that follows as well, although
        it may hold it: the part alone would leave it with an older state. One that is given
        nothing twice lacks nothing before the place where it stands.
        """
        if not self._ahead:
            return self._going
        if position is None:
            self._rejoined.update(self._ahead.keys() - self._exact)
            return [name for name in self._going if name not in self._ahead.keys() & self._exact]
        ahead = self._still(position)
        return [name for name in self._going if name not in ahead or name in self._rejoined]

    def passed(self, position: Position | None) -> None:
        """Note the end of a batch: what follows the place where an exact sink stands, it lacks."""
        if position is not None:
            for name in self._ahead.keys() & self._exact:
                if self._source.covers(position, self._ahead[name]):
                    del self._ahead[name]

    def reached(self, position: Position) -> list[str]:
        """Return the sinks whose checkpoint moves to a position; forget that they were ahead."""
        ahead = self._still(position) if self._ahead else ()
        return [name for name in self._going if name not in ahead]

    def _still(self, position: Position) -> set[str]:
        """Return the sinks whose checkpoint lies at or behind a position; forget the others."""
        for name, at in list(self._ahead.items()):
            if not self._source.covers(at, position):
                del self._ahead[name]
        return set(self._ahead)
