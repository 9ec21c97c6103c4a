"""Sinks that hold more than where the lane reads: they skip what they hold."""

from collections.abc import Collection, Mapping, Sequence

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source


class SkipList:
    """Which sinks lack a batch. Used by the delivery thread.

    Where the lane begins, batches are cut at the place of every sink that is ahead of it, so none
    gets again what it holds. A sink that joins later may stand inside a batch that is read already.

    Args:
        source: compares positions.
        sink_ids: every sink.
        known: the sinks' checkpoints.
        start: where the lane begins to read.
        cut: sinks where batches are cut, if they are ahead of that.
        left: sinks that the lane begins without.
    """

    def __init__(
        self,
        source: Source,
        sink_ids: Sequence[str],
        known: Mapping[str, Position] | None = None,
        start: Position | None = None,
        cut: Collection[str] = (),
        left: Collection[str] = (),
    ) -> None:
        self._source = source
        self._sink_ids = list(sink_ids)
        self._cut = frozenset(cut).difference(left)
        self._left: set[str] = set(left)
        self._ahead = {
            name: position
            for name, position in (known or {}).items()
            if start is not None and not source.covers(start, position)
        }

    @property
    def places(self) -> list[Position]:
        """Return where batches are cut."""
        return [at for name, at in self._ahead.items() if name in self._cut]

    def goes(self, name: str) -> bool:
        """Return whether a sink goes with the lane. Called from any thread."""
        return name not in self._left

    def leave(self, name: str) -> None:
        """Go on without a sink, until it joins."""
        self._left.add(name)
        self._ahead.pop(name, None)
        self._cut -= {name}  # No batch is cut where it joins again.

    def join(self, name: str, position: Position, lane_at: Position) -> None:
        """Go on with a sink that holds everything up to a position.

        Args:
            name: the sink.
            position: its position.
            lane_at: the lane's; if the sink is not ahead of that, it has nothing to skip.
        """
        self._left.discard(name)
        if not self._source.covers(lane_at, position):
            self._ahead[name] = position

    def holders(self, position: Position | None) -> list[str]:
        """Return the sinks that hold a batch already."""
        return [name for name in self._going if self._holds(name, position)]

    @property
    def any(self) -> bool:
        """Return whether any sink is ahead still."""
        return bool(self._ahead)

    def behind(self, position: Position | None) -> list[str]:
        """Return the sinks that do not hold this batch yet, or not all of it."""
        return [name for name in self._going if not self._holds(name, position)]

    def is_ahead(self, name: str) -> bool:
        """Return whether a sink holds something behind what the lane has passed."""
        return name in self._ahead

    def return_to_lane(self, name: str) -> None:
        """Note that a sink is given again what it holds, beginning with where the lane is."""
        self._ahead.pop(name, None)

    def passed(self, position: Position | None) -> None:
        """Note the end of a batch: what follows the place where a sink stands, it lacks."""
        if position is not None:
            for name, at in list(self._ahead.items()):
                if self._source.covers(position, at):
                    del self._ahead[name]

    @property
    def _going(self) -> list[str]:
        return [name for name in self._sink_ids if name not in self._left]

    def _holds(self, name: str, position: Position | None) -> bool:
        """Return whether a sink holds a batch that ends at a position; None: in a transaction.

        A batch that is cut where the sink stands is before that place as a whole, or behind it.
        """
        at = self._ahead.get(name)
        if at is None:
            return False
        return name in self._cut if position is None else self._source.covers(at, position)
