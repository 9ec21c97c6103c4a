"""Whose log it is, and whether it can be followed from a position on the server that answers.

A promoted standby goes on with its primary's log up to where it left it, on a timeline of its own;
its timeline history says where. Our place in the log is kept by a replication slot, which a standby
has only from PostgreSQL 17 on, and only when the slot was created for failover.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from airflow_provider_deltaforge.sources.contract import Identity
from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.positions import WalPosition, lsn_text, parse_lsn
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, read_head, row_of
from airflow_provider_deltaforge.sources.postgres.slots import (
    FAILOVER_VERSION,
    check_slot,
    find_slot,
)

_COPY = """
SELECT 1 FROM pg_replication_slots s
 WHERE slot_name = %s AND to_jsonb(s) ->> 'synced' = 'true'
"""


def identity_of(info: PostgresServer) -> Identity:
    """Return what identifies a history: the cluster, and how often it was promoted."""
    return {"type": "postgres", "system_identifier": info.system_id, "timeline": info.timeline}


def check_reach(
    connection: Any,
    replication: Callable[[], Any],
    info: PostgresServer,
    position: WalPosition,
    slot: str,
) -> None:
    """Check that the log can be followed from ``position`` on, with our slot.

    Args:
        connection: to the server that ``info`` describes.
        replication: opens a replication connection to it; used after a promotion only.
        info: that server.
        position: what was read last, from this server or another.
        slot: our slot.

    Raises:
        PositionLostError: changes are lost; the text says which.
        RetryableError: the server is a standby that has still to replay what was read.
        FatalError: the slot is another plug-in's or database's.
    """
    check_history(connection, replication, info, position)
    found = find_slot(connection, slot)
    try:
        check_slot(found, slot, info, position)
    except PositionLostError as error:
        moved = position.timeline not in (0, info.timeline)
        kept = _how_to_keep(info) if found is None and moved else ""
        raise _lost(f"{error}{kept}", moved=moved) from None


def check_history(
    connection: Any, replication: Callable[[], Any], info: PostgresServer, position: WalPosition
) -> None:
    """Check that what was read is part of this server's history.

    Raises:
        PositionLostError: it is not.
        RetryableError: the server is a standby that has still to replay it.
    """
    at = lsn_text(position.lsn)
    if position.system_id not in ("", info.system_id):
        raise _lost(
            f"the log was read up to {at} of cluster {position.system_id}, but cluster "
            f"{info.system_id} answers, whose log is another one; every change after {at} is lost"
        )
    if position.timeline > info.timeline:
        raise _lost(
            f"the log was read up to {at} on timeline {position.timeline}, but the server is on "
            f"timeline {info.timeline}: it is one that was failed over from, or was restored. "
            "What was read since has not happened there"
        )
    if 0 < position.timeline < info.timeline:
        _check_branch(replication, info, position)
    head = read_head(connection).lsn
    if head >= position.lsn:
        return
    if info.standby:
        raise RetryableError(
            f"the server is a standby that has replayed its log up to {lsn_text(head)}, but {at} "
            "was read before; waiting until it has"
        )
    raise _lost(
        f"the log was read up to {at}, but the server's log ends at {lsn_text(head)}: it lost its "
        "end or was restored. What was read since has not happened there",
        moved=False,
    )


def check_promoted(connection: Any, info: PostgresServer, slot: str) -> None:
    """See that a standby's slot is its own: a copy can be read from after the promotion only.

    Raises:
        RetryableError: it is a copy that is kept for a failover.
    """
    if info.standby and row_of(connection, _COPY, "asking for the slot", (slot,)):
        raise RetryableError(
            f"the server is a standby that keeps a copy of slot {slot!r}; waiting until it is "
            "promoted"
        )


def branches(history: str) -> Mapping[int, int]:
    """Return per former timeline where it was left, from a timeline history file."""
    found = {}
    for line in history.splitlines():
        parts = line.split("#", 1)[0].split()
        if len(parts) >= 2 and parts[0].isdigit():
            found[int(parts[0])] = parse_lsn(parts[1])
    return found


def _check_branch(
    replication: Callable[[], Any], info: PostgresServer, position: WalPosition
) -> None:
    left = branches(_history(replication, info.timeline)).get(position.timeline)
    at = lsn_text(position.lsn)
    if left is None:
        raise _lost(
            f"the log was read on timeline {position.timeline}, which is none that the server's "
            f"timeline {info.timeline} came from; every change after {at} is lost"
        )
    if position.lsn > left:
        raise _lost(
            f"the log was read up to {at} on timeline {position.timeline}, but the promoted server "
            f"had it only up to {lsn_text(left)}: what lies between was delivered and has not "
            "happened there"
        )


def _history(replication: Callable[[], Any], timeline: int) -> str:
    from psycopg.pq import ExecStatus

    doing = f"reading the history of timeline {timeline}"
    with closing(replication()) as connection:
        try:
            result = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        except Exception as error:
            raise translated(error, doing) from error
        if result.status != ExecStatus.TUPLES_OK:
            raise RetryableError(f"{doing}: {connection.pgconn.get_error_message()}")
        return bytes(result.get_value(0, 1) or b"").decode("utf-8", "replace")


def _how_to_keep(info: PostgresServer) -> str:
    if info.version >= FAILOVER_VERSION:
        return (
            ". Slots survive when they are made with slot.failover: true and the standby runs "
            "with sync_replication_slots = on"
        )
    return ". Before PostgreSQL 17 no logical slot survives a promotion"


def _lost(text: str, *, moved: bool = True) -> PositionLostError:
    when = " after failover" if moved else ""
    return PositionLostError(f"position lost{when}: {text}. Re-snapshot required")
