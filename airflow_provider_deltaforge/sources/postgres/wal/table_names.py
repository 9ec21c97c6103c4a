"""Which table has which name: the log of PostgreSQL does not tell of renames."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.postgres.server import (
    SCHEMAS_VERSION,
    PostgresServer,
    rows_of,
)
from airflow_provider_deltaforge.sources.reader_contract import NamedTables
from airflow_provider_deltaforge.spec.patterns import TableMatcher, splits

# Partitions are published as their root. A table begins in a file that has its own number, and gets
# another one where it is rewritten, for example by SET LOGGED. A publication of all tables, or of
# schemas, takes tables in by itself, whatever they were called before.
_NAMED = """
WITH published AS (
  SELECT DISTINCT coalesce(pg_partition_root(c.oid), c.oid)::oid AS oid
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
   WHERE p.pubname = %s)
SELECT n.nspname, c.relname, c.oid::text, p.oid IS NOT NULL,
       coalesce(pg_relation_filenode(c.oid) <> c.oid, false),
       EXISTS (SELECT FROM pg_publication b WHERE b.pubname = %s AND (b.puballtables{schemas}))
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN published p ON p.oid = c.oid
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY 1, 2
"""
_OF_SCHEMAS = " OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = b.oid)"
_UNPUBLISHED = "-"
"""Stands before the number of a table that is not published under its name."""


class _Table(NamedTuple):
    """A table of the database.

    Attributes:
        schema: of the table.
        name: of the table.
        oid: its object id.
        published: under this name.
        rewritten: its rows are not where they were at first.
        takes_in: the publication takes tables in by itself.
    """

    schema: str
    name: str
    oid: str
    published: bool
    rewritten: bool
    takes_in: bool

    @property
    def number(self) -> str:
        """What is remembered of it."""
        return self.oid if self.published else _UNPUBLISHED + self.oid


def named_tables(
    connection: Any, info: PostgresServer, publication: str, matcher: TableMatcher
) -> NamedTables:
    """Return which table has which name now: the published ones, and those that may become so."""
    return _named(_tables(connection, info, publication, matcher), info)


def _tables(
    connection: Any, info: PostgresServer, publication: str, matcher: TableMatcher
) -> list[_Table]:
    sql = _NAMED.format(schemas=_OF_SCHEMAS if info.version >= SCHEMAS_VERSION else "")
    rows = rows_of(connection, sql, "looking for renamed tables", (publication, publication))
    tables = map(_Table._make, rows)
    # Others come and go, as those that a job makes for itself.
    return [t for t in tables if t.published or t.takes_in or matcher.matches(t.schema, t.name)]


def _named(tables: Sequence[_Table], info: PostgresServer) -> NamedTables:
    by_name = {qualified_name(table.schema, table.name): table.number for table in tables}
    return NamedTables(f"{info.system_id}/{info.db}", by_name)


class TableNamesWatch:
    """Finds tables that have taken a captured name, or were published with rows they had before.

    Used by the reader's thread.

    Args:
        publication: its name.
        info: the server's.
        matcher: which tables are captured.
    """

    def __init__(self, publication: str, info: PostgresServer, matcher: TableMatcher) -> None:
        self._publication, self._info, self._matcher = publication, info, matcher
        self.known: NamedTables | None = None

    def note_announced(self, names: Collection[str]) -> None:
        """Do not report tables, by full name, whose publishing the reader hears of otherwise."""
        known = self.known
        if known is not None and names:
            tables = {
                name: number.removeprefix(_UNPUBLISHED) if name in names else number
                for name, number in known.tables.items()
            }
            self.known = NamedTables(known.server, tables)

    def look(self, connection: Any) -> list[tuple[str, str | None]]:
        """Return the full names of tables whose rows did not come under these names, or not all.

        Each with the former name of a captured table that has taken one which nobody had.
        """
        tables = _tables(connection, self._info, self._publication, self._matcher)
        now = _named(tables, self._info)
        known = self.known
        self.known = now
        if known is None or known.server != now.server or known == now:
            return []
        former = {number: name for name, number in known.tables.items()}
        found: list[tuple[str, str | None]] = []
        for table in tables:
            name = qualified_name(table.schema, table.name)
            was = known.tables.get(name, _UNPUBLISHED)
            if not table.published or was == table.oid:
                continue
            if not self._matcher.matches(table.schema, table.name):
                continue
            taken = not was.startswith(_UNPUBLISHED)
            before = former.get(table.oid)
            if before is not None:
                found.append((name, None if taken or not self._was_captured(before) else before))
            elif taken or table.rewritten or _UNPUBLISHED + table.oid in former:
                found.append((name, None))
        return found

    def _was_captured(self, name: str) -> bool:
        """Return whether a full name was captured; in doubt it was not, and is copied again."""
        return all(self._matcher.matches(schema, table) for schema, table in splits(name))
