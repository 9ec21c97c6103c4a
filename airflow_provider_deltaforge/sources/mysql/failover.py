"""Whose log it is, and whether it can be followed from a position on another server.

GTIDs name a transaction on every server, so a position made of them is reachable when the server
executed all that was read, and still has in its log all that was not. A file and an offset belong
to the one server that wrote them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.contract import Identity
from airflow_provider_deltaforge.sources.mysql.catalog import fetch, load_table
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, translated
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet, GtidState
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition, file_number
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_POLL_S = 0.25
_KEEP = "keep the log longer (binlog_expire_logs_seconds)"


def identity_of(info: MySqlServer) -> Identity:
    """Return what identifies a server; MariaDB has no more than its server id."""
    if info.mariadb:
        return {"type": "maria_db", "server_id": int(info.uuid.rpartition("-")[2])}
    return {"type": "my_sql", "server_uuid": info.uuid}


def on_server(position: LogPosition, info: MySqlServer) -> LogPosition:
    """Return the position as this server counts it: another server's file and offset are void."""
    if position.gtids is None or position.server_uuid == info.uuid:
        return position
    return LogPosition("", 4, position.gtids, info.uuid)


def check_reach(
    connection: Any,
    info: MySqlServer,
    position: LogPosition,
    stopping: Callable[[], bool] = lambda: False,
    settling_s: float = MYSQL_TUNING.settling_s,
) -> None:
    """Check that the log can be followed from ``position`` on.

    Args:
        connection: to the server that ``info`` describes.
        info: that server.
        position: what was read last, from this server or another.
        stopping: ends the wait for transactions that are still settling.
        settling_s: the wait ends after so many seconds.

    Raises:
        PositionLostError: changes are lost; the text says which.
        RetryableError: the server replicates and has still to apply what was read.
    """
    moved = position.server_uuid not in ("", info.uuid)
    lost = f"position lost{' after failover' if moved else ''}: "
    is_own = position.server_uuid == info.uuid and position.file != ""
    if position.gtids is None:
        if is_own:
            _check_same_log(connection, position, lost)
        if moved:
            raise _lost(
                f"{lost}{position.file}:{position.pos} is a place in the log of server "
                f"{position.server_uuid}, but {info.uuid} answers, and without GTIDs nothing says "
                "where it is there; every change after it is lost"
            )
        return
    if isinstance(position.gtids, GtidPos) != info.mariadb:
        there = "MariaDB" if info.mariadb else "MySQL"
        raise _lost(f"{lost}{position.gtids} means nothing to {info.uuid}, which is {there}")
    if moved and not info.gtids:
        raise _lost(
            f"{lost}the log was read up to {position.gtids}, but server {info.uuid} has gtid_mode "
            "OFF; every change after it is lost, unless it is switched ON"
        )
    history: _History = _MariaDb(connection) if info.mariadb else _MySql(connection)
    if is_own and history.counted(position.gtids, info.uuid):
        _check_same_log(connection, position, lost)
    _check_executed(history, info, position, lost, stopping, settling_s)
    purged = history.purged(position.gtids)
    if purged:
        raise _lost(
            f"{lost}server {info.uuid} has purged transactions that were not read yet: {purged}; "
            f"{_KEEP}"
        )


def behind_torn_file(connection: Any, position: LogPosition, torn: str) -> LogPosition:
    """Return where MariaDB's log goes on behind a file that ends inside a transaction.

    The server was killed while it wrote that transaction, which was never committed: recovery
    rolls back what the log does not hold whole. MySQL cuts such a file, MariaDB begins another.

    Args:
        connection: to the server.
        position: what was read last, all of the torn file that is whole.
        torn: the file.

    Raises:
        RetryableError: no other file follows yet.
        PositionLostError: the next file begins behind something that was not read.
    """
    behind = _file_behind(connection, torn)
    if behind is None:
        raise RetryableError(
            f"{torn} ends inside a transaction and no other file follows; if its disk is full, "
            "make room; a server that is started again goes on in another file"
        )
    begins = _begin_of(connection, behind)
    if not isinstance(position.gtids, GtidPos) or not begins <= position.gtids:
        raise _lost(
            f"position lost: {torn} ends inside a transaction, {behind} begins behind {begins}, "
            f"and the log was read up to {position.gtids}"
        )
    return LogPosition(behind, 4, None, position.server_uuid)


