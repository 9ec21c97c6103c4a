"""The log reader: one dump connection, reopened from the last complete position when it breaks."""

import logging
import time
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError, ServerChangedError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.mysql.binlog.catalog_view import CatalogView
from airflow_provider_deltaforge.sources.mysql.binlog.decoder import decode_segment, precompile
from airflow_provider_deltaforge.sources.mysql.binlog.dump import (
    DumpSocket,
    random_server_id,
    server_id_of,
    start_dump,
)
from airflow_provider_deltaforge.sources.mysql.binlog.framing_kernel import POS
from airflow_provider_deltaforge.sources.mysql.binlog.open_segment import SEGMENT_BYTES, Catalog
from airflow_provider_deltaforge.sources.mysql.binlog.segmenter import BinlogSegmenter
from airflow_provider_deltaforge.sources.mysql.connection import (
    KickedError,
    MySqlServer,
    TornLogError,
    server_info,
)
from airflow_provider_deltaforge.sources.mysql.ddl.pending_ddl import DdlLookahead, Recorder
from airflow_provider_deltaforge.sources.mysql.failover import (
    behind_torn_file,
    check_reach,
    is_committed,
    on_server,
)
from airflow_provider_deltaforge.sources.mysql.gtid import GtidPos
from airflow_provider_deltaforge.sources.mysql.name_case import check_case
from airflow_provider_deltaforge.sources.mysql.outbox_tables import OutboxTagger
from airflow_provider_deltaforge.sources.mysql.positions import LogPosition
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING, MySqlTuning
from airflow_provider_deltaforge.sources.shared.backoff import Backoff
from airflow_provider_deltaforge.sources.shared.reconnecting_reader import ReconnectingReader
from airflow_provider_deltaforge.sources.shared.silence import ServerSilence
from airflow_provider_deltaforge.spec.patterns import TableMatcher

log = logging.getLogger(__name__)

_HEARTBEAT_SLACK_S = 2.0
_KICKED_MAX = 5


class MySqlReader(ReconnectingReader[DumpSocket]):
    """Implements ``sources.contract.LogReader`` for MySQL and MariaDB."""

    sign_of_life = "heartbeat"

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
        is_id_fixed: bool = True,
        decimal_numbers: bool = False,
        tuning: MySqlTuning = MYSQL_TUNING,
    ) -> None:
        super().__init__(source_id, read_timeout_s, stopping, Backoff(tuning.retry_max_s))
        self._tuning = tuning
        self._connect = connect
        self._server_id, self._is_id_fixed = server_id, is_id_fixed
        self._heartbeat_s = heartbeat_s
        self._raw = np.empty(SEGMENT_BYTES, np.uint8)
        self._begin, self._end = 0, 0
        self._breaks: list[float] = []
        self._torn_file = ""
        self._silence = ServerSilence(1.2 * heartbeat_s + _HEARTBEAT_SLACK_S)
        self._info = self._ask(position)
        check_case(self._info, matcher, tagging)
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
        self._segmenter = BinlogSegmenter(
            self._info, on_server(position, self._info), catalog, self._is_committed
        )
        precompile(self._info.uuid)

    @property
    def place(self) -> tuple[str, int]:
        """File and offset read so far, also inside a segment."""
        return self._segmenter.file, int(self._segmenter.scanned.state[POS])

    def skip_tables(self, tables: Collection[str]) -> None:
        """Do not deliver rows of some tables, by full name; call it before the first read."""
        self._view.skip_tables(tables)

    def warn_of_statements(self) -> None:
        """Go on behind statements that may have changed captured tables, with a warning."""
        self._view.warn_of_statements()

    def decode(self, segment: Any) -> ChangeBatch:
        """Turn a segment into change events."""
        return decode_segment(segment, self._key, mariadb=self._info.mariadb)

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the server keeps its log by age, not by reader."""

    @property
    def _missing(self) -> str:
        return f"no heartbeat of its log, which comes every {self._heartbeat_s:g} s"

    @property
    def _remedy(self) -> str:
        if not (self._info.mariadb and self._is_id_fixed):
            return ""
        return (
            f"; or MariaDB waits until a former reader with server_id {self._server_id} is gone: "
            "remove 'server_id' from the source, and nobody waits for that"
        )

    def _ask(self, position: LogPosition) -> MySqlServer:
        connection = self._connect()
        try:
            info = server_info(connection)
            check_reach(connection, info, position, self._stopping, self._tuning.settling_s)
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
            server_id_of(f"{self._server_id}/ahead"),
            self._heartbeat_s,
            self._read_timeout_s,
            self._stopping,
            recorder=recorder,
            is_id_fixed=False,
            tuning=self._tuning,
        )

    def _connect_log(self) -> DumpSocket:
        connection = self._connect()
        try:
            # Asked on the very connection: behind one address there may be several servers.
            info = server_info(connection)
            self._same_server(info)
            position = self._segmenter.position
            check_reach(connection, info, position, self._stopping, self._tuning.settling_s)
            if self._torn_file:
                position = behind_torn_file(connection, position, self._torn_file)
                log.warning(
                    "%s ends inside a transaction: the server was killed while it wrote that, and "
                    "rolled it back; reading goes on in %s",
                    self._torn_file,
                    position.file,
                )
                self._torn_file = ""
            start_dump(connection, info, position, self._id_on(info), self._heartbeat_s)
        except BaseException:
            connection.close()
            raise
        self._begin = self._end = 0
        return DumpSocket(connection)

    def _id_on(self, info: MySqlServer) -> int:
        """Return our server id for a new connection.

        MariaDB sends nothing before the former connection with that id is gone, which may be one
        that it waits to write to for minutes: of a driver that sleeps, or behind a cut network.
        """
        if info.mariadb and not self._is_id_fixed:
            return random_server_id()
        return self._server_id

    def _is_committed(self, position: LogPosition, domain: int, file: str) -> bool:
        if not isinstance(position.gtids, GtidPos):
            return True
        with closing(self._connect()) as connection:
            self._same_server(server_info(connection))
            return is_committed(connection, file, domain, position.gtids)

    def _same_server(self, info: MySqlServer) -> None:
        if info.uuid != self._info.uuid:
            raise ServerChangedError(
                f"server {info.uuid} answers where {self._info.uuid} did; the log is opened anew "
                "there"
            )

    def _receive(self, socket: DumpSocket, timeout_s: float) -> int:
        if self._end == len(self._raw):
            self._make_room()
        view = memoryview(self._raw.data)[self._end :]
        size = socket.receive(view, timeout_s)
        self._heard(size)
        if size == 0:
            return 0
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

    def _check_break(self, error: BaseException) -> None:
        if isinstance(error, TornLogError):
            if not self._info.mariadb:
                raise FatalError(f"the server refuses to send its log: {error}") from error
            self._segmenter.cut()  # All before the torn transaction; it does not come again.
            self._segmenter.require_nothing_handed_out()
            self._torn_file = self._segmenter.file
            return
        now = time.monotonic()
        window_s = self._tuning.kicked_window_s
        self._breaks = [*(at for at in self._breaks if now - at < window_s), now]
        kicked = isinstance(error, (ConnectionResetError, KickedError))
        if len(self._breaks) > _KICKED_MAX and kicked:
            raise FatalError(
                f"the server ended our dump {len(self._breaks)} times within "
                f"{window_s:g} s: another reader probably uses server id "
                f"{self._server_id}. Give this source its own 'server_id'"
            ) from error
