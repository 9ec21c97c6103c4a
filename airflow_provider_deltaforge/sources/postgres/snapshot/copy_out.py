"""Streams the rows of a ``COPY … TO STDOUT`` in parts of a few MiB, without an object per row.

libpq hands out one row at a time. Without TLS the socket is read past it: command and answer are
whole messages, so libpq, which is idle meanwhile, finds its connection as it left it. With TLS the
bytes are libpq's.
"""

import os
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_provider_deltaforge.columns.compiled import kernel
from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sources.postgres.connection import error_response, server_error

PART_BYTES = 4 << 20
"""Bytes of rows that become one part; a longer row is a part of its own."""

_BUFFER_BYTES = 1 << 20
_HEAD = 5
_DATA, _COMPLETE, _ERROR, _READY = ord("d"), ord("C"), ord("E"), ord("Z")
# CopyOutResponse, CopyDone, notices and changed settings.
_PASSED_OVER = frozenset(b"HcNS")


@dataclass
class CopyTag:
    """The server's last word on a COPY.

    Attributes:
        sent: how many rows it says it sent; None until then.
    """

    sent: int | None = None

    def read(self, text: bytes) -> None:
        """Take note of a command's tag: ``COPY 500``."""
        words = text.rstrip(b"\0").split()
        if words[:1] == [b"COPY"]:
            self.sent = int(words[-1])


class RowParts(Iterator[bytes]):
    """Rows in COPY's text format, in parts that end behind a row.

    What reads the socket must go as soon as nobody wants the rows, so it knows the tag only.

    Args:
        source: yields the parts.
        tag: filled when the last one was taken.
    """

    def __init__(self, source: Iterator[bytes], tag: CopyTag) -> None:
        self.tag = tag
        self._source = source

    def __next__(self) -> bytes:
        return next(self._source)


def copy_out(connection: Any, sql: str, doing: str) -> RowParts:
    """Return the rows of a SELECT in parts.

    The connection can do nothing else until the last part was taken. Whoever stops before closes
    it, because rows are still on their way.

    Args:
        connection: idle, autocommitting, perhaps in a transaction.
        sql: the SELECT.
        doing: what to say in errors.

    Raises:
        DeltaForgeError: what the server said, by reaction; when a part is taken.
        RetryableError: the connection broke.
    """
    command = f"COPY ({sql}) TO STDOUT".encode()
    tag = CopyTag()
    receive = through_libpq if connection.pgconn.ssl_in_use else _past_libpq
    return RowParts(receive(connection.pgconn, command, doing, tag), tag)


@kernel
def take_rows(data: Any, at: Any, end: Any, out: Any, filled: Any) -> Any:
    """Copy rows from complete CopyData messages in ``data[at:end]`` to ``out``.

    Args:
        data: uint8, messages as they came.
        at: where the first one begins.
        end: behind the last byte received.
        out: uint8.
        filled: bytes of ``out`` in use.

    Returns:
        (where the message begins that it stopped at, bytes of ``out`` in use).
    """
    while at + _HEAD <= end and data[at] == _DATA:
        size = np.int64(0)
        for i in range(1, _HEAD):
            size = (size << 8) | np.int64(data[at + i])
        size -= 4
        start = at + _HEAD
        if start + size > end or filled + size > len(out):
            break
        for i in range(size):
            out[filled + i] = data[start + i]
        filled += size
        at = start + size
    return at, filled