def is_committed(connection: Any, file: str, domain: int, before: GtidPos) -> bool:
    """Return whether MariaDB committed the transaction that it has begun to send.

    Of the file that it writes, a server sends whole transactions only. An older file may end inside
    one that a crash cut off; then the next file begins where that transaction began.

    Args:
        connection: to the server.
        file: where the transaction is.
        domain: of its GTID.
        before: what the log holds in front of it.
    """
    behind = _file_behind(connection, file)
    if behind is None:
        return True
    return _begin_of(connection, behind).domains.get(domain) != before.domains.get(domain)


def _file_behind(connection: Any, file: str) -> str | None:
    """Return the file of the log that follows another, None behind the newest."""
    number = file_number(file)
    files = [str(row[0]) for row in _asked(connection, "SHOW BINARY LOGS")]
    return next((name for name in files if file_number(name) > number), None)


def _begin_of(connection: Any, file: str) -> GtidPos:
    """Return what MariaDB's log holds in front of a file."""
    begins = _asked(connection, f"SELECT BINLOG_GTID_POS('{file}', 4)")[0][0]
    return GtidPos.parse(str(begins or ""))


def captured_catalog(
    connection: Any, matcher: TableMatcher, tables: Sequence[TableSchema]
) -> Mapping[str, TableSchema | None]:
    """Return how captured tables look now, by full name; None for one that is gone."""
    try:
        return {
            table.full_name: load_table(connection, table.db, table.table)
            for table in tables
            if matcher.matches(table.db, table.table)
        }
    except Exception as error:
        raise translated(error, "reading the catalog") from error


def _check_same_log(connection: Any, position: LogPosition, lost: str) -> None:
    """See that the log was not begun anew: its names and GTIDs come again after a RESET.

    One that has grown past the very file and offset since then looks like the old one.
    """
    series = position.file.rpartition(".")[0]
    sizes = {
        str(name): int(size)
        for name, size, *_ in _asked(connection, "SHOW BINARY LOGS")
        if str(name).rpartition(".")[0] == series
    }
    if not sizes:  # Named otherwise by now, or just rotating.
        return
    newest = max(sizes, key=file_number)
    is_older = file_number(newest) < file_number(position.file)
    if is_older or sizes.get(position.file, position.pos) < position.pos:
        raise _lost(
            f"{lost}the log was read up to {position.file}:{position.pos}, but the server's ends "
            f"at {newest}:{sizes[newest]}: it was begun anew (RESET BINARY LOGS AND GTIDS, "
            "RESET MASTER), or the server was set back to an older state"
        )


def _check_executed(
    history: "_History",
    info: MySqlServer,
    position: LogPosition,
    lost: str,
    stopping: Callable[[], bool],
    settling_s: float,
) -> None:
    """See that the server executed everything that was read, or will have soon."""
    deadline = time.monotonic() + settling_s
    while missing := history.missing(position.gtids):
        if history.replicates(missing):
            raise RetryableError(
                f"server {info.uuid} is a replica that has not applied {missing} yet, which was "
                "read before; waiting until it has"
            )
        if stopping():
            raise RetryableError(f"asked to stop while {missing} was still to settle")
        if time.monotonic() >= deadline:
            raise _lost(
                f"{lost}transactions were read that server {info.uuid} does not have: {missing}. "
                "What it did instead, and where the rows of those transactions stand there, "
                "cannot be known from its log"
            )
        time.sleep(_POLL_S)


