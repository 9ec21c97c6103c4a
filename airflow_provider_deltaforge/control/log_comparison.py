"""A part of a source's log, as our decoder reads it and as a decoder that is not ours does.

Both read beside the pipeline: under another server id, or from a temporary copy of its slot. What a
transaction is called tells which of its rows belong together; within it they are compared in order.
"""

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from airflow_provider_deltaforge.engine.catch_up.table_watch import TrustedHistory
from airflow_provider_deltaforge.errors import RetryableError, SpecError, TableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.events.table_names import qualified_name
from airflow_provider_deltaforge.schemas.registry import Registry
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.sources.reader_contract import (
    LogReader,
    SkipsTables,
    WarnsOfStatements,
)
from airflow_provider_deltaforge.sources.shared.independent_change import (
    UNKNOWN_VALUE,
    IndependentChange,
)
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.spec.patterns import TableMatcher
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.tables import TableRecords

_READ_S = 0.2
_SILENT_S = 30.0
_UNCHANGED = {"_unchanged": True}
_WITHOUT_TABLE = frozenset({"ddl", "message"})
"""What the other reads of statements and messages; only that there is one can be compared."""


@dataclass(frozen=True, slots=True)
class OwnChange:
    """One of our events.

    Attributes:
        tx: the source's name of its transaction.
        op: as in events.
        table: full name.
        before: JSON, as it would be delivered.
        after: JSON.
        source: the event's own place in the log.
    """

    tx: str
    op: str
    table: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    source: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ComparedChange:
    """One change, as both read it.

    Attributes:
        ours: None if only the other has it.
        theirs: None if only we have it.
        differences: in which columns they differ (``after.total``), or else what differs.
        not_compared: columns of which the other says nothing.
    """

    ours: OwnChange | None
    theirs: IndependentChange | None
    differences: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        theirs = None if self.theirs is None else {
            **asdict(self.theirs),
            "before": shown(self.theirs.before),
            "after": shown(self.theirs.after),
        }  # fmt: skip
        ours = None if self.ours is None else {
            **asdict(self.ours),
            "before": shown(self.ours.before),
            "after": shown(self.ours.after),
        }  # fmt: skip
        return {
            "equal": not self.differences,
            "ours": ours,
            "theirs": theirs,
            "differences": list(self.differences),
            "not_compared": list(self.not_compared),
        }


