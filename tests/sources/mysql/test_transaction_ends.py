"""What ends a transaction in the log, and what does not: its GTID is counted in any case."""

import struct
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import (
    TableDecodePlan,
    captured_plan,
)
from airflow_provider_deltaforge.sources.mysql.binlog.segmenter import BinlogSegmenter
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import TableMap
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import Recorder
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import TX_STOP, LogPosition
from tests.servers import sql
from tests.servers.process import Server
from tests.sources.mysql.reading import fresh_database
from tests.sources.mysql.stream_reading import batches, rows, source_of

NAME, OTHER = "transaction_ends", "transaction_ends_other"
ORIGIN = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MYSQL = MySqlServer(False, ORIGIN, gtids=True, checksum=False)
MARIADB = MySqlServer(True, "server-id-1", gtids=True, checksum=False)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"{request.param}_server")


@pytest.mark.parametrize("comment", ["# ticket 4711\n", "-- ticket 4711\n", "/* x */ # y\n#\n"])
def test_a_statement_behind_a_comment_is_understood(server: Server, comment: str) -> None:
    fresh_database(server, NAME, "CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(server, NAME)
    start = source.head()
    sql.execute(
        server,
        "INSERT INTO t VALUES (1)",
        f"{comment}ALTER TABLE t ADD v int",
        "INSERT INTO t VALUES (2, 3)",
        f"{comment}TRUNCATE TABLE t",
        database=NAME,
    )
    end = source.head()

    assert [row["op"] for row in rows(source, start, end)] == ["c", "ddl", "c", "t"]
    parts = list(batches(source, start, end))
    assert source.compare(parts[-1].end, end) == 0


def test_a_transaction_that_was_rolled_back_is_counted(mariadb_server: Server) -> None:
    """Statements on tables without transactions stay, so that the server logs them all."""
    fresh_database(mariadb_server, NAME, "CREATE TABLE t (id int PRIMARY KEY)")
    fresh_database(
        mariadb_server,
        OTHER,
        "CREATE TABLE t (id int)",
        "CREATE TABLE stays (id int) ENGINE=MyISAM",
    )
    source = source_of(mariadb_server, NAME)
    start = source.head()
    sql.execute(
        mariadb_server,
        "SET binlog_format = STATEMENT",
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO stays VALUES (1)",
        "ROLLBACK",
        database=OTHER,
    )
    end = source.head()

    parts = list(batches(source, start, end))

    assert source.compare(parts[-1].end, end) == 0
    assert (parts[-1].positions.transactions[:, TX_STOP] > 0).all()


def test_going_back_to_a_savepoint_ends_no_transaction(mariadb_server: Server) -> None:
    fresh_database(
        mariadb_server, NAME, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)"
    )
    fresh_database(mariadb_server, OTHER, "CREATE TABLE t (id int) ENGINE=MyISAM")
    source = source_of(mariadb_server, NAME, tables=[f"{NAME}.t"])
    start = source.head()
    sql.execute(
        mariadb_server,
        "BEGIN",
        "INSERT INTO u VALUES (1)",
        "SAVEPOINT `back to`",
        f"INSERT INTO {OTHER}.t VALUES (1)",
        "ROLLBACK WORK TO SAVEPOINT `back to`",
        "INSERT INTO t VALUES (2)",
        "COMMIT",
        database=NAME,
    )

    (found,) = rows(source, start)

    assert (found["after"], found["tx_end"]) == (b'{"id":2}', True)


def _event(kind: int, body: bytes, end: int) -> bytes:
    return struct.pack("<IBIIIH", 1000, kind, 1, f.HEADER + len(body), end, 0) + body


def _query(text: bytes) -> tuple[int, bytes]:
    return f.QUERY, struct.pack("<IIBHH", 7, 0, 4, 0, 0) + b"shop\0" + text


def _gtid(number: int) -> tuple[int, bytes]:
    return f.GTID, b"\1" + UUID(ORIGIN).bytes + struct.pack("<Q", number) + b"\2" + bytes(16)


def _mariadb_gtid(number: int) -> tuple[int, bytes]:
    return f.MARIADB_GTID, struct.pack("<QIB", number, 0, 0) + bytes(6)


class Capturing(Recorder):
    """Captures every table."""

    def captures(self, db: str, table: str) -> bool:
        return True

    def plan(self, table: TableMap) -> TableDecodePlan:
        return captured_plan(table, {}, None)


class Undoing(Capturing):
    """Captures tables that undo what is rolled back."""

    def is_transactional(self, db: str, table: str) -> bool:
        return True


