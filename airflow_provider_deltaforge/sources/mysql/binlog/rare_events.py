"""The log's rare events: format, schema changes, XA, compressed ones, and what must not pass."""

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import SchemaChange
from airflow_provider_deltaforge.sources.mysql.binlog.open_segment import Catalog, OpenSegment
from airflow_provider_deltaforge.sources.mysql.binlog.undone_rows import (
    note_savepoint,
    undo_rows,
)
from airflow_provider_deltaforge.sources.mysql.charsets import decode_text
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode

_THREAD_SPECIFIC, _IGNORABLE = 0x04, 0x80
_GTIDS = {f.GTID, f.ANONYMOUS_GTID, f.GTID_TAGGED, f.MARIADB_GTID}
_DUMMY = "# Dummy event replacing event type"
"""What MariaDB sends in place of an event that it does not send us, cut off if that was short."""
_PREPARED = 0x40
_GROUP_COMMIT, _START_ALTER, _ROLLBACK_ALTER = 2, 2, 8
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 4, 1 << 20
# Status variables of a statement: the client's collation, and how long those before it are.
_CLIENT = 4
_SIZES = {0: 4, 1: 8, 3: 4}
_TEXTS = {5, 6}
_QUERY_HEAD, _LOAD_HEAD = 13, 26
"""Bytes in front of a statement's status variables; LOAD DATA says more about itself."""
# Compressed rows of MariaDB, and what a transaction payload says of its compression.
_ROWS_V1, _ROWS_V2 = range(166, 169), range(169, 172)
_ZSTD, _UNCOMPRESSED = 0, 255
_SIZE_MAX = 1 << 30


def handle(segment: OpenSegment, catalog: Catalog, event: bytes, index: int) -> bool:
    """Process one event; return whether the scan goes on after it.

    Raises:
        FatalError: passing the event would lose or falsify rows.
    """
    kind = event[4]
    if kind == f.FORMAT:
        # The byte in front of the event's own checksum names the algorithm of those that follow.
        segment.checksum = 4 if event[-1] == 1 else 0
        if segment.scanned.state[f.IN_TX]:
            segment.drop_open_tx()
            return False
        return True
    if kind in _GTIDS and segment.scanned.state[f.IN_TX]:
        _end_former(segment, event)
        return False
    if kind in (f.QUERY, f.EXECUTE_LOAD):
        _query(segment, catalog, event)
    elif kind == f.GTID_TAGGED:
        _tagged(segment, event, index)
    elif kind == f.MARIADB_GTID:
        _mariadb_xa(segment, event, index)
    elif kind == f.XA_PREPARE:
        _prepare(segment, event)
    else:
        _refuse(segment, event)
    return True


def _refuse(segment: OpenSegment, event: bytes) -> None:
    """Raise for an event that may not be passed; do nothing for one marked ignorable."""
    kind = event[4]
    if kind == f.INCIDENT:
        raise FatalError(
            f"{segment.place}: the server reports that events are missing from its log "
            "(incident); take a new snapshot"
        )
    if not int.from_bytes(event[17:19], "little") & _IGNORABLE:
        raise FatalError(
            f"{segment.place}: event type {kind} is unknown and may not be ignored; report it, "
            "with the server's version"
        )


def server_of(event: bytes) -> int:
    """Return the id of the server that wrote an event."""
    return int.from_bytes(event[5:9], "little")


def _begin(segment: OpenSegment, event: bytes, index: int, name: tuple[int, int, int]) -> None:
    """Begin a transaction named (origin, number, commit time in ms)."""
    scanned = segment.scanned
    start = int(scanned.state[f.POS]) - int.from_bytes(event[9:13], "little")
    f.begin_tx(scanned.state, scanned.transactions, *name, server_of(event), start, index)


def _end_former(segment: OpenSegment, event: bytes) -> None:
    """End a transaction whose end was not understood where the next begins."""
    if segment.rows_of_open_tx():
        raise FatalError(
            f"{segment.place}: a transaction begins behind rows of another whose end is not known, "
            "so they may have been rolled back; report it, with the server's version, and take a "
            "new snapshot"
        )
    state = segment.scanned.state
    state[f.POS] -= int.from_bytes(event[9:13], "little")
    f.end_tx(state, segment.scanned.transactions)


