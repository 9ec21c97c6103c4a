"""Table schemas, moved on by the statements that change them.

What a statement makes of a table is either known for sure or not at all: a clause, type or option
that is not understood leaves the table unknown, and somebody else has to say what it looks like.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from airflow_provider_deltaforge.errors import SchemaError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.alterations import ChangingTable, parenthesised
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import Token
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Act, Name, Statement

Key = tuple[str, str]
"""Database and table."""


def evolve(
    statement: Statement,
    db: str,
    known: Callable[[Key], TableSchema | None],
    *,
    mariadb: bool,
) -> dict[Key, TableSchema | None]:
    """Return every table that looks different, or may, behind a statement.

    Args:
        statement: understood.
        db: the database it ran in.
        known: a table's schema before it, or None.
        mariadb: whose catalog the result is to look like.

    Returns:
        None for a table that is gone, or that nobody can tell from the statement alone.
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
    body = list(act.body)
    while [token.raw for token in body[:1]] == ["("] and body[1:2] and body[1].upper == "LIKE":
        body = body[1:-1]
    if body and body[0].upper == "LIKE":
        source = _name(body[1:])
        like = now(source) if source is not None else None
        return replace(like, db=key[0], table=key[1]) if like is not None else None
    inside, behind = parenthesised(body)
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


def _name(tokens: Sequence[Token]) -> Name | None:
    if len(tokens) >= 3 and tokens[1].raw == ".":
        return tokens[0].text, tokens[2].text
    return (None, tokens[0].text) if tokens else None
