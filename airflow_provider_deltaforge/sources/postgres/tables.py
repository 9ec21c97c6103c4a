"""What the catalog knows of the captured tables: keys to cut them by, size, and who may read them.

A partitioned table is one table, its root; its partitions are none. A table that others inherit
from stands for its own rows only. Views, foreign, unlogged and temporary tables have no log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.spec.patterns import TableMatcher

_ROWS_PER_PAGE = 80
"""A guess for tables that were never analysed."""
_NAMED_MAX = 20
GENERATED_SINCE = 180000
"""Older servers never log generated columns."""
COLUMN_LISTS_SINCE = 150000
"""And those have publications of whole tables only."""

IDENTITY_INDEX = """CASE {0}.relreplident
                     WHEN 'd' THEN i.indisprimary AND i.indimmediate
                     WHEN 'i' THEN i.indisreplident ELSE false END"""
"""Whether an index ``i`` is the replica identity of a table."""

LEAVES = f"""(
       SELECT x.*, q.quoted, v.virtual,
              x.relkind <> 'f' AND CASE x.relreplident WHEN 'f' THEN v.virtual ELSE NOT EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = x.oid AND i.indisvalid
                 AND i.indimmediate AND {IDENTITY_INDEX.format("x")}) END AS bare,
              'ALTER TABLE ' || q.quoted || CASE WHEN NOT v.virtual THEN ' REPLICA IDENTITY FULL'
              WHEN EXISTS (
              SELECT FROM pg_index i WHERE i.indrelid = x.oid AND i.indisprimary
                 AND i.indimmediate) THEN ' REPLICA IDENTITY DEFAULT'
              ELSE ' ADD PRIMARY KEY (...), REPLICA IDENTITY DEFAULT' END AS remedy
         FROM (SELECT c.oid WHERE c.relkind = 'r'
                   OR NOT EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid) UNION ALL
               SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf) leaf
         JOIN pg_class x ON x.oid = leaf.oid
         JOIN pg_namespace m ON m.oid = x.relnamespace
        CROSS JOIN LATERAL (
              SELECT quote_ident(m.nspname) || '.' || quote_ident(x.relname) AS quoted) q
        CROSS JOIN LATERAL (SELECT EXISTS (SELECT FROM pg_attribute g WHERE g.attrelid = x.oid
                               AND g.attgenerated = 'v') AS virtual) v)"""
"""What of a table ``c`` has rows: itself, or a partitioned table's partitions, whose replica
identity counts. ``bare``: the server refuses updates and deletes of it once it is published, and
``remedy`` is what to run first. With ``virtual`` columns it refuses them under FULL, too."""

_TABLES = f"""
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence,
       has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'),
       pg_has_role(c.relowner, 'USAGE'), row_security_active(c.oid), leaf.*
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (
       SELECT coalesce(sum(CASE WHEN l.reltuples >= 0 THEN l.reltuples
                                ELSE l.relpages * {_ROWS_PER_PAGE} END), 0)::bigint AS rows,
              coalesce(sum(pg_total_relation_size(l.oid)), 0)::bigint AS bytes,
              bool_and(l.relreplident = 'f' OR l.relkind = 'f'),
              array_agg(l.remedy ORDER BY l.quoted) FILTER (WHERE l.bare),
              array_agg(l.remedy ORDER BY l.quoted) FILTER (
              WHERE l.relreplident <> c.relreplident AND l.relkind <> 'f' AND NOT l.virtual),
              bool_or(l.virtual),
              current_setting('server_version_num')::int < {GENERATED_SINCE} AND EXISTS (
              SELECT FROM pg_index i
                JOIN pg_attribute a ON a.attrelid = c.oid AND a.attgenerated <> ''
                 AND a.attnum = ANY((i.indkey::int2[])[:i.indnkeyatts - 1])
               WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'n' THEN false
                     WHEN 'i' THEN i.indisreplident ELSE i.indisprimary AND i.indimmediate END)
         FROM {LEAVES} l
       ) leaf
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'{{one}}
 ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""

