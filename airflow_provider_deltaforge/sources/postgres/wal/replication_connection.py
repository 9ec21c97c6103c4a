"""The replication connection: bytes of the log in bulk, and our answers.

libpq hands out one message at a time, which costs more than all the rest of reading. Without TLS
nobody needs libpq after the handshake: the command is sent through it, and from then on the socket
is read by us alone. With TLS the bytes are libpq's, and its messages are put back into the frames
they came in, so that both ways deliver the same.
"""

import os
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any, Protocol

from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.sources.postgres.connection import (
    notice_frame,
    server_error,
    translated,
)
from airflow_provider_deltaforge.sources.postgres.positions import lsn_text

_ASKING = "asking for the log"
_READING = "reading the log"
_SEND_S = 30.0
_EPOCH_2000_S = 946_684_800
_STATUS = struct.Struct("!cqqqqB")
_HEADER = struct.Struct("!ci")
# The server sends each message on its own. Where many follow each other, a short wait lets them
# come together: reading them one by one would take more time than decoding. A small transaction
# that is on its own is not kept waiting for its end.
_GATHER_S = 0.002
_PAUSE_S = 0.005
_FEW = 1 << 14
_PLENTY = 1 << 18


def start_command(slot: str, lsn: int, publication: str, *, messages: bool) -> bytes:
    """Return the command that makes a server send its log.

    Args:
        slot: whose log.
        lsn: transactions whose commit begins before it are left out.
        publication: says what is sent.
        messages: logical messages as well; servers before 14 have no such option.
    """
    name = publication.replace('"', '""').replace("'", "''")
    options = f"proto_version '1', publication_names '\"{name}\"'"
    if messages:
        options += ", messages 'true'"
    return f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} ({options})'.encode()


def status_message(written: int, flushed: int, *, ask: bool) -> bytes:
    """Return a standby status update.

    Args:
        written: how far we have read.
        flushed: what is durable; the server may forget what lies before.
        ask: want a keepalive in return.
    """
    clock = int((time.time() - _EPOCH_2000_S) * 1_000_000)
    return _STATUS.pack(b"r", max(written, flushed), flushed, flushed, clock, ask)


class LogSocket(Protocol):
    """A connection whose server sends its log."""

    def receive(self, view: memoryview, timeout_s: float) -> int:
        """Fill ``view`` with frames, waiting up to ``timeout_s`` for the first byte.

        Returns:
            Bytes received, 0 when none came in time. The last frame may be incomplete.

        Raises:
            ConnectionError: the server hung up.
        """

    def send(self, message: bytes) -> None:
        """Send a message of the copy protocol."""

    def close(self) -> None:
        """End the session and close the connection."""


def log_socket(connection: Any, command: bytes, *, plain: bool = True) -> LogSocket:
    """Send the command and return what the log comes from.

    Args:
        connection: for replication, with nothing under way; belongs to the socket from now on.
        command: from ``start_command``.
        plain: read the socket ourselves if it is not encrypted.

    Raises:
        RetryableError, FatalError: the server refused; a plain socket says so when read.
    """
    try:
        if plain and not connection.pgconn.ssl_in_use:
            return PlainSocket(connection, command)
        return LibpqSocket(connection, command)
    except BaseException:
        connection.close()
        raise


