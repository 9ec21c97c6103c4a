"""What a ``Relation`` message says of a table."""

from dataclasses import dataclass
from typing import NamedTuple


class RelationColumn(NamedTuple):
    """One column as ``pgoutput`` describes it, in the order its values come in.

    Attributes:
        name: of the column.
        type_oid: its type; of a domain the domain's own.
        typmod: length, or precision and scale; -1 without.
        is_key: it belongs to the replica identity.
    """

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it stands at a place in the log; generated columns are not in it.

    Attributes:
        oid: names the relation in row messages.
        schema: its schema, written out also for ``pg_catalog``.
        table: its name; of a partition its root's, where the publication says so.
        replica_identity: ``d`` default, ``n`` nothing, ``f`` full, ``i`` index.
        columns: what every tuple of it holds, in order.
    """

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]
