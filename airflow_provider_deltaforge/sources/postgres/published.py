"""What a publication publishes."""

from typing import Any

# Partitions count as their root.
_TABLES = """
SELECT DISTINCT coalesce(pg_partition_root(c.oid), c.oid)::oid
  FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s
"""


def published_tables(connection: Any, publication: str) -> frozenset[int]:
    """Return the oids of the tables in a publication; a partition counts as its root."""
    return frozenset(oid for (oid,) in connection.execute(_TABLES, (publication,)).fetchall())
