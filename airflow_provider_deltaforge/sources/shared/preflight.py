"""What every server's preflight shares: errors as findings, and the arithmetic of the forecast."""

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.sources.contract import Finding

TABLE_BYTES_PER_S = 20 << 20
"""What one table's copy is expected to carry; the forecast only, nothing depends on it."""
HIGH_RISK_PERCENT = 80
WARN_PERCENT = 50
RATE_PROBE_S = 0.5
"""Between the two looks at the log that give its rate."""


def checked(
    connect: Callable[[], Any],
    look: Callable[[Any], Sequence[Finding]],
    translated: Callable[[BaseException, str], DeltaForgeError],
) -> Sequence[Finding]:
    """Look at a server over a connection of its own; what goes wrong is a finding.

    Args:
        connect: opens the connection, which is closed in the end.
        look: makes the findings.
        translated: turns the driver's errors into ours.
    """
    try:
        connection = connect()
    except DeltaForgeError as error:
        return [_failed(error)]
    try:
        return look(connection)
    except DeltaForgeError as error:
        return [_failed(error)]
    except Exception as error:  # noqa: BLE001 - the driver's; a preflight reports, it never fails
        return [_failed(translated(error, "preflight"))]
    finally:
        connection.close()


def copy_s(total_bytes: int, tables: int, max_parallel_tables: int) -> float:
    """Return how many seconds a copy is expected to take."""
    return total_bytes / (TABLE_BYTES_PER_S * max(1, min(max_parallel_tables, tables)))


def risk(percent: float) -> str:
    """Return the verdict on a snapshot that takes this share of the log's retention."""
    if percent >= HIGH_RISK_PERCENT:
        return "high_risk"
    return "warn" if percent >= WARN_PERCENT else "ok"


def duration_text(seconds: float) -> str:
    """Return a duration as ``45s``, ``2m5s`` or ``2h1m``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60}s"
    return f"{whole // 3600}h{whole % 3600 // 60}m"


def _failed(error: DeltaForgeError) -> Finding:
    return Finding("connection", "fail", str(error), {"error_class": error.error_class})
