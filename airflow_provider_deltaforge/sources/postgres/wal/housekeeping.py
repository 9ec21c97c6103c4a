"""What the reader does beside reading, now and then, over an ordinary connection."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sources.postgres.borrowed_connection import let_go
from airflow_provider_deltaforge.sources.postgres.publication import NewTables, UnpublishedTable
from airflow_provider_deltaforge.sources.postgres.server import end_of_log, rows_of
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING
from airflow_provider_deltaforge.sources.postgres.wal.messages import HEARTBEAT
from airflow_provider_deltaforge.sources.postgres.wal.table_names import TableNamesWatch

log = logging.getLogger(__name__)

_STATEMENT = "SET statement_timeout = '10s'"


class Housekeeping:
    """Looks for new tables and writes heartbeats. Its failures never stop the stream.

    Args:
        connect: opens a connection.
        newcomers: finds tables that are not published; None does not look.
        heartbeat_s: how often to write a message, 0 never.
        names: finds tables that were renamed, or published by others; None does not look.
        look_s: how often to look for both, and how long to wait after a failure, in seconds.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        newcomers: NewTables | None,
        heartbeat_s: float,
        names: TableNamesWatch | None = None,
        look_s: float = POSTGRES_TUNING.look_s,
    ) -> None:
        self._connect = connect
        self._newcomers = newcomers
        self._names = names
        self.renamed: list[tuple[str, str | None, int]] = []
        """What ``TableNamesWatch.look`` found, and where the log ended then."""
        self._heartbeat_s = heartbeat_s
        self._look_s = look_s
        self._connection: Any = None
        self._look_at = 0.0 if newcomers or names else float("inf")
        self._beat_at = time.monotonic() + heartbeat_s if heartbeat_s else float("inf")

    def look(self, now: float) -> Sequence[UnpublishedTable]:
        """Do what is due; return tables that were published without a message in the log."""
        found: Sequence[UnpublishedTable] = ()
        if now < self._look_at and now < self._beat_at:
            return found
        import psycopg

        try:
            if self._connection is None:
                self._connection = self._connect()
                rows_of(self._connection, _STATEMENT, "preparing to look for new tables")
            if now >= self._beat_at:
                self._beat_at = now + self._heartbeat_s
                emit = "SELECT pg_logical_emit_message(false, %s, '')"
                rows_of(self._connection, emit, "writing a heartbeat", (HEARTBEAT,))
            if now >= self._look_at:
                self._look_at = now + self._look_s
                self._look_at_names(self._connection)
                if self._newcomers is not None:
                    found = self._publish(self._newcomers, self._connection)
        except (RetryableError, FatalError, psycopg.Error) as error:
            log.warning("looking for new tables or a heartbeat failed (%s); trying again", error)
            self._look_at = max(self._look_at, now + self._look_s)
            self._beat_at = max(self._beat_at, now + self._look_s)
            self.close()
        return found

    def _look_at_names(self, connection: Any) -> None:
        """Find tables that came under a captured name: new ones are published after it."""
        if self._names is None:
            return
        former = self._names.known
        try:
            found = self._names.look(connection)
            end = end_of_log(connection) if found else 0
        except BaseException:
            self._names.known = former  # Seen, but not reported.
            raise
        for name, was in found:
            if was is None:
                log.warning("%s has rows that did not come under this name; it is copied", name)
        self.renamed += [(name, was, end) for name, was in found]

    def _publish(self, newcomers: NewTables, connection: Any) -> Sequence[UnpublishedTable]:
        try:
            return newcomers.look(connection)
        finally:
            if self._names is not None:
                self._names.note_announced(newcomers.published)

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            let_go(connection)
