"""What the catalog knows of types, by oid, and of a table's columns and keys."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_deltaforge.sources.postgres import column_kinds as k
from airflow_provider_deltaforge.sources.postgres.column_types import kind_of
from airflow_provider_deltaforge.sources.postgres.connection import translated
from airflow_provider_deltaforge.sources.postgres.tables import COLUMN_LISTS_SINCE, GENERATED_SINCE

_TYPES = """
WITH RECURSIVE used AS (
  SELECT {columns} FROM pg_type t WHERE t.oid = ANY(%s::oid[])
  UNION
  SELECT {columns} FROM used u JOIN pg_type t ON t.oid = coalesce(u.base, u.element))
SELECT oid, name, format_type(oid, NULL), base, typmod, element, delimiter, printer FROM used
""".format(
    columns="""t.oid, t.typname::text AS name,
  CASE WHEN t.typtype = 'd' THEN t.typbasetype END AS base, t.typtypmod AS typmod,
  CASE WHEN t.typtype <> 'd' AND t.typoutput = 'array_out'::regproc THEN t.typelem END AS element,
  ascii(t.typdelim::text) AS delimiter,
  (SELECT p.proname::text FROM pg_proc p WHERE p.oid = t.typoutput) AS printer"""
)

_PRINTED = "SELECT format_type(o, m) FROM unnest(%s::oid[], %s::int[]) AS given(o, m)"

# A NOT NULL that is NOT VALID, which servers have from 18 on, leaves NULLs that were there before.
# They are gathered once a table, as looking for each column's would take time by its square.
#
# A default refers to no column. With the table's oid instead of 0, the server would list all its
# columns for each default: 4 s for 1600 of them.
_COLUMNS = """
SELECT c.oid, c.relreplident::text, a.attname::text, a.atttypid, a.atttypmod,
       a.attnotnull AND a.attnum <> ALL(coalesce(v.columns, '{{}}')),
       CASE WHEN a.attgenerated = '' THEN pg_get_expr(d.adbin, 0) END,
       a.attidentity::text, a.attgenerated::text,
       array_position((p.indkey::int2[])[:p.indnkeyatts - 1], a.attnum),
       array_position((r.indkey::int2[])[:r.indnkeyatts - 1], a.attnum), c.relkind = 'p'
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
       SELECT array_agg(u.conkey[1]) AS columns FROM pg_constraint u
        WHERE u.conrelid = c.oid AND u.contype = 'n' AND NOT u.convalidated) v ON true
  LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_index p ON p.indrelid = c.oid AND p.indisprimary
  LEFT JOIN pg_index r ON r.indrelid = c.oid AND (r.indisreplident
   OR c.relreplident = 'd' AND r.indisprimary AND r.indimmediate)
 WHERE {where} AND c.relkind IN ('r', 'p')
 ORDER BY a.attnum
"""
_PARTITION_KEYS = """
SELECT DISTINCT a.attname::text
  FROM pg_partition_tree(%s) t
  JOIN pg_class c ON c.oid = t.relid
  JOIN pg_index i ON i.indrelid = c.oid
   AND (i.indisreplident OR c.relreplident = 'd' AND i.indisprimary)
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey)
 WHERE t.isleaf AND c.relreplident IN ('d', 'i')
"""
_BY_OID = "c.oid = %s"
_BY_NAME = "n.nspname = %s AND c.relname = %s"

# Servers before 18 list generated columns, too, but never send them.
_PUBLISHED = """
SELECT ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = c.oid AND a.attname = ANY(p.attnames)
                AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000))
  FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s
