"""What the readers of all modes share: they look into the file at a pace, and hand out chunks."""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import AppearedTable
from airflow_provider_deltaforge.sources.turso.files import Database, check_engine
from airflow_provider_deltaforge.sources.turso.pacing import Pace
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.tables import DB


class FileReader(ABC):
    """Looks into a file again and again.

    Args:
        database: the file; the reader closes it.
        pace: how often to look, and how much to take.
    """

    def __init__(self, database: Database, pace: Pace) -> None:
        self._database = database
        self._pace = pace
        self._ready: deque[Any] = deque()
        self._appeared: tuple[AppearedTable, ...] = ()

    def read(self, timeout_s: float) -> Any:
        """Return the next changes; None when none came within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while not self._ready and self._pace.wait(deadline):
            check_engine(self._database.path, self._database.engine)
            if self._database.replaced():
                with self._database.replacement():
                    self._check_kept()
            self._look()
        return self._ready.popleft() if self._ready else None

    def appeared_tables(self) -> Sequence[AppearedTable]:
        """Return the tables found here that hold rows which were not captured."""
        return self._appeared

    def _report(self, names: Iterable[str], place: FilePosition) -> bool:
        """Report tables that came up at a place; say whether there are any."""
        new = tuple(AppearedTable(f"{DB}.{name}", place.as_json()) for name in sorted(names))
        self._appeared += new
        return bool(new)

    @abstractmethod
    def _look(self) -> None:
        """Put what is new into ``_ready``."""

    @abstractmethod
    def _check_kept(self) -> None:
        """Check that the file, which is another one now, goes on from what was read."""

    def acknowledge(self, position: Position) -> None:  # noqa: B027 - a default, not a gap
        """Keep everything: what was read belongs to the application."""

    def close(self) -> None:
        """Let go of the file. Safe to call twice."""
        self._pace.end()
        self._database.close()
