"""The replication slot: what it still has, and what to do when it is not as we need it."""

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    FatalError,
    PositionLostError,
    SpecError,
)
from airflow_provider_deltaforge.sources.postgres.connection import SlotInUseError
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, lsn_text, parse_lsn
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, row_of, rows_of
from airflow_provider_deltaforge.storage.records.measurements import LogRetention

log = logging.getLogger(__name__)

PLUGIN = "pgoutput"
FAILOVER_VERSION = 170000
"""From here on a slot can be created so that standbys keep a copy of it."""

_SLOT = """
SELECT s.slot_name, s.plugin, s.database, s.active_pid, s.restart_lsn::text,
       s.confirmed_flush_lsn::text, s.wal_status, to_jsonb(s) ->> 'invalidation_reason',
       concat_ws(', ', 'pid ' || a.pid, a.application_name, host(a.client_addr)),
       coalesce(to_jsonb(s) ->> 'failover' = 'true', false),
       coalesce(to_jsonb(s) ->> 'two_phase' = 'true', false)
  FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
 WHERE s.slot_name = %s
"""
_EXISTS_ALREADY = "already exists"


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """A slot as the server shows it.

    Attributes:
        name: of the slot.
        plugin: None for a physical slot.
        database: whose changes it holds.
        active_pid: of the process that sends from it; None while nobody reads.
        restart: the log is kept from here on; None when it is lost.
        confirmed: what commits before is not sent any more.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
        invalidated: why the server gave it up; known from server 17 on.
        holder: who reads from it, for errors.
        failover: standbys keep a copy of it.
        two_phase: it sends prepared transactions before they are committed.
    """

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    restart: int | None
    confirmed: int
    wal_status: str | None
    invalidated: str | None
    holder: str
    failover: bool = False
    two_phase: bool = False

    @property
    def lost(self) -> str | None:
        """Why it cannot be read from any more; None if it can."""
        if self.invalidated:
            return f"the server invalidated it ({self.invalidated})"
        if self.wal_status == "lost" or self.restart is None:
            return "the log it needs was removed (wal_status lost)"
        return None


def find_slot(connection: Any, name: str) -> ReplicationSlot | None:
    """Return a slot, or None if there is none of this name."""
    row = row_of(connection, _SLOT, "looking for the replication slot", (name,))
    if row is None:
        return None
    restart = None if row[4] is None else parse_lsn(row[4])
    confirmed = 0 if row[5] is None else parse_lsn(row[5])
    return ReplicationSlot(
        name=row[0],
        plugin=row[1],
        database=row[2],
        active_pid=row[3],
        restart=restart,
        confirmed=confirmed,
        wal_status=row[6],
        invalidated=row[7],
        holder=row[8],
        failover=row[9],
        two_phase=row[10],
    )


def create_slot(
    connection: Any, info: PostgresServer, name: str, *, failover: bool = False
) -> ReplicationSlot:
    """Create a slot that holds everything that commits from now on; one that is there is taken.

    Waits for the transactions that are open now, as the server must.

    Raises:
        AccessError: REPLICATION is missing.
        FatalError: the server has no free slot, or no logical log.
        SpecError: a failover slot on a server that has none.
    """
    if failover:
        check_failover(info)
    extra = ", failover => true" if failover else ""
    sql = f"SELECT pg_create_logical_replication_slot(%s, %s{extra})"
    log.info("creating replication slot %s; open transactions are waited for", name)
    try:
        row_of(connection, sql, f"creating replication slot {name!r}", (name, PLUGIN))
    except FatalError as error:
        if _EXISTS_ALREADY not in str(error):
            raise
    slot = find_slot(connection, name)
    if slot is None:
        raise PositionLostError(f"replication slot {name!r} vanished while it was created")
    return slot


def check_failover(info: PostgresServer) -> None:
    """See that standbys of a server can keep a copy of a slot.

    Raises:
        SpecError: the server is too old.
    """
    if info.version < FAILOVER_VERSION:
        raise SpecError(
            "source.slot.failover: needs PostgreSQL 17 or newer; this server is "
            f"{info.version // 10000}"
        )


def failover_command(name: str) -> str:
    """Return the replication command by which standbys keep a copy of a slot that is there."""
    return f'ALTER_REPLICATION_SLOT "{name}" (FAILOVER true)'


def enable_failover(slot: ReplicationSlot, info: PostgresServer, connect: Callable[[], Any]) -> str:
    """Have standbys keep a copy of a slot that was made without.

    Args:
        slot: as it was found.
        info: the server.
        connect: opens a replication connection.

    Returns:
        Why that is not so; empty if it is. A slot that is read, or a standby's, cannot be altered.
    """
    from psycopg import Error
    from psycopg.pq import ExecStatus

    if slot.failover:
        return ""
    command = failover_command(slot.name)
    try:
        check_failover(info)
        check_free(slot)  # The server would wait until its reader ends.
        with closing(connect()) as connection:
            result = connection.pgconn.exec_(command.encode())
        if result.status == ExecStatus.COMMAND_OK:
            log.info("standbys keep a copy of replication slot %s from now on", slot.name)
            return ""
        why = bytes(result.error_message).decode("utf-8", "replace").strip()
    except (DeltaForgeError, Error) as error:
        why = str(error).strip()
    return (
        f"source.slot.failover: replication slot {slot.name!r} was made without it, and no standby "
        f"keeps a copy ({why}); run on a replication connection while nobody reads: {command}"
    )


def copy_slot(connection: Any, original: str, name: str, *, temporary: bool) -> None:
    """Make a slot that stands where another one stands; it may be in use.

    Args:
        connection: a temporary copy lives as long as it does.
        original: name of the slot to copy.
        name: of the copy.
        temporary: for this session alone.
    """
    sql = f"SELECT pg_copy_logical_replication_slot('{original}', '{name}', {temporary})"
    row_of(connection, sql, f"copying replication slot {original!r}")


