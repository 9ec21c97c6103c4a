"""The buffers behind a segment in the making: events, and the scanner's tables over them."""

from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.mysql.binlog import framing_kernel as f
from airflow_provider_deltaforge.sources.mysql.binlog import tx_columns as tc
from airflow_provider_deltaforge.sources.mysql.binlog.compressed import as_bytes
from airflow_provider_deltaforge.sources.mysql.binlog.log_segment import SchemaChange

SEGMENT_BYTES = 4 << 20
"""A segment is cut when it has this many bytes of log."""

_TX_MAX, _ROWS_MAX, _MAPS_MAX, _EVENTS_MAX = 1 << 15, 1 << 17, 1 << 17, 1 << 18


class EventTables:
    """Events one behind the other, and what the scanner found in them."""

    def __init__(self) -> None:
        self.changes: list[SchemaChange] = []
        self.transactions = np.zeros((_TX_MAX, tc.TX_COLUMNS), np.int64)
        self.state = np.zeros(f.STATE_SIZE, np.int64)
        self.data = np.empty(SEGMENT_BYTES + (1 << 16), np.uint8)
        self._starts = np.zeros(_EVENTS_MAX, np.int64)
        self._rows = np.zeros((_ROWS_MAX, f.ROW_COLUMNS), np.int64)
        self._maps = np.zeros((_MAPS_MAX, f.MAP_COLUMNS), np.int64)
        self._map_plans = np.zeros(_MAPS_MAX, np.int64)
        self._count = 0
        self._next = 0
        self._resolved = 0
        self._continues = False
        self._open_name: tuple[Any, ...] | None = None

    def event(self, index: int) -> bytes:
        """Return one event's bytes."""
        return as_bytes(self.data, int(self._starts[index]), int(self._starts[index + 1]))

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

    def _make_tables_room(self) -> None:
        """The scanner's tables are full: grow the ones a segment may legally fill."""
        for name in ("transactions", "_rows", "_maps"):
            table = getattr(self, name)
            setattr(self, name, np.concatenate([table, np.zeros_like(table)]))
        self._map_plans = np.concatenate([self._map_plans, np.zeros_like(self._map_plans)])

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

    def drop_open_tx(self) -> None:
        """Go on behind the present event: the server crashed inside the open transaction.

        Raises:
            FatalError: a part of it was handed out already.
        """
        if self._continues:
            raise FatalError(
                "the server crashed inside a transaction of which a part is delivered already, "
                "although it never committed; take a new snapshot"
            )
        self._open_name = None
        self._keep(np.arange(int(self._next) + 1, self._count), int(self.state[f.POS]))

    def _compressed(self, index: int) -> bool:
        kind = int(self.data[self._starts[index] + 4])
        return kind == f.PAYLOAD or f.MARIADB_QUERY_COMPRESSED <= kind <= 171

    def _keep(self, events: Any, pos: int) -> None:
        """Begin the next segment with some of this one's events; they are scanned again."""
        self._reset(events, SEGMENT_BYTES)
        self.state[f.POS] = pos

    @property
    def rows_count(self) -> int:
        """Row events of the segment so far."""
        return int(self.state[f.ROWS_COUNT])
