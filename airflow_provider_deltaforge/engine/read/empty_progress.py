"""Transactions that hold nothing for us: the checkpoint moves over them, but not too often."""

import time

from airflow_provider_deltaforge.events.change import Position


class EmptyProgress:
    """How far only such transactions were read. Used by one thread.

    Args:
        checkpoint_s: how long they come before the checkpoint moves.
    """

    def __init__(self, checkpoint_s: float) -> None:
        self._checkpoint_s = checkpoint_s
        self._since = 0.0
        self.position: Position | None = None
        """Up to where there was nothing; None if something came last."""

    def passes(self, position: Position) -> None:
        """Note that there was nothing up to a position."""
        if self.position is None:
            self._since = time.monotonic()
        self.position = position

    def ends(self) -> None:
        """Note that something came, was stored, or that the log is read again."""
        self.position = None

    @property
    def due(self) -> Position | None:
        """Return where the checkpoint is to move now, if it is."""
        is_due = time.monotonic() - self._since >= self._checkpoint_s
        return self.position if is_due else None
