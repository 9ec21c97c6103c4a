"""A source whose log is a pure function of the position: a test double that ships.

Transaction ``n`` (from 1) writes ``rows`` rows with keys and values computed from ``n`` alone, so
any process can replay the log from any position and a checker can recompute what must arrive.
The log's head grows with wall-clock time at ``rate`` transactions per second from ``started_ms``,
up to ``transactions``.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pydantic import Field

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError, SpecError
from airflow_provider_deltaforge.events.change import CHANGE_SCHEMA, ChangeBatch, Position
from airflow_provider_deltaforge.events.schema import Column, TableSchema
from airflow_provider_deltaforge.schemas.history import SchemaHistory
from airflow_provider_deltaforge.sources.contract import Finding, Source, TableChunk

_POLL_S = 0.002
_FORMS = 3
_MULTIPLIER = 2654435761  # Knuth's: spreads neighbouring transactions over the keys.


class ScriptedSource(Source):
    """Deterministic transactions on one table, ``script.rows``."""

    connector = "scripted"

    id: str = "scripted"
    transactions: int = Field(default=1000, ge=0)
    """Length of the log; 0 has no end."""
    rows: int = Field(default=3, ge=1)
    """Rows in each transaction."""
    keys: int = Field(default=50, ge=1)
    """Different primary keys; 1 to ``keys``."""
    rate: float = Field(default=0.0, ge=0)
    """Transactions per second; 0: the whole log is there at once."""
    started_ms: int = Field(default=0, ge=0)
    """When the log began to grow, ms since epoch."""
    chunk_transactions: int = Field(default=10, ge=1)
    """Transactions in one chunk."""
    fail_reads: int = Field(default=0, ge=0)
    """The first so many reads of each connection fail, to exercise reconnecting."""
    purged_before: int = Field(default=0, ge=0)
    """Transactions below this one are no longer there."""
    alter_every: int = Field(default=0, ge=0)
    """The table is altered after so many transactions; each third time it is as at first."""

    def open(
        self,
        position: Position | None,
        stopping: Callable[[], bool] = lambda: False,
        history: SchemaHistory | None = None,
    ) -> "ScriptedReader":
        """Read after ``position``; from the head when there is none."""
        start = int((position or self.head())["tx"])
        if start + 1 < self.purged_before:
            raise PositionLostError(
                f"source {self.id}: transaction {start + 1} is gone, the log begins at "
                f"{self.purged_before}; take a new snapshot"
            )
        return ScriptedReader(self, start)

    def open_snapshot(self) -> "ScriptedSnapshotter":
        """Read the table as it stands at the head of the log."""
        return ScriptedSnapshotter(self)

    def preflight(self) -> Sequence[Finding]:
        """Nothing can be wrong with a script."""
        return [Finding("script", "ok", "the log is computed")]

    def describe(self) -> Sequence[TableSchema]:
        """Return the one table as it is at the head."""
        return [self.schema_of(self.head_tx())]

    def compare(self, left: Position, right: Position) -> int:
        """Order by transaction number."""
        return (int(left["tx"]) > int(right["tx"])) - (int(left["tx"]) < int(right["tx"]))

    def visible(self, cut: Position, batch: ChangeBatch) -> Any:
        """Return which changes a view of the table contained, a bool array by row."""
        first = int(batch.positions.after(0)["tx"])
        return batch.rows.column("tx").to_numpy() + first <= cut["tx"]

    def knows_views(self, position: Position) -> bool:
        """Return True: transactions are numbered."""
        return True

    def common_cut(self, cuts: Sequence[Position]) -> Position | None:
        """Return a cut such that several views contained everything up to it."""
        return self.earliest(cuts)

    def head(self) -> Position:
        """Return the last transaction that exists now."""
        return {"tx": self.head_tx()}

    def reach(self, position: Position) -> None:
        """Check that the script still begins at or before ``position``."""
        self.open(position).close()

    def place_at(self, text: str) -> Position:
        """Return the place behind the transaction of a number."""
        if not text.isdigit():
            raise SpecError(f"to: {text!r} is no number of a transaction, and no time")
        self.reach({"tx": int(text)})
        return {"tx": int(text)}

    def place_at_time(self, at_ms: int) -> Position:
        """Return the place behind the last transaction that was written by then."""
        tx = int((at_ms - self.started_ms) * (self.rate or 1000) / 1000)
        place = {"tx": max(0, min(tx, self.head_tx()))}
        self.reach(place)
        return place

    def head_tx(self) -> int:
        """Return the number of the last transaction that exists now."""
        if not self.rate:
            return self.transactions
        grown = int((time.time() * 1000 - self.started_ms) / 1000 * self.rate)
        return min(grown, self.transactions) if self.transactions else grown

    def schema_of(self, tx: int) -> TableSchema:
        """Return what the table looks like in transaction ``tx``."""
        return _schema(tx // self.alter_every % _FORMS if self.alter_every else 0)

    def key_of(self, tx: int, row: int) -> int:
        """Return the primary key that row ``row`` of transaction ``tx`` writes."""
        return ((tx * self.rows + row) * _MULTIPLIER) % self.keys + 1

    def events(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (transaction, row, key) of the log, the truth a checker compares with."""
        for tx in range(first, last + 1):
            for row in range(self.rows):
                yield tx, row, self.key_of(tx, row)

    def event_id(self, tx: int, row: int) -> bytes:
        """Return the 16 bytes that name this event on every replay."""
        return hashlib.blake2b(f"{self.id}:{tx}:{row}".encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class ScriptedSegment:
    """Transactions ``first`` to ``last``."""

    first: int
    last: int
    nbytes: int

    @property
    def end(self) -> Position:
        """Return the position after the last transaction."""
        return {"tx": self.last}


@dataclass(frozen=True, slots=True)
class _Positions:
    base: int

    def after(self, tx: int) -> Position:
        return {"tx": self.base + tx}


class ScriptedReader:
    """Walks the script."""

    def __init__(self, source: ScriptedSource, start: int) -> None:
        self._source = source
        self._next = start + 1
        self._failures_left = source.fail_reads
        self.acknowledged: Position = {"tx": start}

    def read(self, timeout_s: float) -> ScriptedSegment | None:
        """Return the next transactions that exist."""
        if self._failures_left:
            self._failures_left -= 1
            raise RetryableError("scripted: the server is away")
        deadline = time.monotonic() + timeout_s
        while (head := self._source.head_tx()) < self._next:
            if time.monotonic() >= deadline:
                return None
            time.sleep(_POLL_S)
        first = self._next
        last = min(head, first + self._source.chunk_transactions - 1)
        self._next = last + 1
        return ScriptedSegment(first, last, (last - first + 1) * self._source.rows * 64)

    @property
    def is_caught_up(self) -> bool:
        """Return whether all transactions that exist were handed out."""
        return self._source.head_tx() < self._next

    def decode(self, segment: ScriptedSegment) -> ChangeBatch:
        """Compute the rows of a segment."""
        source = self._source
        events = list(source.events(segment.first, segment.last))
        rows = [_event(source, tx, row, key, segment.first) for tx, row, key in events]
        return ChangeBatch(
            rows=pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA),
            positions=_Positions(segment.first),
            end=segment.end,
            connector="scripted",
            nbytes=segment.nbytes,
            schemas=tuple(
                dict.fromkeys(map(source.schema_of, range(segment.first, segment.last + 1)))
            ),
        )

    def acknowledge(self, position: Position) -> None:
        """Remember the position, for tests."""
        self.acknowledged = position

    def close(self) -> None:
        """Nothing is held."""


