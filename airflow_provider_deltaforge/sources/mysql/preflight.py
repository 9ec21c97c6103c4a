"""Looks before the leap: what would stop, slow or spoil a snapshot and its stream."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.mysql.catalog import (
    TableFacts,
    captured_facts,
    fetch,
    variables,
)
from airflow_provider_deltaforge.sources.mysql.connection import (
    ServerInfo,
    server_info,
    translated,
)
from airflow_provider_deltaforge.sources.mysql.forecast import forecast, retention_s
from airflow_provider_deltaforge.sources.mysql.grants import missing_privileges
from airflow_provider_deltaforge.sources.mysql.views import log_end
from airflow_provider_deltaforge.sources.preflight import RATE_PROBE_S, checked

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.mysql.source import MySqlSource

_NAMED_MAX = 20
_BLACKHOLE = "BLACKHOLE"

_VARIABLES = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_row_value_options",
    "binlog_expire_logs_seconds",
    "expire_logs_days",
    "gtid_mode",
    "log_replica_updates",
    "log_slave_updates",
    "replica_preserve_commit_order",
)


def preflight(
    source: "MySqlSource", sleep: Callable[[float], None] = time.sleep
) -> Sequence[Finding]:
    """Check server settings, privileges, tables and retention; never raises for a finding.

    Args:
        source: the description to check.
        sleep: waits between the two looks at the log that give its rate.
    """
    return checked(
        source.connect, lambda connection: _findings(source, connection, sleep), translated
    )


def _findings(
    source: "MySqlSource", connection: Any, sleep: Callable[[float], None]
) -> list[Finding]:
    server = server_info(connection)
    settings = variables(connection, *_VARIABLES)
    tables = captured_facts(connection, source.matcher)
    found = log_findings(settings, server)
    found.append(_privileges(connection, server, tables))
    found.append(_xa(connection))
    found += _replica(connection, settings)
    found += table_findings(tables, source.tables)
    found += _outbox(source, tables)
    if settings.get("log_bin", "").upper() in ("ON", "1"):
        rate = _log_rate(connection, sleep)
        parallel = source.snapshot.max_parallel_tables
        found.append(forecast(tables, parallel, retention_s(settings), rate))
    return found


def log_findings(settings: Mapping[str, str], server: ServerInfo) -> list[Finding]:
    """Check the log's settings; ``settings`` are global variables by lower-case name."""
    image = settings.get("binlog_row_image", "FULL").upper()
    metadata = settings.get("binlog_row_metadata", "").upper()
    partial = "PARTIAL_JSON" in settings.get("binlog_row_value_options", "").upper()
    found = [
        _require("log_bin", settings.get("log_bin", "OFF").upper() in ("ON", "1"), "log_bin is off",
                 "start the server with log_bin"),
        _require("binlog_format", settings.get("binlog_format", "ROW").upper() == "ROW",
                 f"binlog_format is {settings.get('binlog_format')}", "set binlog_format=ROW"),
        _require("binlog_row_image", image == "FULL", f"binlog_row_image is {image}",
                 "set binlog_row_image=FULL; the stream refuses rows without all columns"),
        _require("binlog_row_value_options", not partial, "JSON updates are logged as differences",
                 "set binlog_row_value_options=''; the stream refuses partial JSON"),
    ]  # fmt: skip
    if metadata == "FULL":
        found.append(Finding("binlog_row_metadata", "ok", "the log describes its own columns"))
    else:
        found.append(
            Finding(
                "binlog_row_metadata",
                "warn",
                f"binlog_row_metadata is {metadata or 'not known'}; column names come from the "
                "catalog, so an ALTER TABLE that was not read yet stops its table; set it to FULL",
            )
        )
    if server.gtids:
        found.append(Finding("gtid_mode", "ok", "transactions carry GTIDs"))
    else:
        found.append(
            Finding(
                "gtid_mode",
                "warn",
                "gtid_mode is not ON; positions do not survive a failover, the snapshot needs the "
                "LOCK TABLES privilege for an instant, and overlapping changes arrive twice",
            )
        )
    return found


def _require(check: str, fine: bool, wrong: str, remedy: str) -> Finding:  # noqa: FBT001
    return (
        Finding(check, "ok", "as needed") if fine else Finding(check, "fail", f"{wrong}; {remedy}")
    )


