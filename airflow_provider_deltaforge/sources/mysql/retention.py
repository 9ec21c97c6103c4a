"""How long the server keeps its log, and how much of it lies before and behind a position."""

from collections.abc import Mapping
from typing import Any

from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sources.mysql.catalog import fetch
from airflow_provider_deltaforge.sources.mysql.connection import translated
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.storage.records.measurements import LogRetention

_SETTINGS = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
    "('binlog_expire_logs_seconds', 'expire_logs_days', 'binlog_expire_logs_auto_purge')"
)


def retention_s(settings: Mapping[str, str]) -> int:
    """Return for how long the server keeps its log, in seconds; 0 is for ever."""
    seconds = int(float(settings.get("binlog_expire_logs_seconds", "0") or 0))
    return seconds or int(float(settings.get("expire_logs_days", "0") or 0) * 86_400)


def log_retention(
    connection: Any, position: LogPosition, commit_ms: int | None
) -> LogRetention | None:
    """Return what the server keeps of its log; None where it does not know our file.

    A file expires by the time of its last event, which is no earlier than the last one that we
    have read: so the log stays at least as long as this says. The file that is written to stays.

    Args:
        connection: to the server.
        position: where we stand.
        commit_ms: when the last change before it was committed, ms since the epoch.

    Raises:
        PositionLostError: our file is gone, and there are no GTIDs to look for in another.
        RetryableError, AccessError, FatalError: the server does not answer, or refuses.
    """
    import pymysql

    try:
        files = [(str(row[0]), int(row[1])) for row in fetch(connection, "SHOW BINARY LOGS")]
        settings = {str(name): str(value) for name, value in fetch(connection, _SETTINGS)}
        ((now_s,),) = fetch(connection, "SELECT UNIX_TIMESTAMP()")
    except pymysql.err.MySQLError as error:
        raise translated(error, "asking what is kept of the log") from error
    names = [name for name, _ in files]
    if position.file not in names:
        if position.file and position.gtids is None:
            raise PositionLostError(
                f"position lost: {position.file} is no longer on the server, and without GTIDs "
                "nothing says where it is in another file"
            )
        return None
    ours = names.index(position.file)
    sizes = [size for _, size in files]
    expires_s = retention_s(settings)
    if settings.get("binlog_expire_logs_auto_purge", "ON") == "OFF":
        expires_s = 0
    left_s: float | None = None
    if expires_s and ours == len(files) - 1:
        left_s = float(expires_s)
    elif expires_s and commit_ms is not None:
        left_s = max(0.0, expires_s - (float(now_s) - commit_ms / 1000))
    return LogRetention(
        behind_bytes=max(0, sum(sizes[ours:]) - position.pos),
        left_bytes=sum(sizes[:ours]),
        left_s=left_s,
        keeps_s=expires_s or None,
    )
