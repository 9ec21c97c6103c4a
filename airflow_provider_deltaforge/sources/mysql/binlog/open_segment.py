"""The segment in the making: events, the scanner's tables over them, and how tables are decoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from airflow_provider_deltaforge.errors import FatalError, SchemaError, TableError
from airflow_provider_deltaforge.events.schema import TableSchema
from airflow_provider_deltaforge.events.table_names import qualified_name
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
from airflow_provider_deltaforge.sources.mysql.ddl.statements import Key, Statement
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

    def without_temporary(self, statement: Statement, db: str, session: int) -> Statement:
        """Return what a statement does to other tables than the session's temporary ones."""

    def is_transactional(self, db: str, table: str) -> bool:
        """Return whether a table's engine undoes what is rolled back."""

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
        """Return the ordinal of a name, which is added if it is new, and known by this key now."""
        if name not in self.names:
            self.names.append(name)
            self.keys = np.vstack([self.keys, np.zeros((1, 16), np.uint8)])
        ordinal = self.names.index(name)
        self.keys[ordinal] = np.frombuffer(key.ljust(16, b"\0"), np.uint8)
        return ordinal

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
            name = qualified_name(db, table)
            raise TableError(f"{name}: {error}", name) from error
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


@dataclass(frozen=True)
class Savepoint:
    """A place in a transaction.

    Attributes:
        tx: ordinal of the transaction in the segment.
        name: in small letters.
        rows: how many row events of the segment come before it.
    """

    tx: int
    name: str
    rows: int


