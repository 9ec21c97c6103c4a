"""Where a lane and those that catch up with it meet: nothing is lost or reordered at the seam.

A sink may join when it holds everything that the lane has delivered without it. Only the lane
decides: a sink that has arrived offers its position and sends nothing more until it is answered.
"""

import threading
import time
from collections.abc import Callable

from airflow_provider_deltaforge.errors import EventError, FencedError, ServerChangedError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source

OF_THE_LANE = (EventError, FencedError, ServerChangedError)
"""What catching a sink up may meet that concerns the whole lane."""

_POLL_S = 0.05
_NEAR_MS = 1000
_WAIT_S = 1.0
_PACE_S, _LONGEST_PACE_S = 10.0, 120.0


class RejoinPoint:
    """Shared by a lane and the threads that catch sinks up.

    Args:
        source: compares positions.
        at: where the lane begins.
    """

    def __init__(self, source: Source, at: Position) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._at = at
        self._inside = False
        self._last_ms: int | None = None
        self._offers: dict[str, tuple[Position, bool]] = {}
        self._answers: dict[str, bool] = {}
        self._near: set[str] = set()
        self._wait_at = 0.0
        self._pace_s = _PACE_S
        self.failure: Exception | None = None
        """What a sink's catching up has met that concerns the whole lane."""

    @property
    def at(self) -> Position:
        """Return what the lane has passed, in whole transactions."""
        return self._at

    @property
    def inside(self) -> bool:
        """Return whether the lane has delivered a part of the next transaction."""
        return self._inside

    def passed(
        self, position: Position | None, last_ms: int | None, boundary: Position | None = None
    ) -> None:
        """Note what the lane has delivered.

        Args:
            position: up to where; None inside a transaction.
            last_ms: when its last event was committed, if it held any.
            boundary: behind the last whole transaction of what ends inside another.
        """
        with self._changed:
            self._inside = position is None
            reached = boundary if position is None else position
            self._at = self._at if reached is None else reached
            self._last_ms = self._last_ms if last_ms is None else last_ms

    def holds(self, position: Position, *, exact: bool = False) -> bool:
        """Return whether a sink at a position has everything that the lane has passed.

        Of a transaction that the lane has delivered in part, all has to be there.

        Args:
            position: everything up to it is held.
            exact: nothing may be held beyond that, either: it would be given twice.
        """
        at, inside = self._at, self._inside
        covers = self._source.covers
        further = not covers(at, position)
        return covers(position, at) and not (exact and further) and (further or not inside)

    def offer(
        self, name: str, position: Position, over: Callable[[], bool], *, exact: bool = False
    ) -> bool:
        """Ask the lane to take a sink in; True: it has, and its thread is the lane's again."""
        with self._changed:
            self._offers[name] = position, exact
            self._near.discard(name)
            self._changed.notify_all()
            while name not in self._answers:
                if over():
                    # Taken in meanwhile, it would be given nothing more: the lane is ending.
                    self._offers.pop(name, None)
                    return False
                self._changed.wait(_POLL_S)
            return self._answers.pop(name)

    def comes(self, name: str, last_ms: int | None) -> None:
        """Note how far a sink is: one that is near is waited for a moment."""
        with self._changed:
            known = last_ms is not None and self._last_ms is not None
            near = known and self._last_ms - last_ms <= _NEAR_MS  # type: ignore[operator]
            (self._near.add if near else self._near.discard)(name)

    def strays(self, name: str) -> None:
        """Note that a sink does not come nearer just now."""
        with self._changed:
            self._near.discard(name)
            self._changed.notify_all()

    def taken(self) -> dict[str, Position]:
        """Answer every offer; return the sinks that join, and what they hold. The lane asks."""
        with self._changed:
            joined: dict[str, Position] = {}
            for name, (position, exact) in self._offers.items():
                self._answers[name] = self.holds(position, exact=exact)
                if self._answers[name]:
                    joined[name] = position
            self._offers.clear()
            if joined:
                self._pace_s = _PACE_S
            self._changed.notify_all()
            return joined

    def wait(self, over: Callable[[], bool]) -> None:
        """Pause the lane for a moment while a sink is near, but rarely: then it carries on."""
        now = time.monotonic()
        with self._changed:
            if not self._near or now < self._wait_at:
                return
            deadline = now + _WAIT_S
            while self._near and not self._offers and time.monotonic() < deadline and not over():
                self._changed.wait(_POLL_S)
            if not self._offers:
                self._wait_at = time.monotonic() + self._pace_s
                self._pace_s = min(2 * self._pace_s, _LONGEST_PACE_S)

    def fail(self, error: Exception) -> None:
        """Report an error that the lane must end with."""
        with self._changed:
            self.failure = self.failure or error
