"""The rare events of the log: rotation, format, schema changes, XA, and what must not be passed."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import TableDecodePlan
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import SchemaChange
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import TableMap
from airflow_provider_deltaforge.sources.mysql.binlog.tagged_gtids import parse_tagged_gtid
from airflow_provider_deltaforge.sources.mysql.binlog.unlogged_rows import unlogged
from airflow_provider_deltaforge.sources.mysql.charsets import decode_text
from airflow_provider_deltaforge.sources.mysql.ddl import statements
from airflow_provider_deltaforge.sources.mysql.positions import BinlogTxPositions, LogPosition

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.mysql.binlog.segmenter import BinlogSegmenter

_IGNORABLE = 0x80
_PREPARED = 0x40
_ANSI_QUOTES = 4
# Status variables of a statement: the client's collation, and how long those before it are.
_CLIENT = 4
_SIZES = {0: 4, 1: 8, 3: 4}
_TEXTS = {5, 6}
_QUERY_HEAD, _LOAD_HEAD = 13, 26
"""Bytes in front of a statement's status variables; LOAD DATA says more about itself."""


class Catalog(Protocol):
    """What the handlers ask about tables."""

    def captures(self, db: str, table: str) -> bool:
        """Say whether a table is captured."""

    def touches(self, db: str) -> bool:
        """Say whether any table of a database could be captured."""

    def begin(self, position: LogPosition, here: Callable[[], LogPosition]) -> None:
        """Go back to a position: everything behind it is read again, and ``here`` says how far."""

    def passed(self, position: LogPosition) -> None:
        """Take note that everything so far lies before a position."""

    def changed(
        self, statement: statements.Statement, db: str, sql: str
    ) -> tuple[TableSchema, ...]:
        """Take note of a schema change; return how captured tables look behind it."""

    def judge(self, sql: str, db: str, place: str, *, session: int, ansi_quotes: bool) -> None:
        """Return if a statement that was logged instead of rows changed no captured table."""

    def plan(self, table: TableMap) -> TableDecodePlan:
        """Return how to decode a captured table."""


def handle(segmenter: "BinlogSegmenter", catalog: "Catalog", event: bytes, index: int) -> bool:
    """Deal with one event; return whether the scan goes on behind it.

    Raises:
        FatalError: passing the event would lose or falsify rows.
    """
    kind = event[4]
    if kind == f.ROTATE:
        return _rotate(segmenter, event)
    if kind == f.FORMAT:
        # The byte in front of the event's own checksum names the algorithm of those that follow.
        segmenter.checksum = 4 if event[-1] == 1 else 0
        if segmenter.state[f.IN_TX]:
            segmenter.drop_open_tx()
            return False
        return True
    if kind in (f.QUERY, f.EXECUTE_LOAD):
        _query(segmenter, catalog, event)
    elif kind == f.GTID_TAGGED:
        _tagged(segmenter, event, index)
    elif kind == f.MARIADB_GTID:
        _mariadb_xa(segmenter, event, index)
    elif kind == f.XA_PREPARE:
        _prepare(segmenter, event)
    else:
        _refuse(segmenter, event)
    return True


def here(segmenter: "BinlogSegmenter") -> LogPosition:
    """Return the position behind the last complete transaction that was read."""
    complete = int(segmenter.state[f.TX_COUNT]) - int(segmenter.state[f.IN_TX])
    transactions, origins = segmenter.transactions[:complete], tuple(segmenter.origins)
    return BinlogTxPositions(
        segmenter.position, segmenter.file, transactions, origins
    ).log_position(complete)


def _refuse(segmenter: "BinlogSegmenter", event: bytes) -> None:
    """Raise for an event that may not be passed; do nothing for one marked ignorable."""
    kind = event[4]
    if kind == f.INCIDENT:
        raise FatalError(
            f"{_place(segmenter)}: the server reports that events are missing from its log "
            "(incident); take a new snapshot"
        )
    if not int.from_bytes(event[17:19], "little") & _IGNORABLE:
        raise FatalError(
            f"{_place(segmenter)}: event type {kind} is unknown and may not be ignored; report it, "
            "with the server's version"
        )


def _place(segmenter: "BinlogSegmenter") -> str:
    return f"{segmenter.file}:{int(segmenter.state[f.POS])}"


def _rotate(segmenter: "BinlogSegmenter", event: bytes) -> bool:
    pos = int.from_bytes(event[f.HEADER : f.HEADER + 8], "little")
    file = event[f.HEADER + 8 :].decode()
    if file != segmenter.file and segmenter.state[f.TX_COUNT]:
        before = len(segmenter.ready)
        segmenter.hand_out_complete()
        if len(segmenter.ready) > before:
            return False  # the rotation is the first event of the next segment
    segmenter.file = file
    segmenter.state[f.POS] = pos
    return True


def _server(event: bytes) -> int:
    return int.from_bytes(event[5:9], "little")


def _begin(
    segmenter: "BinlogSegmenter", event: bytes, index: int, name: tuple[int, int, int]
) -> None:
    """Begin a transaction named (origin, number, commit time in ms)."""
    start = int(segmenter.state[f.POS]) - int.from_bytes(event[9:13], "little")
    f.begin_tx(segmenter.state, segmenter.transactions, *name, _server(event), start, index)