class _History(Protocol):
    """What a server has executed, and what of it is purged."""

    def missing(self, read: Any) -> Any:
        """Return what was read and the server does not have."""

    def purged(self, read: Any) -> Any:
        """Return what was not read and the server's log does not hold any more."""

    def replicates(self, missing: Any) -> bool:
        """Return whether replication will bring, or may bring, what is missing."""

    def counted(self, read: Any, uuid: str) -> Any:
        """Return what was read that the server itself counted, and did not purge since.

        After a RESET it counts those again, for others. What replication brings keeps its GTID, and
        what is purged lies before any file: such a log goes on, whatever its files are called.
        """


class _MySql:
    """What a MySQL server has executed and purged."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def missing(self, read: GtidSet) -> GtidSet:
        return read - self._set("gtid_executed")

    def purged(self, read: GtidSet) -> GtidSet:
        return self._set("gtid_purged") - read

    def replicates(self, missing: GtidSet) -> bool:
        return any(
            missing <= GtidSet.parse(str(channel.get("Retrieved_Gtid_Set") or "")) or receiving
            for channel, receiving in _channels(self._connection, ("REPLICA", "SLAVE"))
        )

    def counted(self, read: GtidSet, uuid: str) -> GtidSet:
        own = {
            name: spans
            for name, spans in read.members.items()
            if name.partition(":")[0].lower() == uuid.lower()
        }
        return GtidSet(own) - self._set("gtid_purged")

    def _set(self, name: str) -> GtidSet:
        return GtidSet.parse(str(_asked(self._connection, f"SELECT @@GLOBAL.{name}")[0][0]))


class _MariaDb:
    """What a MariaDB server has written to its log and purged from it, per domain."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def missing(self, read: GtidPos) -> GtidPos:
        rows = _asked(self._connection, "SELECT @@GLOBAL.gtid_binlog_state")
        return GtidState.parse(str(rows[0][0])).without(read)

    def purged(self, read: GtidPos) -> GtidPos:
        """Return per domain the last purged transaction, where it lies behind what was read."""
        logs = _asked(self._connection, "SHOW BINARY LOGS")
        if not logs:  # A server that is just rotating; the dump itself tells.
            return GtidPos()
        first = str(logs[0][0])
        return GtidPos(
            {
                domain: last
                for domain, last in _begin_of(self._connection, first).domains.items()
                if domain not in read.domains or read.domains[domain][1] < last[1]
            }
        )

    def counted(self, read: GtidPos, uuid: str) -> GtidPos:
        server_id = int(uuid.rpartition("-")[2])
        purged = self.purged(GtidPos()).domains
        return GtidPos(
            {
                domain: last
                for domain, last in read.domains.items()
                if last[0] == server_id and last[1] > purged.get(domain, (0, 0))[1]
            }
        )

    def replicates(self, missing: GtidPos) -> bool:
        return any(
            missing <= GtidPos.parse(str(channel.get("Gtid_IO_Pos") or "")) or receiving
            for channel, receiving in _channels(self._connection, ("ALL REPLICAS",))
        )


def _channels(connection: Any, words: Sequence[str]) -> list[tuple[dict[str, Any], bool]]:
    """Return the replication channels that apply changes, and whether each also receives some."""
    import pymysql

    for word in words:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            try:
                cursor.execute(f"SHOW {word} STATUS")
            except pymysql.err.MySQLError:
                continue  # An older server, or no privilege: then it counts as none.
            rows = list(cursor.fetchall())
        return [(row, _runs(row, "IO_Running")) for row in rows if _runs(row, "SQL_Running")]
    return []


def _runs(channel: Mapping[str, Any], thread: str) -> bool:
    return "Yes" in (channel.get(f"Replica_{thread}"), channel.get(f"Slave_{thread}"))


def _asked(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    try:
        return fetch(connection, sql)
    except Exception as error:
        raise translated(error, "comparing positions") from error


def _lost(text: str) -> PositionLostError:
    return PositionLostError(f"{text}. Re-snapshot required")
