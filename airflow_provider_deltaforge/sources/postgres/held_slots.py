"""Every slot of a database that keeps log for ``pgoutput``, and dropping one."""

from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.sources.postgres.server import row_of, rows_of

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
        idle_since: when its last reader went; told by servers from 17 on.
    """

    name: str
    active: bool
    kept_bytes: int | None
    wal_status: str | None
    idle_since: str | None


def held_slots(connection: Any) -> list[HeldSlot]:
    """Return the slots of this database, those first that keep most."""
    return [HeldSlot(*row) for row in rows_of(connection, _SLOTS, "listing replication slots")]


def drop_slot(connection: Any, name: str) -> None:
    """Drop a slot; what it kept is gone.

    Raises:
        SlotInUseError: somebody reads from it.
    """
    row_of(connection, _DROP, f"dropping replication slot {name!r}", (name,))
