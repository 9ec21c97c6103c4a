"""What a publication leaves out of tables, against the replica identity that their updates need."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_deltaforge.sources.postgres.tables import (
    IDENTITY_INDEX,
    LEAVES,
    CapturedTable,
    quote,
)

# A filter names columns by their number in the published table. Of a table that is yet to be put
# into the publication no list is known, but whether its generated columns will be published.
_PARTS = f"""
WITH published AS MATERIALIZED (
  SELECT c.oid, p.attnames, r.prattrs IS NOT NULL AS listed,
         ARRAY(SELECT f.attname
                 FROM regexp_matches(r.prqual::text, ':varattno ([0-9]+)', 'g') m
                 JOIN pg_attribute f ON f.attrelid = c.oid AND f.attnum = m[1]::int) AS filter
    FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    JOIN pg_publication b ON b.pubname = p.pubname
    LEFT JOIN pg_publication_rel r ON r.prpubid = b.oid AND r.prrelid = c.oid
   WHERE p.pubname = %(name)s)
SELECT c.oid, bool_or(p.listed), bool_or(p.listed OR k.left_out),
       array_agg(DISTINCT l.quoted) FILTER (
       WHERE l.relreplident = 'f' AND NOT l.bare AND (p.listed OR k.left_out)),
       array_agg(DISTINCT a.attname::text) FILTER (WHERE k.identifies AND k.left_out),
       array_agg(DISTINCT a.attname::text) FILTER (
       WHERE l.relreplident <> 'f' AND NOT k.identifies AND a.attname = ANY(p.filter))
  FROM pg_publication b
  JOIN pg_class c ON c.oid = ANY(%(tables)s)
  LEFT JOIN published p ON p.oid = c.oid
 CROSS JOIN LATERAL {LEAVES} l
  JOIN pg_attribute a ON a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped
 CROSS JOIN LATERAL (
       SELECT EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = l.oid
                 AND a.attnum = ANY((i.indkey::int2[])[:i.indnkeyatts - 1])
                 AND {IDENTITY_INDEX.format("l")}) AS identifies,
              CASE WHEN p.oid IS NOT NULL THEN a.attname <> ALL(p.attnames)
                   ELSE a.attgenerated <> '' AND to_jsonb(b) ->> 'pubgencols' = 'n'
                   END AS left_out) k
 WHERE b.pubname = %(name)s AND (b.pubupdate OR b.pubdelete) AND l.relkind <> 'f'
 GROUP BY c.oid
HAVING bool_or(p.listed OR k.left_out OR a.attname = ANY(p.filter))
"""


def as_published(
    connection: Any, publication: str, tables: Sequence[CapturedTable]
) -> list[CapturedTable]:
    """Return tables with what the server refuses because of a publication that exists.

    It wants the columns of the replica identity to be published, and rows to be filtered by
    nothing else; under FULL that is every column, and no column list.

    Args:
        connection: to a server from 15 on.
        publication: its name.
        tables: in it, or yet to be put into it.
    """
    values = {"name": publication, "tables": [table.oid for table in tables]}
    parts = {oid: rest for oid, *rest in connection.execute(_PARTS, values).fetchall()}
    return [
        _refused(table, publication, parts[table.oid]) if table.oid in parts else table
        for table in tables
    ]


def _refused(table: CapturedTable, publication: str, part: Sequence[Any]) -> CapturedTable:
    listed, full_refused, whole, lacking, filtered = part
    name = quote(table.schema, table.table)
    key = "" if table.primary_key else "ADD PRIMARY KEY (...), "
    first = list(table.bare)
    if full_refused and first:
        first = [f"ALTER TABLE {name} {key}REPLICA IDENTITY DEFAULT"]
    if listed:
        first += [f"ALTER TABLE {leaf} {key}REPLICA IDENTITY DEFAULT" for leaf in whole or ()]
    elif whole or lacking:
        first.append(
            f"ALTER PUBLICATION {quote(publication)} SET (publish_generated_columns = stored)"
        )
    if listed and lacking:
        first.append(f"put {', '.join(lacking)} into the column list of {name}")
    if filtered:
        first.append(
            f"filter the rows of {name} by its replica identity, not by {', '.join(filtered)}"
        )
    return replace(
        table,
        bare=tuple(first),
        full_refused=table.full_refused or bool(full_refused),
        strays=() if full_refused else table.strays,
    )
