"""From received bytes to log segments, cut between transactions.

A segment holds whole transactions. Only a transaction larger than a segment is cut, and then after
all but the last row event that is captured, so that the segment that sees the commit always has a
row to mark as the transaction's last.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.dump import server_error
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment
from airflow_provider_deltaforge.sources.mysql.binlog.open_segment import (
    SEGMENT_BYTES,
    Catalog,
    CutTransaction,
    OpenSegment,
)
from airflow_provider_deltaforge.sources.mysql.binlog.rare_events import (
    handle,
    mariadb_event,
    payload_events,
    server_of,
)
from airflow_provider_deltaforge.sources.mysql.binlog.row_kernel import count_rows
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer, TornLogError
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_NUMBER,
    TX_ORIGIN,
    TX_START,
    TX_STOP,
    LogPosition,
    file_number,
)


class BinlogSegmenter(OpenSegment):
    """Turns the bytes of a dump into segments.

    Attributes:
        ready: segments to be taken, oldest first.

    Args:
        info: the server.
        position: where to begin.
        catalog: describes the tables.
        is_committed: returns whether the transaction behind a position, of a MariaDB domain and in
            a file, was committed; asked before a part of it is handed out.
    """

    def __init__(
        self,
        info: MySqlServer,
        position: LogPosition,
        catalog: Catalog,
        is_committed: Callable[[LogPosition, int, str], bool] = lambda *_: True,
    ) -> None:
        super().__init__(info, position, catalog)
        self._is_committed = is_committed
        self.ready: deque[BinlogSegment] = deque()
        self._catalog = catalog
        self._reached = position.file
        self.restart()

    def restart(self) -> None:
        """Forget what came after the last segment; the dump starts again at ``position``."""
        self._reset(np.zeros(0, np.int64))
        self._catalog.begin(self.position, self.here)
        self.plans.forget()
        self.scanned.state[:] = 0
        self.file = self.position.file
        self.scanned.state[f.POS] = self.position.pos
        self.checksum = 4 if self.info.checksum else 0
        # What was handed out of an open transaction is read again, and left out.
        cut = self.cut_tx
        cut.skip = cut.delivered if cut.continues else 0
        cut.rows = 0

    def feed(self, raw: Any, start: int, stop: int) -> int:
        """Take the complete events of ``raw[start:stop]``; return the first byte not taken.

        Raises:
            ConnectionResetError: the server ended the dump.
            FatalError and others: the server refused, or the log holds what we must not pass.
        """
        events = self.events
        while True:
            before = events.count
            result, start, _, events.count = f.frame(
                raw, start, stop, events.data, events.end, events.starts, before, self.checksum
            )
            if events.count > before and events.is_compressed(events.count - 1):
                self._expand()
            else:
                self._scan()
            if result == f.SERVER_ERROR:
                length = int(f.little(raw, start, 3))
                raise server_error(raw[start + 4 : start + 4 + length].tobytes())
            if result == f.SERVER_EOF:
                raise ConnectionResetError("the server ended the log")
            if result == f.NEED_MORE:
                return int(start)
            if events.count == before:
                self._make_room(f.packet_size(raw, start, stop))
            elif events.end >= SEGMENT_BYTES:
                self.cut(full=True)

    def cut(self, *, full: bool = False) -> None:
        """Put what is complete into ``ready``; with ``full``, a part of one big transaction too."""
        self._scan()
        self._pass_server_events()
        if not self._cut_complete() and full and self.scanned.state[f.IN_TX]:
            self._cut_open()

    def _scan(self) -> None:
        events, scanned = self.events, self.scanned
        while True:
            result, self._next = f.scan(
                events.data,
                events.starts,
                self._next,
                events.count,
                scanned.state,
                self.origins.keys,
                scanned.transactions,
                scanned.rows,
                scanned.maps,
            )
            self._resolve()
            if result == f.DONE:
                return
            if result == f.SPECIAL:
                if self._handle(self.events.event(self._next)):
                    self._next += 1
            elif result == f.UNKNOWN_ORIGIN:
                self.origins.register(self.events.event(self._next))
            elif result == f.FULL:
                self.scanned.grow()
            else:
                raise FatalError(
                    f"{self.place}: rows without a table map; the log is damaged, or reading began "
                    "inside a statement. Start at a transaction's border"
                )

    def _handle(self, event: bytes) -> bool:
        """Process an event that the scanner leaves to us; return whether to scan on after it."""
        if event[4] == f.ROTATE:
            return self._rotate(event)
        return handle(self, self._catalog, event, int(self._next))

    def _rotate(self, event: bytes) -> bool:
        file = event[f.HEADER + 8 :].decode()
        if file != self.file and self.scanned.state[f.TX_COUNT] and self._cut_complete():
            return False  # The rotation is the first event of the next segment.
        logged = int.from_bytes(event[13:17], "little") != 0
        if not logged and file_number(file) > file_number(self._reached or file):
            # The file before does not name this one, as it does unless the server ended.
            self._catalog.server_restarted()
        self._reached = self.file = file
        self.scanned.state[f.POS] = int.from_bytes(event[f.HEADER : f.HEADER + 8], "little")
        return True

    def _pass_server_events(self) -> None:
        """Move an offset behind what the server wrote for itself, with an empty transaction.

        Where nobody writes, it would stay in a file that the server deletes one day, and before
        what the server calls the end of its log.
        """
        scanned, count = self.scanned, self.scanned.complete
        if self.position.gtids is not None or scanned.state[f.IN_TX] or not self._next:
            return
        pos = int(scanned.state[f.POS])
        if count:
            is_passed = pos == scanned.transactions[count - 1, TX_STOP]
        else:
            is_passed = (self.file, pos) == (self.position.file, self.position.pos)
        if is_passed:
            return
        if count == len(scanned.transactions):
            scanned.grow()
        event = self.events.event(self._next - 1)
        time_ms, server = 1000 * int.from_bytes(event[:4], "little"), server_of(event)
        f.begin_tx(scanned.state, scanned.transactions, -1, 0, time_ms, server, pos, self._next)
        f.end_tx(scanned.state, scanned.transactions)

    def _expand(self) -> None:
        """Put the events of the compressed one that came last in its place."""
        event = self.events.event(self.events.count - 1)
        self.events.count -= 1
        self._scan()
        for inner in payload_events(event) if event[4] == f.PAYLOAD else [mariadb_event(event)]:
            if not self.events.has_room(len(inner)):
                self._make_room(len(inner))
            self.events.append(inner)
            self._scan()

    def _cut_complete(self) -> bool:
        """Make a segment of the complete transactions; return whether there were any."""
        scanned = self.scanned
        complete, state = scanned.complete, scanned.state
        if not complete:
            return False
        rows = scanned.rows[: scanned.rows_count]
        upto = int(np.searchsorted(rows[:, f.ROW_TX], complete))
        open_tx = bool(state[f.IN_TX])
        first_kept = int(state[f.TX_EVENT]) if open_tx else int(self._next)
        pos = scanned.transactions[complete, TX_START] if open_tx else state[f.POS]
        changes = [change for change in self.changes if change.tx < complete]
        segment = self._segment(complete, upto, changes, int(self.events.starts[first_kept]))
        self.ready.append(segment)
        self.position = replace(segment.positions.log_position(complete), file=self.file)
        self._catalog.passed(self.position)
        self.cut_tx = CutTransaction()
        self._keep(np.arange(first_kept, self.events.count), int(pos))
        return True

    def _cut_open(self) -> None:
        """Make a segment of the open transaction's first rows, but for the last captured event."""
        rows = self.scanned.rows[: self.scanned.rows_count]
        captured = np.flatnonzero(self._captured(rows))
        if len(captured) and captured[-1] == 0:
            return
        upto = int(captured[-1]) if len(captured) else len(rows)
        if upto == 0:
            return
        self._check_identity()
        self._check_committed()
        cut = self.cut_tx
        count = count_rows(
            self.events.data, rows, upto, self.scanned.map_plans, self.plans.plans.arrays, 0
        )
        first_kept = int(rows[upto, f.ROW_EVENT]) if upto < len(rows) else int(self._next)
        size = int(self.events.starts[first_kept])
        self.ready.append(self._segment(1, upto, self.changes, size, open_tx=True))
        cut.continues = True
        cut.rows += int(count)
        cut.delivered = max(cut.delivered, cut.rows)
        self._keep(self._kept_events(first_kept), int(self.scanned.transactions[0, TX_START]))

    def _check_identity(self) -> None:
        """Check that a transaction read again after a reconnect is the one that was cut."""
        tx = self.scanned.transactions[0]
        has_gtid = tx[TX_ORIGIN] >= 0
        origin = self.origins.names[tx[TX_ORIGIN]] if has_gtid else self.file
        name = (origin, int(tx[TX_NUMBER] if has_gtid else tx[TX_START]))
        if self.cut_tx.name not in (None, name):
            raise FatalError(
                f"the log goes on with transaction {name} where {self.cut_tx.name} was cut; the "
                "server's history changed. Take a new snapshot"
            )
        self.cut_tx.name = name

    def _check_committed(self) -> None:
        """Check that the open transaction, before its first part is handed out, has an end.

        Raises:
            TornLogError: it has none.
        """
        origin = self.scanned.transactions[0, TX_ORIGIN]
        if self.cut_tx.continues or not self.info.mariadb or origin < 0:
            return
        domain = int(self.origins.names[origin].partition("-")[0])
        if not self._is_committed(self.position, domain, self.file):
            self.cut_tx.name = None
            raise TornLogError(f"{self.place} lies in a transaction that has no end")

    def _segment(
        self, complete: int, upto: int, changes: Any, size: int, *, open_tx: bool = False
    ) -> BinlogSegment:
        data = self.events.data[:size]
        return BinlogSegment(
            nbytes=size,
            data=data.copy() if size < SEGMENT_BYTES // 4 else data,
            rows=self.scanned.rows[:upto].copy(),
            map_plans=self.scanned.map_plans[: self.scanned.resolved].copy(),
            plans=self.plans.plans,
            positions=self.positions(self.scanned.transactions[:complete].copy()),
            changes=tuple(changes),
            row_base=self.cut_tx.rows,
            skip=self.cut_tx.skip,
            open_tx=open_tx,
            continues=self.cut_tx.continues,
        )

    def _make_room(self, size: int) -> None:
        """Make room for an event of ``size`` bytes: cut what can be cut, else grow."""
        self.cut(full=True)
        self.events.grow(size)
