"""Rows that come into a captured table, or leave it, without an event for each of them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.schema_evolution import Key
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Act, Statement


@dataclass(frozen=True)
class Unlogged:
    """What a statement did that no row event says.

    Attributes:
        copies: captured tables that hold rows which never came through the log.
        lost: captured tables of which rows went away unsaid.
    """

    copies: tuple[Key, ...] = ()
    lost: tuple[Key, ...] = ()


def unlogged(statement: Statement, db: str, captures: Callable[[str, str], bool]) -> Unlogged:
    """Return what a statement did to captured tables without row events.

    A table renamed into the captured names is copied, with two exceptions. What gh-ost and pt-osc
    swap in holds the rows of the table that leaves, so its consumers have them already. And a
    captured table that takes a name nobody left in the same statement has its rows delivered,
    under its former name.

    Args:
        statement: understood.
        db: the database it ran in.
        captures: whether rows of a table are delivered.
    """

    def key(name: statements.Name) -> Key:
        return name[0] or db, name[1]

    renames = _net([(key(act.table), key(act.other)) for act in _renames(statement) if act.other])
    copies = [
        new
        for old, new in renames.items()
        if captures(*new)
        and not (captures(*old) and new not in renames)
        and not (new in renames and _is_tools_swap(old[1], new[1], renames[new][1]))
    ]
    copies += [key(act.table) for act in statement.acts if act.gains]
    lost = [key(act.table) for act in statement.acts if act.loses]
    return Unlogged(
        tuple(dict.fromkeys(name for name in copies if captures(*name))),
        tuple(dict.fromkeys(name for name in lost if captures(*name))),
    )


def _net(steps: Sequence[tuple[Key, Key]]) -> dict[Key, Key]:
    """Return which name each table has in the end, by its former name.

    A name that a table only passed through on its way, as in a swap, is none of them.
    """
    former: dict[Key, Key] = {}
    for old, new in steps:
        former[new] = former.pop(old, old)
    return {was: now for now, was in former.items() if now != was}


def _renames(statement: Statement) -> list[Act]:
    return [act for act in statement.acts if act.what == statements.RENAME]


def _is_tools_swap(ghost: str, table: str, old: str) -> bool:
    """Say whether these are the names gh-ost or pt-online-schema-change give."""
    name = re.escape(table)
    return bool(
        re.fullmatch(rf"_+{name}_(gho|new)", ghost)
        and re.fullmatch(rf"_+{name}_(\d+_)?(del|old)", old)
    )
