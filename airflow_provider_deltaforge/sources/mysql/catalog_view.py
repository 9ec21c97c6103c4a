"""Which tables are captured and how they are decoded, with the catalog where the log is silent."""

from collections.abc import Callable
from typing import Any

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.sources.mysql.catalog import load_table
from airflow_provider_deltaforge.sources.mysql.connection import ServerInfo, translated
from airflow_provider_deltaforge.sources.mysql.plans import (
    TablePlan,
    captured_plan,
    needs_catalog,
    uncaptured_plan,
)
from airflow_provider_deltaforge.sources.mysql.table_map import TableMap
from airflow_provider_deltaforge.sources.patterns import TableMatcher


class CatalogView:
    """Makes table plans. ``connect`` opens a connection, used only while a question is asked."""

    def __init__(self, matcher: TableMatcher, info: ServerInfo, connect: Callable[[], Any]) -> None:
        self._matcher = matcher
        self._info = info
        self._connect = connect
        self._last_change = ""

    def captures(self, db: str, table: str) -> bool:
        """Say whether a table is captured."""
        return self._matcher.matches(db, table)

    def touches(self, db: str) -> bool:
        """Say whether any table of a database could be captured."""
        return self._matcher.touches(db)

    def changed(self, sql: str) -> None:
        """Take note of a schema change, to quote it if rows and catalog disagree later."""
        self._last_change = sql

    def plan(self, table: TableMap) -> TablePlan:
        """Return how to decode a table.

        Raises:
            SchemaError: neither log nor catalog describe its rows.
            RetryableError, AccessError: the catalog could not be asked.
        """
        if not self.captures(table.db, table.table):
            return uncaptured_plan(table)
        known = None
        if needs_catalog(table, mariadb=self._info.mariadb):
            known = self._load(table)
        try:
            return captured_plan(table, self._info.charsets, known)
        except SchemaError as error:
            if not self._last_change:
                raise
            quoted = self._last_change[:500]
            raise SchemaError(f"{error}. The last schema change read was: {quoted}") from error

    def _load(self, table: TableMap) -> Any:
        connection = self._connect()
        try:
            return load_table(connection, table.db, table.table)
        except Exception as error:
            raise translated(error, f"describing {table.db}.{table.table}") from error
        finally:
            connection.close()
