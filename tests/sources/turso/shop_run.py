"""A pipeline over a live file, in processes that a test can kill, and the writer's own history.

The writer numbers every change it makes, so the oracle needs nothing of the source: a change is
named by the number in its row.
"""

import random
import sqlite3
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.oracle.readers import seen_in_file
from tests.oracle.verdict import Change, judge
from tests.sources.turso.database import Writer
from tests.sources.turso.server_shop import ServerConnection

TABLES = ("customers", "orders")

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: turso
    config:
      id: {name}-source
      url: {path}
      tables: {tables}
      cdc_mode: {mode}
      auto_create_triggers: true
      poll_interval_ms: 20
      batch_size: 40
      snapshot: {{mode: {snapshot}, chunk_size: 20}}
  batch: {{max_events: 30, max_ms: 20}}
  sinks:
    - type: file
      config: {{id: out, path: "{directory}/out.jsonl"}}
"""


class Shop:
    """Writes random transactions, and remembers each change in the order of commits."""

    def __init__(self, path, mode: str, url: str | None = None) -> None:
        self.history: list[Change] = []
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._random = random.Random(7)
        self._capturing = mode == "native"
        self._connection: Any
        if url is not None:
            self._connection = ServerConnection(url)
        elif self._capturing:
            self._connection = Writer(path).connection
        else:
            self._connection = sqlite3.connect(path, timeout=60)
            self._connection.execute("PRAGMA synchronous = OFF")
        for table in TABLES:
            self._connection.execute(
                f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, version INTEGER, note TEXT)"
            )
        self._connection.commit()

    def trade(self, transactions: int) -> None:
        for _ in range(transactions):
            for _ in range(self._random.randint(1, 6)):
                self._change()
            self._connection.commit()

    def _change(self) -> None:
        table, key = self._random.choice(TABLES), self._random.randint(1, 40)
        at, version = (table, key), len(self.history) + 1
        old = self.rows.get(at)
        note = self._random.choice(["a", "zß", '"', None])
        state: dict[str, Any] | None = {"id": key, "version": version, "note": note}
        if old is None:
            self._run(f"INSERT INTO {table} VALUES (?, ?, ?)", (key, version, note))
        elif self._random.random() < 0.3:
            state = None
            self._run(f"DELETE FROM {table} WHERE id = ?", (key,))
        else:
            self._run(
                f"UPDATE {table} SET version = ?, note = ? WHERE id = ?", (version, note, key)
            )
        name = ("deleted", old["version"]) if state is None else ("written", version)
        self.history.append(Change(name, (f"main.{table}", key), state))
        self.rows.pop(at, None)
        if state is not None:
            self.rows[at] = state

    def _run(self, sql: str, values: tuple) -> None:
        self._connection.execute(sql, values)

    def changes_before(self, position: dict[str, Any]) -> int:
        """Return how many of our changes lie at or before a position."""
        last = position["last_change_id"]
        if not self._capturing:
            return self.untriggered + last
        sql = "SELECT count(*) FROM turso_cdc WHERE change_id <= ? AND table_name IN (?, ?)"
        return self._connection.execute(sql, (last, *TABLES)).fetchone()[0]

    def prune(self) -> None:
        """Delete all but the last captured change."""
        last = "(SELECT max(change_id) FROM turso_cdc)"
        self._connection.execute(f"DELETE FROM turso_cdc WHERE change_id < {last}")
        self._connection.commit()

    untriggered = 0
    """Changes that were made before the triggers, which count from 1."""

    def close(self) -> None:
        self._connection.close()


@dataclass
class ShopRun(ScriptedRun):
    """One pipeline over a shop."""

    mode: str = "native"
    tables: str = "[customers, orders]"
    url: str | None = None
    """Of a server; else the database is a file of ours."""
    shop: Shop = field(init=False)

    def __post_init__(self) -> None:
        self.dsn = f"sqlite:///{self.directory}/state.db"
        path = self.directory / "shop.db"
        self.shop = Shop(path, self.mode, self.url)
        self.document = DOCUMENT.format(
            name=NAME,
            path=self.url or path,
            tables=self.tables,
            mode=self.mode,
            snapshot=self.snapshot,
            directory=self.directory,
        )
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.output = self.directory / "out.jsonl"
        self.log = self.directory / "driver.log"

    @property
    def source(self) -> Any:
        return load(self.document, {}).spec.source

    def begin(self) -> dict[str, Any]:
        """Let the stream begin here, as if everything before were delivered."""
        position = dict(self.source.head())
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")
        self.store.transact([checkpoints.put("out", position)])
        return position

    def wait_caught_up(self, driver) -> None:
        """Wait until everything the shop did is checkpointed."""
        head = self.source.head()
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")

        def done() -> bool:
            at = checkpoints.load().get("out")
            return at is not None and self.source.compare(at, head) >= 0

        self._wait(done, driver)

    def verdict(self, start: dict[str, Any], *, each_row_once: bool = False) -> list[str]:
        """Ask the oracle: every change after ``start`` had to arrive, or to show in a copy."""
        history = self.shop.history[self.shop.changes_before(start) :]
        seen = seen_in_file(self.output, name_of)
        table = {(f"main.{name}", key): row for (name, key), row in self.shop.rows.items()}
        copied = self.snapshot != "never"
        return judge(history, seen, table if copied else None, each_row_once=each_row_once)


def name_of(event: dict[str, Any]) -> tuple[str, int]:
    """Return which of the shop's changes an event is."""
    if event["after"] is None:
        return "deleted", event["before"]["version"]
    return "written", event["after"]["version"]