@dataclass(frozen=True, slots=True)
class LogComparison:
    """What both read between two positions, in commit order."""

    after: Position
    upto: Position
    changes: tuple[ComparedChange, ...]
    undecodable: Mapping[str, str]
    """Why we cannot decode a table's rows, by its full name."""

    @property
    def is_equal(self) -> bool:
        """Whether they agree on everything."""
        return not (self.undecodable or any(change.differences for change in self.changes))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {
            "equal": self.is_equal,
            "after": dict(self.after),
            "upto": dict(self.upto),
            "undecodable": dict(self.undecodable),
            "changes": [change.as_dict() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class LogQuery:
    """Which part of the log.

    Attributes:
        at: a place, as a person writes it; None: where the pipeline goes on reading.
        around: whether changes before the place are shown as well, as many as behind it.
        table: pattern of the tables to show; None shows all that are captured.
        count: about how many changes; transactions are whole.
    """

    at: str | None = None
    around: bool = False
    table: str | None = None
    count: int = 20


def compare_log(store: Store | None, pipeline: Pipeline, query: LogQuery) -> LogComparison:
    """Read a part of the log twice, and compare.

    Args:
        store: knows where the pipeline is, and its schemas; None where there is none.
        pipeline: its document, expanded.
        query: which part.

    Raises:
        SpecError: the place is none, or this source's log cannot be looked into.
        RetryableError: the source is away, or did not send its log in time.
        PositionLostError: the log is not kept back to there.
    """
    source = pipeline.spec.source
    head = source.head()
    target, begin = _place(store, pipeline, query, head)
    is_wanted = _wanted(query.table)
    reading = _Reading(source, target, query, is_wanted)
    undecodable = _read(reading, begin, head, _history(store, pipeline))
    theirs = [
        change
        for change in source.independent_changes(reading.after, reading.upto)
        if not change.table or is_wanted(change.table)
    ]
    compared = tuple(_compared(reading.changes, theirs))
    return LogComparison(reading.after, reading.upto, compared, undecodable)


def _history(store: Store | None, pipeline: Pipeline) -> TrustedHistory | None:
    if store is None:
        return None
    source = pipeline.spec.source
    registry = Registry(store, source.id, pipeline.metadata.tenant)
    marked = TableRecords(store, pipeline.name).marked()
    doubted = {name: record.sequence for name, record in marked.items()}
    return TrustedHistory(registry, source.compare, doubted)


def _read(
    reading: "_Reading", begin: Position, head: Position, history: TrustedHistory | None
) -> dict[str, str]:
    """Read our part, again without a table that we cannot decode; return those with the reason."""
    undecodable: dict[str, str] = {}
    while True:
        with closing(reading.source.behind("log").open(begin, history=history)) as reader:
            if isinstance(reader, SkipsTables):
                reader.skip_tables(undecodable)
            if isinstance(reader, WarnsOfStatements):
                reader.warn_of_statements()
            try:
                reading.read(reader, begin, head)
            except TableError as error:
                if error.table in undecodable or not isinstance(reader, SkipsTables):
                    raise
                undecodable[error.table] = str(error)
            else:
                return undecodable


def _place(
    store: Store | None, pipeline: Pipeline, query: LogQuery, head: Position
) -> tuple[Position, Position]:
    source: Source = pipeline.spec.source
    if query.at is not None:
        return source.log_position(query.at)
    known = Checkpoints(store, pipeline.name, source.id).load() if store is not None else {}
    if place := source.earliest(list(known.values())):
        return place, place
    raise SpecError(
        f"pipeline {pipeline.name!r} has no position yet: name a place with --at; the log ends at "
        f"{json.dumps(dict(head))}"
    )


def _wanted(pattern: str | None) -> Callable[[str], bool]:
    """Return what decides whether a table of some full name is shown."""
    if pattern is None:
        return lambda _: True
    return TableMatcher((pattern,)).matches_full


class _Reading:
    """Reads our events from a place before the one that is asked for.

    Args:
        source: compares positions.
        target: the place.
        query: how many changes, and whether some before the place.
        is_wanted: decides by a table's full name.
    """

    def __init__(
        self,
        source: Source,
        target: Position,
        query: LogQuery,
        is_wanted: Callable[[str], bool],
    ) -> None:
        self.source = source
        self._target = target
        self._is_wanted = is_wanted
        self._before_max = query.count // 2 if query.around else 0
        self._behind_max = query.count - self._before_max
        self._begin(target)

    def _begin(self, begin: Position) -> None:
        self._before: deque[tuple[Position, list[OwnChange]]] = deque()
        self._behind: list[OwnChange] = []
        self._first: Position | None = None
        self.upto = begin

    @property
    def after(self) -> Position:
        """Return where the changes begin; a place between two transactions."""
        return self._before[0][0] if self._before else self._first or self._target

    @property
    def changes(self) -> list[OwnChange]:
        """Return the changes, of whole transactions."""
        return [change for _, kept in self._before for change in kept] + self._behind

    def read(self, reader: LogReader, begin: Position, head: Position) -> None:
        """Read until there are enough changes, or the log ends.

        Raises:
            RetryableError: the source sends nothing for long.
        """
        self._begin(begin)
        until = time.monotonic() + _SILENT_S
        while not self.source.covers(self.upto, head) and len(self._behind) < self._behind_max:
            segment = reader.read(_READ_S)
            if segment is None:
                if time.monotonic() > until:
                    raise RetryableError(f"the source sends nothing behind {dict(self.upto)}")
                continue
            until = time.monotonic() + _SILENT_S
            self.upto = self._take(reader.decode(segment), self.upto)

    def _take(self, batch: ChangeBatch, at: Position) -> Position:
        """Take in a batch; return behind which transaction its last change is."""
        for tx, changes in _transactions(batch):
            if len(self._behind) >= self._behind_max:
                return at
            end = batch.positions.after(tx)
            wanted = [change for change in changes if self._is_wanted(change.table)]
            if self.source.covers(self._target, end):
                self._keep_before(at, wanted)
            else:
                self._first = self._first or at
                self._behind += wanted
            at = end
        return batch.end

    def _keep_before(self, at: Position, changes: list[OwnChange]) -> None:
        if self._before_max and changes:
            self._before.append((at, changes))
        while sum(len(kept) for _, kept in list(self._before)[1:]) >= max(1, self._before_max):
            self._before.popleft()


def _transactions(batch: ChangeBatch) -> Iterator[tuple[int, list[OwnChange]]]:
    """Yield the batch's transactions that have captured rows."""
    changes: list[OwnChange] = []
    ordinal: int | None = None
    for row in batch.rows.to_pylist():
        if ordinal is not None and row["tx"] != ordinal:
            yield ordinal, changes
            changes = []
        ordinal = row["tx"]
        changes.append(_own(row))
    if ordinal is not None:
        yield ordinal, changes


def _own(row: Mapping[str, Any]) -> OwnChange:
    position = row["source_position"] or b""
    return OwnChange(
        tx=row["tx_id"] or "",
        op=row["op"],
        table=qualified_name(row["schema"] or row["db"], row["table"]),
        before=_parsed(row["before"]),
        after=_parsed(row["after"]),
        source=json.loads(b"{" + position + b"}"),
    )


def _parsed(image: bytes | None) -> Any:
    return None if image is None else json.loads(image, parse_float=Decimal)


def _compared(
    ours: Sequence[OwnChange], theirs: Sequence[IndependentChange]
) -> Iterator[ComparedChange]:
    """Yield what both have, transaction by transaction, in the order in which they came."""
    other = _by_transaction(theirs)
    mine = _by_transaction(ours)
    for tx in dict.fromkeys([*_in_order(list(mine), list(other))]):
        yield from _pairs(mine.get(tx, []), other.get(tx, []))


def _by_transaction(changes: Sequence[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for change in changes:
        found.setdefault(change.tx, []).append(change)
    return found


def _in_order(mine: list[str], other: list[str]) -> Iterator[str]:
    """Merge two lists of transactions in commit order."""
    known = set(mine)
    rest = iter(mine)
    for tx in other:
        if tx in known:
            for earlier in rest:
                yield earlier
                if earlier == tx:
                    break
        yield tx
    yield from rest


def _pairs(ours: list[OwnChange], theirs: list[IndependentChange]) -> Iterator[ComparedChange]:
    texts = [change for change in theirs if change.op in _WITHOUT_TABLE]
    rows = [change for change in theirs if change.op not in _WITHOUT_TABLE]
    for mine in ours:
        is_row = mine.op not in {"t", "ddl"} and not mine.table.startswith("__")
        if rows and (is_row or rows[0].op == mine.op):
            yield _pair(mine, rows.pop(0))
        elif texts and not is_row:
            yield ComparedChange(mine, texts.pop(0))
        else:
            yield ComparedChange(mine, None, ("only ours",))
    for other in rows:
        yield ComparedChange(None, other, ("only theirs",))


def _pair(mine: OwnChange, other: IndependentChange) -> ComparedChange:
    if other.op == "?":
        return ComparedChange(mine, other, ("it could not be read by the other",))
    differences = [name for name in ("op", "table") if getattr(mine, name) != getattr(other, name)]
    not_compared: list[str] = []
    for half in ("before", "after"):
        found, skipped = _columns(half, getattr(mine, half), getattr(other, half))
        differences += found
        not_compared += skipped
    return ComparedChange(mine, other, tuple(differences), tuple(not_compared))


def _columns(
    half: str, mine: Mapping[str, Any] | None, other: Mapping[str, Any] | None
) -> tuple[list[str], list[str]]:
    """Return the columns of a row's image that differ, and those that were not compared."""
    if mine is None or other is None:
        return ([] if mine is other else [half]), []
    absent = object()
    differ, skipped = [], []
    for name in dict.fromkeys([*mine, *other]):
        left, right = mine.get(name, absent), other.get(name, absent)
        if right is UNKNOWN_VALUE:
            skipped.append(f"{half}.{name}")
        elif (left is absent or left is None) and (right is absent or right is None):
            continue  # The other may leave out what is NULL.
        elif not (_is_equal(left, right) or (left == _UNCHANGED and right is absent)):
            differ.append(f"{half}.{name}")
    return differ, skipped


def _is_equal(left: Any, right: Any) -> bool:
    """Return whether two JSON values are the same; 1 and 1.0 are, 1 and true are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_equal, left, right))
    return (type(left) is type(right) and left == right) or _is_same_number(left, right)


def _is_same_number(left: Any, right: Any) -> bool:
    numbers = (int, Decimal)
    return isinstance(left, numbers) and isinstance(right, numbers) and left == right


def shown(value: Any) -> Any:
    """Return a value as JSON can hold it: exact numbers as they are printed."""
    if value is UNKNOWN_VALUE:
        return "(unknown)"
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {name: shown(member) for name, member in value.items()}
    return [shown(member) for member in value] if isinstance(value, list | tuple) else value