def _event(source: ScriptedSource, tx: int, row: int, key: int, base: int) -> Mapping[str, object]:
    ts_ms = source.started_ms + (int(tx * 1000 / source.rate) if source.rate else tx)
    return {
        "op": "u",
        "db": "script",
        "table": "rows",
        "after": b'{"id":%d,"tx":%d,"row":%d}' % (key, tx, row),
        "key": b'{"id":%d}' % key,
        "ts_ms": ts_ms,
        "tx": tx - base,
        "row": row,
        "tx_id": str(tx),
        "tx_end": row == source.rows - 1,
        "event_id": source.event_id(tx, row),
        "source_position": b'"sequence":%d' % tx,
        "schema_version": source.schema_of(tx).fingerprint,
    }


@lru_cache
def _schema(form: int) -> TableSchema:
    comment = f"form {form}" if form else None
    columns = [
        Column(name, "bigint", "bigint", False, at, comment=comment)  # noqa: FBT003
        for at, name in enumerate(("id", "tx", "row"), 1)
    ]
    return TableSchema("script", None, "rows", tuple(columns), ("id",))


class ScriptedSnapshotter:
    """The table's last state at a transaction, in chunks of keys."""

    def __init__(self, source: ScriptedSource) -> None:
        self._source = source

    def begin(self) -> Position:
        """Return the head: the view of every chunk read later contains it."""
        return self._source.head()

    def plan(
        self, chunk_rows: int, tables: Sequence[str] = (), where: str | None = None
    ) -> Iterator[TableChunk]:
        """Cut the keys into ranges."""
        if where is not None or any(name not in ("rows", "script.rows") for name in tables):
            raise SpecError("the scripted source has one table, script.rows, and knows no SQL")
        for low in range(1, self._source.keys + 1, chunk_rows):
            high = min(low + chunk_rows - 1, self._source.keys)
            bounds = {"low": low, "high": high}
            name = f"script.rows:{low}"
            yield TableChunk(name, "script", None, "rows", bounds, high - low + 1)

    def settle(self) -> None:
        """Do nothing: a view contains what is there."""

    def read(self, chunk: TableChunk, run: str) -> Iterator[ChangeBatch]:
        """Yield the last state of each key of the chunk that the log has written."""
        source = self._source
        head = source.head_tx()
        state: dict[int, tuple[int, int]] = {}
        for tx, row, key in source.events(1, head):
            if chunk.bounds["low"] <= key <= chunk.bounds["high"]:
                state[key] = (tx, row)
        rows = []
        for ordinal, (key, (tx, row)) in enumerate(sorted(state.items())):
            name = f"{source.id}:{run}:{head}:{key}".encode()
            event = dict(_event(source, tx, row, key, tx))
            event |= {"op": "r", "row": ordinal, "tx_id": None, "source_position": None}
            event["schema_version"] = source.schema_of(head).fingerprint
            event["event_id"] = hashlib.blake2b(name, digest_size=16).digest()
            event["tx_end"] = ordinal == len(state) - 1
            rows.append(event)
        batch = pa.RecordBatch.from_pylist(rows, schema=CHANGE_SCHEMA)
        yield ChangeBatch(
            batch,
            _Positions(head),
            {"tx": head},
            "scripted",
            64 * len(rows),
            schemas=(source.schema_of(head),),
        )

    def guard(self, position: Position) -> None:
        """Check that the script still begins at or before ``position``."""
        self._source.open(position).close()

    def close(self) -> None:
        """Nothing is held."""
