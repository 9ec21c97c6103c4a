"""Reads rows on a standby, so that the copy costs the source's own server nothing.

The log stays the source's: where the stream begins, who may be committing, and whether the log is
still there, is asked of it. A standby is the same cluster byte by byte, only later. So a reader
waits until it has replayed what the source's server has written by then, and a view contains
everything that was replayed before it opened. What is replayed while it opens is in it or not:
those transactions are delivered once more.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.postgres.positions import lsn_text
from airflow_provider_deltaforge.sources.postgres.server import (
    PostgresServer,
    read_head,
    server_info,
)
from airflow_provider_deltaforge.sources.postgres.settings import STANDBY_KEY
from airflow_provider_deltaforge.sources.postgres.snapshot.snapshotter import PostgresSnapshotter

_POLL_S = 0.1


class StandbySnapshotter(PostgresSnapshotter):
    """Plans and reads on a standby.

    Args:
        primary: of the same source, at its own server; closed with this one.
        connect_primary: returns a new connection to that server.
        standby: what a ``PostgresSnapshotter`` of the standby takes.
        more: the same.
    """

    def __init__(
        self,
        primary: PostgresSnapshotter,
        connect_primary: Callable[[], Any],
        *standby: Any,
        **more: Any,
    ) -> None:
        super().__init__(*standby, **more)
        self._primary = primary
        self._connect_primary = connect_primary

    def begin(self) -> Position:
        """Return the position where the stream must start, at the source's own server."""
        return self._primary.begin()

    def guard(self, position: Position) -> None:
        """Check that the source's own server still has its log from ``position`` on.

        Raises:
            PositionLostError: it has not.
        """
        self._primary.guard(position)

    def close(self) -> None:
        """Close both connections. Safe to call twice."""
        super().close()
        self._primary.close()

    def _prepare(self, connection: Any) -> PostgresServer:
        with closing(self._connect_primary()) as primary:
            check_standby(primary, connection)
            self._await_replay(primary, connection)
        return super()._prepare(connection)

    def _settle(self, connection: Any, published: Sequence[int] | None = None) -> None:
        with closing(self._connect_primary()) as primary:
            super()._settle(primary, published)
            self._await_replay(primary, connection)

    def _await_replay(self, primary: Any, standby: Any) -> None:
        """Wait until the standby has replayed what the source's server has written by now.

        The stream's start lies before that, also when a former process has stored it.
        """
        wanted = read_head(primary).lsn
        deadline = time.monotonic() + self._tuning.replica_s
        while (replayed := read_head(standby).lsn) < wanted:
            if time.monotonic() >= deadline:
                raise RetryableError(
                    f"{STANDBY_KEY}: the standby has replayed the log up to {lsn_text(replayed)}, "
                    f"and has not reached {lsn_text(wanted)} within {self._tuning.replica_s:g} s; "
                    "let it catch up (pg_stat_wal_receiver says what it gets), or name another"
                )
            time.sleep(_POLL_S)


def check_standby(primary: Any, standby: Any) -> None:
    """Check that a server is a standby of the source's.

    Raises:
        FatalError: it is not.
    """
    ours, found = server_info(primary), server_info(standby)
    wrong = None
    if found.system_id != ours.system_id:
        wrong = f"it is of cluster {found.system_id}, the source's server of {ours.system_id}"
    elif not found.standby:
        wrong = "it is no standby: it writes a log of its own"
    elif found.db != ours.db:
        wrong = f"it shows database {found.db!r}, the source's server {ours.db!r}"
    if wrong is not None:
        raise FatalError(
            f"{STANDBY_KEY}: rows cannot be read from this server: {wrong}; name a streaming "
            "standby of the source's server"
        )
