"""How tables looked at a position, where the log alone does not say it."""

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.catalog import (
    captured_tables,
    load_locked,
    log_says_all,
)
from airflow_provider_deltaforge.sources.mysql.connection import translated
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import DdlLookahead
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.spec.patterns import TableMatcher


def schemas_at(
    connect: Callable[[], Any], matcher: TableMatcher, ahead: DdlLookahead, position: LogPosition
) -> Sequence[TableSchema]:
    """Return the captured tables that look now as they looked at a position.

    Args:
        connect: opens a connection.
        matcher: which tables are captured.
        ahead: finds the statements behind the position.
        position: a recent one, behind which little of the log lies.

    Returns:
        Nothing when the server writes full row metadata: the log describes every row then.
    """
    connection = connect()
    try:
        if log_says_all(connection):
            return []
        tables = captured_tables(connection, matcher)
        found = [load_locked(connection, table.db, table.table) for table in tables]
    except Exception as error:
        raise translated(error, "describing the captured tables") from error
    finally:
        connection.close()
    if not found:
        return []
    changes = ahead.between(position, found[-1][1])
    return [
        schema
        for schema, _ in found
        if schema is not None and not any(one.touches((schema.db, schema.table)) for one in changes)
    ]
