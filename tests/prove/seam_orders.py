"""Copies and their log, joined as the product does it, and in the orders that are customary.

The same oracle judges all of them. Only which view counts for a chunk differs: its own, the
product's order, or one that was looked at in another session a moment later or before, as who
notes the log's position behind or in front of a SELECT does.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_deltaforge.engine.catch_up.snapshot_seam import SnapshotSeam, TableCuts
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.plugins import SOURCES, load_object
from airflow_provider_deltaforge.sources.contract import Source, TableChunk
from tests.oracle.verdict import Seen, judge
from tests.prove.hot_tables import PAUSE_S, HotTables
from tests.prove.unit import Task

CHUNK_ROWS = 20
HAND_OVERS = 10
ORDERS = ("own", "behind", "in front")
Cuts = dict[str, list[tuple[TableChunk, Position]]]


def source_of(tables: HotTables) -> Source:
    """Return a source of hot tables."""
    place = SOURCES.shipped["postgres" if tables.is_postgres else "mysql"]
    source: Source = load_object(place)(id=tables.name, **tables.settings)
    return source


class HandOver:
    """One copy of hot tables, chunk by chunk, with the cuts of every order."""

    def __init__(self, tables: HotTables, chunk_rows: int = CHUNK_ROWS) -> None:
        self._tables, self._source, self._chunk_rows = tables, source_of(tables), chunk_rows
        self.cuts: dict[str, Cuts] = {order: {} for order in ORDERS}
        self._copies: list[Seen] = []
        self._start: Position = {}

    def copy(self) -> None:
        """Read both tables while their writers work."""
        reader, other = self._source.open_snapshot(), self._source.open_snapshot()
        try:
            self._start = dict(reader.begin())
            chunks = list(reader.plan(self._chunk_rows))
            for chunk in chunks:
                seen = {"in front": _cut(other, chunks[0])}
                batches = list(reader.read(chunk, "run"))
                seen |= {"own": batches[0].end, "behind": _cut(other, chunks[0])}
                for order, cut in seen.items():
                    self.cuts[order].setdefault(chunk.full_name, []).append((chunk, cut))
                self._copies += [seen for batch in batches for seen in self._seen(batch)]
        finally:
            reader.close()
            other.close()

    def wrong(self) -> dict[str, list[str]]:
        """Return by order what the oracle says, after the writers have ended."""
        log = list(self._log())
        history, rows = self._tables.history(dict(self._start)), self._tables.rows()
        found = {}
        for order in ORDERS:
            joined = self._joined(order)
            streamed = [seen for batch in log for seen in self._seen(joined.without_shown(batch))]
            joined.close()
            found[order] = judge(history, [*self._copies, *streamed], rows, each_row_once=True)
        return found

    @property
    def views(self) -> int:
        """How many views were opened for chunks."""
        return sum(map(len, self.cuts["own"].values()))

    @property
    def inexact(self) -> int:
        """How many of them name a part of what they contain."""
        cuts = [cut for chunks in self.cuts["own"].values() for _, cut in chunks]
        return sum(bool(cut.get("inexact")) for cut in cuts)

    def _joined(self, order: str) -> SnapshotSeam:
        own = {name: TableCuts.of(self._source, cuts) for name, cuts in self.cuts[order].items()}
        tables = {name: cuts for name, cuts in own.items() if cuts is not None}
        # Tables are copied one after the other, so this is the order of time.
        cuts = [cut for chunks in self.cuts[order].values() for _, cut in chunks]
        return SnapshotSeam(self._source, tables, cuts, lambda *_: None)

    def _log(self) -> Iterator[ChangeBatch]:
        head, position = self._source.head(), self._start
        reader = self._source.open(position)
        try:
            while not self._source.covers(position, head):
                segment = None
                with suppress(RetryableError):
                    segment = reader.read(0.5)
                if segment is not None:
                    batch = reader.decode(segment)
                    position = batch.end
                    yield batch
        finally:
            reader.close()

    def _seen(self, batch: ChangeBatch) -> Iterator[Seen]:
        for row in batch.rows.to_pylist():
            table = ".".join(name for name in (row["db"], row["schema"], row["table"]) if name)
            after = json.loads(row["after"]) if row["after"] else None
            key = (table, json.loads(row["key"])["id"])
            name = None if row["op"] == "r" else self._name(row)
            yield Seen(name, key, after, row["event_id"].hex())

    def _name(self, row: Mapping[str, Any]) -> Any:
        # As the oracle reads it: the number of a transaction, or its GTID.
        tx_id = row["tx_id"]
        return int(tx_id) if self._tables.is_postgres else tx_id, row["row"]


def run(task: Task) -> None:
    """Join copies and logs of one seed in every order."""
    [case] = task.cases
    began, server = time.monotonic(), task.started[case["source"]]
    caught = dict.fromkeys(ORDERS, 0)
    views, inexact, wrong = 0, 0, []
    for number in range(HAND_OVERS):
        name = f"orders_{case['source']}_{case['seed']}_{number}"
        # Of every other one the writers never pause: then no view falls between two commits.
        tables = HotTables(case["source"], server, name, PAUSE_S * (number % 2 == 0))
        try:
            tables.begin()
            time.sleep(0.1)
            hand_over = HandOver(tables)
            hand_over.copy()
            time.sleep(0.1)
            tables.end()
            found = hand_over.wrong()
        finally:
            tables.close()
        if hand_over.inexact:  # Judged as what it is: nothing lost, perhaps something repeated.
            found["own"] = [line for line in found["own"] if "had shown" not in line]
        wrong += found["own"]
        views += hand_over.views
        inexact += hand_over.inexact
        for order, lines in found.items():
            caught[order] += bool(lines)
    wrong += [f"order {order}: never caught" for order in ORDERS[1:] if not caught[order]]
    counts = {"hand_overs": HAND_OVERS, "views": views, "inexact": inexact}
    result = {**counts, "caught": caught, "wrong": wrong}
    seconds = round(time.monotonic() - began, 1)
    task.add({**case, "seconds": seconds, "result": "wrong" if wrong else "ok", **result})


def _cut(other: Any, chunk: TableChunk) -> Position:
    """Return what a view of another session contains now."""
    cut: Position = next(iter(list(other.read(chunk, "other")))).end
    return cut