"""


@dataclass(frozen=True, slots=True)
class TypeFacts:
    """One type.

    Attributes:
        name: as ``pg_type`` has it: ``int4``, ``_text``.
        described: as SQL has it, without a modifier: ``character varying``.
        base: of a domain.
        typmod: of a domain's base.
        element: of an array.
        delimiter: between an array's elements of this type, as a byte.
        printer: the function that makes its text, which identifies an extension's type.
    """

    name: str
    described: str
    base: int | None
    typmod: int
    element: int | None
    delimiter: int
    printer: str


class Types:
    """The types met so far. Nothing of one that matters here can be altered.

    Args:
        decimal_numbers: ``numeric`` becomes a JSON number, not a string.
    """

    def __init__(self, *, decimal_numbers: bool = False) -> None:
        self._decimal_numbers = decimal_numbers
        self._known: dict[int, TypeFacts] = {}
        self._printed: dict[tuple[int, int], str] = {}

    def learn(self, connection: Any, types: Iterable[tuple[int, int]]) -> None:
        """Ask for what is not known yet of types and their modifiers."""
        wanted = sorted(set(types) - self._printed.keys())
        if not wanted:
            return
        oids = sorted({oid for oid, _ in wanted} - self._known.keys())
        for oid, *facts in connection.execute(_TYPES, (oids,)).fetchall():
            self._known[oid] = TypeFacts(*facts)
        names = ([oid for oid, _ in wanted], [typmod for _, typmod in wanted])
        printed = connection.execute(_PRINTED, names).fetchall()
        # A type that was dropped meanwhile is asked for again next time, which costs little.
        self._printed |= {
            kind: text
            for kind, (text,) in zip(wanted, printed, strict=True)
            if kind[0] in self._known
        }

    def add(self, oid: int, typmod: int, facts: TypeFacts) -> None:
        """Add what the log says of a type that is no longer in the catalog."""
        self._known[oid] = facts
        self._printed[oid, typmod] = facts.described

    def facts(self, oid: int) -> TypeFacts | None:
        """Return what is known of a type; None once it was dropped."""
        return self._known.get(oid)

    def printed(self, oid: int, typmod: int) -> str:
        """Return a type as SQL writes it."""
        return self._printed.get((oid, typmod), f"type {oid}")

    def chain(self, oid: int, typmod: int) -> tuple[int, ...]:
        """Return a type's kind, and behind an array's its elements', see ``column_kinds``.

        A type nobody knows any more is text: so are most.
        """
        chain: list[int] = []
        while True:
            facts = self._known.get(oid)
            if facts is not None and facts.base is not None:
                oid, typmod = facts.base, facts.typmod
            elif facts is not None and facts.element is not None:
                if len(chain) == k.ARRAYS_MAX:
                    return (*chain, k.TEXT)
                oid = facts.element
                element = self._known.get(oid)
                chain.append(k.ARRAY | (element.delimiter if element else ord(",")) << 8)
            else:
                printer = facts.printer if facts is not None else ""
                kind = kind_of(oid, typmod, printer, decimal_numbers=self._decimal_numbers)
                return (*chain, kind)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column as it is now; ``identity`` and ``generated`` are empty for most."""

    type_oid: int
    typmod: int
    not_null: bool
    default: str | None
    identity: str
    generated: str


@dataclass(frozen=True)
class TableCatalog:
    """A table as it is now.

    Attributes:
        oid: of the table.
        replica_identity: ``d``, ``n``, ``f`` or ``i``.
        columns: by name, in order.
        primary_key: names of its columns, in the key's order.
        identity_key: the same of the index that is the replica identity: the primary key's, unless
            that is DEFERRABLE, or another one.
        partitioned: its rows are in partitions, each with a replica identity of its own.
        partition_keys: names of the columns that are one, of partitions that do not log whole rows.
    """

    oid: int
    replica_identity: str
    columns: Mapping[str, ColumnFacts] = field(default_factory=dict)
    primary_key: tuple[str, ...] = ()
    identity_key: tuple[str, ...] = ()
    partitioned: bool = False
    partition_keys: tuple[str, ...] = ()


@contextmanager
def asked(connection: Any) -> Iterator[None]:
    """Have names printed with their schema inside, whatever the search path is outside.

    Raises:
        DeltaForgeError: instead of the driver's errors inside, by reaction.
    """
    import psycopg

    try:
        with connection.transaction(force_rollback=True):
            connection.execute("SET LOCAL search_path TO pg_catalog")
            yield
    except psycopg.Error as error:
        raise translated(error, "reading the catalog") from None


def table_by_oid(connection: Any, oid: int) -> TableCatalog | None:
    """Return a table; None once it was dropped. It may have been renamed."""
    table = _table(connection.execute(_COLUMNS.format(where=_BY_OID), (oid,)).fetchall())
    if table is None or not table.partitioned:
        return table
    keys = connection.execute(_PARTITION_KEYS, (oid,)).fetchall()
    return replace(table, partition_keys=tuple(name for (name,) in keys))


def table_by_name(connection: Any, schema: str, table: str) -> TableCatalog | None:
    """Return a table; None when there is none of this name."""
    return _table(connection.execute(_COLUMNS.format(where=_BY_NAME), (schema, table)).fetchall())


def published_columns(
    connection: Any, publication: str | None, facts: TableCatalog, name: tuple[str, str]
) -> frozenset[str]:
    """Return which columns of a table the log has: no generated ones before PostgreSQL 18.

    Args:
        connection: to the database.
        publication: None, or one that does not have the table, stands for one without a list.
        facts: of the table.
        name: schema and table.
    """
    stored = frozenset(column for column, f in facts.columns.items() if not f.generated)
    version = connection.info.server_version
    if publication is None or version < COLUMN_LISTS_SINCE:
        return stored
    row = connection.execute(_PUBLISHED, (publication, *name)).fetchone()
    if row is None or row[0] is None:
        return stored
    return frozenset(row[0]) if version >= GENERATED_SINCE else stored & frozenset(row[0])


def _table(rows: list[tuple[Any, ...]]) -> TableCatalog | None:
    if not rows:
        return None
    described = [row for row in rows if row[2] is not None]
    return TableCatalog(
        oid=rows[0][0],
        replica_identity=rows[0][1],
        columns={row[2]: ColumnFacts(*row[3:9]) for row in described},
        primary_key=_in_order((row[9], row[2]) for row in described),
        identity_key=_in_order((row[10], row[2]) for row in described),
        partitioned=rows[0][11],
    )


def _in_order(places: Iterable[tuple[int | None, str]]) -> tuple[str, ...]:
    return tuple(name for place, name in sorted((p, n) for p, n in places if p is not None))
