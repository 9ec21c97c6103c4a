"""A database file, opened for one way of finding changes."""

from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.errors import FatalError, SchemaError
from airflow_provider_deltaforge.sources.turso.capture import Capture
from airflow_provider_deltaforge.sources.turso.database import Database
from airflow_provider_deltaforge.sources.turso.polling import Growth
from airflow_provider_deltaforge.sources.turso.positions import FilePosition
from airflow_provider_deltaforge.sources.turso.shadows import Shadows
from airflow_provider_deltaforge.sources.turso.tables import CapturedTables

Log = Capture | Shadows | Growth


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A file, opened for one mode.

    Attributes:
        mode: how changes are found.
        database: the file.
        captured: the tables to follow.
        log: where the changes are.
        others: where modes that ``auto`` passed over would find them.
    """

    mode: str
    database: Database
    captured: CapturedTables
    log: Log
    others: tuple[Log, ...] = ()

    def prepare(self) -> None:
        """Check that changes are captured; make the triggers that are wanted."""
        if isinstance(self.log, Shadows):
            self.log.prepared()

    def head(self) -> FilePosition:
        """Return the place behind everything committed, inside a view."""
        if isinstance(self.log, Capture):
            self.log.check()
        return self.log.head()

    def heads(self) -> FilePosition:
        """Prepare, and return that place in the other modes as well."""
        self.prepare()
        also = []
        with self.database.view():
            for log in self.others:
                with suppress(FatalError, SchemaError):  # The file does not offer that mode.
                    also.append(log.head())
            return replace(self.head(), also=tuple(also))
