"""The rare messages of ``pgoutput``: relations, types, truncated tables, logical messages."""

import base64
import json
import logging
import struct
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from airflow_provider_deltaforge.sources.postgres.positions import lsn_text

log = logging.getLogger(__name__)

MESSAGES_VERSION = 140000
"""Servers from this version on send logical messages with the log."""

_OWN = "deltaforge."
APPEARED = f"{_OWN}table_appeared"
"""Prefix of the message that says: a table was added to a publication, its rows were there."""
HEARTBEAT = f"{_OWN}heartbeat"


class RelationColumn(NamedTuple):
    """One column as ``pgoutput`` describes it, in the order its values come in.

    Attributes:
        name: of the column.
        type_oid: its type; of a domain the domain's own.
        typmod: length, or precision and scale; -1 without.
        is_key: it belongs to the replica identity.
        type_schema: of a type that is not built in, as the log has it; empty: ``pg_catalog``.
        type_name: the same type's name, or that of a domain's base; empty where the log has none.
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


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one statement, by the oids of their relations."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool

    @property
    def ddl(self) -> bytes:
        """What an event says of it, as JSON text."""
        statement = {
            "sql": "TRUNCATE",
            "cascade": self.cascade,
            "restart_identity": self.restart_identity,
        }
        return orjson.dumps(statement)


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What was written with ``pg_logical_emit_message``.

    Attributes:
        transactional: it belongs to the transaction around it.
        lsn: the end of its record.
        prefix: names the reader it is for.
        content: anything; text is in the database's encoding.
        encoding: the name that Python has for that encoding; None if it has none.
    """

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    encoding: str | None = "utf-8"

    @property
    def is_own(self) -> bool:
        """Whether it is a note of ours, and no event."""
        return self.prefix.startswith(_OWN)

    @property
    def json(self) -> bytes | None:
        """The content as JSON text in UTF-8, on one line; None if it is no JSON."""
        for encoding in (self.encoding, "utf-8"):
            try:
                text = self.content.decode(encoding or "utf-8").encode()
                orjson.loads(text)
            except ValueError:
                continue
            # Between its parts only; in its strings they are escaped.
            return text.strip().replace(b"\r", b" ").replace(b"\n", b" ")
        return None

    @property
    def image(self) -> bytes:
        """The content as JSON text: itself if it is JSON, else in base64."""
        return self.json or b'{"_base64":"%s"}' % base64.b64encode(self.content)


def parse_relation(body: bytes) -> Relation:
    """Read an ``R`` message."""
    (oid,) = struct.unpack_from("!I", body, 1)
    schema, at = _text(body, 5)
    table, at = _text(body, at)
    identity, count = struct.unpack_from("!cH", body, at)
    at += 3
    columns = []
    for _ in range(count):
        flags = body[at]
        name, at = _text(body, at + 1)
        type_oid, typmod = struct.unpack_from("!Ii", body, at)
        at += 8
        columns.append(RelationColumn(name, type_oid, typmod, bool(flags & 1)))
    return Relation(oid, schema or "pg_catalog", table, identity.decode(), tuple(columns))


def parse_truncate(body: bytes) -> Truncate:
    """Read a ``T`` message."""
    count, options = struct.unpack_from("!IB", body, 1)
    oids = struct.unpack_from(f"!{count}I", body, 6)
    return Truncate(oids, bool(options & 1), bool(options & 2))


def parse_message(body: bytes, encoding: str | None) -> LogicalMessage:
    """Read an ``M`` message of a database with an encoding."""
    flags, lsn = struct.unpack_from("!BQ", body, 1)
    prefix, at = _text(body, 10)
    (size,) = struct.unpack_from("!I", body, at)
    content = body[at + 4 : at + 4 + size]
    return LogicalMessage(bool(flags & 1), lsn, prefix, content, encoding)


def appeared_message(publication: str, schema: str, table: str) -> str:
    """Return the content of the message that says a table was added to a publication."""
    # In ASCII: every database has those characters, and the log does not convert a content.
    return json.dumps({"publication": publication, "schema": schema, "table": table})


def appeared_table(message: LogicalMessage, publication: str) -> tuple[str, str] | None:
    """Return schema and name of the table that a message of ours names; None for another's."""
    if message.prefix != APPEARED:
        return None
    # Every role may write messages, with any prefix.
    content = orjson.loads(message.json or b"null")
    named = content if isinstance(content, dict) else {}
    schema, table = named.get("schema"), named.get("table")
    if not (isinstance(schema, str) and isinstance(table, str)):
        log.warning(
            "the logical message at %s has the prefix %s, but is not one of ours; it is left out",
            lsn_text(message.lsn),
            message.prefix,
        )
        return None
    return (schema, table) if named.get("publication") == publication else None


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(b"\0", at)
    return body[at:end].decode("utf-8"), end + 1


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
