"""The messages of ``pgoutput`` that are rare: relations, truncated tables, logical messages."""

import base64
import struct
from dataclasses import dataclass

import orjson

from airflow_provider_deltaforge.sources.postgres.wal.relation import Relation, RelationColumn

MESSAGES_VERSION = 140000
"""Servers from this version on send logical messages with the log."""

_OWN = "deltaforge."
APPEARED = f"{_OWN}table_appeared"
"""Prefix of the message that says: a table was added to a publication, its rows were there."""
HEARTBEAT = f"{_OWN}heartbeat"


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables emptied by one statement, by the oids of their relations."""

    oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool

    @property
    def ddl(self) -> bytes:
        """What an event says of it, as JSON text."""
        told = {
            "sql": "TRUNCATE",
            "cascade": self.cascade,
            "restart_identity": self.restart_identity,
        }
        return orjson.dumps(told)


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """What somebody wrote with ``pg_logical_emit_message``.

    Attributes:
        transactional: it belongs to the transaction around it.
        lsn: the end of its record.
        prefix: says whom it is for.
        content: anything.
    """

    transactional: bool
    lsn: int
    prefix: str
    content: bytes

    @property
    def is_own(self) -> bool:
        """Whether it is a note of ours, and no event."""
        return self.prefix.startswith(_OWN)

    @property
    def image(self) -> bytes:
        """The content as JSON text: itself if it is JSON, else in base64."""
        try:
            orjson.loads(self.content)
        except orjson.JSONDecodeError:
            return b'{"_base64":"%s"}' % base64.b64encode(self.content)
        return self.content.strip()


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


def parse_message(body: bytes) -> LogicalMessage:
    """Read an ``M`` message."""
    flags, lsn = struct.unpack_from("!BQ", body, 1)
    prefix, at = _text(body, 10)
    (size,) = struct.unpack_from("!I", body, at)
    return LogicalMessage(bool(flags & 1), lsn, prefix, body[at + 4 : at + 4 + size])


def appeared_message(publication: str, schema: str, table: str) -> str:
    """Return the content of the message that says a table was added to a publication."""
    told = {"publication": publication, "schema": schema, "table": table}
    return orjson.dumps(told).decode()


def appeared_table(message: LogicalMessage, publication: str) -> tuple[str, str] | None:
    """Return schema and name of the table a message of ours tells of; None of another's."""
    if message.prefix != APPEARED:
        return None
    told = orjson.loads(message.content)
    if told["publication"] != publication:
        return None
    return told["schema"], told["table"]


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.index(b"\0", at)
    return body[at:end].decode("utf-8"), end + 1
