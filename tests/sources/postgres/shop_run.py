"""A pipeline over a PostgreSQL shop, in processes that a test can kill, and the oracle's view."""

import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.e2e import postgres_shop as shop
from tests.engine.scripted_run import NAME, Driver, ScriptedRun
from tests.oracle.postgres_history import History, name_of, table_rows
from tests.oracle.readers import seen_in_file
from tests.oracle.verdict import Change, Seen
from tests.servers.process import Server

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: postgres
    config:
      id: {name}-source
      dsn: {dsn}
      tables: ["public.*"]
      publication: {database}
      slot: {database}
      start_position: latest
      snapshot: {{mode: {snapshot}, chunk_size: 60, intra_table_parallel: true}}
  batch: {{max_events: 30, max_ms: 20}}
  sinks:
    - type: file
      config: {{id: out, path: "{directory}/out.jsonl"}}
"""
ENOUGH = 300
"""Streamed events after which a run may end."""


@dataclass
class ShopRun(ScriptedRun):
    """One pipeline over a shop of its own, whose writers work from the beginning.

    ``transactions`` and ``rate`` are a scripted log's and mean nothing here.
    """

    server: Server | None = None
    writers: shop.Writers = field(init=False)
    truth: History = field(init=False)

    def __post_init__(self) -> None:
        assert self.server is not None
        self.database = f"shop_{time.time_ns()}"
        self.dsn = self.dsn or f"sqlite:///{self.directory}/state.db"
        owner = shop.create(self.server, self.database, orders=300)
        self.document = DOCUMENT.format(
            name=NAME,
            dsn=owner,
            database=self.database,
            snapshot=self.snapshot,
            directory=self.directory,
        )
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.output = self.directory / "out.jsonl"
        self.log = self.directory / "driver.log"
        self.truth = History(self.server, self.database, shop.ROOTS)
        self.writers = shop.Writers(
            self.server,
            self.database,
            count=2,
            pause_s=0.05 if self.master else 0.02,
        )
        self.writers.__enter__()

    @property
    def source(self) -> Any:
        return load(self.document, {}).spec.source

    def begin(self) -> dict[str, Any]:
        """Let the stream begin here, as if everything before were delivered."""
        with psycopg.connect(self.server.dsn(self.database), autocommit=True) as connection:
            connection.execute(
                f"CREATE PUBLICATION {self.database} FOR TABLE {', '.join(shop.TABLES)}"
                " WITH (publish_via_partition_root = true)"
            )
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.database,)
            )
        position = dict(self.source.head())
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")
        self.store.transact([checkpoints.put("out", position)])
        return position

    def wait_enough(self, driver: Driver, start: dict[str, Any] | None) -> None:
        """Wait for much of the stream; then let the writers end, and the stream catch up."""
        before = self._streamed(start)
        self._wait(lambda: self._streamed(start) > before + ENOUGH, driver)
        self.writers.__exit__()
        self.wait_caught_up(driver)

    def wait_caught_up(self, driver: Driver) -> None:
        """Wait until everything that happened is checkpointed."""
        source = self.source
        head = source.head()
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")

        def done() -> bool:
            at = checkpoints.load().get("out")
            return at is not None and source.compare(at, head) >= 0

        self._wait(done, driver)

    def close_log(self) -> None:
        """Nothing: the writers have ended."""

    def _streamed(self, start: dict[str, Any] | None) -> int:
        return sum(event.name is not None for event in self.seen())

    def history(self, start: dict[str, Any]) -> list[Change]:
        return self.truth.changes(start, shop.TABLES)

    def rows(self, start: dict[str, Any]) -> dict[Any, Any] | None:
        """Return the tables; a consumer of a stream without a copy does not hold them all."""
        if self.snapshot == "never":
            return None
        return table_rows(self.server, self.database, shop.TABLES)

    def seen(self) -> list[Seen]:
        return seen_in_file(self.output, name_of)

    def close(self) -> None:
        """End the writers, and drop the shop with everything that keeps the server's log."""
        self.writers.__exit__()
        self.store.close()
        self.truth.close()
        shop.drop(self.server, self.database)
