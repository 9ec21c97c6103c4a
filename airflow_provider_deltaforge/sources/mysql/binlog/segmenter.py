"""From received bytes to segments: buffers, transaction borders, tables.

A segment holds whole transactions. Only a transaction larger than a segment is cut, and then behind
all but the last row event that somebody captures, so that the segment that sees the commit always
has a row to mark as the transaction's last.
"""

from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError, SchemaError, TableError
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog import packet_kernel
from airflow_provider_deltaforge.sources.mysql.binlog import tx_columns as tc
from airflow_provider_deltaforge.sources.mysql.binlog.compressed import (
    as_bytes,
    mariadb_event,
    payload_events,
)
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import (
    DecodePlans,
    TableDecodePlan,
    uncaptured_plan,
)
from airflow_provider_deltaforge.sources.mysql.binlog.dump import server_error
from airflow_provider_deltaforge.sources.mysql.binlog.event_tables import SEGMENT_BYTES, EventTables
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import BinlogSegment
from airflow_provider_deltaforge.sources.mysql.binlog.rare_events import Catalog, handle, here
from airflow_provider_deltaforge.sources.mysql.binlog.row_kernel import count_rows, deliverable
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import parse_table_map, table_name
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.positions import BinlogTxPositions, LogPosition


class BinlogSegmenter(EventTables):
    """Turns the bytes of a dump into segments. ``special`` handles the events that are rare."""

    def __init__(self, info: MySqlServer, position: LogPosition, catalog: Catalog) -> None:
        super().__init__()
        self.info = info
        self.position = position
        self.ready: deque[BinlogSegment] = deque()
        self.origins: list[str] = []
        self.file = position.file
        self.checksum = 0
        self._catalog = catalog
        self._keys = np.zeros((0, 16), np.uint8)
        self._plans = DecodePlans()
        self._known: dict[TableDecodePlan, int] = {}
        self._by_hash: dict[int, int] = {}
        self._row_base = 0
        self._given = 0
        self._skip = 0
        self.restart()

    def restart(self) -> None:
        """Forget what came after the last segment; the dump starts again at ``position``."""
        self._reset(np.zeros(0, np.int64), 0)
        self._catalog.begin(self.position, lambda: here(self))
        self._by_hash.clear()
        self.state[:] = 0
        self.file = self.position.file
        self.state[f.POS] = self.position.pos
        self.checksum = 4 if self.info.checksum else 0
        # What was handed out of an open transaction is read again, and left out.
        self._skip = self._given if self._continues else 0
        self._row_base = 0

    def feed(self, raw: Any, start: int, stop: int) -> int:
        """Take the complete events of ``raw[start:stop]``; return the first byte not taken.

        Raises:
            ConnectionResetError: the server ended the dump.
            FatalError and others: the server refused, or the log holds what we must not pass.
        """
        while True:
            at = int(self._starts[self._count])
            before = self._count
            result, start, _, self._count = packet_kernel.frame(
                raw, start, stop, self.data, at, self._starts, self._count, self.checksum
            )
            if self._count > before and self._compressed(self._count - 1):
                self._expand()
            else:
                self._scan()
            if result == packet_kernel.SERVER_ERROR:
                length = int(f.little(raw, start, 3))
                raise server_error(raw[start + 4 : start + 4 + length].tobytes())
            if result == packet_kernel.SERVER_EOF:
                raise ConnectionResetError("the server ended the log")
            if result == packet_kernel.NEED_MORE:
                return int(start)
            if self._count == before:
                self._make_room(packet_kernel.packet_size(raw, start, stop))
            elif self._starts[self._count] >= SEGMENT_BYTES:
                self.cut(full=True)

    def cut(self, *, full: bool = False) -> None:
        """Put what is complete into ``ready``; with ``full``, a part of one big transaction too."""
        self._scan()
        if not self.hand_out_complete() and full and self.state[f.IN_TX]:
            self._hand_out_part()

    def hand_out_complete(self) -> bool:
        """Make a segment of the complete transactions; say whether there were any."""
        complete = int(self.state[f.TX_COUNT]) - int(self.state[f.IN_TX])
        if complete:
            self._hand_out(complete)
        return complete > 0

    def forget_tables(self) -> None:
        """Ask again how tables are decoded, after a schema change."""
        self._by_hash.clear()

    def rows_of_open_tx(self) -> int:
        """Return how many captured row events the open transaction has so far."""
        count = int(self.state[f.ROWS_COUNT])
        rows = self._rows[:count]
        mine = rows[rows[:, f.ROW_TX] == self.state[f.TX_COUNT] - 1]
        captured = self._captured(mine)
        return int(captured.sum()) + (self._given > 0 and self._continues)

    def origin(self, name: str, key: bytes) -> int:
        """Return the ordinal of a GTID's origin; ``key`` is how the scanner sees it."""
        if name in self.origins:
            return self.origins.index(name)
        self.origins.append(name)
        row = np.frombuffer(key.ljust(16, b"\0"), np.uint8)
        self._keys = np.vstack([self._keys, row[None, :]])
        return len(self.origins) - 1

    def _scan(self) -> None:
        while True:
            result, self._next = f.scan(
                self.data,
                self._starts,
                self._next,
                self._count,
                self.state,
                self._keys,
                self.transactions,
                self._rows,
                self._maps,
            )
            self._resolve()
            if result == f.DONE:
                return
            if result == f.SPECIAL:
                if handle(self, self._catalog, self.event(self._next), int(self._next)):
                    self._next += 1
            elif result == f.UNKNOWN_ORIGIN:
                self._register(self.event(self._next))
            elif result == f.FULL:
                self._make_tables_room()
            else:
                raise FatalError(
                    f"{self.file}:{int(self.state[f.POS])}: rows without a table map; the log is "
                    "damaged, or reading began inside a statement. Start at a transaction's border"
                )

    def _register(self, event: bytes) -> None:
        body = event[f.HEADER :]
        if event[4] == f.MARIADB_GTID:
            domain, server = body[8:12], event[5:9]
            numbers = (int.from_bytes(part, "little") for part in (domain, server))
            self.origin("-".join(map(str, numbers)), domain + server)
        else:
            text = body[1:17].hex()
            parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
            self.origin("-".join(parts), body[1:17])

    def _expand(self) -> None:
        """Put the events of the compressed one that came last in its place."""
        event = self.event(self._count - 1)
        self._count -= 1
        self._scan()
        if event[4] != f.PAYLOAD:
            self._append(mariadb_event(event))
            self._scan()
            return
        f.advance(self.state, int.from_bytes(event[13:17], "little"))
        for inner in payload_events(event):
            self._append(inner)
            self.state[f.INNER] = 1
            self._scan()
        self.state[f.INNER] = 0

    def _append(self, event: bytes) -> None:
        at = int(self._starts[self._count])
        if at + len(event) > len(self.data) or self._count + 2 > len(self._starts):
            self._make_room(len(event))
            at = int(self._starts[self._count])
        self.data[at : at + len(event)] = np.frombuffer(event, np.uint8)
        self._count += 1
        self._starts[self._count] = at + len(event)

    def _resolve(self) -> None:
        """Find the plan of every new table map; equal bytes mean an equal table."""
        count = int(self.state[f.MAPS_COUNT])
        for ordinal in range(self._resolved, count):
            key = int(self._maps[ordinal, f.MAP_HASH])
            plan = self._by_hash.get(key)
            if plan is None:
                place = self._maps[ordinal]
                body = as_bytes(self.data, int(place[f.MAP_START]), int(place[f.MAP_STOP]))
                plan = self._by_hash[key] = self._add(self._plan(body))
            self._map_plans[ordinal] = plan
        self._resolved = count

    def _plan(self, body: bytes) -> TableDecodePlan:
        """Return how to decode a table; what is not captured is not looked at but for its name."""
        db, table = table_name(body)
        if not self._catalog.captures(db, table):
            return uncaptured_plan(db, table, body)
        try:
            described = parse_table_map(body, mariadb=self.info.mariadb)
        except SchemaError as error:
            raise TableError(f"{db}.{table}: {error}", f"{db}.{table}") from error
        return self._catalog.plan(described)

    def _add(self, plan: TableDecodePlan) -> int:
        if plan not in self._known:
            self._known[plan] = len(self._plans.plans)
            self._plans = DecodePlans((*self._plans.plans, plan))
        return self._known[plan]

    def _captured(self, rows: Any) -> Any:
        """Return for each row event whether rows of it are delivered."""
        found = np.zeros(len(rows), np.bool_)
        if len(rows):
            deliverable(self.data, rows, self._map_plans, self._plans.arrays, found)
        return found

    def _hand_out(self, complete: int) -> None:
        """Make a segment of the first ``complete`` transactions; keep what follows."""
        rows = self._rows[: self.rows_count]
        upto = int(np.searchsorted(rows[:, f.ROW_TX], complete))
        open_tx = bool(self.state[f.IN_TX])
        first_kept = int(self.state[f.TX_EVENT]) if open_tx else int(self._next)
        pos = self.transactions[complete, tc.TX_START] if open_tx else self.state[f.POS]
        changes = [change for change in self.changes if change.tx < complete]
        segment = self._segment(complete, upto, changes, int(self._starts[first_kept]))
        self.ready.append(segment)
        self.position = replace(segment.positions.log_position(complete), file=self.file)
        self._catalog.passed(self.position)
        self._row_base = self._given = self._skip = 0
        self._continues = False
        self._open_name = None
        self._keep(np.arange(first_kept, self._count), int(pos))

    def _hand_out_part(self) -> None:
        """Make a segment of the open transaction's first rows, but for the last captured event."""
        rows = self._rows[: self.rows_count]
        captured = np.flatnonzero(self._captured(rows))
        if len(captured) and captured[-1] == 0:
            return
        upto = int(captured[-1]) if len(captured) else len(rows)
        if upto == 0:
            return
        self._check_identity()
        arrays = self._plans.arrays
        given = self._row_base + int(count_rows(self.data, rows, upto, self._map_plans, arrays, 0))
        first_kept = int(rows[upto, f.ROW_EVENT]) if upto < len(rows) else int(self._next)
        segment = self._segment(1, upto, self.changes, int(self._starts[first_kept]), open_tx=True)
        self.ready.append(segment)
        self._continues = True
        self._row_base = given
        self._given = max(self._given, self._row_base)
        self._keep(self._kept_events(first_kept), int(self.transactions[0, tc.TX_START]))

    def _check_identity(self) -> None:
        """See that a transaction read again after a reconnect is the one that was cut."""
        tx = self.transactions[0]
        origin = self.origins[tx[tc.TX_ORIGIN]] if tx[tc.TX_ORIGIN] >= 0 else self.file
        name = (origin, int(tx[tc.TX_NUMBER] if tx[tc.TX_ORIGIN] >= 0 else tx[tc.TX_START]))
        if self._open_name not in (None, name):
            raise FatalError(
                f"the log goes on with transaction {name} where {self._open_name} was cut; the "
                "server's history changed. Take a new snapshot"
            )
        self._open_name = name

    def _segment(
        self, complete: int, upto: int, changes: Any, size: int, *, open_tx: bool = False
    ) -> BinlogSegment:
        transactions = self.transactions[:complete].copy()
        positions = BinlogTxPositions(self.position, self.file, transactions, tuple(self.origins))
        data = self.data[:size]
        return BinlogSegment(
            nbytes=size,
            data=data.copy() if size < SEGMENT_BYTES // 4 else data,
            rows=self._rows[:upto].copy(),
            map_plans=self._map_plans[: self._resolved].copy(),
            plans=self._plans,
            positions=positions,
            changes=tuple(changes),
            row_base=self._row_base,
            skip=self._skip,
            open_tx=open_tx,
            continues=self._continues,
        )

    def _make_room(self, size: int) -> None:
        """Make room for an event of ``size`` bytes: hand out what can be, else grow."""
        self.cut(full=True)
        needed = int(self._starts[self._count]) + size
        if needed > len(self.data):
            grown = np.empty(needed + needed // 2, np.uint8)
            grown[: self._starts[self._count]] = self.data[: self._starts[self._count]]
            self.data = grown
        if self._count + 2 > len(self._starts):
            self._starts = np.concatenate([self._starts, np.zeros_like(self._starts)])
