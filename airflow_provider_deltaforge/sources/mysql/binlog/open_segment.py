"""The segment in the making: events, the scanner's tables over them, and how tables are decoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from airflow_provider_deltaforge.errors import FatalError, SchemaError, TableError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog.decode_plans import (
    DecodePlans,
    TableDecodePlan,
    uncaptured_plan,
)
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import SchemaChange
from airflow_provider_deltaforge.sources.mysql.binlog.row_kernel import deliverable
from airflow_provider_deltaforge.sources.mysql.binlog.table_map import (
    TableMap,
    parse_table_map,
    table_name,
)
from airflow_provider_deltaforge.sources.mysql.connection import MySqlServer
from airflow_provider_deltaforge.sources.mysql.ddl.lexer import SqlMode
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Statement
from airflow_provider_deltaforge.sources.mysql.positions import (
    TX_COLUMNS,
    BinlogTxPositions,
    LogPosition,
)

SEGMENT_BYTES = 4 << 20
"""A segment is cut when it has this many bytes of log."""

_TX_MAX, _ROWS_MAX, _MAPS_MAX, _EVENTS_MAX = 1 << 15, 1 << 17, 1 << 17, 1 << 18


class Catalog(Protocol):
    """Answers what the log does not say about tables."""

    def captures(self, db: str, table: str) -> bool:
        """Return whether a table is captured."""

    def touches(self, db: str) -> bool:
        """Return whether any table of a database could be captured."""

    def begin(self, position: LogPosition, here: Callable[[], LogPosition]) -> None:
        """Go back to a position: what follows is read again; ``here`` returns how far."""

    def passed(self, position: LogPosition) -> None:
        """Record that everything so far lies before a position."""

    def changed(self, statement: Statement, db: str, sql: str) -> tuple[TableSchema, ...]:
        """Record a schema change; return how captured tables look after it."""

    def judge(self, sql: str, db: str, place: str, *, session: int, mode: SqlMode) -> None:
        """Return if a statement that was logged instead of rows changed no captured table."""

    def server_restarted(self) -> None:
        """Record that the server was started anew here: sessions before it ended."""

    def plan(self, table: TableMap) -> TableDecodePlan:
        """Return how to decode a captured table."""


class Origins:
    """Where GTIDs come from: names in the order of their ordinals, and how the scanner sees them.

    Attributes:
        names: MySQL's ``uuid[:tag]``, MariaDB's ``domain-server``.
        keys: uint8 (names, 16).
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.keys = np.zeros((0, 16), np.uint8)

    def ordinal(self, name: str, key: bytes) -> int:
        """Return the ordinal of a name, which is added if it is new."""
        if name in self.names:
            return self.names.index(name)
        self.names.append(name)
        row = np.frombuffer(key.ljust(16, b"\0"), np.uint8)
        self.keys = np.vstack([self.keys, row[None, :]])
        return len(self.names) - 1

    def register(self, event: bytes) -> None:
        """Add the origin of a GTID event that the scanner did not know."""
        body = event[f.HEADER :]
        if event[4] == f.MARIADB_GTID:
            domain, server = body[8:12], event[5:9]
            numbers = (int.from_bytes(part, "little") for part in (domain, server))
            self.ordinal("-".join(map(str, numbers)), domain + server)
        else:
            text = body[1:17].hex()
            parts = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
            self.ordinal("-".join(parts), body[1:17])


class TablePlans:
    """Finds the decode plan of a table map; equal bytes mean an equal table."""

    def __init__(self, catalog: Catalog, *, mariadb: bool) -> None:
        self.plans = DecodePlans()
        self._catalog = catalog
        self._mariadb = mariadb
        self._ordinals: dict[TableDecodePlan, int] = {}
        self._by_hash: dict[int, int] = {}

    def forget(self) -> None:
        """Ask the catalog again, after a schema change."""
        self._by_hash.clear()

    def ordinal(self, key: int, body: bytes) -> int:
        """Return the ordinal in ``plans`` for a table map's hash and bytes.

        Raises:
            TableError: a captured table cannot be decoded.
        """
        ordinal = self._by_hash.get(key)
        if ordinal is None:
            ordinal = self._by_hash[key] = self._add(self._plan(body))
        return ordinal

    def _add(self, plan: TableDecodePlan) -> int:
        if plan not in self._ordinals:
            self._ordinals[plan] = len(self.plans.plans)
            self.plans = DecodePlans((*self.plans.plans, plan))
        return self._ordinals[plan]

    def _plan(self, body: bytes) -> TableDecodePlan:
        """Return how to decode a table; of one that is not captured only the name is read."""
        db, table = table_name(body)
        if not self._catalog.captures(db, table):
            return uncaptured_plan(db, table, body)
        try:
            described = parse_table_map(body, mariadb=self._mariadb)
        except SchemaError as error:
            raise TableError(f"{db}.{table}: {error}", f"{db}.{table}") from error
        return self._catalog.plan(described)


