"""What a publication publishes."""

from typing import Any

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.postgres.server import rows_of
from airflow_provider_deltaforge.sources.postgres.tables import quote
from airflow_provider_deltaforge.spec.patterns import TableMatcher

# Partitions count as their root.
_TABLES = """
SELECT DISTINCT coalesce(pg_partition_root(c.oid), c.oid)::oid
  FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s
"""
_SCATTERED = """
SELECT DISTINCT rn.nspname, r.relname
  FROM pg_publication b
  JOIN pg_publication_tables p ON p.pubname = b.pubname
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename AND c.relispartition
  JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
  JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE b.pubname = %s AND NOT b.pubviaroot
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
    captured = [f"{schema}.{table}" for schema, table in rows if matcher.matches(schema, table)]
    if captured:
        raise FatalError(
            f"publication {publication!r} sends the rows of {', '.join(captured)} under the names "
            f"of partitions; its owner can run: ALTER PUBLICATION {quote(publication)} SET "
            "(publish_via_partition_root = true)"
        )
