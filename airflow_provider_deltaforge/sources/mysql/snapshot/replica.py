"""Reads rows on a replica, so that the copy costs the source's own server nothing.

The log stays the source's: where the stream begins, and whether that is still there, is asked of
it. A view of the replica is as exact as one of the source, because GTIDs name a transaction on
both. So the replica must have them, keep a log of what it applies (which tells views between two
commits), and hold nothing that the source does not: its rows would be in no log. Nor may it leave
out transactions, or hide tables from our user: their rows would be in no copy.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.catalog import TableSize, fetch
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, server_info
from airflow_provider_deltaforge.sources.mysql.gtid import GtidSet
from airflow_provider_deltaforge.sources.mysql.snapshot.snapshotter import MySqlSnapshotter
from airflow_provider_deltaforge.sources.mysql.tuning import MySqlTuning
from airflow_provider_deltaforge.sources.shared.preflight import shortened
from airflow_provider_deltaforge.sources.shared.table_snapshotter import TableName

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

    def settle(self) -> None:
        """Return when the replica holds what the source's server has executed by now."""
        with self._doing("waiting for the replica"):
            connection, _ = self._open()
            with closing(self._connect_primary()) as primary:
                self._await_step(primary, connection)

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
            check_replica(primary, connection, self._tuning)
            self._await_step(primary, connection)
        return server

    def _captured(self, connection: Any) -> Mapping[TableName, TableSize]:
        """Return the tables; refuse a server that shows less of them than the source's own."""
        with closing(self._connect_primary()) as primary:
            wanted = super()._captured(primary)
            self._await_step(primary, connection)
            found = super()._captured(connection)
            hidden = wanted.keys() - found.keys()
            if hidden:  # Or dropped meanwhile.
                hidden &= super()._captured(primary).keys()
        if hidden:
            names = [qualified_name(*name) for name in sorted(hidden)]
            raise AccessError(
                f"snapshot.dsn: its user sees no {shortened(names)}, which the source's server has "
                "and 'tables' of the source names; GRANT SELECT on it there, too"
            )
        return found

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


def check_replica(primary: Any, replica: Any, tuning: MySqlTuning) -> None:
    """Check that both servers are of a kind and set so that views of the replica are exact.

    Args:
        primary: connection to the source's own server.
        replica: to the one that rows are read from.
        tuning: how long a transaction may be at the replica first.

    Raises:
        FatalError: they are not.
    """
    _check_kind(server_info(primary), "the source's server")
    _check_kind(server_info(replica), "it")
    logs = fetch(replica, "SELECT @@GLOBAL.log_bin AND @@GLOBAL.log_replica_updates")
    if not int(logs[0][0]):
        raise _unusable(
            "it keeps no log of what it applies; start it with log_bin and log_replica_updates"
        )
    for channel in _channels(replica):
        filters = [name for name in channel if name.startswith("Replicate_") and channel[name]]
        if filters:
            raise _unusable(
                f"it leaves out some of what it is sent ({', '.join(filters)} of SHOW REPLICA "
                "STATUS), and counts it as applied; name a replica without filters"
            )
    _check_history(primary, replica, tuning.settling_s)


def _check_history(primary: Any, replica: Any, settling_s: float) -> None:
    """Refuse a server with transactions of its own.

    One that was just sent may count as executed by the replica first.
    """
    deadline = time.monotonic() + settling_s
    held = _executed(replica)
    while own := held - _executed(primary):
        if time.monotonic() >= deadline:
            raise _unusable(
                f"it has executed {own}, which the source's server has not, so that its rows "
                "may be others; name a replica that nobody else writes to"
            )
        time.sleep(_POLL_S)


def _channels(replica: Any) -> Sequence[Mapping[str, Any]]:
    import pymysql

    with replica.cursor(pymysql.cursors.DictCursor) as cursor:
        try:
            cursor.execute("SHOW REPLICA STATUS")
        except pymysql.err.ProgrammingError:  # Servers before MySQL 8.0.22.
            cursor.execute("SHOW SLAVE STATUS")
        return list(cursor.fetchall())


def _check_kind(server: MySqlServer, which: str) -> None:
    if server.mariadb:
        raise _unusable(
            f"{which} is MariaDB, whose views say their place in their own server's log only"
        )
    if not server.gtids:
        raise _unusable(f"{which} has gtid_mode OFF, and a file and an offset name nothing")


def _executed(connection: Any) -> GtidSet:
    return GtidSet.parse(fetch(connection, "SELECT @@GLOBAL.gtid_executed")[0][0])


def _unusable(reason: str) -> FatalError:
    return FatalError(f"snapshot.dsn: rows cannot be read from this server exactly: {reason}")
