"""One pipeline of a proof of hand-overs: its driver is killed at a point, and what came is judged.

Its tables are those of others, too, and are written to all the time: a run ends at a position, and
is compared with what the tables' whole history says of them there.
"""

import json
import random
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.events.change import Position
from airflow_provider_deltaforge.sources.contract import Source
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.exact_run import PLACES, Place, new_place
from tests.engine.scripted_run import NAME, Driver, ScriptedRun, Work, kill
from tests.oracle.readers import NameOf, seen_in, whole_lines
from tests.oracle.verdict import Change, Seen, judge
from tests.prove.blind_readers import applied, keys_of
from tests.prove.hot_tables import rows_after
from tests.servers.process import Server

FILE = "file"
SINKS = (*PLACES, FILE)
"""Kinds of sinks: all deliver exactly once but files."""
OF_COPIES = (
    CrashPoint.CHUNK_RENDERED,
    CrashPoint.CHUNK_WRITTEN,
    CrashPoint.CHUNK_STORED,
    CrashPoint.REQUEST_RECORDED,
    CrashPoint.REQUEST_REMOVED,
)
"""Where a driver is killed while it serves a copy beside the stream."""
_REPEATING = {CrashPoint.CHUNK_RENDERED, CrashPoint.CHUNK_WRITTEN, CrashPoint.CHUNK_STORED}
"""Killed there, a driver leaves in a file rows of chunks that the next one copies again."""

_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source: {{type: {source}, config: {settings}}}
  batch: {{max_events: 100, max_ms: 20}}
  sinks:
    - {sink}
"""
_ENOUGH = 20
"""Changes without which a hand-over would show nothing."""
Hold = tuple[CrashPoint, int]


class History(Protocol):
    """Every change of a pipeline's tables."""

    name_of: NameOf
    changes: Sequence[Change]
    """From the first row on."""

    def count(self, position: Mapping[str, Any]) -> int:
        """Return how many changes lie at or before a position."""