class _Messages:
    """Bytes received and not yet understood."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self.data: Any = np.empty(_BUFFER_BYTES, np.uint8)
        self.at = 0
        self.end = 0

    @property
    def size(self) -> int:
        """Bytes of the first message, its letter and length counted; 0 while unknown."""
        if self.end - self.at < _HEAD:
            return 0
        return 1 + int.from_bytes(self.data[self.at + 1 : self.at + _HEAD].tobytes(), "big")

    @property
    def complete(self) -> bool:
        """Whether all of the first message is here."""
        return 0 < self.size <= self.end - self.at

    def receive(self) -> None:
        """Wait for more bytes; the buffer grows to hold the first message."""
        rest = self.data[self.at : self.end]
        if len(self.data) < self.size:
            self.data = np.empty(self.size, np.uint8)
        self.data[: len(rest)] = rest
        self.at, self.end = 0, len(rest)
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        poll.poll()
        received = self._channel.recv_into(memoryview(self.data)[self.end :])
        if received == 0:
            raise ConnectionResetError("the server closed the connection")
        self.end += received

    def take(self) -> tuple[int, bytes]:
        """Return letter and body of the first message."""
        size = self.size
        body = self.data[self.at + _HEAD : self.at + size].tobytes()
        letter = int(self.data[self.at])
        self.at += size
        return letter, body


def _past_libpq(pgconn: Any, command: bytes, doing: str, tag: CopyTag) -> Iterator[bytes]:
    channel = socket.socket(fileno=os.dup(pgconn.socket))
    try:
        _send(channel, b"Q" + (len(command) + 5).to_bytes(4, "big") + command + b"\0")
        yield from _parts(_Messages(channel), doing, tag)
    except OSError as error:
        raise RetryableError(f"{doing}: {error.strerror or error}") from error
    finally:
        channel.close()


def _send(channel: socket.socket, message: bytes) -> None:
    rest = memoryview(message)
    poll = select.poll()
    poll.register(channel, select.POLLOUT)
    while rest:
        poll.poll()
        rest = rest[channel.send(rest) :]


def _parts(messages: _Messages, doing: str, tag: CopyTag) -> Iterator[bytes]:
    out = np.empty(PART_BYTES, np.uint8)
    filled = 0
    while True:
        messages.at, filled = take_rows(messages.data, messages.at, messages.end, out, filled)
        if not messages.complete:
            messages.receive()
        elif messages.data[messages.at] == _DATA:  # The part is full.
            if filled:
                yield out[:filled].tobytes()
                filled = 0
            if messages.size > len(out):
                out = np.empty(messages.size, np.uint8)
        else:
            letter, body = messages.take()
            if letter == _READY:
                break
            _pass_over(letter, body, doing, tag)
    if filled:
        yield out[:filled].tobytes()


def _pass_over(letter: int, body: bytes, doing: str, tag: CopyTag) -> None:
    """Deal with a message that holds no row."""
    if letter == _COMPLETE:
        tag.read(body)
    elif letter == _ERROR:
        raise error_response(body, doing)
    elif letter not in _PASSED_OVER:
        raise FatalError(f"{doing}: the server sent {chr(letter)!r}, which no COPY answers")


def through_libpq(pgconn: Any, command: bytes, doing: str, tag: CopyTag) -> Iterator[bytes]:
    """Yield the parts from libpq's hands, row by row: for encrypted connections."""
    import psycopg
    from psycopg.pq import DiagnosticField, ExecStatus

    try:
        result = pgconn.exec_(command)
        if result.status == ExecStatus.COPY_OUT:
            part = bytearray()
            while (received := pgconn.get_copy_data(0))[0] > 0:
                part += received[1]
                if len(part) >= PART_BYTES:
                    yield bytes(part)
                    part.clear()
            result = pgconn.get_result()
            tag.read(result.command_status or b"")
            if part and result.status == ExecStatus.COMMAND_OK:
                yield bytes(part)
    except psycopg.Error as error:
        raise RetryableError(f"{doing}: {error}") from error
    while pgconn.get_result() is not None:
        pass
    if result.status != ExecStatus.COMMAND_OK:
        code = result.error_field(DiagnosticField.SQLSTATE) or b""
        text = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        raise server_error(code.decode(), text.decode("utf-8", "replace"), doing)


def precompile() -> None:
    """Compile the kernel, or load it from the cache, before rows are waiting."""
    nothing = np.zeros(0, np.uint8)
    take_rows(nothing, 0, 0, nothing, 0)
