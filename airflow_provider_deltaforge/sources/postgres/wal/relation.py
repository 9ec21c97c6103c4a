"""What a ``Relation`` message says of a table, and a ``Type`` message of a column's type."""

import struct
from dataclasses import dataclass
from typing import NamedTuple


class RelationColumn(NamedTuple):
    """One column as ``pgoutput`` describes it, in the order its values come in.

    Attributes:
        name: of the column.
        type_oid: its type; of a domain the domain's own.
        typmod: length, or precision and scale; -1 without.
        is_key: it belongs to the replica identity.
        type_schema: of a type that is not built in, as the log tells it; empty: ``pg_catalog``.
        type_name: the same type's name, or that of a domain's base; empty where nothing was told.
    """

    name: str
    type_oid: int
    typmod: int
    is_key: bool
    type_schema: str = ""
    type_name: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as it stands at a place in the log; generated columns are not in it.

    Attributes:
        oid: names the relation in row messages.
        schema: its schema, written out also for ``pg_catalog``.
        table: its name; of a partition its root's, where the publication says so.
        replica_identity: ``d`` default, ``n`` nothing, ``f`` full, ``i`` index.
        columns: what every tuple of it holds, in order.
        readable: False if the message could not be read behind the table's name.
    """

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]
    readable: bool = True


class TypeName(NamedTuple):
    """What a ``Type`` message says: the type with an oid is, or is a domain over, this one."""

    oid: int
    schema: str
    name: str


def parse_type(body: bytes) -> TypeName:
    """Read a ``Y`` message."""
    (oid,) = struct.unpack_from("!I", body, 1)
    schema, name, _ = body[5:].split(b"\0", 2)
    return TypeName(oid, schema.decode(), name.decode())


def unreadable(body: bytes) -> Relation:
    """Return what an ``R`` message that cannot be read says at least: which table it is."""
    (oid,) = struct.unpack_from("!I", body, 1)
    schema, table, _ = body[5:].split(b"\0", 2)
    name = schema.decode() or "pg_catalog", table.decode()
    return Relation(oid, *name, replica_identity="", columns=(), readable=False)