# Whatever alters a table, its indexes or what is published of it writes one of these rows anew.
_VERSION = """
SELECT concat_ws(' ', c.oid, c.xmin,
       (SELECT string_agg(concat(a.attnum, ':', a.xmin), ' ' ORDER BY a.attnum)
          FROM pg_attribute a WHERE a.attrelid = c.oid),
       (SELECT string_agg(concat(i.indexrelid, ':', i.xmin), ' ' ORDER BY i.indexrelid)
          FROM pg_index i WHERE i.indrelid = c.oid),
       (SELECT string_agg(concat(k.oid, ':', k.xmin), ' ' ORDER BY k.oid)
          FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'n'),
       (SELECT string_agg(concat(p.oid, ':', p.xmin, ':', r.xmin), ' ')
          FROM pg_publication p
          LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
         WHERE p.pubname = %s))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""

# A type that an extension brought has operators of its own, in the extension's schema.
_OPERATORS = """(
  WITH RECURSIVE d AS (SELECT t.oid, t.typbasetype, t.typtype, t.typnamespace UNION ALL
    SELECT b.oid, b.typbasetype, b.typtype, b.typnamespace FROM d JOIN pg_type b
        ON d.typtype = 'd' AND b.oid = d.typbasetype)
  SELECT json_agg(format('OPERATOR(%%I.%%s)', n.nspname, o.oprname) ORDER BY p.amopstrategy)
    FROM d JOIN pg_opclass c ON c.opcintype = d.oid AND c.opcdefault
    JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
    JOIN pg_amop p ON p.amopfamily = c.opcfamily AND p.amopstrategy BETWEEN 2 AND 5
     AND p.amoplefttype = d.oid AND p.amoprighttype = d.oid
    JOIN pg_operator o ON o.oid = p.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
   WHERE d.typtype <> 'd' AND d.typnamespace <> 'pg_catalog'::regnamespace)"""

# A NOT NULL that is NOT VALID, which servers have from 18 on, leaves NULLs that were there before.
_NEVER_NULL = """(a.attnotnull AND NOT EXISTS (
       SELECT FROM pg_constraint v WHERE v.conrelid = a.attrelid AND v.contype = 'n'
          AND NOT v.convalidated AND v.conkey[1] = a.attnum))"""

_KEYS = f"""
SELECT i.indrelid, i.indisprimary,
       array_agg(a.attname ORDER BY k.place)::text[],
       array_agg(format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attcollation <> 0
                 THEN ' collation ' || a.attcollation::regcollation::text ELSE '' END
                 ORDER BY k.place),
       array_agg(CASE WHEN t.typtype = 'c' THEN t.oid::regtype::text END ORDER BY k.place),
       array_agg({_OPERATORS} ORDER BY k.place)
  FROM pg_index i
 CROSS JOIN LATERAL unnest(i.indkey, i.indoption) WITH ORDINALITY k(attnum, option, place)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
  JOIN pg_type t ON t.oid = a.atttypid
 WHERE i.indrelid = ANY(%s) AND i.indisunique AND i.indisvalid AND i.indislive
   AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
 GROUP BY i.indrelid, i.indexrelid, i.indisprimary
HAVING bool_and({_NEVER_NULL}) AND bool_and(k.option & 1 = 0)
 ORDER BY i.indrelid, i.indisprimary DESC, count(*), i.indexrelid
"""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key.

    Attributes:
        name: of the column.
        order: its type and collation: what decides which value comes first.
        cast: the type to write behind a literal, where the server would not find it out.
        operators: ``<=``, ``=``, ``>=`` and ``>`` with their schema; None for the system's own.
    """

    name: str
    order: str
    cast: str | None = None
    operators: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class CapturedTable:
    """What the catalog knows about one captured table.

    Attributes:
        oid: names the table as long as it lives.
        schema: its schema.
        table: its name.
        partitioned: the root of a partitioned table.
        unlogged: it writes no log.
        readable: the user may SELECT from it.
        owned: the user owns it, or is a member of the role that does.
        filtered: row-level security hides rows from the user.
        rows_estimate: rows, a guess of the server's statistics.
        data_bytes: data, indexes and TOAST.
        whole_before: the log holds whole rows before a change.
        bare: what to run so that the server does not refuse updates and deletes once it is
            published, of the table itself or of partitions; empty where nothing is wrong.
        strays: what has the log hold whole rows of partitions whose replica identity is another
            than the table's.
        full_refused: under REPLICA IDENTITY FULL the server would refuse them as well: it has
            virtual generated columns, or the publication leaves out some.
        torn_key: the key of its events would have a generated column, which the log lacks.
        primary_key: it has one.
        key: unique columns that are never null, to cut the table by; empty without any.
    """

    oid: int
    schema: str
    table: str
    partitioned: bool
    unlogged: bool
    readable: bool
    owned: bool
    filtered: bool
    rows_estimate: int
    data_bytes: int
    whole_before: bool = True
    bare: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    full_refused: bool = False
    torn_key: bool = False
    primary_key: bool = False
    key: tuple[KeyColumn, ...] = ()

    @property
    def full_name(self) -> str:
        """``schema.table``."""
        return qualified_name(self.schema, self.table)

    @property
    def from_clause(self) -> str:
        """What to SELECT from: a parent's own rows, but all of a partitioned table's."""
        name = quote(self.schema, self.table)
        return name if self.partitioned else f"ONLY {name}"