def _tagged(segment: OpenSegment, event: bytes, index: int) -> None:
    gtid = parse_tagged_gtid(event)
    # The scanner never looks for a tagged origin: its key is one that no server uses.
    origin = segment.origins.ordinal(gtid.origin, b"\xff" * 16)
    seconds = int.from_bytes(event[:4], "little")
    time_ms = seconds * 1000 if gtid.time_ms is None else gtid.time_ms
    _begin(segment, event, index, (origin, gtid.number, time_ms))


def _mariadb_xa(segment: OpenSegment, event: bytes, index: int) -> None:
    body = event[f.HEADER :]
    parts = (int.from_bytes(part, "little") for part in (body[8:12], event[5:9]))
    origin = segment.origins.ordinal("-".join(map(str, parts)), body[8:12] + event[5:9])
    time_ms = int.from_bytes(event[:4], "little") * 1000
    _begin(segment, event, index, (origin, int.from_bytes(body[:8], "little"), time_ms))
    if not body[12] & _PREPARED:
        segment.scanned.state[f.STANDALONE] = 1


def _prepare(segment: OpenSegment, event: bytes) -> None:
    one_phase = event[f.HEADER]
    if not one_phase and segment.rows_of_open_tx():
        raise FatalError(
            f"{segment.place}: an XA transaction was prepared with rows of captured tables, "
            "which may yet be rolled back; commit it or roll it back, stop using XA on these "
            "tables, and take a new snapshot"
        )
    if segment.scanned.state[f.IN_TX]:
        f.end_tx(segment.scanned.state, segment.scanned.transactions)


def _query(segment: OpenSegment, catalog: Catalog, event: bytes) -> None:
    body = event[f.HEADER :]
    status = _QUERY_HEAD if event[4] == f.QUERY else _LOAD_HEAD
    names = status + int.from_bytes(body[11:13], "little")
    db = body[names : names + body[8]].decode("utf-8", "replace")
    sql = _statement(body[names + body[8] + 1 :], body[status:names], segment.info.charsets)
    if segment.info.mariadb and sql and _DUMMY.startswith(sql.rstrip()[: len(_DUMMY)]):
        return
    state = segment.scanned.state
    inside = bool(state[f.BEGUN]) or (
        segment.info.mariadb and not state[f.STANDALONE] and bool(state[f.IN_TX])
    )
    mode = _sql_mode(body[status:names])
    statement = statements.understand(sql, mariadb=segment.info.mariadb, mode=mode)
    if segment.info.lower_names:
        statement, db = statements.lowered(statement), db.lower()
    if statement.kind == statements.CONTROL:
        if _control(segment, catalog, statement.verb, sql, mode):
            return
        inside = False
    elif statement.kind in (statements.DML, statements.OTHER):
        catalog.judge(sql, db, segment.place, session=_session(event), mode=mode)
    elif statement.kind in (statements.DDL, statements.TRUNCATE) and not _is_undone(segment):
        if not state[f.IN_TX]:
            seconds = int.from_bytes(event[:4], "little")
            _begin(segment, event, 0, (-1, 0, seconds * 1000))
        segment.plans.forget()
        if _may_be_temporary(event, statement):
            statement = catalog.without_temporary(statement, db, _session(event))
        _change(segment, catalog, statement, db, sql)
    if state[f.IN_TX] and not inside:
        f.end_tx(state, segment.scanned.transactions)


def _session(event: bytes) -> int:
    """Return the number of the session that ran a QUERY event's statement."""
    return int.from_bytes(event[f.HEADER : f.HEADER + 4], "little")


def _may_be_temporary(event: bytes, statement: statements.Statement) -> bool:
    """Return whether a schema change may be one of temporary tables.

    Servers mark such statements, but MariaDB does not mark RENAME TABLE.
    """
    marked = int.from_bytes(event[17:19], "little") & _THREAD_SPECIFIC
    return bool(marked) or statement.verb == "RENAME"


