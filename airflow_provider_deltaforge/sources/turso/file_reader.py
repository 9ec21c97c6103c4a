"""What the readers of all modes share: when to look into the file, and what a look hands out."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.reader_contract import AppearedTable
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.tables import DB
from airflow_provider_deltaforge.sources.turso.tuning import TURSO_TUNING


class Pace:
    """Waits between two looks; ``end`` ends the waiting.

    Args:
        interval_s: from one look to the next, unless that found a full batch.
        batch_size: changes taken at once; a look that found so many is followed by the next.
        audit_s: between two counts of the rows, which show those that were not captured.
    """

    def __init__(
        self, interval_s: float, batch_size: int, audit_s: float = TURSO_TUNING.audit_s
    ) -> None:
        self.batch_size = batch_size
        self.audit_s = audit_s
        self._interval_s = interval_s
        self._next = 0.0
        self._ended = threading.Event()

    def wait(self, deadline: float) -> bool:
        """Wait until it is time to look; False if that is not before ``deadline``, or never."""
        until = min(self._next, deadline)
        if self._ended.wait(max(0.0, until - time.monotonic())):
            return False
        if self._next > deadline:
            return False
        self._next = time.monotonic() + self._interval_s
        return True

    def took(self, count: int) -> None:
        """Take note of how much was found."""
        if count >= self.batch_size:
            self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Return whether it is time to look, as it is at once where the last look found much."""
        return self._next <= time.monotonic()

    def end(self) -> None:
        """Wake up and wait no more."""
        self._ended.set()


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
            self._database.check_access()
            if self._database.replaced():
                with self._database.replacement():
                    self._check_kept()
            self._look()
        return self._ready.popleft() if self._ready else None

    @property
    def is_caught_up(self) -> bool:
        """Return whether the last look found all, and it is handed out."""
        return not self._ready and not self._pace.is_due

    def appeared_tables(self) -> Sequence[AppearedTable]:
        """Return the tables found so far that hold rows which were not captured."""
        return self._appeared

    def _report(self, names: Iterable[str], place: FilePosition) -> bool:
        """Report tables that came up at a place; return whether there are any."""
        new = tuple(
            AppearedTable(qualified_name(DB, name), place.as_json()) for name in sorted(names)
        )
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
        """Close the file. Safe to call twice."""
        self._pace.end()
        self._database.close()
