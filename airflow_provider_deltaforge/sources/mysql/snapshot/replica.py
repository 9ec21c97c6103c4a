"""Reads rows on a replica, so that the copy costs the source's own server nothing.

The log stays the source's: where the stream begins, and whether that is still there, is asked of
it. A view of the replica is as exact as one of the source, because GTIDs name a transaction on
both. So the replica must have them, keep a log of what it applies (which tells views between two
commits), and hold nothing that the source does not: its rows would be in no log.
"""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.catalog import fetch
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, server_info
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.snapshot.snapshotter import MySqlSnapshotter

_LOOK_S = 5
_POLL_S = 0.25


class ReplicaSnapshotter(MySqlSnapshotter):
    """Plans and reads on a replica.

    Args:
        primary: of the same source, at its own server; closed with this one.
        connect_primary: returns a new connection to that server.
        replica: what a ``MySqlSnapshotter`` of the replica takes.
        more: the same.
    """

    def __init__(
        self,
        primary: MySqlSnapshotter,
        connect_primary: Callable[[], Any],
        *replica: Any,
        **more: Any,
    ) -> None:
        super().__init__(*replica, **more)
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

    def _prepare(self, connection: Any) -> MySqlServer:
        server = super()._prepare(connection)
        with closing(self._connect_primary()) as primary:
            self._check_kind(server_info(primary), "the source's server")
            self._check_kind(server, "it")
            logs = fetch(connection, "SELECT @@GLOBAL.log_bin AND @@GLOBAL.log_replica_updates")
            if not int(logs[0][0]):
                raise _unusable("it keeps no log of what it applies; start it with log_bin and "
                                "log_replica_updates")  # fmt: skip
            self._await_step(primary, connection)
            self._check_history(primary, connection)
        return server

    @staticmethod
    def _check_kind(server: MySqlServer, which: str) -> None:
        if server.mariadb:
            raise _unusable(
                f"{which} is MariaDB, whose views say their place in their own server's log only"
            )
        if not server.gtids:
            raise _unusable(f"{which} has gtid_mode OFF, and a file and an offset name nothing")

    def _await_step(self, primary: Any, replica: Any) -> None:
        """Wait until the replica holds what the source's server has executed by now.

        The stream's start lies before that, also when a former process has stored it.
        """
        wanted = fetch(primary, "SELECT @@GLOBAL.gtid_executed")[0][0]
        deadline = time.monotonic() + self._tuning.replica_s
        asked = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, %s)"
        seconds = min(_LOOK_S, self._tuning.replica_s)
        while int(fetch(replica, asked, (wanted, seconds))[0][0]):
            if time.monotonic() >= deadline:
                missing = GtidSet.parse(wanted) - _executed(replica)
                raise RetryableError(
                    f"snapshot.dsn: the replica has not applied {missing} within "
                    f"{self._tuning.replica_s:g} s; let it catch up (SHOW REPLICA STATUS says what "
                    "holds it up), or name another"
                )

    def _check_history(self, primary: Any, replica: Any) -> None:
        """Refuse a server with transactions of its own.

        One that was just sent may count as executed by the replica first.
        """
        deadline = time.monotonic() + self._tuning.settling_s
        held = _executed(replica)
        while own := held - _executed(primary):
            if time.monotonic() >= deadline:
                raise _unusable(
                    f"it has executed {own}, which the source's server has not, so that its rows "
                    "may be others; name a replica that nobody else writes to"
                )
            time.sleep(_POLL_S)


def _executed(connection: Any) -> GtidSet:
    return GtidSet.parse(fetch(connection, "SELECT @@GLOBAL.gtid_executed")[0][0])


def _unusable(reason: str) -> FatalError:
    return FatalError(f"snapshot.dsn: rows cannot be read from this server exactly: {reason}")
