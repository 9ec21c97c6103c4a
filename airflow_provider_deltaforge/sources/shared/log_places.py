"""Sources whose log can be read again from a place that a person names."""

from typing import Protocol, runtime_checkable

from airflow_provider_deltaforge.events.position import Position


@runtime_checkable
class FindsLogPlaces(Protocol):
    """A source that keeps its log, and finds places between two transactions in it."""

    def place_at(self, text: str) -> Position:
        """Return the last place at or before one that a person writes.

        Raises:
            SpecError: the text names no place, or nothing is kept to be read again.
            PositionLostError: the log is not kept back to there; the text says from where on it is.
        """

    def place_at_time(self, at_ms: int) -> Position:
        """Return the last place such that all behind it was committed later.

        Args:
            at_ms: the time, ms since the epoch.

        Raises:
            SpecError, PositionLostError: as ``place_at``.
        """