@dataclass
class CutTransaction:
    """The open transaction, if it is larger than a segment and was handed out in part.

    Attributes:
        continues: a part of it was handed out.
        name: its origin and number, or file and offset; it is known by that after a reconnect.
        rows: rows of its parts, counted from its beginning; 0 again when it is read again.
        delivered: the highest ``rows`` so far.
        skip: rows that were handed out before a reconnect and are left out now.
    """

    continues: bool = False
    name: tuple[Any, ...] | None = None
    rows: int = 0
    delivered: int = 0
    skip: int = 0


class OpenSegment:
    """Events one behind the other, and what the scanner found in them.

    Attributes:
        info: the server.
        position: the position after the last segment.
        file: the log file that is read.
        checksum: bytes of the checksum behind each event.
        origins: of GTIDs.
        plans: of tables.
        cut_tx: what was handed out of the open transaction.
        changes: schema changes, in order.
        transactions: int64 (n, TX_COLUMNS), see ``positions``.
        state: int64, the scanner's state, see ``framing_kernel``.
        data: uint8, the events.
    """

    def __init__(self, info: MySqlServer, position: LogPosition, catalog: Catalog) -> None:
        self.info = info
        self.position = position
        self.file = position.file
        self.checksum = 0
        self.origins = Origins()
        self.plans = TablePlans(catalog, mariadb=info.mariadb)
        self.cut_tx = CutTransaction()
        self.changes: list[SchemaChange] = []
        self.transactions = np.zeros((_TX_MAX, TX_COLUMNS), np.int64)
        self.state = np.zeros(f.STATE_SIZE, np.int64)
        self.data = np.empty(SEGMENT_BYTES + (1 << 16), np.uint8)
        self._starts = np.zeros(_EVENTS_MAX, np.int64)
        self._rows = np.zeros((_ROWS_MAX, f.ROW_COLUMNS), np.int64)
        self._maps = np.zeros((_MAPS_MAX, f.MAP_COLUMNS), np.int64)
        self._map_plans = np.zeros(_MAPS_MAX, np.int64)
        self._count = self._next = self._resolved = 0

    @property
    def place(self) -> str:
        """File and offset read so far, for messages."""
        return f"{self.file}:{int(self.state[f.POS])}"

    @property
    def rows_count(self) -> int:
        """Row events of the segment so far."""
        return int(self.state[f.ROWS_COUNT])

    def here(self) -> LogPosition:
        """Return the position after the last complete transaction that was read."""
        complete = int(self.state[f.TX_COUNT]) - int(self.state[f.IN_TX])
        return self.positions(self.transactions[:complete]).log_position(complete)

    def positions(self, transactions: Any) -> BinlogTxPositions:
        """Return the positions of the segment's first transactions, an int64 table of them."""
        return BinlogTxPositions(self.position, self.file, transactions, tuple(self.origins.names))

    def rows_of_open_tx(self) -> int:
        """Return how many captured row events the open transaction has so far."""
        rows = self._rows[: self.rows_count]
        mine = rows[rows[:, f.ROW_TX] == self.state[f.TX_COUNT] - 1]
        cut = self.cut_tx
        return int(self._captured(mine).sum()) + (cut.delivered > 0 and cut.continues)

    def require_nothing_handed_out(self) -> None:
        """Check that the open transaction, which never committed, may be left out.

        Raises:
            FatalError: a part of it was handed out already.
        """
        if self.cut_tx.continues:
            raise FatalError(
                "the server crashed inside a transaction of which a part is delivered already, "
                "although it never committed; take a new snapshot"
            )

    def drop_open_tx(self) -> None:
        """Go on after the present event: the server crashed inside the open transaction.

        Raises:
            FatalError: a part of it was handed out already.
        """
        self.require_nothing_handed_out()
        self.cut_tx.name = None
        self._keep(np.arange(int(self._next) + 1, self._count), int(self.state[f.POS]))

    def _event(self, index: int) -> bytes:
        return self._bytes(self._starts[index], self._starts[index + 1])

    def _bytes(self, start: int, stop: int) -> bytes:
        return self.data[int(start) : int(stop)].tobytes()

    def _is_compressed(self, index: int) -> bool:
        kind = int(self.data[self._starts[index] + 4])
        return kind == f.PAYLOAD or f.MARIADB_QUERY_COMPRESSED <= kind <= 171

    def _captured(self, rows: Any) -> Any:
        """Return for each row event whether rows of it are delivered."""
        found = np.zeros(len(rows), np.bool_)
        if len(rows):
            deliverable(self.data, rows, self._map_plans, self.plans.plans.arrays, found)
        return found

    def _resolve(self) -> None:
        """Find the plan of every new table map."""
        count = int(self.state[f.MAPS_COUNT])
        for ordinal in range(self._resolved, count):
            table = self._maps[ordinal]
            body = self._bytes(table[f.MAP_START], table[f.MAP_STOP])
            self._map_plans[ordinal] = self.plans.ordinal(int(table[f.MAP_HASH]), body)
        self._resolved = count

    def _grow_tables(self) -> None:
        """Double the scanner's tables that a segment may legally fill."""
        for name in ("transactions", "_rows", "_maps"):
            table = getattr(self, name)
            setattr(self, name, np.concatenate([table, np.zeros_like(table)]))
        self._map_plans = np.concatenate([self._map_plans, np.zeros_like(self._map_plans)])

    def _append(self, event: bytes) -> None:
        """Add an event; there is room for it."""
        at = int(self._starts[self._count])
        self.data[at : at + len(event)] = np.frombuffer(event, np.uint8)
        self._count += 1
        self._starts[self._count] = at + len(event)

    def _has_room(self, size: int) -> bool:
        end = int(self._starts[self._count])
        return end + size <= len(self.data) and self._count + 2 <= len(self._starts)

    def _grow(self, size: int) -> None:
        """Make room for one more event of ``size`` bytes."""
        end = int(self._starts[self._count])
        needed = end + size
        if needed > len(self.data):
            grown = np.empty(needed + needed // 2, np.uint8)
            grown[:end] = self.data[:end]
            self.data = grown
        if self._count + 2 > len(self._starts):
            self._starts = np.concatenate([self._starts, np.zeros_like(self._starts)])

    def _kept_events(self, first_kept: int) -> Any:
        """Return the events that a part's successor begins with: its start, and table maps."""
        begin = int(self.state[f.TX_EVENT])
        head = [begin]
        if begin + 1 < first_kept and self.data[self._starts[begin + 1] + 4] == f.QUERY:
            head.append(begin + 1)
        maps = self._maps[: int(self.state[f.MAPS_COUNT])]
        last = {
            int(entry[f.MAP_TABLE]): int(entry[f.MAP_EVENT])
            for entry in maps
            if begin < entry[f.MAP_EVENT] < first_kept
        }
        head += sorted(last.values())
        return np.array([*head, *range(first_kept, self._count)], np.int64)

    def _keep(self, events: Any, pos: int) -> None:
        """Begin the next segment with some of this one's events; they are scanned again."""
        self._reset(events, SEGMENT_BYTES)
        self.state[f.POS] = pos

    def _reset(self, events: Any, size_min: int) -> None:
        sizes = self._starts[events + 1] - self._starts[events] if len(events) else events
        size = int(sizes.sum())
        # Segments share the buffer they were read into, so the next one gets its own.
        fresh = np.empty(max(SEGMENT_BYTES, size_min, 2 * size) + (1 << 16), np.uint8)
        old, starts = self.data, self._starts[: self._count + 1].copy()
        at = 0
        for ordinal, event in enumerate(events.tolist()):
            part = old[starts[event] : starts[event + 1]]
            fresh[at : at + len(part)] = part
            self._starts[ordinal] = at
            at += len(part)
        self._starts[len(events)] = at
        self.data = fresh
        self._count, self._next, self._resolved = len(events), 0, 0
        self.changes = []
        pos, inner = self.state[f.POS], self.state[f.INNER]
        self.state[:] = 0
        self.state[f.POS], self.state[f.INNER] = pos, inner
