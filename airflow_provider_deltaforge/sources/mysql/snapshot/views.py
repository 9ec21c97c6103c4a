"""Consistent views of the tables, and what each is known to contain.

With C the position a stream starts at and V what a view contains, no change is lost exactly when
C is part of V. How that is made sure differs by server:

- MySQL with GTIDs: ``gtid_executed`` is read before the view opens. It names only what the storage
  engine has committed, so the view contains all of it. It contains nothing else when the log's end
  was the same before and after, because nothing is visible before it is in the log, and no GTID was
  owned in between: a transaction owns its GTID from before it is logged until it is executed. With
  writers about this takes a few views; when none falls between two commits, the last one is taken,
  and its rows tell which of the transactions around it they show (``exact_cuts``).
- MariaDB: the view itself tells its exact place in the log (``binlog_snapshot_file``/``position``).
  ``gtid_binlog_pos`` would be too early: it moves before the engine commits.
- MySQL without GTIDs: file and offset also move before the engine commits. Another session takes a
  read lock on the table: it waits until writers have let go of their metadata locks, which they
  hold until the engine has committed. Under the lock the view opens and the log's end is read, a
  few milliseconds together. Of this table the view contains what lies before that place, and
  nothing else. Where a stream begins, the lock is let go at once.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.catalog import fetch, quote
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.session import check_pinned
from airflow_provider_deltaforge.sources.mysql.tuning import MySqlTuning
from airflow_provider_deltaforge.sources.shared.table_snapshotter import TableName, View

_DENIED = {1044, 1142, 1227, 1370}
_LOCK_TIMEOUT = 1205
_VIEW_IGNORED = 138
_SETTLED_LEAST_S, _BETWEEN_LOOKS_S = 0.01, 0.001
_OWNER = re.compile("#[0-9]+")
"""Which session owns a GTID, behind its number."""


def prepare_session(connection: Any) -> None:
    """Make the session one that may read tables, whatever the server's defaults are.

    Raises:
        FatalError: a setting that rows depend on does not hold.
    """
    fetch(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    check_pinned(connection)


def begin_position(
    connection: Any,
    server: MySqlServer,
    tables: Iterable[tuple[str, str]],
    tuning: MySqlTuning,
) -> Position:
    """Return a position that every view opened from now on contains.

    Args:
        connection: pymysql connection, prepared.
        server: what it talks to.
        tables: database and name of the tables to be read; used without GTIDs only.
        tuning: how long to wait for writers; used without GTIDs only.

    Raises:
        FatalError: a privilege is missing.
        RetryableError: prepared XA transactions or long writers are in the way.
    """
    if server.mariadb:
        position = _mariadb_view(connection, server).cut
        close_view(connection)
    elif server.gtids:
        executed = _gtid_executed(connection)
        file, offset = log_end(connection)
        position = LogPosition(file, offset, executed, server.uuid).as_json()
    else:
        position = _settled(connection, server, tables, tuning)
    _refuse_prepared(connection)
    return position


class ViewOpener:
    """Opens views of tables for one reader.

    Args:
        tuning: how long it waits for writers.
        other_session: returns a connection that may hold a lock: a view would let go of its own.
    """

    def __init__(self, tuning: MySqlTuning, other_session: Callable[[], Any]) -> None:
        self._tuning, self._other_session = tuning, other_session
        self._views_max, self._settled_s = tuning.quiet_views, tuning.settled_s

    def open(self, connection: Any, server: MySqlServer, table: TableName) -> View:
        """Open a view on this connection and return its cut; ``close_view`` ends it.

        On MySQL with GTIDs the cut of a view that did not fall between two commits is ``inexact``:
        it has the log's end (``upto``) and what was executed (``executed``) behind the view, and a
        place of the log (``since``) before which the view contains all, if there was one in time.

        Args:
            connection: pymysql connection, prepared.
            server: what it talks to.
            table: database and name of the table to be read.

        Raises:
            FatalError: the server ignored the request, or a privilege is missing.
            RetryableError: without GTIDs, writers did not let go of the table in time.
        """
        if server.mariadb:
            return _mariadb_view(connection, server)
        if server.gtids:
            return _view(connection, self._between_commits(connection, server))
        with _locked(self._other_session(), *table, self._tuning):
            _open(connection)
            file, offset = log_end(connection)
        place = LogPosition(file, offset, None, server.uuid).as_json()
        return _view(connection, {**place, "upto": [file, offset]})

    def _between_commits(self, connection: Any, server: MySqlServer) -> Position:
        """Open a view that contains what its GTIDs name, and nothing else if that can be had."""
        for left in reversed(range(self._views_max)):
            since = None if left else self._settled_place(connection)
            before = log_end(connection)
            is_owned = bool(fetch(connection, "SELECT @@GLOBAL.gtid_owned")[0][0])
            executed = _gtid_executed(connection)
            _open(connection)
            after = log_end(connection)
            position = LogPosition(*after, executed, server.uuid).as_json()
            if after == before and not is_owned:
                self._views_max = self._tuning.quiet_views
                return position
            if left:
                close_view(connection)
        # Where writers never pause it does not pay to wait for a pause at every chunk.
        self._views_max = max(1, self._views_max // 2)
        # Of a replica, whose log is not read, the place in its log says nothing.
        contained = str(_gtid_executed(connection))
        known = {} if since is None else {"since": list(since)}
        return {
            **position, "inexact": True, "upto": list(after), "executed": contained, **known
        }  # fmt: skip

    def _settled_place(self, connection: Any) -> tuple[str, int] | None:
        """Return a place of the log before which everything is executed by now; None: not in time.

        What is logged before it and not executed yet still owns its GTID. So does a transaction
        that another server sent, until it ends: such are waited for less and less.
        """
        place = log_end(connection)
        owned = GtidSet.parse(_OWNER.sub("", fetch(connection, "SELECT @@GLOBAL.gtid_owned")[0][0]))
        deadline = time.monotonic() + self._settled_s
        while not owned <= _gtid_executed(connection):
            if time.monotonic() > deadline:
                self._settled_s = max(_SETTLED_LEAST_S, self._settled_s / 2)
                return None
            time.sleep(_BETWEEN_LOOKS_S)
        self._settled_s = self._tuning.settled_s
        return place


def _mariadb_view(connection: Any, server: MySqlServer) -> View:
    logged_before = _gtid_binlog_pos(connection)
    _open(connection)
    return _view(connection, _mariadb_cut(connection, server, logged_before))


def _view(connection: Any, cut: Position) -> View:
    ts_ms = int(fetch(connection, "SELECT ROUND(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0])
    return View(cut, ts_ms)


def _open(connection: Any) -> None:
    fetch(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
    if any(code == _VIEW_IGNORED for _, code, _ in fetch(connection, "SHOW WARNINGS")):
        fetch(connection, "ROLLBACK")
        raise FatalError(
            "the server ignored CONSISTENT SNAPSHOT; allow isolation level REPEATABLE READ"
        )


def close_view(connection: Any) -> None:
    """End the view."""
    fetch(connection, "ROLLBACK")


def log_end(connection: Any) -> tuple[str, int]:
    """Return file and offset of the log's end.

    Raises:
        FatalError: the server writes no log.
    """
    import pymysql

    try:
        rows = fetch(connection, "SHOW BINARY LOG STATUS")
    except pymysql.err.ProgrammingError:  # Servers before MySQL 8.2, and MariaDB.
        rows = fetch(connection, "SHOW MASTER STATUS")
    if not rows:
        raise FatalError("the server writes no binary log; start it with log_bin")
    return str(rows[0][0]), int(rows[0][1])


def _gtid_executed(connection: Any) -> GtidSet:
    return GtidSet.parse(fetch(connection, "SELECT @@GLOBAL.gtid_executed")[0][0])


def _gtid_binlog_pos(connection: Any) -> str:
    return str(fetch(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0])


def _mariadb_cut(connection: Any, server: MySqlServer, logged_before: str) -> Position:
    """Return the exact place of the view; ``logged_before`` was read before it opened."""
    status = {
        str(name).lower(): value
        for name, value in fetch(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'")
    }
    file = str(status.get("binlog_snapshot_file") or "")
    if not file:
        raise FatalError(
            "the server does not tell a view's place in its log (binlog_snapshot_file is empty); "
            "start it with log_bin"
        )
    offset = int(status["binlog_snapshot_position"])
    # BINLOG_GTID_POS reads the log's file from its beginning. It can be spared when the view is at
    # the end of the log and nothing was logged around it.
    quiet = log_end(connection) == (file, offset)
    if quiet and _gtid_binlog_pos(connection) == logged_before:
        found = logged_before
    else:
        found = fetch(connection, "SELECT BINLOG_GTID_POS(%s, %s)", (file, offset))[0][0]
    # An empty log has an empty position: without one, the stream would go on by file and offset.
    gtids = GtidPos.parse(str(found)) if found is not None else None
    return LogPosition(file, offset, gtids, server.uuid).as_json()


def _settled(
    connection: Any,
    server: MySqlServer,
    tables: Iterable[tuple[str, str]],
    tuning: MySqlTuning,
) -> Position:
    """Return the log's end after every transaction before it on ``tables`` is visible."""
    file, offset = log_end(connection)
    for db, table in tables:
        with _locked(connection, db, table, tuning):
            pass  # Who had written by then has committed.
    return LogPosition(file, offset, None, server.uuid).as_json()


