"""Consistent views of the tables, and what each is known to contain.

With C the position a stream starts at and V what a view contains, no change is lost exactly when
C is part of V. A transaction's commit stands in the log before others see its rows: for an instant,
or for as long as a synchronous standby does not answer. So a position alone promises nothing of
the views that open after it. ``settle`` closes that gap once for all views of a snapshot: it looks
who is in a transaction (every writer holds a lock on its own number until others see its rows) and
waits until each of them has ended, or is seen doing something that nobody does while committing.
``settle_published`` does the same for rows written before their table was published.

A view's own content is exactly what ``pg_current_snapshot`` says inside it. On a standby that
leaves out who is writing; there, a view contains what was replayed before it opened, and perhaps a
little more.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.sources.postgres.positions import parse_lsn
from airflow_provider_deltaforge.sources.postgres.server import SCHEMAS_VERSION, PostgresServer
from airflow_provider_deltaforge.sources.postgres.tables import quote
from airflow_provider_deltaforge.sources.shared.table_snapshotter import View

_LOOK_S = 0.05

# A table's copy may take hours, and rows that a policy hides must be an error, not a gap.
_SESSION = """
SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0;
SET lock_timeout = '{lock_wait_s:g}s'; SET row_security = off
"""

# Who else is in a transaction, and whether it is seen not to be committing. A prepared transaction
# has no session; it is committed by a statement of somebody's.
_WRITERS = """
SELECT l.transactionid::text, coalesce(l.pid, 0),
       CASE WHEN l.pid IS NULL THEN NOT EXISTS (
         SELECT FROM pg_stat_activity s
          WHERE s.pid <> pg_backend_pid()
            AND (s.backend_type IS NULL OR s.backend_type = 'client backend'
                 AND (s.state = 'disabled' OR s.state = 'active'
                      AND s.query ~* 'commit\\s+prepared')))
       ELSE EXISTS (SELECT FROM pg_locks w WHERE w.pid = l.pid AND NOT w.granted)
         OR coalesce(a.state LIKE 'idle in transaction%' OR a.wait_event_type IN ('Lock', 'Client')
                     OR a.wait_event LIKE 'DataFile%', false) END
  FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
"""

# The log has no row of a table that was written before the table was published, also where its
# transaction commits later. The thousand ids behind the publishing transaction's own stand for
# those that were given before it committed.
_EARLIER_WRITERS = """
WITH lock AS MATERIALIZED (SELECT * FROM pg_locks WHERE granted),
added AS (
  SELECT c.oid, age(m.xmin) AS age
    FROM pg_publication p CROSS JOIN pg_class c
   CROSS JOIN LATERAL (
         SELECT p.xmin WHERE p.puballtables UNION ALL
         SELECT r.xmin FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid
         {schemas}) m
   WHERE p.pubname = %s AND c.oid = ANY(%s))
SELECT w.virtualtransaction, coalesce(w.pid, 0), false
  FROM added a
 CROSS JOIN LATERAL (SELECT a.oid AS part UNION SELECT relid FROM pg_partition_tree(a.oid)) parts
  JOIN lock w ON w.locktype = 'relation' AND w.relation = parts.part
   AND w.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND w.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                  'AccessExclusiveLock')
  JOIN lock x ON x.virtualtransaction = w.virtualtransaction AND x.locktype = 'transactionid'
   AND x.mode = 'ExclusiveLock'
 WHERE age(x.transactionid) > a.age - 1000
