"""Forecast of a snapshot: how long it takes, and how much of the log's retention that is.

A slot keeps the log by bytes, not by time: what is written while the copy runs must fit into
``max_slot_wal_keep_size``, or the server gives the slot up.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.postgres.tables import CapturedTable
from airflow_provider_deltaforge.sources.shared.preflight import (
    HIGH_RISK_PERCENT,
    RATE_PROBE_S,
    copy_s,
    duration_text,
    risk,
)

LOG_PER_BYTE = 2
"""Log that is written for each byte copied, unless the server is seen writing more."""

_MIB = 1 << 20

# safe_wal_size is what is left to an existing slot; without one it has everything before it.
_KEPT = """
SELECT (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size') * 1048576,
       (SELECT safe_wal_size FROM pg_replication_slots WHERE slot_name = %s)
"""
_END = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
            ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn
"""


def kept_bytes(connection: Any, slot: str) -> int | None:
    """Return how much log may be written before the slot can be lost; None without a limit."""
    limit, left = connection.execute(_KEPT, (slot,)).fetchone()
    if limit is None or limit < 0:
        return None
    return max(0, int(left if left is not None else limit))


def log_rate(connection: Any, sleep: Callable[[float], None] = time.sleep) -> float:
    """Return how many bytes of log per second the server writes now."""
    begun, started = connection.execute(_END).fetchone()[0], time.monotonic()
    sleep(RATE_PROBE_S)
    ended = connection.execute(_END).fetchone()[0]
    return round(float(ended - begun) / max(time.monotonic() - started, RATE_PROBE_S), 1)


def forecast(
    tables: Sequence[CapturedTable],
    max_parallel_tables: int,
    kept: int | None,
    log_bytes_per_s: float = 0.0,
) -> Finding:
    """Compare the log that is written during the snapshot with what the slot keeps.

    Args:
        tables: what is to be copied.
        max_parallel_tables: copied at the same time.
        kept: bytes that the slot may still keep, None without a limit.
        log_bytes_per_s: how fast the log grows now.
    """
    total = sum(table.data_bytes for table in tables)
    estimate_s = copy_s(total, len(tables), max_parallel_tables)
    expected = max(LOG_PER_BYTE * total, round(log_bytes_per_s * estimate_s))
    data: dict[str, Any] = {
        "bytes": total,
        "rows_estimate": sum(table.rows_estimate for table in tables),
        "estimate_s": round(estimate_s, 1),
        "log_bytes": expected,
        "log_bytes_per_s": log_bytes_per_s,
        "retention_bytes": kept,
    }
    copied = f"copying {total / _MIB:.1f} MiB takes about {duration_text(estimate_s)}"
    if kept is None:
        text = f"{copied}; the slot keeps the log without limit, so watch the server's disk"
        return Finding("retention", "ok", text, data)
    percent = 100 * expected / kept if kept else float(HIGH_RISK_PERCENT)
    data["percent"] = round(percent, 1)
    verdict = risk(percent)
    text = (
        f"{copied} and about {expected / _MIB:.1f} MiB of log, {percent:.1f} % of the "
        f"{kept / _MIB:.1f} MiB the slot may still keep"
    )
    if verdict != "ok":
        text += (
            "; raise it for the time of the snapshot: ALTER SYSTEM SET max_slot_wal_keep_size = "
            f"'{3 * expected // _MIB + 1} MB', then SELECT pg_reload_conf()"
        )
    return Finding("retention", verdict, text, data)