def quote(*names: str) -> str:
    """Return names as one SQL identifier: ``"a"."b"``."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def first_of(commands: Sequence[str]) -> str:
    """Return commands as one text; of many the first ones."""
    return "; ".join(commands[:_NAMED_MAX]) + ("; …" if len(commands) > _NAMED_MAX else "")


def literal(text: str) -> str:
    """Return a text as an SQL literal; needs ``standard_conforming_strings``."""
    return "'" + text.replace("'", "''") + "'"


def captured_tables(connection: Any, matcher: TableMatcher) -> list[CapturedTable]:
    """Return the facts of every captured table that has a log, by schema and name."""
    return [facts for facts in all_tables(connection, matcher) if not facts.unlogged]


def all_tables(connection: Any, matcher: TableMatcher) -> list[CapturedTable]:
    """Return the facts of every table that the patterns name, unlogged ones too."""
    rows = connection.execute(_TABLES.format(one="")).fetchall()
    return _with_keys(connection, [row for row in rows if matcher.matches(row[1], row[2])])


def table_named(connection: Any, schema: str, table: str) -> CapturedTable | None:
    """Return the facts of one table; None when there is no such table."""
    sql = _TABLES.format(one=" AND n.nspname = %s AND c.relname = %s")
    found = _with_keys(connection, connection.execute(sql, (schema, table)).fetchall())
    return found[0] if found else None


class KnownTables:
    """The facts of tables, which are looked up again only when a table was altered.

    What the catalog says of keys costs the server as much as a thousand rows.

    Args:
        publication: what it publishes of a table counts as the table's, too.
    """

    def __init__(self, publication: str) -> None:
        self._publication = publication
        self._known: dict[tuple[str, str], tuple[str, CapturedTable | None]] = {}

    def get(self, connection: Any, schema: str, table: str) -> CapturedTable | None:
        """Return the facts of one table as it is now, its size apart; None: there is none.

        As long as nothing was altered they are the same object.
        """
        row = connection.execute(_VERSION, (self._publication, schema, table)).fetchone()
        if row is None:
            return None
        known = self._known.get((schema, table))
        if known is None or known[0] != row[0]:
            known = self._known[schema, table] = row[0], table_named(connection, schema, table)
        return known[1]


def _with_keys(connection: Any, rows: Sequence[tuple[Any, ...]]) -> list[CapturedTable]:
    found = connection.execute(_KEYS, ([row[0] for row in rows],)).fetchall()
    keys: dict[int, list[tuple[Any, ...]]] = {}
    for oid, *key in found:
        keys.setdefault(oid, []).append(tuple(key))
    return [_facts(row, keys.get(row[0], [])) for row in rows]


def _facts(row: Sequence[Any], keys: Sequence[tuple[Any, ...]]) -> CapturedTable:
    oid, schema, table, kind, persistence = row[:5]
    best = keys[0] if keys else None
    return CapturedTable(
        oid=oid,
        schema=schema,
        table=table,
        partitioned=_char(kind) == "p",
        unlogged=_char(persistence) == "u",
        readable=row[5],
        owned=row[6],
        filtered=row[7],
        rows_estimate=row[8],
        data_bytes=row[9],
        whole_before=row[10],
        bare=tuple(row[11] or ()),
        strays=tuple(row[12] or ()),
        full_refused=row[13],
        torn_key=row[14],
        primary_key=best is not None and bool(best[0]),
        key=tuple(map(KeyColumn, *best[1:])) if best is not None else (),
    )


def _char(value: Any) -> str:
    """Return a value of the catalog's one-byte type, which drivers give as text or bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