"""
_OF_SCHEMA = """
         UNION ALL SELECT s.xmin FROM pg_publication_namespace s
          WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace"""

# The log's end is asked for after the view is there: nothing behind it can be in the view.
_VIEW = """
SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_snapshot()::text END,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn() END::text,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint
"""


def prepare_session(connection: Any, lock_wait_s: float) -> None:
    """Set what reading rows depends on, whatever the server's and the role's defaults are.

    Args:
        connection: to the server.
        lock_wait_s: how long to wait for a table that somebody alters, in seconds.
    """
    connection.execute(_SESSION.format(lock_wait_s=lock_wait_s))
    for since, name in ((140000, "idle_session_timeout"), (170000, "transaction_timeout")):
        if connection.info.server_version >= since:
            connection.execute(f"SET {name} = 0")


def settle(connection: Any, patience_s: float) -> None:
    """Return when views that open from now on contain all that is committed in the log by now.

    Args:
        connection: to the server.
        patience_s: how long to wait for transactions that may be committing, in seconds.

    Raises:
        RetryableError: a transaction may be committing and does not end.
    """
    _await(
        lambda: _writers(connection, _WRITERS),
        "may be committing",
        "rows that the log already holds could be missing from the copy; end them, let a "
        "synchronous standby answer, or GRANT pg_read_all_stats so that idle ones are told apart",
        patience_s,
    )


def settle_published(
    connection: Any, publication: str, tables: Sequence[int], patience_s: float
) -> None:
    """Return when views contain all rows that were written before their table was published.

    Args:
        connection: to the server.
        publication: its name.
        tables: oids of the tables to be read.
        patience_s: how long to wait, in seconds.

    Raises:
        RetryableError: a transaction that wrote such rows does not end.
    """
    schemas = _OF_SCHEMA if connection.info.server_version >= SCHEMAS_VERSION else ""
    sql = _EARLIER_WRITERS.format(schemas=schemas)
    _await(
        lambda: _writers(connection, sql, (publication, list(tables))),
        "wrote to tables before they were published",
        "neither the log nor the copy would have their rows; commit or end them",
        patience_s,
    )


def open_view(connection: Any, server: PostgresServer, table: tuple[str, str]) -> View:
    """Open a view on this connection and return its cut; ``close_view`` ends it.

    The table is locked first, against ALTER only: a table that is rewritten under an open view
    looks empty to it.

    Args:
        connection: prepared, autocommitting.
        server: what it talks to.
        table: schema and name.
    """
    replayed = _replayed(connection) if server.standby else None
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    connection.execute(f"LOCK TABLE {quote(*table)} IN ACCESS SHARE MODE")
    return _look(connection, server, replayed)


def open_empty_view(connection: Any, server: PostgresServer) -> View:
    """Open a view of nothing: for a table that is gone."""
    replayed = _replayed(connection) if server.standby else None
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    return _look(connection, server, replayed)


def close_view(connection: Any) -> None:
    """Close the view and release the lock."""
    connection.execute("ROLLBACK")


def _replayed(connection: Any) -> str:
    """Return up to where a standby has replayed the log: what commits before is in later views."""
    return str(connection.execute("SELECT pg_last_wal_replay_lsn()::text").fetchone()[0])


def _look(connection: Any, server: PostgresServer, replayed: str | None) -> View:
    snapshot, lsn, ts_ms = connection.execute(_VIEW).fetchone()
    known = {"snapshot": snapshot} if replayed is None else {"replayed": replayed}
    cut = {**server.at(parse_lsn(lsn)).as_json(), **known}
    return View(cut, ts_ms)


@dataclass(frozen=True, slots=True)
class _Writer:
    """Who holds a transaction number.

    ``pid`` is 0 for a prepared transaction. ``elsewhere``: seen doing what no commit does; only
    roles that may look into other sessions see more than waits for locks.
    """

    pid: int
    elsewhere: bool


def _writers(connection: Any, sql: str, values: Any = None) -> Mapping[str, _Writer]:
    return {xid: _Writer(*rest) for xid, *rest in connection.execute(sql, values).fetchall()}


def _await(
    writers: Callable[[], Mapping[str, _Writer]], what: str, otherwise: str, patience_s: float
) -> None:
    """Wait until none of the writers of now can do what a view would miss."""
    waited_for = writers()
    deadline = time.monotonic() + patience_s
    while waited_for:
        now = writers()
        waited_for = {
            name: now[name] for name in waited_for if name in now and not now[name].elsewhere
        }
        if waited_for and time.monotonic() > deadline:
            raise RetryableError(
                f"{_named(waited_for.values())} {what} and did not end within {patience_s:g} s, so "
                f"{otherwise}"
            )
        if waited_for:
            time.sleep(_LOOK_S)


def _named(writers: Collection[_Writer]) -> str:
    pids = sorted({writer.pid for writer in writers if writer.pid})
    who = [f"sessions {', '.join(map(str, pids))}"] if pids else []
    if any(not writer.pid for writer in writers):
        who.append("prepared transactions (pg_prepared_xacts)")
    return " and ".join(who)
