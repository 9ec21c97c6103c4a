"""Judges when a sink has lacked changes for too long: ``lag_limit_secs``."""

import time

from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sinks.contract import Sink
from airflow_provider_deltaforge.sources.contract import Source

_STUCK_S = 30.0
"""A sink that has come no further for so long, or no nearer, does not catch up by itself."""


class LagLimit:
    """Of one sink. Used by the thread that catches it up.

    Time counts while the sink is caught up, in all lanes together, and by a clock that nobody sets:
    a pause is not the sink's fault. One that works again and comes nearer is left in peace: it
    lacks old changes however well it is.

    Args:
        sink: the description.
        source: compares positions.
        stats: knows for how long the sink has been behind.
        at: where it stands.
        is_rewound: it gets the log again, so how old its changes are says nothing.
    """

    def __init__(
        self,
        sink: Sink,
        source: Source,
        stats: LaneStats,
        at: Position,
        *,
        is_rewound: bool,
    ) -> None:
        self._id, self._limit_s = sink.id, sink.lag_limit_secs
        self._covers, self._stats, self._is_rewound = source.covers, stats, is_rewound
        self._furthest, self._moved_s = at, time.monotonic()
        self._begun: tuple[int, float] | None = None

    def moved(self) -> None:
        """Note that the sink has taken something."""
        self._moved_s = time.monotonic()

    def exceeded(self, reached: Position, lane_at: Position, *, unread: bool = False) -> str | None:
        """Return why the sink is to be given up, or None.

        Args:
            reached: up to where it lacks nothing.
            lane_at: up to where the lane has come.
            unread: nobody can read what it lacks; that counts as all it missed since it was left.
        """
        if not self._covers(self._furthest, reached) or self._covers(reached, lane_at):
            self._furthest, self._moved_s = reached, time.monotonic()
        lacking_s: float | None = time.monotonic() - self._moved_s
        if not self._is_rewound:
            lacking_s = self._stats.lacking_s(self._id, unread=unread)
        if not self._limit_s or lacking_s is None or lacking_s <= self._limit_s:
            return None
        sink = self._stats.sinks[self._id]
        fails = sink.last_error is not None
        if not (self._is_rewound or unread or fails or self._is_stuck(sink.lacks_ms)):
            return None
        return f"it has lacked changes for more than {self._limit_s} s (lag_limit_secs)"

    def _is_stuck(self, lacks_ms: int | None) -> bool:
        """Return whether the sink does not move, or moves more slowly than time does."""
        now_s, stuck_s = time.monotonic(), min(_STUCK_S, self._limit_s)
        if now_s - self._moved_s > stuck_s:
            return True
        if lacks_ms is None:
            return False
        self._begun = self._begun or (lacks_ms, now_s)
        begun_ms, begun_s = self._begun
        return now_s - begun_s > max(stuck_s, (lacks_ms - begun_ms) / 1000)
