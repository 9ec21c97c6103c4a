"""Forecast of a snapshot: how long it takes, and how much of the log's retention that is."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.mysql.catalog import TableSize
from airflow_provider_deltaforge.sources.shared.preflight import copy_s, duration_text, risk


def retention_s(settings: Mapping[str, str]) -> int:
    """Return for how long the server keeps its log, in seconds; 0 is for ever."""
    seconds = int(float(settings.get("binlog_expire_logs_seconds", "0") or 0))
    return seconds or int(float(settings.get("expire_logs_days", "0") or 0) * 86_400)


def forecast(
    tables: Sequence[TableSize],
    max_parallel_tables: int,
    kept_s: int,
    log_bytes_per_s: float | None = None,
) -> Finding:
    """Compare the snapshot's expected duration with the log's retention.

    Args:
        tables: what is to be copied.
        max_parallel_tables: copied at the same time.
        kept_s: retention in seconds, 0 is for ever.
        log_bytes_per_s: how fast the log grows now, None when not measured.
    """
    total = sum(table.data_bytes for table in tables)
    estimate_s = copy_s(total, len(tables), max_parallel_tables)
    data: dict[str, Any] = {
        "bytes": total,
        "rows_estimate": sum(table.rows_estimate for table in tables),
        "estimate_s": round(estimate_s, 1),
        "retention_s": kept_s,
        "log_bytes_per_s": log_bytes_per_s,
    }
    copied = f"copying {total / (1 << 20):.1f} MiB takes about {duration_text(estimate_s)}"
    if kept_s <= 0:
        return Finding("retention", "ok", f"{copied}; the log does not expire by time", data)
    percent = 100 * estimate_s / kept_s
    data["percent"] = round(percent, 1)
    verdict = risk(percent)
    text = f"{copied}, {percent:.1f} % of the {duration_text(kept_s)} the log is kept"
    if verdict != "ok":
        text += "; raise binlog_expire_logs_seconds for the time of the snapshot"
    return Finding("retention", verdict, text, data)