class PlainSocket:
    """The bytes as they come; libpq only says goodbye."""

    def __init__(self, connection: Any, command: bytes) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._received_at = 0.0
        self._plenty = False
        self._since_pause = 0  # Bytes that came with no pause between them.
        pgconn = connection.pgconn
        driver = _driver()
        self._socket = socket.socket(fileno=os.dup(pgconn.socket))
        try:
            pgconn.send_query(command)
            while pgconn.flush():
                _wait(self._socket, select.POLLOUT, _SEND_S)
        except (driver.Error, OSError) as error:
            self._socket.close()
            raise translated(error, _ASKING) from error

    def receive(self, view: memoryview, timeout_s: float) -> int:
        """See ``LogSocket``."""
        if not _wait(self._socket, select.POLLIN, timeout_s):
            return 0
        if time.monotonic() - self._received_at > _PAUSE_S:
            self._since_pause = 0
        elif self._since_pause > _FEW and not self._plenty:
            time.sleep(_GATHER_S)
        size = 0
        while size < len(view):
            try:
                more = self._socket.recv_into(view[size:], 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if more == 0 and size == 0:
                raise ConnectionResetError("the server closed the connection")
            size += more
            if more < _PLENTY:
                break
        self._plenty = size >= _PLENTY
        self._since_pause += size
        self._received_at = time.monotonic()
        return size

    def send(self, message: bytes) -> None:
        """See ``LogSocket``."""
        data = memoryview(_HEADER.pack(b"d", len(message) + 4) + message)
        with self._sending:
            while data:
                if not _wait(self._socket, select.POLLOUT, _SEND_S):
                    raise TimeoutError(f"the server took no answer for {_SEND_S:g} s")
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]

    def close(self) -> None:
        """See ``LogSocket``."""
        self._connection.close()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class LibpqSocket:
    """The same through libpq, which alone can decrypt."""

    def __init__(self, connection: Any, command: bytes) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._driver = _driver()
        self._using = threading.Lock()
        self._rest = memoryview(b"")
        self._closed = False
        self._failure: Exception | None = None
        """What ended the log; raised when all that came before it is handed out."""
        self._notices: list[bytes] = []
        connection.add_notice_handler(self._note)
        try:
            result = self._pgconn.exec_(command)
        except self._driver.Error as error:
            raise translated(error, _ASKING) from error
        if result.status != self._driver.pq.ExecStatus.COPY_BOTH:
            raise _error_of(result, _ASKING)

    def receive(self, view: memoryview, timeout_s: float) -> int:
        """See ``LogSocket``."""
        size = self._drain(view)
        # libpq takes some kilobytes at once, however many there are.
        while size < len(view) and self._took(0.0 if size else timeout_s):
            more = self._drain(view[size:])
            if not more:
                break  # The rest of a message is under way.
            size += more
        if not size and self._failure is not None:
            raise self._failure
        return size

    def send(self, message: bytes) -> None:
        """See ``LogSocket``."""
        with self._using:
            self._alive()
            try:
                self._pgconn.put_copy_data(message)
                while self._pgconn.flush():
                    if not _wait(self._pgconn.socket, select.POLLOUT, _SEND_S):
                        raise TimeoutError(f"the server took no answer for {_SEND_S:g} s")
            except self._driver.Error as error:
                raise ConnectionResetError(str(error).strip()) from error

    def close(self) -> None:
        """See ``LogSocket``."""
        with self._using:
            self._closed = True
            self._connection.close()

    def _took(self, timeout_s: float) -> bool:
        """Let libpq take what the server sends; return whether there was anything in time."""
        if self._failure is not None or not _wait(self._pgconn.socket, select.POLLIN, timeout_s):
            return False
        with self._using:
            self._alive()
            try:
                self._pgconn.consume_input()
            except self._driver.Error as error:
                self._failure = ConnectionResetError(str(error).strip())
        return self._failure is None

    def _drain(self, view: memoryview) -> int:
        """Put what libpq holds back into frames, as far as there is room."""
        size = 0
        while size < len(view):
            if not self._rest:
                try:
                    message = self._message() if self._failure is None else None
                except (OSError, DeltaForgeError) as error:
                    self._failure, message = error, None
                frame = _HEADER.pack(b"d", len(message) + 4) + message if message else b""
                self._rest = memoryview(b"".join(self._notices) + frame)
                self._notices.clear()
                if not self._rest:
                    break
            part = self._rest[: len(view) - size]
            view[size : size + len(part)] = part
            size += len(part)
            self._rest = self._rest[len(part) :]
        return size

    def _message(self) -> bytes | None:
        with self._using:
            self._alive()
            try:
                count, data = self._pgconn.get_copy_data(1)
                if count > 0:
                    return bytes(data)
                if count == 0:
                    return None
                result = self._pgconn.get_result()
            except self._driver.Error as error:
                raise ConnectionResetError(str(error).strip()) from error
        if result is not None and result.status == self._driver.pq.ExecStatus.FATAL_ERROR:
            raise _error_of(result, _READING)
        raise ConnectionResetError("the server ended the log")

    def _note(self, notice: Any) -> None:
        text, routine = notice.message_primary or "", notice.source_function or ""
        self._notices.append(notice_frame(notice.sqlstate or "", text, routine))

    def _alive(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the log was closed")


def _error_of(result: Any, doing: str) -> DeltaForgeError:
    fields = _driver().pq.DiagnosticField
    code = result.error_field(fields.SQLSTATE) or b""
    text = result.error_field(fields.MESSAGE_PRIMARY) or b"the server ended the connection"
    error = server_error(code.decode(), text.decode("utf-8", "replace"), doing)
    return error if code else RetryableError(str(error))


def _driver() -> Any:
    """Return psycopg, which is imported where a connection is used."""
    import psycopg

    return psycopg


def _wait(of: Any, event: int, timeout_s: float) -> bool:
    """Wait until a socket can be read or written."""
    poll = select.poll()
    poll.register(of, event)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))
