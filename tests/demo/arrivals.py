"""What arrived, seen from outside: the demo reads the output as any consumer would."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.demo.shop import Change

TABLES = ("customers", "orders")
ENVELOPES: Mapping[str, Callable[[Any], Any]] = {
    "native": lambda event: event,
    "debezium": lambda event: event["payload"],
    "cloudevents": lambda event: event["data"],
}
"""How a consumer gets at the change in each envelope."""
CAUGHT_UP_S = 1.0
_LOOK_S = 0.005
_LOOK_EARLY_S = 0.05
"""Until the first change has come, nobody's latency is measured: Airflow and Spark need the CPU."""

Rows = dict[int, dict[str, Any]]


@dataclass
class Arrivals:
    """Follows every output file: what came, the last state of each row, and when."""

    directory: Path
    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By envelope, table and op."""
    state: dict[tuple[str, str], Rows] = field(default_factory=dict)
    """By envelope and table: the rows as a consumer would hold them."""
    seen: dict[Change, float] = field(default_factory=dict)
    """When a change first lay in the native output, in seconds since the epoch."""
    copied: dict[tuple[str, int], int] = field(default_factory=dict)
    """The stamp of each copied row, by table and id."""
    first_change_at: float | None = None
    """When the first of them came."""
    examples: dict[tuple[str, str], Any] = field(default_factory=dict)
    """By envelope and op: the last whole event."""

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._offsets: dict[Path, int] = {}
        self._thread = threading.Thread(target=self._watch, daemon=True, name="demo-consumer")

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read what is there, and end."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    def events(self, ops: str, table: str | None = None, envelope: str = "native") -> int:
        """Return how many events of these kinds arrived."""
        tables = TABLES if table is None else (table,)
        return sum(self.counts[envelope, name, op] for name in tables for op in ops)

    def streamed_for(self, seconds: float) -> bool:
        """Say whether changes have been arriving for so long."""
        return self.first_change_at is not None and time.time() - self.first_change_at >= seconds

    def differences(self, table: str, source: Rows) -> dict[str, list[int]]:
        """Return the keys whose last state is not the source's, by envelope that has any."""
        found = {}
        for envelope in ENVELOPES:
            rows = self.state.get((envelope, table), {})
            keys = [key for key in {*source, *rows} if source.get(key) != rows.get(key)]
            if keys:
                found[envelope] = sorted(keys)
        return found

    def _watch(self) -> None:
        while not self._stopping.wait(_LOOK_S if self.first_change_at else _LOOK_EARLY_S):
            self._take()
        self._take()

    def _take(self) -> None:
        for envelope, unwrap in ENVELOPES.items():
            for table in TABLES:
                for line in self._new_lines(self.directory / envelope / f"{table}.jsonl"):
                    event = orjson.loads(line)
                    self._note(envelope, table, event, unwrap(event))

    def _new_lines(self, path: Path) -> Iterator[bytes]:
        offset = self._offsets.get(path, 0)
        if not path.exists() or path.stat().st_size == offset:
            return
        with path.open("rb") as file:
            file.seek(offset)
            whole = file.read().rpartition(b"\n")[0]
        if whole:
            self._offsets[path] = offset + len(whole) + 1
            yield from whole.split(b"\n")

    def _note(self, envelope: str, table: str, event: Any, change: Any) -> None:
        op, image = change["op"], change["after"] or change["before"]
        self.counts[envelope, table, op] += 1
        self.examples[envelope, op] = event
        rows = self.state.setdefault((envelope, table), {})
        if op == "d":
            rows.pop(image["id"], None)
        else:
            rows[image["id"]] = change["after"]
        if envelope == "native" and op == "r":
            self.copied.setdefault((table, image["id"]), image["updated_us"])
        if envelope == "native" and op != "r":
            stamp = None if op == "d" else image["updated_us"]
            self.seen.setdefault((table, image["id"], stamp), time.time())
            self.first_change_at = self.first_change_at or time.time()


def lost(
    commits: Mapping[Change, float],
    seen: Mapping[Change, float],
    copied: Mapping[tuple[str, int], int] | None = None,
) -> list[Change]:
    """Return the changes that never came although the stream ran, in the order of their commits.

    The stream is taken to begin with the first commit of which anything came: what was committed
    earlier lay in the tables before the position it started from. If nothing came, all is lost.
    What a copied row shows is not sent again: the row's first changes, up to the copy's stamp, or
    up to the deletion of a row that was in no copy.

    Args:
        commits: when each change was committed.
        seen: when each came.
        copied: the stamp of each copied row, by table and id.
    """
    began_at = min((at for change, at in commits.items() if change in seen), default=0.0)
    in_order = sorted(commits, key=lambda change: commits[change])
    by_row: dict[tuple[str, int], list[Change]] = {}
    for change in in_order:
        by_row.setdefault(change[:2], []).append(change)
    shown: set[Change] = set()
    for row, changes in by_row.items():
        stamp = (copied or {}).get(row)
        for at, change in enumerate(changes):
            ends = change[2] == stamp if stamp is not None else copied and change[2] is None
            if ends and not any(former in seen for former in changes[: at + 1]):
                shown.update(changes[: at + 1])
    return [
        change
        for change in in_order
        if commits[change] >= began_at and change not in seen and change not in shown
    ]


def latencies(
    commits: Mapping[Change, float], seen: Mapping[Change, float]
) -> tuple[list[float], list[float]]:
    """Return the seconds from commit to reader: of live changes, and of those that had to wait.

    A change waits while tables are copied and Spark starts. Live are the changes committed after
    the first one that took less than a second.
    """
    took = sorted(
        (at, max(0.0, seen[change] - at)) for change, at in commits.items() if change in seen
    )
    live_from = min((at + s for at, s in took if s < CAUGHT_UP_S), default=float("inf"))
    live = [seconds for at, seconds in took if at >= live_from]
    return live, [seconds for at, seconds in took if at < live_from]