def _privileges(connection: Any, server: ServerInfo, tables: Sequence[TableFacts]) -> Finding:
    grants = [str(row[0]) for row in fetch(connection, "SHOW GRANTS")]
    databases = sorted({table.schema.db for table in tables})
    missing = missing_privileges(grants, databases, mariadb=server.mariadb, gtids=server.gtids)
    if not missing:
        return Finding("privileges", "ok", "the user may read the tables and the log")
    needed = ", ".join(missing)
    return Finding(
        "privileges", "fail", f"the user lacks {needed}; GRANT them", {"missing": missing}
    )


def _xa(connection: Any) -> Finding:
    import pymysql

    try:
        prepared = fetch(connection, "XA RECOVER")
    except pymysql.err.MySQLError:
        return Finding(
            "xa",
            "warn",
            "the user may not look for prepared XA transactions; if XA is in use, grant "
            "XA_RECOVER_ADMIN, because a snapshot would miss the rows of prepared ones",
        )
    if prepared:
        return Finding(
            "xa",
            "warn",
            f"{len(prepared)} XA transactions are prepared; the snapshot waits until they end",
            {"prepared": len(prepared)},
        )
    return Finding("xa", "ok", "no XA transaction is prepared")


def _replica(connection: Any, settings: Mapping[str, str]) -> list[Finding]:
    """Check that a replica passes its source's changes on; nothing for a primary."""
    import pymysql

    try:
        channels = fetch(connection, "SHOW REPLICA STATUS")
    except pymysql.err.MySQLError:
        return []
    if not channels:
        return []
    updates = settings.get("log_replica_updates", settings.get("log_slave_updates", "OFF"))
    if updates.upper() not in ("ON", "1"):
        return [
            Finding(
                "log_replica_updates",
                "fail",
                "the server is a replica that does not log what it applies; set "
                "log_replica_updates=ON, or read from its source",
            )
        ]
    ordered = settings.get("replica_preserve_commit_order", "ON").upper() in ("ON", "1")
    if not ordered:
        text = "changes of parallel appliers arrive out of order; set replica_preserve_commit_order"
        return [Finding("replica_preserve_commit_order", "warn", text)]
    return [Finding("log_replica_updates", "ok", "a replica that logs what it applies")]


def table_findings(tables: Sequence[TableFacts], patterns: Sequence[str]) -> list[Finding]:
    """Check the captured tables; ``patterns`` are the document's, for the message."""
    if not tables:
        wanted = ", ".join(patterns) or "(all)"
        return [
            Finding(
                "tables",
                "fail",
                f"no table matches source.tables: {wanted}; check the spelling, and that the user "
                "may SELECT from them",
                {"patterns": list(patterns)},
            )
        ]
    found = [Finding("tables", "ok", f"{len(tables)} tables are captured", {"count": len(tables)})]
    without_key = [t.schema.full_name for t in tables if not t.schema.primary_key]
    if without_key:
        text = (
            "no primary key: their events have no key and their snapshot is one chunk, so changes "
            "near its end may be delivered twice"
        )
        found.append(_listed("primary_key", without_key, text))
    # A BLACKHOLE has no rows that could be missed; it passes them on to the log.
    loose = [t.schema.full_name for t in tables if not (t.transactional or t.engine == _BLACKHOLE)]
    if loose:
        text = "their storage engine has no consistent view, so rows may be missed while written"
        found.append(_listed("engine", loose, text))
    return found


def _outbox(source: "MySqlSource", tables: Sequence[TableFacts]) -> list[Finding]:
    tagging = source.tagging
    if tagging is None:
        return []
    names = [t.schema.full_name for t in tables if tagging.of(t.schema.db, t.schema.table)]
    if names:
        text = f"inserts into {len(names)} tables are outbox messages"
        return [Finding("outbox", "ok", text, {"tables": names})]
    return [
        Finding(
            "outbox",
            "warn",
            "no captured table is an outbox table; source.outbox.tables only marks tables that "
            "source.tables has, so name them in both",
        )
    ]


def _listed(check: str, names: Sequence[str], text: str) -> Finding:
    shown = ", ".join(names[:_NAMED_MAX]) + (" …" if len(names) > _NAMED_MAX else "")
    return Finding(check, "warn", f"{shown}: {text}", {"tables": list(names)})


def _log_rate(connection: Any, sleep: Callable[[float], None]) -> float | None:
    """Return how many bytes per second the log grows now; None across a rotation."""
    import pymysql

    try:
        file, offset = log_end(connection)
        started = time.monotonic()
        sleep(RATE_PROBE_S)
        again, later = log_end(connection)
    except (pymysql.err.MySQLError, DeltaForgeError):
        return None
    if again != file:
        return None
    return round((later - offset) / max(time.monotonic() - started, RATE_PROBE_S), 1)
