"""Readers and servers that get in each other's way, or die in the middle."""

import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import MARIADB_GTID
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import mariadb, mysql, sql
from tests.servers.process import Server
from tests.sources.mysql.stream_reading import batches, rows, source_of, tuned
from tests.waiting import wait_for

# On a busy machine two readers take longer to shut each other out six times.
PatientSource = tuned(kicked_window_s=600.0)


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(f"{request.param}_server")


def fresh(server: Server, database: str) -> None:
    sql.execute(server, f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")


def test_two_readers_with_one_server_id_end_with_an_error_that_says_so(server: Server) -> None:
    fresh(server, "b_collision")
    sql.execute(server, "CREATE TABLE t (id int primary key)", database="b_collision")
    found: list[BaseException] = []
    deadline = time.monotonic() + 120

    def read(name: str) -> None:
        source = source_of(server, "b_collision", PatientSource, id=name, server_id=7707)
        reader = source.open(None)
        try:
            while not found and time.monotonic() < deadline:
                reader.read(0.2)
        except FatalError as error:
            found.append(error)
        finally:
            reader.close()

    readers = [threading.Thread(target=read, args=(name,), daemon=True) for name in ("a", "b")]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(150)
    assert "7707" in str(found[0])
    assert "Give this source its own 'server_id'" in str(found[0])


def test_a_reader_need_not_wait_for_one_that_sleeps(server: Server) -> None:
    """MariaDB sends nothing under a server id before the former reader with it is gone.

    It is not while its machine sleeps: the server waits to write to it, for longer than any reader
    waits for a heartbeat.
    """
    source = source_of(server, "b_asleep")
    with _asleep(server, source) as start:
        found = batches(source, start, source.head(), timeout_s=30)

        assert sum(batch.rows.num_rows for batch in found) == 40


def test_who_waits_for_a_sleeping_reader_is_shown_the_way_out(mariadb_server: Server) -> None:
    """An id that the document names is obeyed."""
    source = source_of(mariadb_server, "b_asleep", server_id=7709, heartbeat_s=0.5)
    with _asleep(mariadb_server, source) as start:
        reader = source.open(start)
        try:

            def is_silent() -> bool:
                assert reader.read(0.1) is None
                return reader.silence() is not None

            wait_for("silence", is_silent)
            assert "server_id 7709 is gone: remove 'server_id'" in reader.silence()[1]
        finally:
            reader.close()


@contextmanager
def _asleep(server: Server, source: MySqlSource) -> Iterator[Position]:
    """Let a reader ask for the log and look at nothing of it; yields where it begins."""
    fresh(server, "b_asleep")
    sql.execute(server, "CREATE TABLE t (id int primary key, v longtext)", database="b_asleep")
    start = source.head()
    with closing(source.open(start)) as asleep:
        assert asleep.read(0.2) is None
        for first in range(0, 40, 10):
            values = ",".join(f"({i}, REPEAT('y', 1000000))" for i in range(first, first + 10))
            sql.execute(server, f"INSERT INTO t VALUES {values}", database="b_asleep")
        _wait_for_a_full_socket(server)
        yield start


def _wait_for_a_full_socket(server: Server) -> None:
    """Wait until the server cannot send a reader what it has for it."""
    busy = "command LIKE 'Binlog Dump%' AND (state LIKE 'Writing%' OR state LIKE 'Sending%')"
    count = f"SELECT count(*) FROM information_schema.processlist WHERE user = 'df' AND {busy}"
    wait_for("a reader that does not read", lambda: sql.execute(server, count) == [(1,)])


def test_five_killed_connections_are_reopened_without_loss_or_repetition(server: Server) -> None:
    fresh(server, "b_killed")
    sql.execute(server, "CREATE TABLE t (id int primary key, v text)", database="b_killed")
    source = source_of(server, "b_killed", server_id=7708)
    reader = source.open(source.head())
    keys: list[bytes] = []
    try:
        for kill in range(6):
            # More than a segment, so that the kill comes while transactions are under way.
            for first in range(kill * 2000, kill * 2000 + 2000, 1000):
                values = ",".join(f"({i}, REPEAT('y', 3000))" for i in range(first, first + 1000))
                sql.execute(server, f"INSERT INTO t VALUES {values}", database="b_killed")
            # A killed dump may send a little more before it ends.
            _read_until(
                reader,
                keys,
                lambda kill=kill: len(keys) > kill * 2000 and len(reader._breaks) == kill,
            )
            if kill < 5:
                _kill_dump(server)
        _read_until(reader, keys, lambda: len(keys) >= 12_000)
    finally:
        reader.close()
    assert keys == [b'{"id":%d}' % i for i in range(12_000)]
    assert len(reader._breaks) == 5


def _kill_dump(server: Server) -> None:
    """Kill the newest connection that sends the log to user df."""
    listed = "SELECT id FROM information_schema.processlist WHERE user = 'df' AND command LIKE "
    ((number,),) = sql.execute(server, listed + "'Binlog Dump%' ORDER BY id DESC LIMIT 1")
    sql.execute(server, f"KILL {number}")


def test_create_table_select_is_a_change_and_its_rows(server: Server) -> None:
    fresh(server, "b_create_select")
    sql.execute(server, "CREATE TABLE a (id int, v int)", database="b_create_select")
    source = source_of(server, "b_create_select")
    sql.execute(server, "INSERT INTO a VALUES (1, 2), (3, 4)", database="b_create_select")
    start = source.head()
    sql.execute(
        server,
        "CREATE TABLE b (id int primary key) SELECT id, v, v * 2 AS w FROM a",
        "INSERT INTO b VALUES (5, 6, 7)",
        database="b_create_select",
    )
    found = rows(source, start)
    assert [(row["op"], row["after"]) for row in found] == [
        ("ddl", None),
        ("c", b'{"id":1,"v":2,"w":4}'),
        ("c", b'{"id":3,"v":4,"w":8}'),
        ("c", b'{"id":5,"v":6,"w":7}'),
    ]
    assert [row["key"] for row in found[1:]] == [b'{"id":1}', b'{"id":3}', b'{"id":5}']
    assert len({row["event_id"] for row in found}) == 4
    assert found[-1]["tx_id"] != found[-2]["tx_id"]


def test_create_table_select_of_many_rows_is_one_change(server: Server) -> None:
    name = "b_create_large"
    fresh(server, name)
    sql.execute(server, "CREATE TABLE a (id int primary key)", database=name)
    source = source_of(server, name)
    sql.execute(
        server, f"INSERT INTO a VALUES {','.join(f'({n})' for n in range(40))}", database=name
    )
    start = source.head()
    large = "SELECT id, REPEAT('x', 500000) AS v FROM a"
    sql.execute(server, f"CREATE TABLE b (id int primary key, v longtext) {large}", database=name)
    found = rows(source, start)
    assert [row["op"] for row in found] == ["ddl", *["c"] * 40]
    assert len({row["event_id"] for row in found}) == 41


def test_one_that_is_prepared_behind_a_large_one_is_not_taken_for_it(server: Server) -> None:
    name = "b_behind_large"
    fresh(server, name)
    tables = ("CREATE TABLE t (id int primary key, v longtext)", "CREATE TABLE other (id int)")
    sql.execute(server, *tables, database=name)
    source = source_of(server, name, tables=[f"{name}.t"])
    start = source.head()
    values = ",".join(f"({number}, REPEAT('x', 900000))" for number in range(12))
    sql.execute(
        server,
        f"INSERT INTO t VALUES {values}",
        "XA START 'a'", "INSERT INTO other VALUES (1)", "XA END 'a'", "XA PREPARE 'a'",
        "XA COMMIT 'a'",
        database=name,
    )  # fmt: skip
    assert [row["key"] for row in rows(source, start)] == [b'{"id":%d}' % n for n in range(12)]


def test_xa_transactions_that_cannot_be_undone_any_more_are_read(server: Server) -> None:
    fresh(server, "b_xa")
    tables = ("CREATE TABLE t (id int primary key)", "CREATE TABLE other (id int primary key)")
    sql.execute(server, *tables, database="b_xa")
    source = source_of(server, "b_xa", tables=["b_xa.t"])
    start = source.head()
    sql.execute(
        server,
        "XA START 'one'", "INSERT INTO t VALUES (1), (2)", "XA END 'one'",
        "XA COMMIT 'one' ONE PHASE",
        "XA START 'two'", "INSERT INTO other VALUES (1)", "XA END 'two'", "XA PREPARE 'two'",
        "XA COMMIT 'two'",
        "XA START 'three'", "INSERT INTO other VALUES (2)", "XA END 'three'", "XA PREPARE 'three'",
        "XA ROLLBACK 'three'",
        "INSERT INTO t VALUES (3)",
        database="b_xa",
    )  # fmt: skip
    end = source.head()
    found = rows(source, start, end)
    assert [row["after"] for row in found] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    assert [row["tx_end"] for row in found] == [False, True, True]
    assert found[0]["tx_id"] == found[1]["tx_id"] != found[2]["tx_id"]
    again = [row["event_id"] for row in rows(source, start, end)]
    assert again == [row["event_id"] for row in found]


@pytest.fixture(params=["mysql", "mariadb"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of its own, which the test may kill."""
    server = {"mysql": mysql, "mariadb": mariadb}[request.param].start(tmp_path / request.param)
    yield server
    server.kill()


class _Writer:
    """Commits transactions of a thousand rows, one after the other, until the server dies."""

    def __init__(self, server: Server, first: int) -> None:
        self._server = server
        self._next = first
        self.committed = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        connection = sql.connect(self._server, "b_crash", autocommit=False)
        cursor = connection.cursor()
        try:
            while True:
                for _ in range(2):
                    ids = range(self._next, self._next + 500)
                    values = ",".join(f"({i}, REPEAT('v', 4000))" for i in ids)
                    cursor.execute(f"INSERT INTO t VALUES {values}")
                    self._next += 500
                connection.commit()
                self.committed += 1
        except Exception:  # noqa: BLE001 - the server is gone, as the test wants
            return

    def ended(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def _read_until(reader: Any, keys: list[bytes], done: Any, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"{len(keys)} rows"
        try:
            segment = reader.read(0.2)
        except RetryableError:
            continue
        if segment is not None:
            keys += reader.decode(segment).rows.column("key").to_pylist()


def test_a_server_killed_inside_transactions_leaves_neither_gap_nor_repetition(
    mortal: Server,
) -> None:
    sql.execute(mortal, "CREATE DATABASE b_crash")
    sql.execute(mortal, "CREATE TABLE t (id int primary key, v text)", database="b_crash")
    source = source_of(mortal, "b_crash")
    reader = source.open(source.head())
    keys: list[bytes] = []
    try:
        for death in range(3):
            writer = _Writer(mortal, first=death * 1_000_000)
            _read_until(reader, keys, lambda writer=writer: writer.committed >= 3)
            mortal.kill()
            writer.ended()
            mortal.start_again()
        sql.execute(mortal, "INSERT INTO t VALUES (9000000, 'last')", database="b_crash")
        _read_until(reader, keys, lambda: bool(keys) and keys[-1] == b'{"id":9000000}')
    finally:
        reader.close()
    there = sql.execute(mortal, "SELECT id FROM t ORDER BY id", database="b_crash")
    assert keys == [b'{"id":%d}' % number for (number,) in there]


def _tear(log: Path, missing: int = 40) -> None:
    """Let a log file end inside its last transaction, written a second time under a new number.

    Args:
        log: the file of a server that is down.
        missing: bytes at the end that were not written.
    """
    data = log.read_bytes()
    starts = [4]
    while starts[-1] < len(data):
        starts.append(starts[-1] + int.from_bytes(data[starts[-1] + 9 : starts[-1] + 13], "little"))
    first = max(at for at in starts[:-1] if data[at + 4] == MARIADB_GTID)
    shift = len(data) - first
    again = b""
    for at, end in pairwise(at for at in starts if at >= first):
        event = bytearray(data[at : end - 4])
        event[13:17] = (end + shift).to_bytes(4, "little")
        if event[4] == MARIADB_GTID:
            number = int.from_bytes(event[19:27], "little")
            event[19:27] = (number + 1).to_bytes(8, "little")
        again += event + zlib.crc32(event).to_bytes(4, "little")
    with log.open("ab") as file:
        file.write(again[:-missing])


def test_a_log_that_ends_inside_an_event_is_followed_into_the_next_file(tmp_path: Path) -> None:
    """MariaDB leaves such a file when it is killed, and sends it with an error for ever."""
    server = mariadb.start(tmp_path / "mariadb")
    try:
        sql.execute(server, "CREATE DATABASE b_torn")
        sql.execute(server, "CREATE TABLE t (id int primary key, v text)", database="b_torn")
        source = source_of(server, "b_torn")
        start = source.head()
        reader, keys = source.open(start), []
        number = 0
        for _ in range(2):
            for _ in range(3):
                number += 1
                sql.execute(server, f"INSERT INTO t VALUES ({number}, 'v')", database="b_torn")
            last = b'{"id":%d}' % number
            _read_until(reader, keys, lambda last=last: last in keys)
            server.kill()
            _tear(max((server.directory / "data").glob("binlog.0*")))
            server.start_again()
        sql.execute(server, "INSERT INTO t VALUES (7, 'v')", database="b_torn")
        _read_until(reader, keys, lambda: b'{"id":7}' in keys)
        reader.close()
        assert keys == [b'{"id":%d}' % number for number in range(1, 8)]

        late, again = source.open(start), []
        _read_until(late, again, lambda: b'{"id":7}' in again)
        late.close()
        assert again == keys
    finally:
        server.stop()


@pytest.mark.parametrize("missing", [40, 31, 6_000_000], ids=["event", "commit", "half"])
def test_no_part_of_a_large_transaction_that_was_never_committed_is_read(
    tmp_path: Path, missing: int
) -> None:
    """Its end, or half of it, is not in the file: larger than a segment, it is handed out early."""
    server = mariadb.start(tmp_path / "mariadb")
    try:
        sql.execute(server, "CREATE DATABASE b_large")
        sql.execute(server, "CREATE TABLE t (id int primary key, v text)", database="b_large")
        source = source_of(server, "b_large")
        start = source.head()
        live, keys = source.open(start), []
        for first in (0, 3000):
            values = ",".join(f"({i}, REPEAT('v', 4000))" for i in range(first, first + 3000))
            sql.execute(server, f"INSERT INTO t VALUES {values}", database="b_large")
        _read_until(live, keys, lambda: len(keys) == 6000)
        server.kill()
        _tear(max((server.directory / "data").glob("binlog.0*")), missing)
        server.start_again()
        sql.execute(server, "INSERT INTO t VALUES (6000, 'v')", database="b_large")
        expected = [b'{"id":%d}' % number for number in range(6001)]
        _read_until(live, keys, lambda: len(keys) > 6000)
        live.close()
        assert keys == expected

        late, again = source.open(start), []
        _read_until(late, again, lambda: b'{"id":6000}' in again)
        late.close()
        assert again == expected
    finally:
        server.stop()
