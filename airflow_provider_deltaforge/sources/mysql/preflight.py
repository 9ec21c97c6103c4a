"""Checks before the start: what would stop, slow or spoil a snapshot and its stream."""

import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.mysql.binlog.versioned_tables import counts_transactions
from airflow_provider_deltaforge.sources.mysql.catalog import (
    TableSize,
    captured_facts,
    fetch,
    quote,
    variables,
)
from airflow_provider_deltaforge.sources.mysql.connection import (
    MySqlServer,
    server_info,
)
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import tokens_of
from airflow_provider_deltaforge.sources.mysql.dsn import MySqlDsn
from airflow_provider_deltaforge.sources.mysql.grants import (
    granted_by_column,
    has_role,
    missing_privileges,
)
from airflow_provider_deltaforge.sources.mysql.name_case import check_case
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.retention import retention_s
from airflow_provider_deltaforge.sources.mysql.snapshot.views import log_end
from airflow_provider_deltaforge.sources.shared.preflight import (
    RATE_PROBE_S,
    CopyForecast,
    duration_text,
    listed,
    require,
    risk,
    tables_finding,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher

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
    "innodb_native_foreign_keys",
)
_CASCADES = (["CASCADE"], ["SET", "NULL"], ["SET", "DEFAULT"])
_LOCK_WAIT_S = 5
_DENIED = (1142, 1143)
_OLD_FORMAT = "mariadb-5.3"


def findings(
    connection: Any,
    dsn: MySqlDsn,
    matcher: TableMatcher,
    tagging: OutboxTagger | None,
    max_parallel_tables: int,
) -> list[Finding]:
    """Check server settings, privileges, tables and retention.

    Args:
        connection: to the server.
        dsn: where that is.
        matcher: which tables are captured.
        tagging: which rows are outbox messages.
        max_parallel_tables: copied at the same time by a snapshot.
    """
    server = server_info(connection)
    settings = variables(connection, *_VARIABLES)
    tables = captured_facts(connection, matcher)
    found = log_findings(settings, server)
    found += _tls(dsn)
    found.append(_privileges(connection, server, tables))
    found.append(_xa(connection))
    found += _replica(connection, settings)
    found += _case(server, matcher, tagging)
    found += table_findings(tables, matcher.patterns)
    found += _foreign_keys(connection, server, settings, tables)
    found += _outbox(tagging, tables)
    if _is_on(settings.get("log_bin", "")):
        rate = _log_rate(connection)
        found.append(forecast(tables, max_parallel_tables, retention_s(settings), rate))
    return found


def _case(
    server: MySqlServer, matcher: TableMatcher, tagging: OutboxTagger | None
) -> list[Finding]:
    try:
        check_case(server, matcher, tagging)
    except SpecError as error:
        return [Finding("lower_case_table_names", "fail", str(error))]
    return []


def _is_on(value: str) -> bool:
    return value.upper() in ("ON", "1")


def log_findings(settings: Mapping[str, str], server: MySqlServer) -> list[Finding]:
    """Check the log's settings; ``settings`` are global variables by lower-case name."""
    image = settings.get("binlog_row_image", "FULL").upper()
    metadata = settings.get("binlog_row_metadata", "").upper()
    partial = "PARTIAL_JSON" in settings.get("binlog_row_value_options", "").upper()
    found = [
        require("log_bin", _is_on(settings.get("log_bin", "OFF")), "log_bin is off",
                 "start the server with log_bin"),
        _format(settings.get("binlog_format", "ROW").upper()),
        _image(image),
        _documents(image, partial=partial),
    ]  # fmt: skip
    if metadata == "FULL":
        found.append(Finding("binlog_row_metadata", "ok", "the log describes its own columns"))
    else:
        text = (
            f"binlog_row_metadata is {metadata or 'not known'}; column names come from the "
            "catalog, so an ALTER TABLE that was not read yet stops its table; set it to FULL"
        )
        found.append(Finding("binlog_row_metadata", "warn", text))
    if server.gtids:
        return [*found, Finding("gtid_mode", "ok", "transactions carry GTIDs")]
    text = (
        "gtid_mode is not ON; positions do not survive a failover, the snapshot needs the "
        "LOCK TABLES privilege for an instant, and overlapping changes arrive twice"
    )
    return [*found, Finding("gtid_mode", "warn", text)]


