"""The publication: it decides on the server which tables are sent."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.postgres.server import PostgresServer, row_of, rows_of
from airflow_provider_deltaforge.sources.postgres.tables import (
    GENERATED_SINCE,
    LEAVES,
    first_of,
    quote,
)
from airflow_provider_deltaforge.sources.postgres.wal.messages import (
    APPEARED,
    MESSAGES_VERSION,
    appeared_message,
)
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

_PUBLICATION = "SELECT pubname FROM pg_publication WHERE pubname = %s"
# A partition comes with its root. Without an identity the server refuses updates and deletes of a
# published table, so its owner must be told.
_CANDIDATES = f"""
SELECT n.nspname, c.relname, ARRAY(SELECT l.remedy FROM {LEAVES} l WHERE l.bare ORDER BY 1)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND NOT EXISTS (SELECT FROM pg_publication_tables t WHERE t.pubname = %s
                      AND t.schemaname = n.nspname AND t.tablename = c.relname)
   AND NOT EXISTS (SELECT FROM pg_publication p
                    WHERE p.pubname = %s AND (p.puballtables OR EXISTS (
                          SELECT FROM pg_publication_rel r
                           WHERE r.prpubid = p.oid AND r.prrelid = c.oid)))
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class UnpublishedTable:
    """A table that is not published.

    Attributes:
        schema: of the table.
        name: of the table.
        bare: what to run so that the server would not refuse updates and deletes of it, or of
            its partitions, were it published; empty where nothing is wrong.
    """

    schema: str
    name: str
    bare: Sequence[str]

    @property
    def quoted(self) -> str:
        """Its full name in SQL."""
        return quote(self.schema, self.name)


def publication_exists(connection: Any, name: str) -> bool:
    """Return whether there is a publication of this name."""
    doing = "looking for the publication"
    return row_of(connection, _PUBLICATION, doing, (name,)) is not None


def ensure_publication(
    connection: Any, info: PostgresServer, name: str, matcher: TableMatcher, *, create: bool
) -> None:
    """See that the publication exists.

    Raises:
        FatalError: it does not, and we are not to create it.
        AccessError: we may not create it.
    """
    if publication_exists(connection, name):
        return
    every, tables, sql = creation_of(connection, info, name, matcher)
    if not create:
        raise FatalError(
            f"publication {name!r} does not exist, and source.publication.create is false; run: "
            f"{sql}"
        )
    try:
        rows_of(connection, sql, f"creating publication {name!r}")
    except AccessError as error:
        raise AccessError(f"{error}. Or let the tables' owner run: {sql}") from error
    except FatalError:
        if not publication_exists(connection, name):
            raise
        return  # Somebody was faster.
    log.info("created publication %s", name, extra={"tables": len(tables), "all_tables": every})
    _warn_bare(tables)


def creation_of(
    connection: Any, info: PostgresServer, name: str, matcher: TableMatcher
) -> tuple[bool, list[UnpublishedTable], str]:
    """Return whether a publication is for all tables, those it is for, and what creates it."""
    every = not matcher.patterns and info.superuser
    tables = [] if every else missing_tables(connection, name, matcher)
    return every, tables, creation(name, tables, info.version, every=every)


def creation(name: str, tables: Sequence[UnpublishedTable], version: int, *, every: bool) -> str:
    """Return the statement that creates a publication as we need it.

    From 18 on the server refuses updates and deletes of a table whose replica identity has
    generated columns that are not published; with FULL it has all of them.
    """
    what = " FOR ALL TABLES" if every else ""
    if tables:
        what = f" FOR TABLE {', '.join(table.quoted for table in tables)}"
    options = "publish_via_partition_root = true"
    if version >= GENERATED_SINCE:
        options += ", publish_generated_columns = stored"
    return f"CREATE PUBLICATION {quote(name)}{what} WITH ({options})"


def missing_tables(connection: Any, name: str, matcher: TableMatcher) -> list[UnpublishedTable]:
    """Return the tables we capture that the publication does not hold."""
    rows = rows_of(connection, _CANDIDATES, "looking for new tables", (name, name))
    return [UnpublishedTable(*row) for row in rows if matcher.matches(row[0], row[1])]