@dataclass
class HandOverRun(ScriptedRun):
    """One pipeline from tables to a place of its own.

    ``transactions`` and ``rate`` are a scripted log's and mean nothing here.
    """

    source_type: str = "mysql"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the source, without ``id`` and ``snapshot``."""
    copied_from: str | None = None
    """Address of the server whose rows are read, if that is another one."""
    sink: str = FILE
    """Of ``SINKS``."""
    servers: Mapping[str, Server] = field(default_factory=dict)
    seed: int = 0
    chunk_rows: tuple[int, int] = (20, 60)
    """Of which the seed chooses."""
    ended: Position | None = None
    """Where it stopped."""
    copies: int = 0
    """Copies beside the stream that were made."""
    exit_code: int = 0
    may_repeat: bool = False
    """Whether its views are allowed to contain more than is known of them."""
    place: Place = field(init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True)
        self.dsn = f"sqlite:///{self.directory}/state.db"
        self.sink_id = f"out-{uuid.uuid4().hex[:8]}"
        self.place = self._place()
        chance = random.Random(self.seed)
        snapshot: dict[str, Any] = {
            "mode": "initial",
            "chunk_size": chance.choice(self.chunk_rows),
            "intra_table_parallel": chance.random() < 0.5,
            "max_connections": chance.choice((1, 2, 3)),
        }
        if self.copied_from:
            snapshot["dsn"] = self.copied_from
        settings = {"id": f"{NAME}-{self.sink_id}", **self.settings, "snapshot": snapshot}
        self.document = _DOCUMENT.format(
            name=NAME, source=self.source_type, settings=json.dumps(settings), sink=self.place.sink
        )
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.log = self.directory / "driver.log"
        self.source: Source = load(self.document, {}).spec.source
        self._drivers: list[Driver] = []
        self._held = 0

    def _place(self) -> Place:
        if self.sink != FILE:
            return new_place(self.sink, self.servers[self.sink].dsn(), self.sink_id)
        output = self.directory / "out.jsonl"
        named = f"{{type: file, config: {{id: {self.sink_id}, path: '{output}'}}}}"
        return Place(self.sink_id, named, lambda: whole_lines(output))

    @property
    def held(self) -> Any:
        """Of the hold that comes next."""
        return self.directory / f"held{self._held}"

    def drive(self, hold: Hold | None = None) -> None:
        """Start a driver, held at a crash point if asked."""
        self._held += 1
        self._drivers.append(self.start(hold))

    def kill_held(self, work: Work | None = None) -> None:
        """Wait until the driver is held, and kill it."""
        kill(self.wait_held(self._drivers[-1], work))
        self._drivers[-1].wait()

    def wait_streaming(self, work: Work | None = None) -> None:
        """Wait until the stream has delivered what was committed while it began."""
        self._wait(lambda: self._status() == "running", self._drivers[-1], work)
        head = self.source.head()
        self._wait(lambda: self._is_past(head), self._drivers[-1], work)

    def copy_beside(self, holds: Sequence[Hold | None], work: Work | None = None) -> None:
        """Ask for a copy for each hold, and kill the driver where it is held meanwhile."""
        for hold in holds:
            if hold is not None:
                self.end_driver()
                self.want_again()
                self.drive(hold)
                self.wait_streaming(work)
            self.copies += 1
            snapshots.request(self.store, NAME, CopySelection(), f"copy{self.copies}", "a proof")
            if hold is not None:
                self.kill_held(work)
                self.drive()
            self._wait(self._is_served, self._drivers[-1], work)
        unserved = [r.state for r in snapshots.requests(self.store, NAME) if r.state != "done"]
        assert not unserved, f"copies ended as {unserved}"

    def end_driver(self) -> None:
        """Stop the driver in order; remember where."""
        self.exit_code = self.stop(self._drivers[-1]) or self.exit_code
        self.ended = self._checkpoint()

    def want_again(self) -> None:
        """Let the next driver run."""
        self.control.update(lambda old: old.model_copy(update={"desired": "running"}))

    def abandon(self) -> None:
        """Kill what still runs."""
        for driver in self._drivers:
            if driver.poll() is None:
                driver.kill()
                driver.wait()

    def wrong(self, history: History, killed_at: CrashPoint | None = None) -> list[str]:
        """Return what the oracle and a blind reader say of everything that came.

        Args:
            history: of the tables.
            killed_at: where the driver of the first copy was killed.
        """
        record = Snapshots(self.store, NAME).current()
        assert record is not None, "it has copied nothing"
        assert self.ended is not None, "it has not come to its end"
        texts = self.place.read()
        seen = seen_in(texts, history.name_of)
        start = history.count(record.start_position)
        end = max(history.count(self.ended), end_of(seen, history.changes))
        changes, rows = history.changes[start:end], rows_after(history.changes[:end])
        once = self.sink != FILE
        is_repeating = not once and killed_at in _REPEATING
        if self.copies:
            seen = without_later_copies(seen)
        wrong = judge(
            changes,
            seen,
            rows,
            exactly_once=once,
            each_row_once=not (is_repeating or self.inexact or self.may_repeat),
        )
        if applied(texts) != rows:
            wrong.append("a blind reader ends with other rows")
        if not is_repeating:
            kept = kept_keys(rows_after(history.changes[:start]), changes)
            wrong += copies_wrong(texts, self.copies, kept)
        if len(changes) < _ENOUGH:
            wrong.append(f"only {len(changes)} changes: this proves nothing")
        return wrong + ([f"the driver ended with {self.exit_code}"] if self.exit_code else [])

    @property
    def inexact(self) -> int:
        """How many views of the first copy name a part of what they contain."""
        records = Snapshots(self.store, NAME)
        record = records.current()
        assert record is not None
        return sum(bool(cut.get("inexact")) for cut in records.cuts(record.id).values())

    def _status(self) -> str | None:
        progress = self.control.progress()
        return progress.status if progress is not None else None

    def _checkpoint(self) -> Position | None:
        checkpoints = Checkpoints(self.store, NAME, self.source.id)
        return checkpoints.load().get(self.sink_id)

    def _is_past(self, head: Position) -> bool:
        at = self._checkpoint()
        return at is not None and self.source.compare(at, head) >= 0

    def _is_served(self) -> bool:
        return all(asked.settled for asked in snapshots.requests(self.store, NAME))


def end_of(events: Sequence[Seen], changes: Sequence[Change]) -> int:
    """Return how many changes there are up to the last one that came.

    A sink may be a batch further than the last checkpoint.
    """
    places = {change.name: place for place, change in enumerate(changes, 1)}
    return max((places.get(event.name, 0) for event in events), default=0)


def without_later_copies(events: Sequence[Seen]) -> list[Seen]:
    """Return events with the first copy of each row only; ``copies_wrong`` judges others."""
    known: set[Any] = set()
    found = []
    for event in events:
        if event.name is None and event.key in known:
            continue
        known |= {event.key, event.moved_from}
        found.append(event)
    return found


def kept_keys(rows: Mapping[Any, Any], changes: Sequence[Change]) -> set[Any]:
    """Return the keys of rows that were there all the time."""
    gone = {change.key for change in changes if change.state is None}
    return set(rows) - gone - {change.moved_from for change in changes}


def copies_wrong(texts: Sequence[bytes], copies: int, kept: set[Any]) -> list[str]:
    """Return which rows of copies beside the stream are not as the log has left them, or repeated.

    Args:
        texts: all that came, in order.
        copies: how many were made beside the stream.
        kept: the keys of rows that each copy must have.
    """
    held: dict[Any, Any] = {}
    known: set[Any] = set()
    counts: Counter[Any] = Counter()
    wrong = []
    for event in map(json.loads, texts):
        former, key, row = keys_of(event)
        if event["op"] == "r":
            counts[key] += 1
            if key in known and held.get(key) != row:
                wrong.append(f"a copy has {row} where the log has {held.get(key)}")
        known |= {former, key}
        held.pop(former, None)
        held[key] = row
    twice = [key for key, count in counts.items() if count > 1 + copies]
    lacking = [key for key in kept if counts[key] < 1 + copies]
    if twice:
        wrong.append(f"{len(twice)} rows were copied too often: {twice[:3]}")
    if lacking:
        wrong.append(f"{len(lacking)} rows are not in every copy: {lacking[:3]}")
    return wrong
