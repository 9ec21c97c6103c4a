"""Types that were dropped before their values were read: what the log itself still says of them.

The log names the type of each column that has no built-in one; for a domain it names the type
below it. That is enough for most: enums, ranges and composites are text, and a domain is what it
was made of. It does not tell an array from a type whose name begins like an array's, nor how long
a domain's ``bit`` is. Those are not guessed.
"""

from collections.abc import Iterable
from typing import Any

from airflow_provider_deltaforge.sources.postgres.catalog import TypeFacts, Types
from airflow_provider_deltaforge.sources.postgres.wal.relation import RelationColumn

_BUILT_IN = (
    "SELECT oid::int FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typname = %s"
)
_ARRAY = "_"
_DOUBTFUL = frozenset({"bit", "hstore"})


def unknown_columns(connection: Any, types: Types, columns: Iterable[RelationColumn]) -> list[str]:
    """Return the names of the columns whose type neither catalog nor log can tell.

    Args:
        connection: to the database.
        types: has asked the catalog for all of them, and takes in what the log knows.
        columns: as the log describes them.
    """
    return [
        column.name
        for column in columns
        if types.facts(column.type_oid) is None and not _told(connection, types, column)
    ]


def _told(connection: Any, types: Types, column: RelationColumn) -> bool:
    schema, name = column.type_schema, column.type_name
    if not name or name in _DOUBTFUL:
        return False
    base = None
    if not schema:
        row = connection.execute(_BUILT_IN, (name,)).fetchone()
        if row is None:
            return False
        (base,) = row
        types.learn(connection, [(base, -1)])
    elif name.startswith(_ARRAY):
        return False
    facts = TypeFacts(
        name=name,
        described=f"{schema}.{name}" if schema else name,
        base=base,
        typmod=-1,
        element=None,
        delimiter=ord(","),
        printer="",
    )
    types.tell(column.type_oid, column.typmod, facts)
    return True