class NewTables:
    """Looks for tables that match and are not published, and publishes them.

    A table is published together with a logical message that says so, in one transaction: the
    message comes with the log exactly where the table's changes begin, on every reading, so that
    nobody can forget to copy the rows that were there before.

    Args:
        name: of the publication.
        matcher: which tables are captured.
        version: of the server; before 14 the log has no messages.
        add: publish them; else only say what to do.

    Attributes:
        published: full names of the tables that the last look published.
    """

    def __init__(self, name: str, matcher: TableMatcher, version: int, *, add: bool) -> None:
        self._name = name
        self._matcher = matcher
        self._messages = version >= MESSAGES_VERSION
        self._add = add
        self._refused: set[tuple[str, str]] = set()
        self.published: list[str] = []

    def look(self, connection: Any) -> list[UnpublishedTable]:
        """Publish what is new; return the tables for which the log holds no message.

        Raises:
            RetryableError: the server is away.
        """
        added: list[UnpublishedTable] = []
        self.published = []
        for table in missing_tables(connection, self._name, self._matcher):
            if (table.schema, table.name) in self._refused:
                continue
            sql = f"ALTER PUBLICATION {quote(self._name)} ADD TABLE {table.quoted}"
            try:
                if not self._add:
                    raise AccessError("source.publication.create is false")
                self._publish(connection, sql, table)
            except RetryableError:
                if added:
                    break  # Nobody else would hear of these; the next look finds the others.
                raise
            except FatalError as error:
                self._refused.add((table.schema, table.name))
                log.warning(
                    "table %s.%s matches but is not published (%s); its owner can run: %s",
                    table.schema, table.name, error, sql,
                )  # fmt: skip
                continue
            log.info("published the new table %s.%s", table.schema, table.name)
            self.published.append(qualified_name(table.schema, table.name))
            _warn_bare([table])
            if not self._messages:
                added.append(table)
        return added

    def _publish(self, connection: Any, sql: str, table: UnpublishedTable) -> None:
        doing = f"publishing table {table.quoted}"
        content = appeared_message(self._name, table.schema, table.name)
        with connection.transaction():
            rows_of(connection, sql, doing)
            emit = "SELECT pg_logical_emit_message(true, %s, %s)"
            rows_of(connection, emit, doing, (APPEARED, content))


def _warn_bare(tables: Sequence[UnpublishedTable]) -> None:
    for table in tables:
        if table.bare:
            log.warning(
                "table %s.%s has no replica identity that the server can use: it refuses updates "
                "and deletes while the table is published. Run: %s",
                table.schema, table.name, first_of(table.bare),
            )  # fmt: skip


# Partitions count as their root.
_TABLES = """
SELECT DISTINCT coalesce(pg_partition_root(c.oid), c.oid)::oid
  FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s
"""
# A partition whose root is not published comes under its own name, whatever the publication says.
_SCATTERED = """
SELECT DISTINCT rn.nspname, r.relname, b.pubviaroot
  FROM pg_publication b
  JOIN pg_publication_tables p ON p.pubname = b.pubname
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename AND c.relispartition
  JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
  JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE b.pubname = %s AND NOT (b.pubviaroot AND EXISTS (
       SELECT FROM pg_publication_tables t WHERE t.pubname = b.pubname
          AND t.schemaname = rn.nspname AND t.tablename = r.relname))
 ORDER BY 1, 2
"""


def published_tables(connection: Any, publication: str) -> frozenset[int]:
    """Return the oids of the tables in a publication; a partition counts as its root."""
    return frozenset(oid for (oid,) in connection.execute(_TABLES, (publication,)).fetchall())


def check_roots(connection: Any, publication: str, matcher: TableMatcher) -> None:
    """Refuse a publication that sends captured tables' rows under the names of partitions.

    Raises:
        FatalError: it does; the text has the command that changes it.
    """
    rows = rows_of(connection, _SCATTERED, "looking at the publication", (publication,))
    captured = [row for row in rows if matcher.matches(*row[:2])]
    if captured:
        names = ", ".join(qualified_name(*name) for *name, _ in captured)
        change = "SET (publish_via_partition_root = true)"
        if captured[0][2]:
            change = "ADD TABLE " + ", ".join(quote(*name) for *name, _ in captured)
        raise FatalError(
            f"publication {publication!r} sends the rows of {names} under the names of partitions; "
            f"its owner can run: ALTER PUBLICATION {quote(publication)} {change}"
        )
