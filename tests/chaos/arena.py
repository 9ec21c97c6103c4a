"""One pipeline under attack: a ledger's table into one sink, in processes that can be frozen."""

import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.status import PipelineStatus, status
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.chaos.judge import judge
from tests.chaos.ledger import DATABASES, Ledger
from tests.chaos.proxy import Proxy
from tests.engine.exact_run import Place, new_place
from tests.engine.forked import prepare
from tests.engine.frozen import freeze_between_writes
from tests.engine.scripted_run import NAME, Driver, ScriptedRun
from tests.engine.spark_kills import end_family
from tests.oracle.readers import whole_lines
from tests.servers.process import Server, family

_DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {source}
    config: {{id: {name}-source, snapshot: {{mode: {snapshot}, chunk_size: {rows}}}, {settings}}}
  batch: {{max_events: {rows}, max_ms: 20}}
  sinks: [{sink}]
"""

_HEAVY_BYTES, _HEAVY_ROWS = 300_000, 40
"""Together more than ten megabytes, of events that each sink takes by default."""


@dataclass
class Arena(ScriptedRun):
    """A pipeline and everything around it; close it in the end."""

    source: str = "mysql"
    source_server: Server | None = None
    sink: str = "redis"
    sink_server: Server | None = None
    exact: bool = False
    proxied: bool = False
    """Whether the source is reached through a proxy."""
    heavy: bool = False
    """Whether a chunk or a batch is more than the buffers of a connection hold."""
    output: Path = Path()
    seed: int = 0
    drivers: list[Driver] = field(default_factory=list)

    def __post_init__(self) -> None:
        prepare()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.dsn = self.dsn or f"sqlite:///{self.directory}/state.db"
        assert self.source_server is not None
        database: Any = DATABASES[self.source](self.source_server, self.directory)
        self.ledger = Ledger(database, random.Random(self.seed))
        self.ledger.row_bytes = _HEAVY_BYTES if self.heavy else 0
        self.ledger.fill()
        self.proxy = Proxy(self.source_server.port) if self.proxied else None
        self.place = self._place()
        self.document = _DOCUMENT.format(
            name=NAME,
            source=database.type,
            snapshot=self.snapshot,
            rows=_HEAVY_ROWS if self.heavy else 20,
            settings=database.settings(self.proxy.port if self.proxy else None),
            sink=self.place.sink,
        )
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.log = self.directory / "driver.log"
        self.began = 0

    def _place(self) -> Place:
        if self.sink == "file":
            output = self.output if self.output != Path() else self.directory / "out.jsonl"
            sink = f"{{type: file, config: {{id: out, path: '{output}'}}}}"
            return Place("out", sink, lambda: whole_lines(output))
        assert self.sink_server is not None
        return new_place(self.sink, self.sink_server.dsn(), exactly_once=self.exact)

    def begin(self, hold: Any = None) -> Driver:
        """Start a driver, which is ended with the arena."""
        self.drivers.append(self.start(hold))
        return self.drivers[-1]

    def status(self) -> PipelineStatus:
        """Return what people are told."""
        return status(self.store, NAME)

    def wait_running(self, driver: Driver) -> None:
        """Wait until the pipeline says that it runs; what is written then has to arrive."""
        self._wait(lambda: self.status().status == "running", driver)
        self.began = self.began or len(self.ledger.entries)

    def wait_caught_up(self, driver: Driver | None = None) -> None:
        """Wait until everything that was written is checkpointed."""
        head = load(self.document, {}).spec.source.head()
        self._wait(lambda: self.is_caught_up(head), driver)

    def is_caught_up(self, head: Any = None) -> bool:
        """Return whether everything up to a position, by default the last, is checkpointed."""
        source = load(self.document, {}).spec.source
        at = Checkpoints(self.store, NAME, f"{NAME}-source").load().get("out")
        return at is not None and source.compare(at, head or source.head()) >= 0

    def freeze(self, driver: Driver) -> None:
        """Stop a driver's clock, as a machine does that sleeps.

        Not within a write to the store: a frozen process would keep a SQLite file locked.
        """
        freeze_between_writes(family(driver.pid), self.directory / "state.db")

    def _signal(self, driver: Driver, number: signal.Signals) -> None:
        for pid in family(driver.pid):
            os.kill(pid, number)

    def wake(self, driver: Driver) -> None:
        """Let it go on."""
        self._signal(driver, signal.SIGCONT)

    def verdict(self) -> list[str]:
        """Return what the consumer has that it should not have, or lacks."""
        entries = self.ledger.entries[self.began :]
        rows = self.ledger.database.rows()
        return judge(self.place.read(), entries, rows, exactly_once=self.exact)

    def finish(self, driver: Driver) -> list[str]:
        """Let the pipeline come to its end, stop it, and judge."""
        self.ledger.write(60)
        self.wait_caught_up(driver)
        code = self.stop(driver)
        wrong = self.verdict()
        if code != 0:
            wrong.append(f"the driver ended with {code}")
        if self.status().status != "stopped":
            wrong.append(f"status {self.status().words} after a stop")
        return wrong

    def close(self) -> None:
        for driver in self.drivers:
            end_family(driver)
        if self.heavy:  # A worker's server takes those of every case.
            self.place.clear()
        if self.proxy is not None:
            self.proxy.close()
        self.store.close()
        self.ledger.database.close()


def seconds_until(met: Any, patience_s: float) -> float | None:
    """Return after how many seconds a condition was met, or None."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        if met():
            return round(time.monotonic() - began, 1)
        time.sleep(0.2)
    return None
