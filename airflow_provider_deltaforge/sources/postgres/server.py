"""What a PostgreSQL server is: version, whose data it holds, and where its log ends."""

import codecs
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, parse_lsn

VERSION_MIN = 130000
SCHEMAS_VERSION = 150000
"""Servers from this version on know publications of whole schemas."""

_ABOUT = """
SELECT current_database(), current_setting('server_version_num')::int,
       (SELECT system_identifier::text FROM pg_control_system()),
       current_setting('wal_level'), pg_is_in_recovery(),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'wal_sender_timeout'),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       current_setting('server_encoding')
"""
# The flushed end, because it lies behind a whole record as a rule, and what is not flushed is not
# sent. The name of a segment holds the timeline it is written on.
_HEAD = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_flush_lsn() END::text,
       CASE WHEN pg_is_in_recovery()
            THEN (SELECT coalesce(max(received_tli), 0) FROM pg_stat_wal_receiver)
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
       (SELECT timeline_id FROM pg_control_checkpoint())
"""

_WRITTEN = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn() END::text
"""


@dataclass(frozen=True)
class PostgresServer:
    """What we must know about a server to read its log.

    Attributes:
        db: the database's real name.
        version: for example 150004.
        system_id: names the cluster; its standbys share it.
        timeline: every promotion starts another.
        wal_level: ``logical`` where changes can be read.
        standby: it only replays another server's log.
        sender_timeout_s: after which silence it hangs up; 0 never.
        superuser: whether our role is one.
        encoding: of the database, as Python calls it; None if Python does not know it.
    """

    db: str
    version: int
    system_id: str
    timeline: int
    wal_level: str
    standby: bool
    sender_timeout_s: float
    superuser: bool
    encoding: str | None = "utf-8"

    def at(self, lsn: int) -> WalPosition:
        """Return a position in this server's log."""
        return WalPosition(lsn, self.system_id, self.timeline)


def server_info(connection: Any) -> PostgresServer:
    """Ask a server what it is."""
    db, version, system_id, wal_level, standby, timeout_ms, superuser, encoding = row_of(
        connection, _ABOUT, "asking the server what it is"
    )
    return PostgresServer(
        db=db,
        version=version,
        system_id=system_id,
        timeline=_head(connection)[1],
        wal_level=wal_level,
        standby=standby,
        sender_timeout_s=timeout_ms / 1000,
        superuser=superuser,
        encoding=_codec(encoding),
    )


def _codec(encoding: str) -> str | None:
    """Return Python's name of a server's encoding."""
    try:
        return codecs.lookup(encoding.replace("WIN", "cp").replace("KOI8", "koi8_")).name
    except LookupError:
        return None


def read_head(connection: Any) -> WalPosition:
    """Return the current end of the log."""
    return server_info(connection).at(_head(connection)[0])


def end_of_log(connection: Any) -> int:
    """Return behind what was written, flushed or not: visible changes lie before it."""
    return parse_lsn(row_of(connection, _WRITTEN, "asking for the end of the log")[0])


def _head(connection: Any) -> tuple[int, int]:
    lsn, timeline, of_checkpoint = row_of(connection, _HEAD, "asking for the end of the log")
    return parse_lsn(lsn), timeline or of_checkpoint


def row_of(connection: Any, sql: str, doing: str, parameters: Any = None) -> Any:
    """Return the first row of a query, or None; errors say what was being done."""
    rows = rows_of(connection, sql, doing, parameters)
    return rows[0] if rows else None


def rows_of(connection: Any, sql: str, doing: str, parameters: Any = None) -> list[Any]:
    """Return the rows of a statement; errors say what was being done."""
    import psycopg

    try:
        cursor = connection.execute(sql, parameters)
        return list(cursor.fetchall()) if cursor.description else []
    except psycopg.Error as error:
        raise translated(error, doing) from error
