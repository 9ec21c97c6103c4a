"""Streams the result of a SELECT as Arrow columns of row JSON, past the driver's row conversion."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_deltaforge.errors import FatalError, RetryableError
from airflow_provider_deltaforge.sources.mysql.connection import translated
from airflow_provider_deltaforge.sources.mysql.snapshot.text_rows_kernel import (
    DONE,
    FAILED,
    RowShape,
    frame_rows,
    render_rows,
    rows_bound,
)
from airflow_provider_deltaforge.sources.shared.table_snapshotter import TableRows

PART_BYTES = 4 << 20
"""Bytes of result that become one part; a longer row is a part of its own."""
PART_ROWS = 65_536

TABLE_CHANGED = 1412
"""The server's error for a view that is older than the table's definition."""

_COM_QUERY = 3
_TEXT_BYTES_MAX = (1 << 31) - 1


class TextResult:
    """One running SELECT. Its connection can do nothing else until the last part was taken.

    Args:
        connection: pymysql connection.
        sql: a SELECT of the columns of ``shape``.
        shape: of the table.

    Raises:
        MySQLError: the driver's own, when the server refuses the statement.
    """

    def __init__(self, connection: Any, sql: str, shape: RowShape) -> None:
        from pymysql.connections import MySQLResult

        self._connection = connection
        self._shape = shape
        self._data = np.empty(PART_BYTES + (1 << 16), np.uint8)
        self._filled = 0
        self._framed = 0
        self._starts = np.empty(PART_ROWS, np.int64)
        self._stops = np.empty(PART_ROWS, np.int64)
        # The driver sends the statement and reads the column definitions; rows we read ourselves.
        connection._execute_command(_COM_QUERY, sql)  # noqa: SLF001
        head = MySQLResult(connection)
        head.init_unbuffered_query()
        head.unbuffered_active = False
        connection._result = None  # noqa: SLF001
        self._buffered = connection._rfile  # noqa: SLF001
        self._raw: Any = None

    def parts(self) -> Iterator[TableRows]:
        """Yield the rows in order; an empty result yields one empty part.

        Raises:
            RetryableError: the connection broke, or the server ended the statement.
            MySQLError: TABLE_CHANGED, before the first row.
        """
        count = 0
        while True:
            # Look before receiving: the end of the result may be in the buffer already.
            count, self._framed, state = frame_rows(
                self._data, self._framed, self._filled, self._starts, self._stops, count
            )
            if state == FAILED:
                self._raise_server_error()
            full = count == PART_ROWS or (count > 0 and self._filled >= PART_BYTES)
            if not full and state != DONE:
                self._receive()
                continue
            yield self._render(count)
            if state == DONE:
                return
            self._keep_rest()
            count = 0

    def _receive(self) -> None:
        """Take what the socket has; make room when a row is larger than the buffer."""
        if self._filled == len(self._data):
            grown = np.empty(2 * len(self._data), np.uint8)
            grown[: self._filled] = self._data
            self._data = grown
        view = self._data.data[self._filled :]
        try:
            if self._raw is None:
                # What the driver read ahead comes out of its buffer first, which is empty then.
                first = self._buffered.read1(len(view))
                received = len(first)
                view[:received] = first
                self._raw = self._buffered.raw
            else:
                received = self._raw.readinto(view)
        except OSError as error:
            raise translated(error, "reading rows") from None
        if not received:
            raise RetryableError("reading rows: the server closed the connection")
        self._filled += received

    def _keep_rest(self) -> None:
        """Move the bytes not framed yet to the front."""
        rest = self._filled - self._framed
        self._data[:rest] = self._data[self._framed : self._filled].copy()
        self._filled, self._framed = rest, 0

    def _render(self, count: int) -> TableRows:
        shape = self._shape
        starts, stops = self._starts[:count], self._stops[:count]
        payload = int((stops - starts).sum())
        room = rows_bound(shape, count, payload)
        rows = np.empty(room, np.uint8)
        keyed = len(shape.key) > 0
        keys = np.empty(room if keyed else 0, np.uint8)
        row_ends = np.zeros(count + 1, np.int64)
        key_ends = np.zeros(count + 1, np.int64)
        odd = render_rows(
            self._data, starts, stops, shape.kinds, shape.names, shape.name_ends, shape.key,
            rows, row_ends, keys, key_ends,
        )  # fmt: skip
        if odd >= 0:
            raise FatalError(
                "a row does not have as many values as its table has columns; start a new run"
            )
        return TableRows(_binary(rows, row_ends), _binary(keys, key_ends) if keyed else None)

    def _raise_server_error(self) -> None:
        from pymysql.err import MySQLError, raise_mysql_exception

        at = self._framed
        length = int.from_bytes(self._data[at : at + 3].tobytes(), "little")
        try:
            raise_mysql_exception(self._data[at + 4 : at + 4 + length].tobytes())
        except MySQLError as error:
            if error.args[0] == TABLE_CHANGED:
                raise
            raise RetryableError(f"reading rows: {error.args[-1]}; read the chunk again") from error


def _binary(data: Any, ends: Any) -> pa.BinaryArray:
    """Return texts as an Arrow array, without what was allocated and not used."""
    used = int(ends[-1])
    if used > _TEXT_BYTES_MAX:
        raise FatalError(
            f"rows of {used} bytes of JSON do not fit a batch; lower snapshot.chunk_size, or leave "
            "the table out"
        )
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends) - 1, [None, offsets, pa.py_buffer(data[:used].copy())]
    )
