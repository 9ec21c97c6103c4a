"""Looks before the leap: what would stop, slow or spoil a snapshot and its stream."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.publication import (
    creation,
    missing_tables,
    published_tables,
)
from airflow_provider_deltaforge.sources.postgres.published_parts import as_published
from airflow_provider_deltaforge.sources.postgres.server import (
    VERSION_MIN,
    PostgresServer,
    server_info,
)
from airflow_provider_deltaforge.sources.postgres.settings import STANDBY_KEY
from airflow_provider_deltaforge.sources.postgres.slots import (
    ReplicationSlot,
    check_failover,
    check_kind,
    failover_command,
    find_slot,
)
from airflow_provider_deltaforge.sources.postgres.snapshot.standby import check_standby
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.sources.postgres.table_findings import (
    Publication,
    column_findings,
    publication_findings,
    publication_of,
    table_findings,
    unreadable_columns,
)
from airflow_provider_deltaforge.sources.postgres.tables import (
    COLUMN_LISTS_SINCE,
    CapturedTable,
    all_tables,
    quote,
)
from airflow_provider_deltaforge.sources.postgres.wal.first_position import too_old
from airflow_provider_deltaforge.sources.shared.preflight import (
    HIGH_RISK_PERCENT,
    CopyForecast,
    checked,
    require,
    risk,
)

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def preflight(source: PostgresSource) -> Sequence[Finding]:
    """Check server settings, privileges, tables and retention; never raises for a finding."""
    found = checked(source.connect, lambda connection: _findings(source, connection), translated)
    return found if source.snapshot.dsn is None else [*found, *_standby_findings(source)]


def _standby_findings(source: PostgresSource) -> Sequence[Finding]:
    def check(standby: Any) -> Sequence[Finding]:
        with closing(source.connect()) as primary:
            check_standby(primary, standby)
        return [Finding("snapshot_replica", "ok", f"{STANDBY_KEY}: rows can be read there")]

    return checked(source.connect_standby, check, translated, "snapshot_replica")


def _findings(source: PostgresSource, connection: Any) -> list[Finding]:
    wanted, name = source.slot_settings, source.publication_settings.name
    server = server_info(connection)
    slot = find_slot(connection, wanted.name)
    tables = all_tables(connection, source.matcher)
    publication = publication_of(connection, server.version, name)
    if not source.tables and publication is not None:
        # Without patterns the publication alone decides.
        published = published_tables(connection, name)
        tables = [table for table in tables if table.oid in published]
    if publication is not None and server.version >= COLUMN_LISTS_SINCE:
        tables = as_published(connection, name, tables)
    logged = [table for table in tables if not table.unlogged]
    found = server_findings(connection, server, slot)
    found += slot_findings(slot, wanted.name, server, may_create=wanted.create)
    if wanted.failover:
        found += _failover(slot, server)
    found += table_findings(tables, source.tables)
    hidden = unreadable_columns(connection, logged)
    found += column_findings(hidden, logged, str(connection.info.user))
    found += _publication(source, connection, server, publication, logged, slot)
    found += long_findings(connection, source.tuning.long_s, creating=slot is None)
    rate = log_rate(connection, source.tuning.rate_probe_s)
    kept = kept_bytes(connection, wanted.name)
    found.append(forecast(logged, source.snapshot.max_parallel_tables, kept, rate))
    return found


def _publication(
    source: PostgresSource,
    connection: Any,
    server: PostgresServer,
    found: Publication | None,
    tables: Sequence[CapturedTable],
    slot: ReplicationSlot | None,
) -> list[Finding]:
    matcher, name = source.matcher, source.publication_settings.name
    may = source.publication_settings.create and not server.standby
    if found is None:
        every = not matcher.patterns and server.superuser
        missing = [] if every else missing_tables(connection, name, matcher)
        sql: str | None = creation(name, missing, server.version, every=every)
        if slot is not None:
            text = too_old(source.slot_settings, name, sql or "")
            return [Finding("publication", "fail", text, {"sql": sql})]
        may = may and (server.superuser or connection.execute(_MAY_CREATE).fetchone()[0])
    else:
        # Without patterns nothing is put into a publication that somebody made.
        missing = missing_tables(connection, name, matcher) if matcher.patterns else []
        listed = ", ".join(table.quoted for table in missing)
        sql = f"ALTER PUBLICATION {quote(name)} ADD TABLE {listed}" if missing else None
        may = may and (server.superuser or found.owned)
    names = [qualified_name(table.schema, table.name) for table in missing]
    owned = {table.full_name for table in tables if table.owned}
    may = may and (server.superuser or owned.issuperset(names))
    return publication_findings(name, found, tables, names, sql, may_create=may)


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


def log_rate(connection: Any, probe_s: float) -> float:
    """Return how many bytes of log per second the server writes: two looks, ``probe_s`` apart."""
    begun, started = connection.execute(_END).fetchone()[0], time.monotonic()
    time.sleep(probe_s)
    ended = connection.execute(_END).fetchone()[0]
    return round(float(ended - begun) / max(time.monotonic() - started, probe_s), 1)


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
    copy = CopyForecast.of(tables, max_parallel_tables)
    expected = max(LOG_PER_BYTE * copy.bytes, round(log_bytes_per_s * copy.seconds))
    data = {
        **copy.data,
        "log_bytes": expected,
        "log_bytes_per_s": log_bytes_per_s,
        "retention_bytes": kept,
    }
    if kept is None:
        text = f"{copy.text}; the slot keeps the log without limit, so watch the server's disk"
        return Finding("retention", "ok", text, data)
    percent = 100 * expected / kept if kept else float(HIGH_RISK_PERCENT)
    data["percent"] = round(percent, 1)
    verdict = risk(percent)
    text = (
        f"{copy.text} and about {expected / _MIB:.1f} MiB of log, {percent:.1f} % of the "
        f"{kept / _MIB:.1f} MiB the slot may still keep"
    )
    if verdict != "ok":
        text += (
            "; raise it for the time of the snapshot: ALTER SYSTEM SET max_slot_wal_keep_size = "
            f"'{3 * expected // _MIB + 1} MB', then SELECT pg_reload_conf()"
        )
    return Finding("retention", verdict, text, data)


SENDER_TIMEOUT_MIN_S = 10
STANDBY_SINCE = 160000
"""Standbys of older servers have no logical slots."""

_NAMED_MAX = 10

_ROOM = """
SELECT current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication),
       current_setting('synchronous_commit'),
       coalesce((SELECT setting::bigint FROM pg_settings
                  WHERE name = 'idle_replication_slot_timeout'), 0)
