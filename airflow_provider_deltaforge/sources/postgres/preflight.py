"""Looks before the leap: what would stop, slow or spoil a snapshot and its stream."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.forecast import forecast, kept_bytes, log_rate
from airflow_provider_deltaforge.sources.postgres.publication import creation, missing_tables
from airflow_provider_deltaforge.sources.postgres.published import published_tables
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, server_info
from airflow_provider_deltaforge.sources.postgres.server_findings import (
    long_findings,
    server_findings,
    slot_findings,
)
from airflow_provider_deltaforge.sources.postgres.slots import ReplicationSlot, find_slot
from airflow_provider_deltaforge.sources.postgres.table_findings import (
    Publication,
    column_findings,
    publication_findings,
    publication_of,
    table_findings,
    unreadable_columns,
)
from airflow_provider_deltaforge.sources.postgres.tables import CapturedTable, all_tables, quote
from airflow_provider_deltaforge.sources.postgres.wal.first_position import too_old
from airflow_provider_deltaforge.sources.shared.preflight import checked

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.postgres.source import PostgresSource

_MAY_CREATE = "SELECT has_database_privilege(current_database(), 'CREATE')"


def preflight(
    source: "PostgresSource", sleep: Callable[[float], None] = time.sleep
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
    source: "PostgresSource", connection: Any, sleep: Callable[[float], None]
) -> list[Finding]:
    wanted, name = source.slot_settings, source.publication_settings.name
    server = server_info(connection)
    slot = find_slot(connection, wanted.name)
    tables = all_tables(connection, source.matcher)
    publication = publication_of(connection, server.version, name)
    if not source.tables and publication is not None:
        # Without patterns the publication alone decides.
        published = published_tables(connection, name)
        tables = [table for table in tables if table.oid in published]
    logged = [table for table in tables if not table.unlogged]
    found = server_findings(connection, server, slot)
    found += slot_findings(slot, wanted.name, server, may_create=wanted.create)
    found += table_findings(tables, source.tables)
    hidden = unreadable_columns(connection, logged)
    found += column_findings(hidden, logged, str(connection.info.user))
    found += _publication(source, connection, server, publication, logged, slot)
    found += long_findings(connection, creating=slot is None)
    rate = log_rate(connection, sleep)
    kept = kept_bytes(connection, wanted.name)
    found.append(forecast(logged, source.snapshot.max_parallel_tables, kept, rate))
    return found


def _publication(
    source: "PostgresSource",
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
        sql: str | None = creation(name, missing, every=every)
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
    names = [f"{table.schema}.{table.name}" for table in missing]
    owned = {table.full_name for table in tables if table.owned}
    may = may and (server.superuser or owned.issuperset(names))
    return publication_findings(name, found, tables, names, sql, may_create=may)
