"""Which table has which name: the log of PostgreSQL does not tell of renames."""

from collections.abc import Sequence
from typing import Any

from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, rows_of
from airflow_provider_deltaforge.sources.reader_contract import NamedTables
from airflow_provider_deltaforge.spec.patterns import TableMatcher, splits

# What is not published yet is published, and copied, by the reader. Partitions count as their
# root.
_NAMED = """
SELECT DISTINCT rn.nspname, r.relname, r.oid
  FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid)
  JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE p.pubname = %s
"""


def named_tables(connection: Any, info: PostgresServer, publication: str) -> NamedTables:
    """Return which published table has which name now."""
    return _named(_published(connection, publication), info)


def _published(connection: Any, publication: str) -> list[tuple[str, str, str]]:
    """Return (schema, table, object id) of the published tables, in order."""
    rows = rows_of(connection, _NAMED, "looking for renamed tables", (publication,))
    return [(schema, table, str(oid)) for schema, table, oid in sorted(rows)]


def _named(tables: Sequence[tuple[str, str, str]], info: PostgresServer) -> NamedTables:
    by_name = {qualified_name(schema, table): oid for schema, table, oid in tables}
    return NamedTables(f"{info.system_id}/{info.db}", by_name)


class TableNamesWatch:
    """Finds tables that have taken a captured name. Used by the reader's thread.

    Args:
        publication: its name.
        info: the server's.
        matcher: which tables are captured.
    """

    def __init__(self, publication: str, info: PostgresServer, matcher: TableMatcher) -> None:
        self._publication, self._info, self._matcher = publication, info, matcher
        self.known: NamedTables | None = None

    def look(self, connection: Any) -> list[tuple[str, str | None]]:
        """Return the full names that other tables have now, whose rows came under other names.

        Each with the former name of a captured table that has taken one which nobody had.
        """
        tables = _published(connection, self._publication)
        now = _named(tables, self._info)
        known = self.known
        self.known = now
        if known is None or known.server != now.server or known == now:
            return []
        former = {oid: name for name, oid in known.tables.items()}
        found: list[tuple[str, str | None]] = []
        for schema, table, oid in tables:
            name = qualified_name(schema, table)
            was = known.tables.get(name)
            if not self._matcher.matches(schema, table) or was == oid:
                continue
            if was is not None or (oid in former and not self._was_captured(former[oid])):
                found.append((name, None))
            elif oid in former:
                found.append((name, former[oid]))
        return found

    def _was_captured(self, name: str) -> bool:
        """Return whether a full name was captured; in doubt it was not, and is copied again."""
        return all(self._matcher.matches(schema, table) for schema, table in splits(name))
