"""The log reader: one dump connection, reopened from the last complete position when it breaks."""

import logging
import time
import zlib
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError, RetryableError, ServerChangedError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.ids import id_key
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.mysql.binlog.catalog_view import CatalogView
from airflow_provider_deltaforge.sources.mysql.binlog.decoder import decode_segment, precompile
from airflow_provider_deltaforge.sources.mysql.binlog.dump import DumpSocket, start_dump
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import POS
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment
from airflow_provider_deltaforge.sources.mysql.binlog.open_segment import SEGMENT_BYTES, Catalog
from airflow_provider_deltaforge.sources.mysql.binlog.segmenter import BinlogSegmenter
from airflow_provider_deltaforge.sources.mysql.connection import (
    KickedError,
    MySqlServer,
    server_info,
)
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import DdlLookahead, Recorder
from airflow_provider_deltaforge.sources.mysql.failover import check_reach, on_server
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.shared.backoff import Backoff
from airflow_provider_deltaforge.sources.shared.silence import ServerSilence
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

_HEARTBEAT_SLACK_S = 2.0
_KICKED_MAX = 5
_KICKED_WINDOW_S = 60.0


class MySqlReader:
    """Implements ``sources.contract.LogReader`` for MySQL and MariaDB."""

    def __init__(  # noqa: PLR0913, PLR0917 - a connection's settings
        self,
        source_id: str,
        connect: Callable[[], Any],
        matcher: TableMatcher,
        position: LogPosition,
        server_id: int,
        heartbeat_s: float,
        read_timeout_s: float,
        stopping: Callable[[], bool],
        history: SchemaHistory | None = None,
        recorder: Recorder | None = None,
        tagging: OutboxTagger | None = None,
        *,
        decimal_numbers: bool = False,
    ) -> None:
        self._connect = connect
        self._server_id = server_id
        self._heartbeat_s = heartbeat_s
        self._read_timeout_s = read_timeout_s
        self._stopping = stopping
        self._key = id_key(source_id)
        self._raw = np.empty(SEGMENT_BYTES, np.uint8)
        self._begin, self._end = 0, 0
        self._socket: DumpSocket | None = None
        self._closed = False
        self._backoff = Backoff()
        self._breaks: list[float] = []
        self._heard_at = time.monotonic()
        self._away: str | None = None
        self._silence = ServerSilence(1.2 * heartbeat_s + _HEARTBEAT_SLACK_S)
        self._info = self._ask(position)
        ahead = DdlLookahead(self._walk, read_timeout_s, stopping)
        self._view = CatalogView(
            matcher,
            self._info,
            connect,
            ahead,
            history,
            tagging,
            decimal_numbers=decimal_numbers,
        )
        catalog: Catalog = recorder or self._view
        self._segmenter = BinlogSegmenter(self._info, on_server(position, self._info), catalog)
        precompile(self._info.uuid)

    @property
    def position(self) -> Position:
        """Where the next segment begins."""
        return self._segmenter.position.as_json()

    @property
    def place(self) -> tuple[str, int]:
        """File and offset read so far, also inside a segment."""
        return self._segmenter.file, int(self._segmenter.state[POS])

    def skip_tables(self, tables: Collection[str]) -> None:
        """Do not deliver rows of some tables, by full name; call it before the first read."""
        self._view.skip_tables(tables)

    def read(self, timeout_s: float) -> BinlogSegment | None:
        """Return the next segment, or None when nothing came in time.

        Raises:
            RetryableError: the server is away; the call may be repeated at once, it paces itself.
            ServerChangedError: another server answers; the log must be opened anew.
            PositionLostError, AccessError, SchemaError, FatalError: a person must act.
        """
        with self._silence.reading():
            return self._read(timeout_s)

    def _read(self, timeout_s: float) -> BinlogSegment | None:
        ready = self._segmenter.ready
        deadline = time.monotonic() + timeout_s
        while not ready and not self._closed and not self._stopping():
            left = deadline - time.monotonic()
            if not self._opened(left):
                if self._away is not None and not self._closed:
                    raise RetryableError(self._away)  # Nothing came because nobody is there.
                return None
            try:
                if not self._receive(max(left, 0.0)) and left <= 0:
                    return None
            except (OSError, ConnectionError, RetryableError) as error:
                self._broke(error)
        return ready.popleft() if ready else None

    def decode(self, segment: Any) -> ChangeBatch:
        """Turn a segment into change events."""
        return decode_segment(segment, self._key, mariadb=self._info.mariadb)

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the server keeps its log by age, not by reader."""

    def silence(self) -> tuple[float, str] | None:
        """Return for how long the server sent no heartbeat; None while all is well."""
        silent_s = self._silence.for_s
        if silent_s is None:
            return None
        return silent_s, f"no heartbeat of its log, which comes every {self._heartbeat_s:g} s"

    def close(self) -> None:
        """Close the connection. Safe to call twice, and from another thread."""
        self._closed = True
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def _ask(self, position: LogPosition) -> MySqlServer:
        connection = self._connect()
        try:
            info = server_info(connection)
            check_reach(connection, info, position, self._stopping)
            return info
        finally:
            connection.close()

    def _walk(self, position: LogPosition, recorder: Recorder) -> "MySqlReader":
        """Open a reader that only looks ahead."""
        return MySqlReader(
            "",
            self._connect,
            TableMatcher(()),
            position,
            1 + zlib.crc32(f"{self._server_id}/ahead".encode()) % 4_000_000_000,
            self._heartbeat_s,
            self._read_timeout_s,
            self._stopping,
            recorder=recorder,
        )

    def _opened(self, left: float) -> bool:
        """See that there is a dump; return False if its time has not come yet."""
        if self._socket is not None:
            return True
        if self._backoff.naps(left):
            return left > 0
        try:
            connection = self._dumping()
        except RetryableError as error:
            self._backoff.failed()
            self._away = f"{error}; trying again"
            raise RetryableError(self._away) from error
        self._segmenter.restart()
        self._begin = self._end = 0
        self._heard_at = time.monotonic()
        self._silence.heard()
        self._away = None
        self._socket = DumpSocket(connection)
        if self._closed:
            self.close()
        return not self._closed

    def _dumping(self) -> Any:
        """Return a connection that sends the log from where the last segment ended."""
        connection = self._connect()
        try:
            # Asked on the very connection: behind one address there may be several servers.
            info = server_info(connection)
            self._same_server(info)
            position = self._segmenter.position
            check_reach(connection, info, position, self._stopping)
            start_dump(connection, info, position, self._server_id, self._heartbeat_s)
        except BaseException:
            connection.close()
            raise
        return connection

    def _same_server(self, info: MySqlServer) -> None:
        if info.uuid != self._info.uuid:
            raise ServerChangedError(
                f"server {info.uuid} answers where {self._info.uuid} did; the log is opened anew "
                "there"
            )

    def _receive(self, timeout_s: float) -> int:
        """Read what the socket has and cut it into segments; return the bytes read."""
        socket = self._socket
        if socket is None:
            return 0
        if self._end == len(self._raw):
            self._make_room()
        view = memoryview(self._raw.data)[self._end :]
        size = socket.receive(view, timeout_s)
        if size == 0:
            self._silence.nothing()
            if time.monotonic() - self._heard_at > self._read_timeout_s:
                raise TimeoutError(f"nothing came for {self._read_timeout_s:g} s, no heartbeat")
            return 0
        self._heard_at = time.monotonic()
        self._silence.heard()
        self._backoff.worked()
        self._end += size
        self._begin = self._segmenter.feed(self._raw, self._begin, self._end)
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._raw) - self._end < SEGMENT_BYTES // 4:
            self._make_room()
        # The buffer was not filled: the server has nothing more to send just now.
        if size < len(view):
            self._segmenter.cut()
        return size

    def _make_room(self) -> None:
        """Move the incomplete packet to the front; a larger one gets a larger buffer."""
        left = self._end - self._begin
        if left > len(self._raw) // 2:
            grown = np.empty(2 * len(self._raw), np.uint8)
        else:
            grown = np.empty(max(SEGMENT_BYTES, 2 * left), np.uint8)
        grown[:left] = self._raw[self._begin : self._end]
        self._raw, self._begin, self._end = grown, 0, left

    def _broke(self, error: BaseException) -> None:
        """The dump ended: the next call opens another one where the last segment ended."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
        if self._closed:
            return
        self._silence.broke()
        now = time.monotonic()
        self._breaks = [*(at for at in self._breaks if now - at < _KICKED_WINDOW_S), now]
        kicked = isinstance(error, (ConnectionResetError, KickedError))
        if len(self._breaks) > _KICKED_MAX and kicked:
            raise FatalError(
                f"the server ended our dump {len(self._breaks)} times within "
                f"{_KICKED_WINDOW_S:g} s: another reader probably uses server id "
                f"{self._server_id}. Give this source its own 'server_id'"
            ) from error
        log.warning("the log connection broke (%s); reconnecting", error)
        self._backoff.failed()
