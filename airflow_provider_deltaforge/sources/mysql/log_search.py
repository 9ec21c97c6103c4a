"""Finds places between two transactions of the log: at a time, an offset or a GTID.

A file's first event says when the server began the file, and each transaction when it was
committed. Inside a file all transactions are read, without their rows.
"""

import time
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.mysql.binlog.dump import (
    DumpSocket,
    random_server_id,
    server_error,
    start_dump,
)
from airflow_provider_deltaforge.sources.mysql.catalog import fetch
from airflow_provider_deltaforge.sources.mysql.connection import (
    MySqlServer,
    read_head,
    server_info,
    translated,
)
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import Recorder
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.named_places import Transaction, named_place
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_NUMBER,
    TX_ORIGIN,
    TX_STOP,
    TX_TIME,
    BinlogTxPositions,
    LogPosition,
    compare,
    file_number,
)

if TYPE_CHECKING:
    from airflow_provider_deltaforge.sources.mysql.source import MySqlSource

_BEGINNING = 4
_HEADER, _FORMAT_DESCRIPTION, _ERROR = 5, 15, 0xFF
_MARGIN_S = 2
"""A transaction may be named a little earlier than the file that it is in: clocks have seconds."""
_READ_S, _SILENT_S = 0.2, 30.0

IsBehind = Callable[[BinlogTxPositions], Any]
"""Returns which transactions lie behind the place that is looked for, a bool array."""