def _read(
    info: MySqlServer,
    *events: tuple[int, bytes],
    catalog: Recorder | None = None,
    behind: Sequence[tuple[int, bytes]] = (),
) -> BinlogSegmenter:
    """Read what a server cannot be made to log here; a part is handed out before ``behind``."""
    begin = LogPosition("binlog.000001", 4, GtidPos() if info.mariadb else GtidSet(), info.uuid)
    segmenter = BinlogSegmenter(info, begin, catalog or Recorder())
    end = 4
    for part in ([(f.FORMAT, bytes(105)), *events], behind):
        received = bytearray()
        for kind, body in part:
            end += f.HEADER + len(body)
            event = b"\0" + _event(kind, body, end)
            received += len(event).to_bytes(3, "little") + b"\1" + event
        raw = np.frombuffer(bytes(received), np.uint8).copy()
        segmenter.feed(raw, 0, len(raw))
        segmenter.cut(full=part is not behind and bool(behind))
    return segmenter


XID = (f.XID, bytes(8))


def test_an_empty_transaction_that_was_rolled_back_is_counted() -> None:
    segmenter = _read(
        MYSQL, _gtid(1), _query(b"BEGIN"), _query(b"ROLLBACK"), _gtid(2), _query(b"BEGIN"), XID
    )

    assert str(segmenter.position.gtids) == f"{ORIGIN}:1-2"


def test_a_transaction_behind_one_whose_end_was_not_seen_counts_both() -> None:
    segmenter = _read(MYSQL, _gtid(1), _query(b"BEGIN"), _gtid(2), _query(b"BEGIN"), XID)

    assert str(segmenter.position.gtids) == f"{ORIGIN}:1-2"
    (segment,) = segmenter.ready
    assert (segment.positions.transactions[:, TX_STOP] > 0).all()


_NUMBER = (7).to_bytes(6, "little") + b"\0\0"
_TABLE = (f.TABLE_MAP, _NUMBER + b"\4shop\0\1t\0" + b"\1\3\0\0" + b"\4\3\2id\x08\1\0")
_ROW = (30, _NUMBER + b"\2\0\1\1\0" + struct.pack("<i", 5))


def test_rows_whose_end_was_not_seen_are_refused() -> None:
    with pytest.raises(FatalError, match="whose end is not known"):
        _read(MYSQL, _gtid(1), _query(b"BEGIN"), _TABLE, _ROW, _gtid(2), catalog=Capturing())


def test_rows_that_mysql_rolled_back_are_refused() -> None:
    events = (_gtid(1), _query(b"BEGIN"), _TABLE, _ROW, _query(b"ROLLBACK"))
    with pytest.raises(FatalError, match="which of its rows stayed"):
        _read(MYSQL, *events, catalog=Undoing())


@pytest.mark.parametrize("end", [b"ROLLBACK", b"ROLLBACK TO `a`"])
def test_rows_that_were_handed_out_before_their_rollback_are_refused(end: bytes) -> None:
    events = (_mariadb_gtid(1), _TABLE, _ROW, _query(b"SAVEPOINT `a`"), _TABLE, _ROW)
    found = _read(MARIADB, *events, _query(end), XID, catalog=Undoing())
    assert sum(len(segment.rows) for segment in found.ready) == (end != b"ROLLBACK")
    with pytest.raises(FatalError, match="a part of it is delivered already"):
        _read(MARIADB, *events, catalog=Undoing(), behind=[_query(end), XID])


def test_a_savepoint_that_the_log_does_not_hold_is_refused() -> None:
    events = (_mariadb_gtid(1), _TABLE, _ROW, _query(b"ROLLBACK TO `a`"), XID)
    with pytest.raises(FatalError, match="does not say where its savepoint a was"):
        _read(MARIADB, *events, catalog=Undoing())


def test_what_stands_in_for_an_event_that_mariadb_does_not_send_ends_nothing() -> None:
    dummy = _query(b"# Dummy event replacing event type 164 that slave cannot handle.   ")
    cut_off = _query(b"# D")
    row = (f.XA_PREPARE, b"\1")
    segmenter = _read(MARIADB, _mariadb_gtid(1), dummy, cut_off, row, _mariadb_gtid(2), XID)

    assert str(segmenter.position.gtids) == "0-1-2"
    assert len(segmenter.ready[0].positions.transactions) == 2


def _varlen(value: int) -> bytes:
    """Return a number as tagged GTID events have it."""
    return bytes([value << 1]) if value < 1 << 7 else (value << 2 | 1).to_bytes(2, "little")


def test_an_origin_is_known_by_events_with_room_for_a_tag_and_by_those_without() -> None:
    head = b"".join(map(_varlen, (1, 60, 0)))
    uuid = b"".join(map(_varlen, UUID(ORIGIN).bytes))
    tagged = f.GTID_TAGGED, head + b"\2" + uuid + b"\4" + _varlen(1 << 1)
    segmenter = _read(MYSQL, tagged, _query(b"BEGIN"), XID, _gtid(2), _query(b"BEGIN"), XID)

    assert str(segmenter.position.gtids) == f"{ORIGIN}:1-2"