def _format(written: str) -> Finding:
    wrong = (
        f"binlog_format is {written}, so the log holds statements in place of rows, and each of "
        "them stops the table that it writes"
    )
    remedy = "set binlog_format=ROW on the server and in every session"
    return require("binlog_format", written == "ROW", wrong, remedy)


def _image(image: str) -> Finding:
    if image in ("FULL", "FULL_NODUP"):
        return Finding("binlog_row_image", "ok", "as needed")
    return Finding(
        "binlog_row_image",
        "warn",
        f"binlog_row_image is {image}: values that an update did not change arrive as "
        '{"_unchanged": true}, and an insert that leaves columns to their defaults stops its '
        "table; set binlog_row_image=FULL",
    )


def _documents(image: str, *, partial: bool) -> Finding:
    if partial and image == "MINIMAL":
        return Finding(
            "binlog_row_value_options",
            "warn",
            "JSON updates are logged as differences without the document, which stops their "
            "tables; set binlog_row_value_options='' or binlog_row_image=FULL",
        )
    return Finding("binlog_row_value_options", "ok", "as needed")


def _privileges(connection: Any, server: MySqlServer, tables: Sequence[TableSize]) -> Finding:
    grants = [str(row[0]) for row in fetch(connection, "SHOW GRANTS")]
    databases = sorted({table.schema.db for table in tables})
    missing = missing_privileges(grants, databases, mariadb=server.mariadb, gtids=server.gtids)
    missing += [
        f"SELECT on every column of {name} (GRANT SELECT ON {name})"
        for name in _read_in_part(connection, grants, tables)
    ]
    if not missing:
        return Finding("privileges", "ok", "the user may read the tables and the log")
    needed = ", ".join(missing)
    return Finding(
        "privileges", "fail", f"the user lacks {needed}; GRANT them", {"missing": missing}
    )