def _is_undone(segment: OpenSegment) -> bool:
    """Return whether the statement only begins, or failed.

    MariaDB may log an ALTER twice: when it begins, and when it ends (``binlog_alter_two_phase``).
    """
    state = segment.scanned.state
    if not (segment.info.mariadb and state[f.IN_TX]):
        return False
    gtid = segment.events.event(int(state[f.TX_EVENT]))
    flags = f.HEADER + 13 + (8 if gtid[f.HEADER + 12] & _GROUP_COMMIT else 0)
    more = gtid[flags] if gtid[4] == f.MARIADB_GTID and flags < len(gtid) else 0
    return bool(more & (_START_ALTER | _ROLLBACK_ALTER))


def _statement(text: bytes, status: bytes, charsets: Mapping[int, str]) -> str:
    """Return a statement's text, which servers log in the character set of its client."""
    if not text.isascii():
        collation = _client_collation(status)
        charset = charsets.get(collation, "") if collation is not None else ""
        if charset and not charset.startswith("utf8"):
            return decode_text(text, charset)
    return text.decode("utf-8", "replace")


def _client_collation(status: bytes) -> int | None:
    """Return which collation a statement's client had; its character set is the client's."""
    at = 0
    while at < len(status):
        code = status[at]
        if code == _CLIENT:
            return int.from_bytes(status[at + 1 : at + 3], "little")
        if code in _TEXTS:
            at += 2 + status[at + 1]
        elif code in _SIZES:
            at += 1 + _SIZES[code]
        else:
            return None
    return None


def _sql_mode(status: bytes) -> SqlMode:
    """Return how the statement's session reads quotes.

    Its status variables begin with the flags (code 0, four bytes) and the SQL mode (code 1).
    """
    if status[:1] == b"\0":
        status = status[5:]
    bits = int.from_bytes(status[1:9], "little") if status[:1] == b"\1" else 0
    return SqlMode(bool(bits & _ANSI_QUOTES), not bits & _NO_BACKSLASH_ESCAPES)


def _control(segment: OpenSegment, catalog: Catalog, verb: str, sql: str, mode: SqlMode) -> bool:
    """Process a statement about transactions; return whether the open one goes on."""
    if verb.startswith("SAVEPOINT"):
        note_savepoint(segment, sql, mode)
    if verb.startswith("ROLLBACK"):
        return undo_rows(segment, catalog, sql, mode)
    return verb not in ("XA COMMIT", "XA ROLLBACK", "COMMIT")


def _change(
    segment: OpenSegment,
    catalog: Catalog,
    statement: statements.Statement,
    db: str,
    sql: str,
) -> None:
    """Record a schema change if it concerns a captured table or database."""
    schemas = catalog.changed(statement, db, sql)
    tables = [(name or db, table) for name, table in statement.tables]
    captured = [(name, table) for name, table in tables if catalog.captures(name, table)]
    if not captured and not any(catalog.touches(name) for name in statement.databases):
        return
    tx = int(segment.scanned.state[f.TX_COUNT]) - 1
    record: dict[str, Any] = {"sql": sql, "database": db, "tables": _full_names(tables)}
    moved = statements.unlogged_rows(statement, db, catalog.captures)
    if moved.copies:
        record["copies"] = _full_names(moved.copies)
    if moved.lost:
        record["lost"] = _full_names(moved.lost)
    if moved.renamed:
        former, names = _full_names(moved.renamed), _full_names(moved.renamed.values())
        record["renamed"] = dict(zip(former, names, strict=True))
    text = orjson.dumps(record)
    before = segment.scanned.rows_count
    if statement.kind == statements.TRUNCATE:
        name, table = captured[0]
        segment.changes.append(SchemaChange(tx, before, "t", name, table, text))
    else:
        where = db or (captured[0][0] if captured else statement.databases[0])
        segment.changes.append(SchemaChange(tx, before, "ddl", where, "_ddl", text, schemas))


def _full_names(tables: Iterable[tuple[str, str]]) -> list[str]:
    return [qualified_name(db, table) for db, table in tables]


@dataclass(frozen=True)
class TaggedGtid:
    """A transaction's name: ``origin`` is ``uuid:tag``; its commit time in ms, None if absent."""

    origin: str
    number: int
    time_ms: int | None