"""
# Managed servers give the right to replicate through roles of their own.
_ROLE = """
SELECT rolreplication OR rolsuper OR EXISTS (
         SELECT FROM pg_roles g
          WHERE g.rolname IN ('rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin',
                            'alloydbsuperuser')
            AND pg_has_role(g.oid, 'MEMBER')), rolname
  FROM pg_roles WHERE rolname = current_user
"""
_SEES = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')"
_LONG = """
SELECT 'session ' || pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint
  FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
   AND xact_start < clock_timestamp() - make_interval(secs => %(long)s)
 UNION ALL
SELECT 'prepared transaction ' || gid, extract(epoch FROM clock_timestamp() - prepared)::bigint
  FROM pg_prepared_xacts
 WHERE database = current_database()
   AND prepared < clock_timestamp() - make_interval(secs => %(long)s)
 ORDER BY 2 DESC
"""


def server_findings(
    connection: Any, server: PostgresServer, slot: ReplicationSlot | None
) -> list[Finding]:
    """Check settings, the role, and whether there is room for one more reader."""
    slots, slots_used, senders, senders_used, commits, idle_s = connection.execute(_ROOM).fetchone()
    found = [
        require("version", server.version >= VERSION_MIN,
                 f"the server is {server.version // 10000}",
                 f"upgrade it to {VERSION_MIN // 10000} or newer"),
        require("wal_level", server.wal_level == "logical", f"wal_level is {server.wal_level}",
                 "ALTER SYSTEM SET wal_level = logical, then restart the server"),
        require("max_replication_slots", slot is not None or slots_used < slots,
                 f"all {slots} replication slots are taken",
                 "drop one that nobody reads (pg_replication_slots), or raise "
                 "max_replication_slots and restart the server"),
        require("max_wal_senders", senders_used < senders or bool(slot and slot.active_pid),
                 f"all {senders} senders are busy",
                 "raise max_wal_senders and restart the server"),
        _role(connection),
    ]  # fmt: skip
    if not connection.execute(_SEES).fetchone()[0]:
        text = (
            "the role does not see what other sessions do, so a snapshot waits for every open "
            "transaction that wrote something, also for idle ones; GRANT pg_read_all_stats to it"
        )
        found.append(Finding("pg_read_all_stats", "warn", text))
    if server.standby:
        found.append(_standby(server))
    if server.sender_timeout_s < SENDER_TIMEOUT_MIN_S:
        found.append(_sender_timeout(server.sender_timeout_s))
    if commits == "off":
        text = (
            "synchronous_commit is off: rows can be copied before they are safe on the server's "
            "disk, and a crash of the server then takes them back there, but not from the sinks"
        )
        found.append(Finding("synchronous_commit", "warn", text))
    if idle_s:
        text = (
            f"idle_replication_slot_timeout is {idle_s} s: a pipeline that is paused for longer "
            "loses its slot; set it to 0"
        )
        found.append(Finding("idle_replication_slot_timeout", "warn", text, {"idle_s": idle_s}))
    return found


def slot_findings(
    slot: ReplicationSlot | None, name: str, server: PostgresServer, *, may_create: bool
) -> list[Finding]:
    """Check the replication slot."""
    if slot is None:
        if may_create:
            return [
                Finding("slot", "ok", f"replication slot {name!r} is created at the first start")
            ]
        text = (
            f"replication slot {name!r} does not exist, and 'create' is false in the document; "
            f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')"
        )
        return [Finding("slot", "fail", text)]
    return [_existing(slot, name, server)]


def _failover(slot: ReplicationSlot | None, server: PostgresServer) -> list[Finding]:
    """Check that standbys can keep a copy of the slot."""
    try:
        check_failover(server)
    except DeltaForgeError as error:
        return [Finding("slot_failover", "fail", str(error))]
    if slot is None or slot.failover:
        return []
    text = (
        f"replication slot {slot.name!r} was made without failover, and no standby keeps a copy; "
        "the pipeline alters it when it opens the log, unless it is being read then; or run on a "
        f"replication connection: {failover_command(slot.name)}"
    )
    return [Finding("slot_failover", "warn", text)]


def _existing(slot: ReplicationSlot, name: str, server: PostgresServer) -> Finding:
    verdict, text = "ok", f"replication slot {name!r} is there"
    wrong = _wrong_kind(slot, server)
    if wrong is not None:
        verdict, text = "fail", wrong
    elif slot.lost:
        verdict = "fail"
        text = (
            f"replication slot {name!r}: {slot.lost}; SELECT pg_drop_replication_slot('{name}'), "
            "raise max_slot_wal_keep_size if the log was too short, reset the pipeline and start "
            "it again with a new snapshot"
        )
    elif slot.wal_status == "unreserved":
        verdict = "warn"
        text = (
            f"replication slot {name!r} is about to be lost (wal_status unreserved); start its "
            "reader at once, or raise max_slot_wal_keep_size"
        )
    elif slot.active_pid is not None:
        verdict = "warn"
        text = (
            f"replication slot {name!r} is read by {slot.holder or slot.active_pid}; if that is "
            "not this pipeline, end it"
        )
    return Finding(
        "slot", verdict, text, {"wal_status": slot.wal_status, "invalidated": slot.invalidated}
    )


def _wrong_kind(slot: ReplicationSlot, server: PostgresServer) -> str | None:
    try:
        check_kind(slot, server)
    except DeltaForgeError as error:
        return str(error)
    return None


def long_findings(connection: Any, long_s: float, *, creating: bool) -> list[Finding]:
    """Name transactions that are open for long: the slot keeps the log from their begin on.

    Args:
        connection: to the server.
        long_s: who is open for longer is named.
        creating: the slot does not exist yet, and creating it waits for them.
    """
    found = connection.execute(_LONG, {"long": long_s}).fetchall()
    if not found:
        return []
    named = ", ".join(f"{what} ({age_s} s)" for what, age_s in found[:_NAMED_MAX])
    text = f"open for long: {named}; the log since their begin is kept until they end"
    if creating:
        text += ", and creating the slot waits for them"
    data = {"open": [{"what": what, "age_s": age_s} for what, age_s in found]}
    return [Finding("open_transactions", "warn", f"{text}; commit or end them", data)]


def _role(connection: Any) -> Finding:
    fine, name = connection.execute(_ROLE).fetchone()
    return require(
        "replication", fine, f"role {name!r} may not replicate",
        f'ALTER ROLE "{name}" REPLICATION (on RDS: GRANT rds_replication TO "{name}")',
    )  # fmt: skip


def _standby(server: PostgresServer) -> Finding:
    if server.version < STANDBY_SINCE:
        text = (
            "the server is a standby, and standbys before 16 have no logical slots; use its primary"
        )
        return Finding("standby", "fail", text)
    text = (
        "the server is a standby: create the publication on its primary, set hot_standby_feedback "
        "= on here, and expect that creating the slot waits until the primary logs its "
        "transactions (SELECT pg_log_standby_snapshot() there)"
    )
    return Finding("standby", "warn", text)


def _sender_timeout(timeout_s: float) -> Finding:
    if timeout_s == 0:
        text = (
            "wal_sender_timeout is 0: the server never notices that a reader has vanished, and a "
            "new one finds the slot in use; set it to 60s"
        )
    else:
        text = (
            f"wal_sender_timeout is {timeout_s:g} s: a reader that is busy for as long is hung up "
            "on; set it to 60s"
        )
    return Finding("wal_sender_timeout", "warn", text, {"timeout_s": timeout_s})