def _read_in_part(
    connection: Any, grants: Sequence[str], tables: Sequence[TableSize]
) -> Iterator[str]:
    """Yield the tables with columns that may not be read, as SQL names them.

    The catalog shows the user no other column, so the server is asked for all of them. What roles
    bring is in no list of grants.
    """
    import pymysql

    listed, by_role = set(granted_by_column(grants)), has_role(grants)
    fetch(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    for table in tables:
        db, name = table.schema.db, table.schema.table
        if not by_role and qualified_name(db, name) not in listed:
            continue
        try:
            fetch(connection, f"SELECT * FROM {quote(db, name)} LIMIT 0")
        except pymysql.err.MySQLError as error:
            if error.args and error.args[0] in _DENIED:
                yield quote(db, name)


def _tls(dsn: MySqlDsn) -> list[Finding]:
    """Check that an encrypted connection is one to the right server."""
    context = dsn.tls()
    if context is None or context.verify_mode != ssl.CERT_NONE:
        return []
    text = (
        f"ssl_mode is {dsn.ssl_mode} without a CA: connections are encrypted, but the server's "
        "certificate is not verified, so anybody in between can take its place; name the file of "
        "its authority in ssl_ca, and set ssl_mode: verify_identity"
    )
    return [Finding("tls", "warn", text)]


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
    if not _is_on(updates):
        return [
            Finding(
                "log_replica_updates",
                "fail",
                "the server is a replica that does not log what it applies; set "
                "log_replica_updates=ON, or read from its source",
            )
        ]
    ordered = _is_on(settings.get("replica_preserve_commit_order", "ON"))
    if not ordered:
        text = "changes of parallel appliers arrive out of order; set replica_preserve_commit_order"
        return [Finding("replica_preserve_commit_order", "warn", text)]
    return [Finding("log_replica_updates", "ok", "a replica that logs what it applies")]


def table_findings(tables: Sequence[TableSize], patterns: Sequence[str]) -> list[Finding]:
    """Check the captured tables; ``patterns`` are the document's, for the message."""
    remedy = "check the spelling, and that the user may SELECT from them"
    found = [tables_finding(len(tables), patterns, remedy)]
    implicit = [t.schema.full_name for t in tables if t.schema.implicit_key]
    text = (
        "no primary key: the server uses a UNIQUE index in its place, so that is the key of "
        "their events; their snapshot is one chunk"
    )
    found += listed("unique_key", implicit, text)
    without_key = [t.schema.full_name for t in tables if not t.schema.primary_key]
    text = (
        "no primary key: their events have no key and their snapshot is one chunk, so changes "
        "near its end may be delivered twice"
    )
    found += listed("primary_key", without_key, text)
    # A BLACKHOLE has no rows that could be missed; it passes them on to the log.
    loose = [t.schema.full_name for t in tables if not (t.transactional or t.engine == _BLACKHOLE)]
    text = "their storage engine has no consistent view, so rows may be missed while written"
    found += listed("engine", loose, text)
    return found + _format_findings(tables)


def _format_findings(tables: Sequence[TableSize]) -> list[Finding]:
    """Name the tables whose changes the log does not hold in a form that can be read."""
    found = []
    counted = [t.schema.full_name for t in tables if counts_transactions(t.schema)]
    text = (
        "their history is one of transactions, whose changes MariaDB logs as statements "
        "only, so they stop at their first change; give ROW START and ROW END the type "
        "TIMESTAMP(6), or leave the tables out of source.tables"
    )
    found += listed("system_versioning", counted, text, "fail")
    old = [
        t.schema.full_name
        for t in tables
        if any(_OLD_FORMAT in c.column_type and c.datetime_precision for c in t.schema.columns)
    ]
    text = (
        "they hold fractions of seconds in the format of before MariaDB 10.1, which the log "
        "does not describe, so they stop at their first change; rebuild them with ALTER "
        "TABLE … FORCE"
    )
    found += listed("column_format", old, text)
    return found


def _foreign_keys(
    connection: Any, server: MySqlServer, settings: Mapping[str, str], tables: Sequence[TableSize]
) -> list[Finding]:
    """Name captured tables that change by cascades which the log does not hold."""
    in_engine = _is_on(settings.get("innodb_native_foreign_keys", "ON"))
    if not (server.mariadb or in_engine):
        return []
    fetch(connection, f"SET SESSION lock_wait_timeout = {_LOCK_WAIT_S}")
    found = [t.schema.full_name for t in tables if _cascades(connection, t, server)]
    if not found:
        return [Finding("foreign_keys", "ok", "no captured table changes by a cascade")]
    text = (
        "a foreign key deletes or changes their rows (CASCADE or SET NULL), and the engine does so "
        "without a word in the log; delete and update these rows by statements of their own, "
        "or copy the tables again on a schedule"
    )
    return listed("foreign_keys", found, text)


def _cascades(connection: Any, table: TableSize, server: MySqlServer) -> bool:
    """Return whether a foreign key changes a table's rows.

    The catalog's page of foreign keys needs more privileges than the table's own statement.
    """
    import pymysql

    name = quote(table.schema.db, table.schema.table)
    try:
        ((_, sql),) = fetch(connection, f"SHOW CREATE TABLE {name}")
    except (pymysql.err.MySQLError, ValueError):
        return False  # It is gone, or a finding about privileges names it.
    words = [token.upper for token in tokens_of(str(sql), mariadb=server.mariadb)]
    return "REFERENCES" in words and any(
        word == "ON"
        and words[at + 1 : at + 2] in (["DELETE"], ["UPDATE"])
        and any(words[at + 2 : at + 2 + len(deed)] == deed for deed in _CASCADES)
        for at, word in enumerate(words)
    )


def _outbox(tagging: OutboxTagger | None, tables: Sequence[TableSize]) -> list[Finding]:
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


def _log_rate(connection: Any) -> float | None:
    """Return how many bytes per second the log grows now; None across a rotation."""
    import pymysql

    try:
        file, offset = log_end(connection)
        started = time.monotonic()
        time.sleep(RATE_PROBE_S)
        again, later = log_end(connection)
    except (pymysql.err.MySQLError, DeltaForgeError):
        return None
    if again != file:
        return None
    return round((later - offset) / max(time.monotonic() - started, RATE_PROBE_S), 1)


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
    copy = CopyForecast.of(tables, max_parallel_tables)
    data = {**copy.data, "retention_s": kept_s, "log_bytes_per_s": log_bytes_per_s}
    if kept_s <= 0:
        return Finding("retention", "ok", f"{copy.text}; the log does not expire by time", data)
    percent = 100 * copy.seconds / kept_s
    data["percent"] = round(percent, 1)
    verdict = risk(percent)
    text = f"{copy.text}, {percent:.1f} % of the {duration_text(kept_s)} the log is kept"
    if verdict != "ok":
        text += "; raise binlog_expire_logs_seconds for the time of the snapshot"
    return Finding("retention", verdict, text, data)