def check_slot(
    slot: ReplicationSlot | None, name: str, info: PostgresServer, position: WalPosition
) -> ReplicationSlot:
    """See that everything after a position can still be read.

    Raises:
        PositionLostError: it cannot; the text says what is lost and how to go on.
        FatalError: the slot is another plug-in's or database's.
    """
    asked = lsn_text(position.lsn)
    again = "reset the pipeline and take a new snapshot of the tables"
    if slot is None:
        raise PositionLostError(
            f"replication slot {name!r} does not exist on this server: changes after {asked} are "
            f"lost. It is created again at the next first start: {again}"
        )
    check_kind(slot, info)
    if slot.lost:
        raise PositionLostError(
            f"replication slot {name!r}: {slot.lost}; changes after {asked} are lost. {_drop(name)}"
            f", then {again}; a larger max_slot_wal_keep_size keeps the log longer"
        )
    if position.lsn < slot.confirmed:
        raise PositionLostError(
            f"replication slot {name!r} was confirmed up to {lsn_text(slot.confirmed)}, but we "
            f"stand at {asked}: what committed between is not sent any more. Another reader may "
            f"have used the slot, or an old checkpoint was restored: {again}"
        )
    return slot


def check_kind(slot: ReplicationSlot, info: PostgresServer) -> None:
    """See that a slot is one of ours: for pgoutput, this database and committed transactions.

    Raises:
        FatalError: it is not.
    """
    if slot.two_phase:
        raise FatalError(
            f"replication slot {slot.name!r} was made with two_phase: it sends transactions when "
            "they are prepared, and we deliver what is committed. From PostgreSQL 18 on run, on a "
            f'replication connection, ALTER_REPLICATION_SLOT "{slot.name}" (TWO_PHASE false); '
            "before, make it anew without two_phase, or give source.slot another name"
        )
    if slot.plugin != PLUGIN or slot.database != info.db:
        kind = f"plug-in {slot.plugin}" if slot.plugin else "physical"
        where = f"database {slot.database!r}" if slot.database else "no database"
        raise FatalError(
            f"replication slot {slot.name!r} is for {where} ({kind}), not for {info.db!r} with "
            f"{PLUGIN}; give source.slot another name"
        )


def check_free(slot: ReplicationSlot) -> None:
    """See that nobody else reads from a slot.

    Raises:
        SlotInUseError: somebody does; the text says who.
    """
    if slot.active_pid is not None:
        raise SlotInUseError(
            f"replication slot {slot.name!r} is in use by {slot.holder or slot.active_pid}"
        )


def check_usable(slot: ReplicationSlot, info: PostgresServer) -> None:
    """See that a slot found at the first start can be read from.

    Raises:
        PositionLostError: its log is gone.
        FatalError: it is another plug-in's or database's.
    """
    check_kind(slot, info)
    if slot.lost:
        raise PositionLostError(
            f"replication slot {slot.name!r}: {slot.lost}. {_drop(slot.name)}; it is created "
            "again at the next start"
        )


def _drop(name: str) -> str:
    return f"Drop it: SELECT pg_drop_replication_slot('{name}')"


# A slot that is lost may still say from where on it kept the log.
_SLOTS = """
SELECT s.slot_name::text, s.active,
       CASE WHEN s.wal_status <> 'lost' THEN
            pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                                 ELSE pg_current_wal_lsn() END, s.restart_lsn)::bigint END,
       s.wal_status, to_jsonb(s) ->> 'inactive_since'
  FROM pg_replication_slots s
 WHERE s.plugin = 'pgoutput' AND s.database = current_database() AND NOT s.temporary
 ORDER BY 3 DESC NULLS LAST, 1
"""
_DROP = "SELECT pg_drop_replication_slot(%s)"


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot and what it costs.

    Attributes:
        name: of the slot.
        active: somebody reads from it now.
        kept_bytes: log that the server keeps for it; None when that is lost.
        wal_status: ``reserved``, ``extended``, ``unreserved`` or ``lost``.
        idle_since: when its last reader went; known from server 17 on.
    """

    name: str
    active: bool
    kept_bytes: int | None
    wal_status: str | None
    idle_since: str | None


def held_slots(connection: Any) -> list[HeldSlot]:
    """Return the slots of this database, those first that keep most."""
    return [HeldSlot(*row) for row in rows_of(connection, _SLOTS, "listing replication slots")]


_RETENTION = """
SELECT pg_wal_lsn_diff(now.lsn, s.restart_lsn)::bigint,
       greatest(pg_wal_lsn_diff(now.lsn, %s::pg_lsn), 0)::bigint, s.safe_wal_size
  FROM pg_replication_slots s,
       LATERAL (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                            ELSE pg_current_wal_lsn() END AS lsn) now
 WHERE s.slot_name = %s
"""


def log_retention(connection: Any, name: str, position: WalPosition) -> LogRetention | None:
    """Return what a slot keeps back; None if there is none of this name.

    How much may still be written the server says where ``max_slot_wal_keep_size`` limits it.
    """
    doing = "asking what the replication slot keeps"
    row = row_of(connection, _RETENTION, doing, (lsn_text(position.lsn), name))
    if row is None:
        return None
    return LogRetention(kept_bytes=row[0], behind_bytes=row[1], left_bytes=row[2])


def drop_slot(connection: Any, name: str) -> None:
    """Drop a slot; what it kept is gone.

    Raises:
        SlotInUseError: somebody reads from it.
    """
    row_of(connection, _DROP, f"dropping replication slot {name!r}", (name,))