def parse_tagged_gtid(event: bytes) -> TaggedGtid:
    """Read a GTID_TAGGED_LOG_EVENT: numbered fields of variable-length integers."""
    at = f.HEADER
    _, at = _unsigned(event, at)  # version
    _, at = _unsigned(event, at)  # size
    _, at = _unsigned(event, at)  # last field that may not be ignored
    uuid, tag, number = b"", "", 0
    times: dict[int, int] = {}
    while at < len(event):
        field, at = _unsigned(event, at)
        if field == 1:
            parts = []
            for _ in range(16):
                part, at = _unsigned(event, at)
                parts.append(part)
            uuid = bytes(parts)
        elif field == 3:
            length, at = _unsigned(event, at)
            tag = event[at : at + length].decode()
            at += length
        elif field == 2:
            number, at = _signed(event, at)
        elif field in (4, 5):
            _, at = _signed(event, at)
        else:
            times[field], at = _unsigned(event, at)
    micros = times.get(7, times.get(6))
    origin = f"{UUID(bytes=uuid)}:{tag}" if tag else str(UUID(bytes=uuid))
    return TaggedGtid(origin, number, micros // 1000 if micros is not None else None)


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return (integer, offset behind it); the first byte's trailing ones count further bytes."""
    first = data[at]
    more = 0
    while more < 8 and first >> more & 1:
        more += 1
    if more == 8:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    value = int.from_bytes(data[at : at + 1 + more], "little") >> (more + 1)
    return value, at + 1 + more


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """Return the same for a signed integer, whose lowest bit is the sign."""
    value, at = _unsigned(data, at)
    return (value >> 1) ^ -(value & 1), at


def payload_events(event: bytes) -> list[bytes]:
    """Return the events inside a transaction payload event, without checksums.

    All of them end where it ends: they have no place of their own in the log, and a segment may be
    cut between them.

    Raises:
        FatalError: an unknown compression, or a damaged payload.
    """
    import zstandard

    at, fields = f.HEADER, {}
    while at < len(event):
        kind, at = _number(event, at)
        if kind == 0:
            break
        length, at = _number(event, at)
        fields[kind] = _number(event, at)[0]
        at += length
    body = event[at:]
    if fields.get(2, _UNCOMPRESSED) == _ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
        body = reader.read(fields.get(3, _SIZE_MAX))
    elif fields.get(2) != _UNCOMPRESSED:
        raise FatalError(
            f"a transaction payload has compression {fields.get(2)}, which is unknown; set "
            "binlog_transaction_compression=OFF and snapshot the tables again"
        )
    events = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at + 9 : at + 13], "little")
        if size < f.HEADER:
            raise FatalError("a transaction payload is damaged; snapshot the tables again")
        events.append(body[at : at + 13] + event[13:17] + body[at + 17 : at + size])
        at += size
    return events


def mariadb_event(event: bytes) -> bytes:
    """Return a compressed MariaDB event as the plain one it stands for."""
    kind = event[4]
    if kind == f.MARIADB_QUERY_COMPRESSED:
        status = int.from_bytes(event[f.HEADER + 11 : f.HEADER + 13], "little")
        at = f.HEADER + 13 + status + event[f.HEADER + 8] + 1
        plain = 2
    else:
        at = f.HEADER + 8
        if kind in _ROWS_V2:
            at += int.from_bytes(event[at : at + 2], "little")
        columns, at = _number(event, at)
        bitmaps = 2 if kind in (_ROWS_V1[1], _ROWS_V2[1]) else 1
        at += bitmaps * ((columns + 7) // 8)
        plain = 23 + kind - _ROWS_V1[0] if kind in _ROWS_V1 else 30 + kind - _ROWS_V2[0]
    head = event[at]
    if head & 0x70:
        raise FatalError(
            "a compressed event uses an unknown method; set log_bin_compress=OFF and snapshot "
            "the tables again"
        )
    body = zlib.decompress(event[at + 1 + (head & 7) :])
    return event[:4] + bytes([plain]) + event[5:at] + body


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return (length-encoded integer, offset behind it)."""
    first = data[at]
    size = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not size:
        return first, at + 1
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size