class EventBuffer:
    """Events one behind the other.

    Attributes:
        data: uint8, the events.
        starts: int64, where each begins; behind the last one, where the next will.
        count: how many there are.
    """

    def __init__(self) -> None:
        self.data = np.empty(SEGMENT_BYTES + (1 << 16), np.uint8)
        self.starts = np.zeros(_EVENTS_MAX, np.int64)
        self.count = 0

    @property
    def end(self) -> int:
        """Where the next event will begin."""
        return int(self.starts[self.count])

    def event(self, index: int) -> bytes:
        """Return an event."""
        return self.piece(self.starts[index], self.starts[index + 1])

    def piece(self, start: int, stop: int) -> bytes:
        """Return some bytes."""
        return self.data[int(start) : int(stop)].tobytes()

    def kind(self, index: int) -> int:
        """Return the type of an event."""
        return int(self.data[self.starts[index] + 4])

    def is_compressed(self, index: int) -> bool:
        """Return whether an event holds others, or a compressed one."""
        kind = self.kind(index)
        return kind == f.PAYLOAD or f.MARIADB_QUERY_COMPRESSED <= kind <= 171

    def append(self, event: bytes) -> None:
        """Add an event; there is room for it."""
        at = self.end
        self.data[at : at + len(event)] = np.frombuffer(event, np.uint8)
        self.count += 1
        self.starts[self.count] = at + len(event)

    def has_room(self, size: int) -> bool:
        """Return whether one more event of ``size`` bytes fits."""
        return self.end + size <= len(self.data) and self.count + 2 <= len(self.starts)

    def grow(self, size: int) -> None:
        """Make room for one more event of ``size`` bytes."""
        end = self.end
        needed = end + size
        if needed > len(self.data):
            grown = np.empty(needed + needed // 2, np.uint8)
            grown[:end] = self.data[:end]
            self.data = grown
        if self.count + 2 > len(self.starts):
            self.starts = np.concatenate([self.starts, np.zeros_like(self.starts)])

    def keep(self, events: Any) -> None:
        """Keep some events only, by index, in another array: segments share the one they are in."""
        sizes = self.starts[events + 1] - self.starts[events] if len(events) else events
        size = int(sizes.sum())
        fresh = np.empty(max(SEGMENT_BYTES, 2 * size) + (1 << 16), np.uint8)
        old, starts = self.data, self.starts[: self.count + 1].copy()
        at = 0
        for ordinal, event in enumerate(events.tolist()):
            part = old[starts[event] : starts[event + 1]]
            fresh[at : at + len(part)] = part
            self.starts[ordinal] = at
            at += len(part)
        self.starts[len(events)] = at
        self.data, self.count = fresh, len(events)


class ScanTables:
    """What the scanner found in the events.

    Attributes:
        state: int64, see ``framing_kernel``.
        transactions: int64 (n, TX_COLUMNS), see ``positions``.
        rows: int64 (n, ROW_COLUMNS), row events.
        maps: int64 (n, MAP_COLUMNS), table maps.
        map_plans: int64, per table map the ordinal of its plan.
        resolved: table maps whose plans are known.
    """

    def __init__(self) -> None:
        self.state = np.zeros(f.STATE_SIZE, np.int64)
        self.transactions = np.zeros((_TX_MAX, TX_COLUMNS), np.int64)
        self.rows = np.zeros((_ROWS_MAX, f.ROW_COLUMNS), np.int64)
        self.maps = np.zeros((_MAPS_MAX, f.MAP_COLUMNS), np.int64)
        self.map_plans = np.zeros(_MAPS_MAX, np.int64)
        self.resolved = 0

    @property
    def rows_count(self) -> int:
        """Row events so far."""
        return int(self.state[f.ROWS_COUNT])

    @property
    def complete(self) -> int:
        """Complete transactions so far."""
        return int(self.state[f.TX_COUNT]) - int(self.state[f.IN_TX])

    def grow(self) -> None:
        """Double the tables that a segment may legally fill."""
        for name in ("transactions", "rows", "maps", "map_plans"):
            table = getattr(self, name)
            setattr(self, name, np.concatenate([table, np.zeros_like(table)]))

    def clear(self) -> None:
        """Forget everything but the place in the log."""
        pos = self.state[f.POS]
        self.state[:] = 0
        self.state[f.POS] = pos
        self.resolved = 0


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
        savepoints: in order, of the open transaction and maybe of others.
        events: of the segment, and what came behind them.
        scanned: what was found in them.
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
        self.savepoints: list[Savepoint] = []
        self.events = EventBuffer()
        self.scanned = ScanTables()
        self._next = 0

    @property
    def place(self) -> str:
        """File and offset read so far, for messages."""
        return f"{self.file}:{int(self.scanned.state[f.POS])}"

    def here(self) -> LogPosition:
        """Return the position after the last complete transaction that was read."""
        complete = self.scanned.complete
        return self.positions(self.scanned.transactions[:complete]).log_position(complete)

    def positions(self, transactions: Any) -> BinlogTxPositions:
        """Return the positions of the segment's first transactions, an int64 table of them."""
        return BinlogTxPositions(self.position, self.file, transactions, tuple(self.origins.names))

    @property
    def open_tx(self) -> int:
        """Ordinal of the transaction that began last."""
        return int(self.scanned.state[f.TX_COUNT]) - 1

    def rows_of_open_tx(self) -> int:
        """Return how many captured row events the open transaction has so far."""
        return len(self._captured_of_open_tx()) + (self.is_continued and self.cut_tx.delivered > 0)

    @property
    def is_continued(self) -> bool:
        """Whether a part of the open transaction was handed out; others may lie behind that one."""
        return self.cut_tx.continues and self.open_tx == 0

    def tables_with_rows(self, first: int, stop: int | None = None) -> set[Key]:
        """Return the captured tables of some of the open transaction's row events.

        Args:
            first: ordinal of the first row event.
            stop: ordinal of the first one behind them; None: all of them.
        """
        maps = self._captured_of_open_tx(first, stop)[:, f.ROW_MAP]
        plans = [self.plans.plans.plans[ordinal] for ordinal in self.scanned.map_plans[maps]]
        return {(plan.db, plan.table) for plan in plans}

    def drop_rows(self, first: int) -> None:
        """Forget the open transaction's row events from an ordinal on."""
        rows = self.scanned.rows[: self.scanned.rows_count]
        begin = int(np.searchsorted(rows[:, f.ROW_TX], self.open_tx))
        self.scanned.state[f.ROWS_COUNT] = max(begin, first)

    def _captured_of_open_tx(self, first: int = 0, stop: int | None = None) -> Any:
        rows = self.scanned.rows[: self.scanned.rows_count][first:stop]
        mine = rows[rows[:, f.ROW_TX] == self.open_tx]
        return mine[self._captured(mine)]

    def require_nothing_handed_out(self) -> None:
        """Check that the open transaction, which never committed, may be left out.

        Raises:
            FatalError: a part of it was handed out already.
        """
        if self.is_continued:
            raise FatalError(
                "the server crashed inside a transaction of which a part is delivered already, "
                "although it never committed; take a new snapshot"
            )

    def drop_open_tx(self) -> None:
        """Go on after a crash inside the open transaction; see ``require_nothing_handed_out``."""
        self.require_nothing_handed_out()
        self.cut_tx.name = None
        self._keep(
            np.arange(int(self._next) + 1, self.events.count), int(self.scanned.state[f.POS])
        )

    def _captured(self, rows: Any) -> Any:
        """Return for each row event whether rows of it are delivered."""
        found = np.zeros(len(rows), np.bool_)
        if len(rows):
            deliverable(
                self.events.data, rows, self.scanned.map_plans, self.plans.plans.arrays, found
            )
        return found

    def _resolve(self) -> None:
        """Find the plan of every new table map."""
        count = int(self.scanned.state[f.MAPS_COUNT])
        for ordinal in range(self.scanned.resolved, count):
            table = self.scanned.maps[ordinal]
            body = self.events.piece(table[f.MAP_START], table[f.MAP_STOP])
            self.scanned.map_plans[ordinal] = self.plans.ordinal(int(table[f.MAP_HASH]), body)
        self.scanned.resolved = count

    def _kept_events(self, first_kept: int) -> Any:
        """Return the events that a part's successor begins with: its start, and table maps."""
        begin = int(self.scanned.state[f.TX_EVENT])
        head, second, mariadb = [begin], begin + 1, self.info.mariadb
        is_query = second < first_kept and self.events.kind(second) == f.QUERY
        # MariaDB's first event is BEGIN as well; behind it, CREATE TABLE … SELECT is made once.
        if is_query and (not mariadb or b"SAVEPOINT" in self.events.event(second).upper()):
            head.append(second)
        maps = self.scanned.maps[: int(self.scanned.state[f.MAPS_COUNT])]
        last = {
            int(entry[f.MAP_TABLE]): int(entry[f.MAP_EVENT])
            for entry in maps
            if begin < entry[f.MAP_EVENT] < first_kept
        }
        head += sorted(last.values())
        return np.array([*head, *range(first_kept, self.events.count)], np.int64)

    def _keep(self, events: Any, pos: int) -> None:
        """Begin the next segment with some of this one's events; they are scanned again."""
        self._reset(events)
        self.scanned.state[f.POS] = pos

    def _reset(self, events: Any) -> None:
        self.events.keep(events)
        self.scanned.clear()
        self._next = 0
        self.changes = []
        self.savepoints = []