def _tagged(segmenter: "BinlogSegmenter", event: bytes, index: int) -> None:
    gtid = parse_tagged_gtid(event)
    # The scanner never looks for a tagged origin: its key is one that no server uses.
    origin = segmenter.origin(gtid.origin, b"\xff" * 16)
    seconds = int.from_bytes(event[:4], "little")
    time_ms = seconds * 1000 if gtid.time_ms is None else gtid.time_ms
    _begin(segmenter, event, index, (origin, gtid.number, time_ms))


def _mariadb_xa(segmenter: "BinlogSegmenter", event: bytes, index: int) -> None:
    body = event[f.HEADER :]
    parts = (int.from_bytes(part, "little") for part in (body[8:12], event[5:9]))
    origin = segmenter.origin("-".join(map(str, parts)), body[8:12] + event[5:9])
    time_ms = int.from_bytes(event[:4], "little") * 1000
    _begin(segmenter, event, index, (origin, int.from_bytes(body[:8], "little"), time_ms))
    if not body[12] & _PREPARED:
        segmenter.state[f.STANDALONE] = 1


def _prepare(segmenter: "BinlogSegmenter", event: bytes) -> None:
    one_phase = event[f.HEADER]
    if not one_phase and segmenter.rows_of_open_tx():
        raise FatalError(
            f"{_place(segmenter)}: an XA transaction was prepared with rows of captured tables, "
            "which may yet be rolled back; commit it or roll it back, stop using XA on these "
            "tables, and take a new snapshot"
        )
    if segmenter.state[f.IN_TX]:
        f.end_tx(segmenter.state, segmenter.transactions)


def _query(segmenter: "BinlogSegmenter", catalog: "Catalog", event: bytes) -> None:
    body = event[f.HEADER :]
    status = _QUERY_HEAD if event[4] == f.QUERY else _LOAD_HEAD
    names = status + int.from_bytes(body[11:13], "little")
    db = body[names : names + body[8]].decode("utf-8", "replace")
    sql = _statement(body[names + body[8] + 1 :], body[status:names], segmenter.info.charsets)
    if sql.lstrip().startswith("#"):
        return  # MariaDB's stand-in for an event it would not send us
    inside = bool(segmenter.state[f.BEGUN]) or (
        segmenter.info.mariadb
        and not segmenter.state[f.STANDALONE]
        and bool(segmenter.state[f.IN_TX])
    )
    ansi_quotes = _ansi_quotes(body[status:names])
    statement = statements.understand(sql, mariadb=segmenter.info.mariadb, ansi_quotes=ansi_quotes)
    if statement.kind == statements.CONTROL:
        if _control(segmenter, statement.verb, sql):
            return
    elif statement.kind in (statements.DML, statements.OTHER):
        session = int.from_bytes(body[:4], "little")
        catalog.judge(sql, db, _place(segmenter), session=session, ansi_quotes=ansi_quotes)
    elif statement.kind in (statements.DDL, statements.TRUNCATE):
        if not segmenter.state[f.IN_TX]:
            seconds = int.from_bytes(event[:4], "little")
            _begin(segmenter, event, 0, (-1, 0, seconds * 1000))
        segmenter.forget_tables()
        _change(segmenter, catalog, statement, db, sql)
    if segmenter.state[f.IN_TX] and not inside:
        f.end_tx(segmenter.state, segmenter.transactions)


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


def _ansi_quotes(status: bytes) -> bool:
    """Say whether the statement's session put names in double quotes.

    Its status variables begin with the flags (code 0, four bytes) and the SQL mode (code 1).
    """
    if status[:1] == b"\0":
        status = status[5:]
    return status[:1] == b"\1" and bool(int.from_bytes(status[1:9], "little") & _ANSI_QUOTES)


def _control(segmenter: "BinlogSegmenter", verb: str, sql: str) -> bool:
    """Deal with a statement about transactions; return whether the open one goes on."""
    if verb.startswith("ROLLBACK"):
        if segmenter.rows_of_open_tx():
            raise FatalError(
                f"{_place(segmenter)}: a transaction over transactional and other tables was "
                "rolled back in part, so the log does not say which rows stayed; use InnoDB for "
                "all captured tables and take a new snapshot"
            )
        return " TO " in f" {sql.upper()} " or " TO`" in sql.upper()
    return verb not in ("XA COMMIT", "XA ROLLBACK", "COMMIT")


def _change(
    segmenter: "BinlogSegmenter",
    catalog: "Catalog",
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
    tx = int(segmenter.state[f.TX_COUNT]) - 1
    told: dict[str, Any] = {"sql": sql, "database": db, "tables": _full_names(tables)}
    moved = unlogged(statement, db, catalog.captures)
    if moved.copies:
        told["copies"] = _full_names(moved.copies)
    if moved.lost:
        told["lost"] = _full_names(moved.lost)
    text = orjson.dumps(told)
    before = segmenter.rows_count
    if statement.kind == statements.TRUNCATE:
        name, table = captured[0]
        segmenter.changes.append(SchemaChange(tx, before, "t", name, table, text))
    else:
        where = db or (captured[0][0] if captured else statement.databases[0])
        segmenter.changes.append(SchemaChange(tx, before, "ddl", where, "_ddl", text, schemas))


def _full_names(tables: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{db}.{table}" for db, table in tables]