class LogSearch:
    """Searches the log of the server that a source names, over connections of its own.

    Args:
        source: the description.

    Raises:
        RetryableError, AccessError, FatalError: as every connection.
    """

    def __init__(self, source: "MySqlSource") -> None:
        self._source = source.model_copy(update={"server_id": random_server_id()})
        with closing(source.connect()) as connection:
            self._info: MySqlServer = server_info(connection)
            self._head = read_head(connection)
            self._files = [str(row[0]) for row in _asked(connection, "SHOW BINARY LOGS")]

    def at_time(self, at_ms: int) -> Position:
        """Return the last place such that all behind it was committed later.

        MariaDB's log knows whole seconds: the whole second of a time lies behind the place.

        Args:
            at_ms: the time, ms since the epoch.

        Raises:
            PositionLostError: the log begins later.
        """
        low, high = 0, len(self._files)
        while low < high:  # The first file that begins too late.
            middle = (low + high) // 2
            if (self._begun_s(self._files[middle]) + _MARGIN_S) * 1000 <= at_ms:
                low = middle + 1
            else:
                high = middle
        first = self._files[max(0, low - 1)] if self._files else ""
        if not first or (not low and self._lacks(first, at_ms)):
            since = _shown(self._begun_s(first)) if first else "nowhere"
            raise PositionLostError(
                f"the server's log begins at {since} UTC, with {first}: what was committed before "
                "is not in it any more. Choose a later time, or copy the tables instead: "
                "deltaforge snapshot FILE --again"
            )
        whole_ms = at_ms // 1000 * 1000 - 1 if self._info.mariadb else at_ms
        return self._scan(first, lambda found: found.transactions[:, TX_TIME] > whole_ms)

    def at_place(self, text: str) -> Position:
        """Return the last place at or before one that a person writes.

        Args:
            text: ``FILE:OFFSET``, a GTID, which then lies behind the place, or a position as
                `deltaforge status` shows it.

        Raises:
            SpecError: it is none of these.
            PositionLostError: the log begins later.
        """
        place = named_place(text, self._head.gtids, "to")
        if isinstance(place, Transaction):
            return self._at_gtid(place, text)
        if isinstance(place, dict):
            self._check_stored(LogPosition.from_json(place), text)
            return place
        self._check_file(place.file)
        offset, number = place.offset, file_number(place.file)
        return self._scan(
            place.file,
            lambda read: (
                (read.transactions[:, TX_STOP] > offset)
                | (read.transactions[:, TX_STOP] < 0)
                | (file_number(read.file) > number)
            ),
        )

    def _lacks(self, first: str, at_ms: int) -> bool:
        """Return whether a file before the first may have held changes of later than a time.

        A file is known to have begun in a whole second, of which the one before has the beginning.
        """
        whole_s = 0 if file_number(first) == 1 else 1
        return (self._begun_s(first) + whole_s) * 1000 > at_ms

    def _check_stored(self, place: LogPosition, text: str) -> None:
        if place.gtids is None:
            if not place.file:
                raise SpecError(f"to: {text!r} names neither a file nor GTIDs")
            if place.server_uuid == self._info.uuid:
                self._check_file(place.file)

    def _check_file(self, file: str) -> None:
        if file not in self._files:
            first = self._files[0] if self._files else "no file"
            raise PositionLostError(
                f"the server has no file {file} of its log any more; the earliest is {first}"
            )

    def _at_gtid(self, named: Transaction, text: str) -> Position:
        """Return the place before a transaction."""
        origin, number = named.origin, named.number
        for file in reversed(self._files):
            if not self._holds(self._begin_of(file), origin, number):
                break
        else:
            raise PositionLostError(
                f"transaction {text} is not in the server's log any more, which begins with "
                f"{self._files[0] if self._files else 'no file'}"
            )

        def is_it(read: BinlogTxPositions) -> Any:
            names = [name.lower() for name in read.origins]
            ordinal = names.index(origin) if origin in names else -2
            table = read.transactions
            return (table[:, TX_ORIGIN] == ordinal) & (table[:, TX_NUMBER] == number)

        place = self._scan(file, is_it)
        if compare(place, self._head.as_json()) >= 0:
            raise SpecError(f"to: the server's log has no transaction {text}")
        return place

    def _holds(self, begin: LogPosition, origin: str, number: int) -> bool:
        """Return whether a transaction lies before the beginning of a file."""
        if isinstance(begin.gtids, GtidSet):
            return GtidSet.parse(f"{origin}:{number}") <= begin.gtids
        if isinstance(begin.gtids, GtidPos):
            last = begin.gtids.domains.get(int(origin.partition("-")[0]))
            return last is not None and last[1] >= number
        return False

    def _begin_of(self, file: str) -> LogPosition:
        """Return the place where a file begins, with what was executed before."""
        gtids: GtidSet | GtidPos | None = None
        with closing(self._source.connect()) as connection:
            if self._info.mariadb:
                text = _asked(connection, f"SELECT BINLOG_GTID_POS('{file}', 4)")[0][0]
                gtids = GtidPos.parse(str(text or ""))
            elif self._info.gtids:
                rows = _asked(connection, f"SHOW BINLOG EVENTS IN '{file}' LIMIT 2")
                texts = [str(row[5]) for row in rows if row[2] == "Previous_gtids"]
                gtids = GtidSet.parse(texts[0] if texts else "")
        return LogPosition(file, _BEGINNING, gtids, self._info.uuid)

    def _scan(self, file: str, is_behind: IsBehind) -> Position:
        """Return the last place before the first transaction that lies behind one."""
        begin, head = self._begin_of(file), self._head.as_json()
        at: Position = begin.as_json()
        until = time.monotonic() + _SILENT_S
        with closing(self._source.open_without_rows(begin, Recorder())) as reader:
            while compare(at, head) < 0:
                segment = reader.read(_READ_S)
                if segment is None:
                    if time.monotonic() > until:
                        raise RetryableError(f"the server sends nothing of its log behind {at}")
                    continue
                until = time.monotonic() + _SILENT_S
                positions: Any = reader.decode(segment).positions
                found = np.flatnonzero(is_behind(positions))
                if len(found):
                    place: Position = positions.log_position(int(found[0])).as_json()
                    return place
                at = segment.end
        return at

    def _begun_s(self, file: str) -> int:
        """Return when the server began a file, in seconds since the epoch."""
        begin = LogPosition(file, _BEGINNING, None, self._info.uuid)
        read = bytearray()
        view = memoryview(bytearray(1 << 16))
        until = time.monotonic() + _SILENT_S
        connection = self._source.connect()
        try:
            start_dump(connection, self._info, begin, self._source.replica_id, 1.0)
            socket = DumpSocket(connection)
            while (begun_s := _begun_in(read)) is None:
                if time.monotonic() > until:
                    raise RetryableError(f"the server sends nothing of {file}")
                read += view[: socket.receive(view, _READ_S)]
        except OSError as error:
            raise translated(error, f"reading the beginning of {file}") from error
        finally:
            DumpSocket(connection).close()
        return begun_s


def _begun_in(read: bytearray) -> int | None:
    """Return the time of the event that begins a file, once it is there."""
    at = 0
    while at + 4 <= len(read):
        size = int.from_bytes(read[at : at + 3], "little")
        packet = bytes(read[at + 4 : at + 4 + size])
        if packet[:1] == bytes([_ERROR]) and len(packet) == size:
            raise server_error(packet)
        if len(packet) > _HEADER and packet[_HEADER] == _FORMAT_DESCRIPTION:
            return int.from_bytes(packet[1:_HEADER], "little")
        at += 4 + size
    return None


def _shown(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def _asked(connection: Any, sql: str) -> list[tuple[Any, ...]]:
    try:
        return fetch(connection, sql)
    except Exception as error:
        raise translated(error, "looking into the log") from error
