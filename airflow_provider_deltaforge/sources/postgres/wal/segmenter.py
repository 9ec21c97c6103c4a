"""From received bytes to segments: buffers, transaction borders, tables.

A segment holds whole transactions. Only a transaction larger than a segment is cut, and then before
its last captured event, so that the segment that sees the commit always has an event to mark as the
transaction's last.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.postgres.connection import check_report
from airflow_provider_deltaforge.sources.postgres.positions import (
    WalPosition,
    WalTxPositions,
    lsn_text,
)
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING, PostgresTuning
from airflow_provider_deltaforge.sources.postgres.wal import framing_kernel as f
from airflow_provider_deltaforge.sources.postgres.wal import messages
from airflow_provider_deltaforge.sources.postgres.wal.decode_plans import WalTablePlan
from airflow_provider_deltaforge.sources.postgres.wal.log_segment import (
    ROW_COLUMNS,
    ROW_INDEX,
    ROW_START,
    ROW_STOP,
    ROW_TX,
    Marker,
    WalSegment,
)
from airflow_provider_deltaforge.sources.postgres.wal.messages import Relation
from airflow_provider_deltaforge.sources.postgres.wal.relations import Relations

_TX_MAX, _ROWS_MAX = 1 << 15, 1 << 16


class Received:
    """One array: frames that were looked at, up to ``at``, and what came behind them.

    Args:
        tuning: how large it is, and how much room is left for what comes next.

    Attributes:
        raw: uint8.
        at: how far the scanner has come; a whole frame or none begins here.
        end: behind the last byte received.
    """

    def __init__(self, tuning: PostgresTuning) -> None:
        self._segment_bytes = tuning.segment_bytes
        self._receive_bytes = tuning.receive_bytes
        self.raw: Any = np.empty(tuning.segment_bytes, np.uint8)
        self.at = 0
        self.end = 0

    @property
    def full(self) -> bool:
        """Whether it is time to hand something out, or to grow."""
        return len(self.raw) - self.end < self._receive_bytes

    def room(self) -> memoryview:
        """Return where the next bytes go; a frame larger than the array gets a larger one."""
        if self.full:
            grown = np.empty(2 * len(self.raw), np.uint8)
            grown[: self.end] = self.raw[: self.end]
            self.raw = grown
        return memoryview(self.raw.data)[self.end :]

    def frame(self) -> bytes:
        """Return the complete frame that begins at ``at``."""
        size = 1 + int.from_bytes(self.raw[self.at + 1 : self.at + 5].tobytes(), "big")
        return bytes(self.raw[self.at : self.at + size].tobytes())

    def clear(self) -> None:
        """Forget everything."""
        self.at = self.end = 0

    def give(self, size: int) -> tuple[Any, bool]:
        """Return the first ``size`` bytes for good, and whether the array itself goes with them.

        After it was given away, ``keep`` what is still needed before anything else.
        """
        whole = size >= self._segment_bytes // 4
        return (self.raw[:size] if whole else self.raw[:size].copy()), whole

    def keep(self, piece: tuple[int, int], tail: int, *, anew: bool) -> None:
        """Put a piece and everything from ``tail`` on at the front.

        Args:
            piece: where a row's bytes begin and end; both the same for none.
            tail: what is kept from here on; not behind ``at``.
            anew: in another array, because this one was given away.
        """
        size, left = piece[1] - piece[0], self.end - tail
        target = self.raw
        if anew:
            target = np.empty(max(self._segment_bytes, 2 * (size + left)), np.uint8)
        target[:size] = self.raw[piece[0] : piece[1]]
        target[size : size + left] = self.raw[tail : self.end]
        self.at, self.end = size + self.at - tail, size + left
        self.raw = target


@dataclass
class _CutTransaction:
    """The open transaction, if it is larger than a segment and was handed out in part.

    Attributes:
        commit: where it commits; None: no part of it was handed out.
        handed_out: its events before this number were.
    """

    commit: int | None = None
    handed_out: int = 0

    def check(self, commit: int) -> None:
        """Check that a transaction read again after a reconnect is the one that was cut.

        Args:
            commit: where it commits.

        Raises:
            FatalError: it is another.
        """
        if self.commit not in (None, commit):
            raise FatalError(
                f"the log goes on with the transaction that commits at {lsn_text(commit)} where "
                f"the one at {lsn_text(self.commit or 0)} was cut; the server's history "
                "changed. Take a new snapshot of the tables"
            )


class _ScanTables:
    """What the scanner finds in the bytes.

    Attributes:
        state: int64, see ``framing_kernel``.
        transactions: int64 (n, TX_COLUMNS).
        rows: int64 (n, ROW_COLUMNS).
    """

    def __init__(self) -> None:
        self.state = np.zeros(f.STATE_SIZE, np.int64)
        self.transactions = np.zeros((_TX_MAX, f.TX_COLUMNS), np.int64)
        self.rows = np.zeros((_ROWS_MAX, ROW_COLUMNS), np.int64)


class WalSegmenter:
    """Turns the bytes of a session into segments.

    Args:
        db: the database's real name.
        position: where the first segment begins.
        plan: makes the plan of a relation, or None for a table that is not captured.
        schema_of: what logical messages of a prefix have as schema; None: they are no events.
        note: takes messages of our own, which are no events.
        tuning: how large segments are.
        encoding: of the database, as Python calls it.
    """

    def __init__(
        self,
        db: str,
        position: WalPosition,
        plan: Callable[[Relation], WalTablePlan | None],
        schema_of: Callable[[str], str | None],
        note: Callable[[messages.LogicalMessage], None],
        tuning: PostgresTuning = POSTGRES_TUNING,
        encoding: str | None = "utf-8",
    ) -> None:
        self._encoding = encoding
        self.position = position
        self.ready: deque[WalSegment] = deque()
        self.asked = False
        self._db = db
        self._schema_of = schema_of
        self._note = note
        self._relations = Relations(plan)
        self._markers: list[Marker] = []
        self._scanned = _ScanTables()
        self._log = Received(tuning)
        self._cut_tx = _CutTransaction()
        self.restart()

    def restart(self) -> None:
        """Forget what came after the last segment; the log comes again from ``position``."""
        self._scanned.state[:] = 0
        self._scanned.state[f.REACHED] = self._scanned.state[f.WRITTEN] = self.position.lsn
        # What was handed out of an open transaction is read again, and left out.
        self._scanned.state[f.SKIP] = self._cut_tx.handed_out
        self._log.clear()
        self._markers = []
        self._relations.forget()

    @property
    def written(self) -> int:
        """How far the log was received."""
        return int(self._scanned.state[f.WRITTEN])

    @property
    def here(self) -> WalPosition:
        """Where the transaction being read commits: behind everything before it."""
        commit = self._scanned.transactions[int(self._scanned.state[f.TX_COUNT]) - 1, f.TX_COMMIT]
        return replace(self.position, lsn=int(commit))

    @property
    def moved(self) -> bool:
        """Whether the server has read on without anything for us."""
        quiet = not self._scanned.state[f.TX_COUNT] and self._cut_tx.commit is None
        return quiet and int(self._scanned.state[f.REACHED]) > self.position.lsn

    def room(self) -> memoryview:
        """Return where bytes go that are received next; hands out segments when it is full."""
        if self._log.full:
            self.cut(full=True)
        return self._log.room()

    def take(self, size: int) -> None:
        """Look at ``size`` bytes more that stand in the room.

        Raises:
            ConnectionResetError: the server ended the log.
            FatalError and others: the server refused, or the log holds what we must not pass.
        """
        log, scanned = self._log, self._scanned
        log.end += size
        while True:
            result, log.at = f.scan(
                log.raw, log.at, log.end, scanned.state, scanned.transactions, scanned.rows,
                self._relations.keys, self._relations.ordinals,
            )  # fmt: skip
            self.asked |= bool(scanned.state[f.ASKED])
            scanned.state[f.ASKED] = 0
            if result == f.DONE:
                return
            if result == f.FULL:
                self.cut(full=True)
                continue
            self._special(int(result))

    def cut(self, *, full: bool = False) -> None:
        """Put what is complete into ``ready``; with ``full``, a part of one big transaction too."""
        complete = int(self._scanned.state[f.TX_COUNT] - self._scanned.state[f.IN_TX])
        if complete:
            self._hand_out(complete)
        elif full and self._scanned.state[f.IN_TX]:
            self._hand_out_part()
        elif full:
            self._log.keep((0, 0), self._log.at, anew=False)

    def cut_idle(self) -> None:
        """Move the position on to where the server has read, with an empty segment."""
        if self.moved:
            self._hand_out(0)

    def _special(self, result: int) -> None:
        """Deal with the frame the scanner stopped at, and step over it."""
        if result in (f.ENDED, f.REPORTED):
            self.cut()  # Perhaps nobody will send again what came before.
        frame = self._log.frame()
        if result == f.ENDED:
            raise ConnectionResetError("the server ended the log")
        body = frame[f.MESSAGE :]
        kind = body[:1] if result == f.SPECIAL else b""
        if result == f.REPORTED:
            check_report(frame)
        elif kind in (b"R", b"Y"):
            self._relations.take(body)
        elif kind == b"T":
            self._truncated(messages.parse_truncate(body))
        elif kind == b"M":
            self._message(messages.parse_message(body, self._encoding))
        else:
            raise FatalError(
                f"{lsn_text(self.written)}: the log holds a message of kind {frame[:1]!r} "
                f"{body[:1]!r} where none can be; is the server newer than this release knows? "
                "Nothing was skipped"
            )
        self._log.at += len(frame)

    def _truncated(self, truncate: messages.Truncate) -> None:
        for oid in truncate.oids:
            relation = self._relations.captured(oid)
            if relation is not None:
                self._mark("t", relation.schema, relation.table, ddl=truncate.ddl)
            self._scanned.state[f.INDEX] += 1

    def _message(self, message: messages.LogicalMessage) -> None:
        if not message.transactional and not self._scanned.state[f.IN_TX]:
            if message.lsn <= self.position.lsn:
                return  # Handed out before a reconnect.
            self._begin_alone(message)
        if message.is_own:
            self._note(message)
        else:
            schema = self._schema_of(message.prefix)
            if schema is not None:
                self._mark("c", schema, message.prefix, after=message.image)
        self._scanned.state[f.INDEX] += 1

    def _begin_alone(self, message: messages.LogicalMessage) -> None:
        """Make a transaction of a message that belongs to none; see ``WalTxPositions``."""
        if self._scanned.state[f.TX_COUNT] >= len(self._scanned.transactions):
            self.cut()
        ordinal = int(self._scanned.state[f.TX_COUNT])
        sent_us = int(f.big(self._log.raw, self._log.at + 22, 8)) + f.EPOCH_2000_US
        self._scanned.transactions[ordinal] = (message.lsn, message.lsn - 1, 0, sent_us // 1000)
        self._scanned.state[f.TX_COUNT] = ordinal + 1
        self._scanned.state[f.INDEX] = 0

    def _mark(
        self, op: str, schema: str, table: str, after: bytes | None = None, ddl: bytes | None = None
    ) -> None:
        index = int(self._scanned.state[f.INDEX])
        tx, before = (
            int(self._scanned.state[f.TX_COUNT]) - 1,
            int(self._scanned.state[f.ROWS_COUNT]),
        )
        # Transactions of their own are never cut, so they leave out nothing.
        if index >= self._scanned.state[f.SKIP] or not self._scanned.state[f.IN_TX]:
            self._markers.append(Marker(tx, before, index, op, schema, table, after, ddl))

    def _hand_out(self, complete: int) -> None:
        """Make a segment of the first ``complete`` transactions; keep what follows."""
        self._cut_tx.check(int(self._scanned.transactions[0, f.TX_COMMIT]))
        state, rows = self._scanned.state, self._scanned.rows
        count = int(state[f.ROWS_COUNT])
        upto = int(np.searchsorted(rows[:count, ROW_TX], complete))
        size = int(state[f.TX_AT]) if state[f.IN_TX] else self._log.at
        markers = [marker for marker in self._markers if marker.tx < complete]
        anew = self._add_segment(complete, upto, markers, size, int(state[f.REACHED]))
        self.position = self.ready[-1].positions.end_position
        self._cut_tx = _CutTransaction()
        self._markers = [
            replace(marker, tx=0, before=marker.before - upto)
            for marker in self._markers[len(markers) :]
        ]
        if state[f.IN_TX]:
            self._scanned.transactions[0] = self._scanned.transactions[complete]
        state[f.TX_COUNT] = state[f.IN_TX]
        state[f.TX_AT] = 0
        kept = rows[upto:count].copy()
        kept[:, ROW_TX] = 0
        kept[:, [ROW_START, ROW_STOP]] -= size
        rows[: len(kept)] = kept
        state[f.ROWS_COUNT] = len(kept)
        self._log.keep((0, 0), size, anew=anew)
        if not len(kept):
            self._relations.prune()

    def _hand_out_part(self) -> None:
        """Make a segment of the open transaction's events but for the last one, which is kept."""
        commit = int(self._scanned.transactions[0, f.TX_COMMIT])
        self._cut_tx.check(commit)
        state, rows = self._scanned.state, self._scanned.rows
        count = int(state[f.ROWS_COUNT])
        ends_marked = bool(self._markers) and self._markers[-1].before == count
        upto = count if ends_marked else max(0, count - 1)
        markers = self._markers[:-1] if ends_marked else self._markers
        anew = False
        if upto or markers:
            anew = self._add_segment(1, upto, markers, self._log.at, 0, open_tx=True)
            handed_out = self._markers[-1].index if ends_marked else int(rows[upto, ROW_INDEX])
            self._cut_tx = _CutTransaction(commit, handed_out)
        self._markers = [replace(marker, before=0) for marker in self._markers[len(markers) :]]
        piece = (0, 0)
        if upto < count:
            piece = (int(rows[upto, ROW_START]), int(rows[upto, ROW_STOP]))
            rows[0] = rows[upto]
            rows[0, [ROW_START, ROW_STOP]] = (0, piece[1] - piece[0])
        state[f.ROWS_COUNT] = count - upto
        self._log.keep(piece, self._log.at, anew=anew)

    def _add_segment(
        self,
        count: int,
        upto: int,
        markers: list[Marker],
        size: int,
        reached: int,
        *,
        open_tx: bool = False,
    ) -> bool:
        """Add a segment to ``ready``; return whether it took the array of bytes with it."""
        ends, commits, xids, times_ms = self._scanned.transactions[:count].copy().T
        data, whole = self._log.give(size if upto else 0)
        segment = WalSegment(
            nbytes=size,
            data=data,
            rows=self._scanned.rows[:upto].copy(),
            plans=self._relations.plans,
            positions=WalTxPositions(self.position, ends, commits, xids, times_ms, reached),
            db=self._db,
            markers=tuple(markers),
            open_tx=open_tx,
            continues=self._cut_tx.commit is not None,
        )
        self.ready.append(segment)
        return whole