@contextmanager
def _locked(connection: Any, db: str, table: str, tuning: MySqlTuning) -> Iterator[None]:
    """Hold a read lock on a table, unless that is gone.

    Raises:
        FatalError: a privilege is missing.
        RetryableError: writers did not let go of the table in time.
    """
    fetch(connection, f"SET SESSION lock_wait_timeout = {tuning.lock_wait_s}")
    _lock(connection, db, table, tuning)
    try:
        yield
    finally:
        fetch(connection, "UNLOCK TABLES")


def _lock(connection: Any, db: str, table: str, tuning: MySqlTuning) -> None:
    import pymysql

    for attempt in range(tuning.lock_attempts):
        try:
            fetch(connection, f"LOCK TABLES {quote(db, table)} READ")
        except pymysql.err.MySQLError as error:
            code = error.args[0]
            if code in _DENIED:
                raise FatalError(
                    f"without GTIDs a snapshot of {db}.{table} needs the LOCK TABLES privilege; "
                    "grant it to the pipeline's user, or set gtid_mode=ON on the server"
                ) from None
            if code == 1146:  # Dropped meanwhile: nobody writes to it.
                return
            if code != _LOCK_TIMEOUT:
                raise
            time.sleep(0.2 * (attempt + 1))
        else:
            return
    waited_s = tuning.lock_wait_s * tuning.lock_attempts
    raise RetryableError(
        f"transactions on {db}.{table} did not end within {waited_s} s; end "
        "them (information_schema.innodb_trx lists them), or set gtid_mode=ON on the server"
    )


def _refuse_prepared(connection: Any) -> None:
    """Refuse to begin while XA branches are prepared: their rows lie before the position.

    Asked after the position was read, so a branch that was prepared before it and is gone now is
    visible to every later view. Without the privilege to ask, the preflight warns.
    """
    import pymysql

    try:
        prepared = fetch(connection, "XA RECOVER")
    except pymysql.err.MySQLError as error:
        if error.args[0] in _DENIED or error.args[0] == 1401:
            return
        raise
    if prepared:
        raise RetryableError(
            f"{len(prepared)} XA transactions are prepared and not ended; commit or roll them back "
            "(XA RECOVER lists them), a snapshot would miss their rows"
        )
