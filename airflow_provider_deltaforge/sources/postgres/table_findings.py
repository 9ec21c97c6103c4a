"""What the preflight says of tables: rights, keys, replica identity, and the publication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.contract import Finding
from airflow_provider_deltaforge.sources.postgres.tables import (
    COLUMN_LISTS_SINCE,
    CapturedTable,
    first_of,
    quote,
)
from airflow_provider_deltaforge.sources.shared.preflight import (
    NAMED_MAX,
    listed,
    shortened,
    tables_finding,
)

_PUBLICATION = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot,
       pg_has_role(pubowner, 'USAGE')
  FROM pg_publication WHERE pubname = %s
"""
_NARROWED = """
SELECT p.schemaname, p.tablename FROM pg_publication_tables p
  JOIN pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
 WHERE p.pubname = %s AND (p.rowfilter IS NOT NULL OR cardinality(p.attnames) < (
       SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
          AND NOT a.attisdropped AND a.attgenerated = ''))
 ORDER BY 1, 2
"""

# The snapshot locks its tables, for which the server asks for a right to the whole table.
_IN_PART = """
SELECT a.attrelid, coalesce(array_agg(a.attname::text ORDER BY a.attnum)
                            FILTER (WHERE NOT has_column_privilege(a.attrelid, a.attnum, 'SELECT')),
                            '{}')
  FROM pg_attribute a
 WHERE a.attrelid = ANY(%s) AND a.attnum > 0 AND NOT a.attisdropped
   AND NOT has_table_privilege(a.attrelid, 'SELECT')
 GROUP BY a.attrelid
"""


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication that exists.

    Attributes:
        complete: it publishes inserts, updates, deletes and truncates.
        via_root: a partition's rows come under its root.
        owned: the user may change it.
        narrowed: tables that it publishes only in part, some columns or some rows.
    """

    complete: bool
    via_root: bool
    owned: bool
    narrowed: tuple[str, ...] = ()


def publication_of(connection: Any, version: int, name: str) -> Publication | None:
    """Return what a publication is like; None when there is none of this name."""
    row = connection.execute(_PUBLICATION, (name,)).fetchone()
    if row is None:
        return None
    complete, via_root, owned = row
    narrowed = connection.execute(_NARROWED, (name,)) if version >= COLUMN_LISTS_SINCE else ()
    names = tuple(qualified_name(*row) for row in narrowed)
    return Publication(complete, via_root, owned, names)


def unreadable_columns(connection: Any, tables: Sequence[CapturedTable]) -> dict[str, list[str]]:
    """Return the columns that the user may not read, by table, of tables granted by column.

    They are none where every column was granted alone.
    """
    partly = {table.oid: table for table in tables if table.readable}
    rows = connection.execute(_IN_PART, (list(partly),)).fetchall()
    found = {partly[oid].full_name: columns for oid, columns in rows}
    return dict(sorted(found.items()))


def column_findings(
    hidden: Mapping[str, Sequence[str]], tables: Sequence[CapturedTable], user: str
) -> list[Finding]:
    """Check that no table is granted by column.

    Args:
        hidden: columns that the user may not read, by the full name of their table.
        tables: the captured ones.
        user: who reads.
    """
    if not hidden:
        return []
    by_name = {table.full_name: table for table in tables}
    shown = list(hidden.items())[:NAMED_MAX]
    more = " …" if len(hidden) > NAMED_MAX else ""
    lacks = ", ".join(f"{name} (lacks {_missing(columns)})" for name, columns in shown)
    names = ", ".join(quote(by_name[name].schema, by_name[name].table) for name, _ in shown)
    text = (
        f"{lacks}{more}: the user may read some columns only, and the snapshot needs whole "
        f"tables; GRANT SELECT ON {names} TO {quote(user)}"
    )
    columns = {name: list(each) for name, each in hidden.items()}
    return [Finding("column_privileges", "fail", text, {"columns": columns})]


def table_findings(tables: Sequence[CapturedTable], patterns: Sequence[str]) -> list[Finding]:
    """Check the tables that the patterns name; ``patterns`` are the document's, for the message."""
    captured = [t for t in tables if not t.unlogged]
    remedy = (
        "check the spelling, and name a partitioned table by its root: views, partitions, foreign, "
        "unlogged and temporary tables have no log of their own"
    )
    found = [tables_finding(len(captured), patterns, remedy)]
    found += _listed(
        "unlogged", [t for t in tables if t.unlogged], "warn",
        "unlogged tables leave nothing in the log and are not captured; ALTER TABLE … SET LOGGED",
    )  # fmt: skip
    found += _rights(captured)
    found += identity_findings(captured)
    found += _listed(
        "primary_key", [t for t in captured if not t.primary_key], "warn",
        "no primary key: their events have no key; without a unique index over NOT NULL columns "
        "their snapshot is one chunk",
    )  # fmt: skip
    found += _listed(
        "generated_key", [t for t in captured if t.torn_key], "high_risk",
        "their key has a generated column, which servers before 18 leave out of the log: their "
        "events have no key, and nothing can tell which row a delete is of; ALTER TABLE … REPLICA "
        "IDENTITY USING INDEX, with a unique index over NOT NULL columns that are not generated",
    )  # fmt: skip
    return found


