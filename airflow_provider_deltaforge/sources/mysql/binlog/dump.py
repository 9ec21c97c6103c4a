"""Asking a server for its log on a pymysql connection, and reading the socket in bulk."""

import secrets
import ssl
import struct
import zlib
from typing import Any

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, translated
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos, GtidSet
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition

_DUMP, _DUMP_GTID = 0x12, 0x1E
_THROUGH_GTID = 4
_POS_MAX = 0xFFFFFFFF
_SERVER_IDS = 4_000_000_000


def server_id_of(name: str) -> int:
    """Return a server id that is always the same for a name."""
    return 1 + zlib.crc32(name.encode()) % _SERVER_IDS


def random_server_id() -> int:
    """Return a server id that nobody else uses."""
    return 1 + secrets.randbelow(_SERVER_IDS)


def start_dump(
    connection: Any, info: MySqlServer, position: LogPosition, server_id: int, heartbeat_s: float
) -> None:
    """Make the server send its log from ``position`` on.

    Raises:
        FatalError: the position cannot be expressed in the protocol.
        RetryableError, AccessError: from the connection.
    """
    period = int(heartbeat_s * 1_000_000_000)
    settings = [
        f"SET @master_heartbeat_period = {period}, @source_heartbeat_period = {period}",
        "SET @master_binlog_checksum = @@GLOBAL.binlog_checksum, "
        "@source_binlog_checksum = @@GLOBAL.binlog_checksum",
    ]
    if info.mariadb:
        settings.append("SET @mariadb_slave_capability = 4, @slave_gtid_strict_mode = 0")
        settings.append("SET @slave_gtid_ignore_duplicates = 0")
        if isinstance(position.gtids, GtidPos):
            settings.append(f"SET @slave_connect_state = '{position.gtids}'")
    try:
        with connection.cursor() as cursor:
            for statement in settings:
                cursor.execute(statement)
        command, payload = _request(position, server_id)
        connection._execute_command(command, payload)  # noqa: SLF001 - the driver has no other door
    except Exception as error:
        raise translated(error, "asking for the log") from error


def _request(position: LogPosition, server_id: int) -> tuple[int, bytes]:
    if isinstance(position.gtids, GtidSet):
        data = position.gtids.encoded()
        head = struct.pack("<HIIQI", _THROUGH_GTID, server_id, 0, 4, len(data))
        return _DUMP_GTID, head + data
    by_gtid = isinstance(position.gtids, GtidPos)
    pos = 4 if by_gtid else position.pos
    if pos > _POS_MAX:
        raise FatalError(
            f"position {position.file}:{pos} lies behind 4 GiB, where the protocol cannot resume "
            "by file and offset; switch GTIDs on"
        )
    file = "" if by_gtid else position.file
    return _DUMP, struct.pack("<IHI", pos, 0, server_id) + file.encode()


class DumpSocket:
    """The socket under a connection that sends its log."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._socket = connection._sock  # noqa: SLF001

    def receive(self, view: memoryview, timeout_s: float) -> int:
        """Fill ``view`` with what is there, waiting up to ``timeout_s`` for the first byte.

        Returns:
            Bytes received, 0 when none came in time.

        Raises:
            ConnectionError: the server hung up.
        """
        self._socket.settimeout(max(timeout_s, 0.001))
        try:
            size = int(self._socket.recv_into(view))
        except TimeoutError:
            return 0
        if size == 0:
            raise ConnectionResetError("the server closed the connection")
        self._socket.settimeout(0.0)
        while size < len(view):
            try:
                more = self._socket.recv_into(view[size:])
            except (BlockingIOError, ssl.SSLWantReadError, TimeoutError):
                break
            if more == 0:
                break  # reported by the next call, after what did arrive
            size += more
        return size

    def close(self) -> None:
        """Drop the connection without the protocol's goodbye, which the dump would not read."""
        self._connection._force_close()  # noqa: SLF001


def server_error(packet: bytes) -> Exception:
    """Return our error for an error packet (0xFF, code, [#state], text) in the log's stream."""
    code = int.from_bytes(packet[1:3], "little")
    text = packet[3:]
    if text[:1] == b"#":
        text = text[6:]
    return translated(_ServerError(code, text.decode("utf-8", "replace")), "reading the log")


class _ServerError(Exception):
    """An error packet, in the shape of the driver's own errors."""
