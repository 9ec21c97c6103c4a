"""Table schemas after the statements that change them.

What a statement makes of a table is either known for sure or not at all: a clause, type or option
that is not understood leaves the table unknown, and the catalog has to describe it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.changing_table import (
    ChangingTable,
    parenthesised,
)
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import Token
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Act, Key, Name, Statement


def evolve(
    statement: Statement,
    db: str,
    known: Callable[[Key], TableSchema | None],
    *,
    mariadb: bool,
) -> dict[Key, TableSchema | None]:
    """Return every table that looks different, or may, after a statement.

    Args:
        statement: what ``understand`` returned.
        db: the database it ran in.
        known: a table's schema before it, or None.
        mariadb: whose catalog the result is to look like.

    Returns:
        None for a table that is gone, or that the statement alone does not describe.
    """
    changed: dict[Key, TableSchema | None] = {}

    def now(name: Name) -> TableSchema | None:
        key = (name[0] or db, name[1])
        return changed[key] if key in changed else known(key)

    for act in statement.acts:
        key = (act.table[0] or db, act.table[1])
        if act.what == statements.CREATE:
            changed[key] = _created(act, key, now, mariadb=mariadb)
        elif act.what == statements.DROP:
            changed[key] = None
        elif act.what == statements.RENAME and act.other is not None:
            moved = now(act.table)
            other = (act.other[0] or db, act.other[1])
            changed[key] = None
            changed[other] = replace(moved, db=other[0], table=other[1]) if moved else None
        elif act.what == statements.ALTER or (
            act.what == statements.INDEX and act.body and now(act.table)
        ):
            former = now(act.table)
            after = _altered(act, former, mariadb=mariadb) if former is not None else None
            if after != former or former is None:
                changed[key] = after
    return changed


def _created(
    act: Act, key: Key, now: Callable[[Name], TableSchema | None], *, mariadb: bool
) -> TableSchema | None:
    former = now(act.table)
    if act.tolerant:
        # Logged although a table of that name was there, which stays as it is.
        return former
    source = statements.copied_table(act)
    if source is not None:
        like = now(source)
        return replace(like, db=key[0], table=key[1]) if like is not None else None
    inside, behind = parenthesised(act.body)
    # A history that columns are named for is left to the catalog.
    if not inside or _has(behind, "SELECT") or _has(inside, "SYSTEM", "VERSIONING"):
        return None
    table = ChangingTable(TableSchema(key[0], None, key[1], ()), mariadb=mariadb)
    try:
        for clause in sorted(statements.clauses(inside), key=table.is_key):
            table.define(clause)
        table.default_charset(behind)
        schema = table.schema()
        versioned = _has(behind, "WITH", "SYSTEM", "VERSIONING")
        return replace(schema, system_versioned=True) if versioned else schema
    except (SchemaError, IndexError):
        return None


def _altered(act: Act, former: TableSchema, *, mariadb: bool) -> TableSchema | None:
    clauses = statements.clauses(act.body)
    if clauses and [t.upper for t in clauses[0][1:2]] == ["PARTITION"]:
        return former  # Names of partitions may follow, after commas.
    table = ChangingTable(former, mariadb=mariadb)
    try:
        for clause in clauses:
            table.alter(clause)
        return table.schema()
    except (SchemaError, IndexError):
        return None


def _has(tokens: Sequence[Token], *words: str) -> bool:
    """Return whether these words stand somewhere, one behind the other."""
    upper = [token.upper for token in tokens]
    return any(tuple(upper[at : at + len(words)]) == words for at in range(len(upper)))