def _rights(captured: Sequence[CapturedTable]) -> list[Finding]:
    hidden = [t for t in captured if not t.readable]
    schemas = ", ".join(sorted({quote(t.schema) for t in hidden}))
    names = ", ".join(quote(t.schema, t.table) for t in hidden[:NAMED_MAX])
    grants = f"GRANT USAGE ON SCHEMA {schemas} TO the user, GRANT SELECT ON {names} TO the user"
    found = _listed("privileges", hidden, "fail", f"the user may not read them; {grants}")
    found += _listed(
        "row_security", [t for t in captured if t.filtered], "fail",
        "row-level security hides rows from the user, and the snapshot refuses to copy a part; "
        "ALTER ROLE … BYPASSRLS",
    )  # fmt: skip
    return found


def identity_findings(captured: Sequence[CapturedTable]) -> list[Finding]:
    """Check what the log says of rows before a change."""
    none = [t for t in captured if t.bare]
    partial = [t for t in captured if not t.bare and not t.whole_before]
    strays = [command for t in captured for command in t.strays]
    found = _listed(
        "replica_identity", none, "high_risk",
        "no replica identity that the server can use: none at all, a DEFERRABLE primary key, an "
        "index that was dropped, FULL with a column list or with generated columns that are not "
        "published, an identity that the publication leaves columns out of, or a row filter on "
        "other columns. While they are published, the server refuses every UPDATE and DELETE of "
        "them; first "
        f"{first_of([command for t in none for command in t.bare])}, or add a primary key",
    )  # fmt: skip
    found += _listed(
        "partition_identity", [t for t in captured if t.strays], "warn",
        "partitions have another replica identity than their table. Theirs decides what the log "
        "holds; ALTER TABLE does not pass it on, and new partitions begin with DEFAULT; "
        f"{first_of(strays)}",
    )  # fmt: skip
    barred = [t.full_name for t in partial if t.full_refused]
    remedy = "; ALTER TABLE … REPLICA IDENTITY FULL logs whole rows"
    if barred:
        remedy += (
            f", but leave {shortened(barred)} as they are: with a column list, or generated "
            "columns that are not published, the server would then refuse every UPDATE and DELETE"
        )
    found += _listed(
        "before_image", partial, "warn",
        "the log holds only the key of rows before a change, and large values that a change left "
        f"alone are missing from it{remedy}",
    )  # fmt: skip
    return found


def publication_findings(
    name: str,
    found: Publication | None,
    tables: Sequence[CapturedTable],
    missing: Sequence[str],
    sql: str | None,
    *,
    may_create: bool,
) -> list[Finding]:
    """Check the publication.

    Args:
        name: of the publication.
        found: what it is like; None when it does not exist.
        tables: that are to be captured.
        missing: full names of those that are not in it.
        sql: what creates it, or puts the missing tables into it; None when nothing is missing.
        may_create: the document lets us do that, and so does the server.
    """
    if sql is not None and not may_create:
        what = f"does not publish {', '.join(missing[:NAMED_MAX])}" if found else "does not exist"
        text = (
            f"publication {name!r} {what}, and the user may not change that (it takes the tables' "
            f"owner with CREATE on the database, and 'create' in the document); run: {sql}"
        )
        return [Finding("publication", "fail", text, {"missing": list(missing), "sql": sql})]
    if found is None:
        text = f"publication {name!r} is created at the first start"
        return [Finding("publication", "ok", text, {"sql": sql})]
    wrong = []
    if not found.complete:
        text = (
            f"publication {name!r} leaves out some kinds of change, and sinks never learn of them; "
            f"ALTER PUBLICATION {quote(name)} SET (publish = 'insert, update, delete, truncate')"
        )
        wrong.append(Finding("publication_kinds", "warn", text))
    partitioned = [t.full_name for t in tables if t.partitioned]
    if partitioned and not found.via_root:
        text = (
            f"{', '.join(partitioned[:NAMED_MAX])}: publication {name!r} sends their rows under "
            "the names of partitions, which nobody captures; ALTER PUBLICATION "
            f"{quote(name)} SET (publish_via_partition_root = true)"
        )
        wrong.append(Finding("publication_partitions", "fail", text, {"tables": partitioned}))
    narrowed = [t.full_name for t in tables if t.full_name in found.narrowed]
    if narrowed:
        text = (
            f"{', '.join(narrowed[:NAMED_MAX])}: publication {name!r} publishes some columns or "
            "rows only; the snapshot leaves out the same columns, but copies every row"
        )
        wrong.append(Finding("publication_narrowed", "warn", text, {"tables": narrowed}))
    text = f"publication {name!r} is there"
    if missing:
        text += f"; {len(missing)} tables are put into it"
    return [Finding("publication", "ok", text, {"missing": list(missing)}), *wrong]


def _missing(columns: Sequence[str]) -> str:
    return shortened(columns, ", …") or "the table's own grant"


def _listed(check: str, tables: Sequence[CapturedTable], verdict: str, text: str) -> list[Finding]:
    return listed(check, [table.full_name for table in tables], text, verdict)
