"""A scripted pipeline in processes that a test can kill, and the oracle's view of it."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.spark_submit import command, environment
from airflow_provider_deltaforge.engine.base.crash_points import HOLD_VARIABLE, CrashPoint
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.forked import Forked, prepare
from tests.oracle.readers import seen_in_file
from tests.oracle.verdict import Change, Seen, judge
from tests.waiting import wait_for

NAME = "scripted"
PATIENCE_S = 180.0
STREAMED = 300
"""Transactions of an endless log that are enough."""

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: scripted
    config:
      id: {name}-source
      transactions: {transactions}
      rows: 3
      keys: 60
      rate: {rate}
      started_ms: {started_ms}
      chunk_transactions: 5
      alter_every: 90
      snapshot: {{mode: {snapshot}, chunk_size: 20, intra_table_parallel: true}}
  batch: {{{batch}}}
  trigger: {{window: {window}}}
  processors: [{processors}]
  journal: {{{journal}}}
  {policy}
  sinks:
    - type: file
      config: {{id: out, path: "{directory}/out.jsonl"}}
{more}
"""

Driver = subprocess.Popen[bytes] | Forked
Work = Callable[[], None]


@dataclass
class ScriptedRun:
    """One pipeline with its own store and output."""

    directory: Path
    master: str | None = None
    """None: a plain process; else Spark."""
    snapshot: str = "never"
    transactions: int = 800
    rate: int = 400
    window_s: int = 600
    dsn: str | None = None
    processors: str = ""
    journal: str = ""
    batch: str = "max_events: 30, max_ms: 20"
    policy: str = ""
    """Further blocks beside the sinks."""
    more: str = ""
    """Further sinks."""
    extra_environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dsn = self.dsn or f"sqlite:///{self.directory}/state.db"
        if self.master is None:
            prepare()  # The log goes on while a driver starts.
        # The log has begun a little before, so that a snapshot finds rows.
        self.document = DOCUMENT.format(
            name=NAME,
            transactions=self.transactions,
            rate=self.rate,
            started_ms=int(time.time() * 1000) - 300,
            snapshot=self.snapshot,
            window=self.window_s,
            processors=self.processors,
            journal=self.journal,
            batch=self.batch,
            policy=self.policy,
            more=self.more,
            directory=self.directory,
        )
        self.store = StoreLocation.from_dsn(self.dsn).create()
        pipelines.apply(self.store, self.document)
        self.control = Control(self.store, NAME)
        self.want("running")
        self.output = self.directory / "out.jsonl"
        self.log = self.directory / "driver.log"

    def begin_at(self, tx: int) -> None:
        """Let the stream begin after a transaction, as if everything before were delivered."""
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")
        self.store.transact([checkpoints.put("out", {"tx": tx})])

    def want(self, desired: str) -> None:
        self.control.update(
            lambda old: old.model_copy(update={"desired": desired, "generation": 1})
        )

    def start(self, hold: tuple[CrashPoint, int] | None = None) -> Driver:
        """Start the driver, in a session of its own, held at a crash point if asked."""
        job, told = self._job(hold)
        if self.master is None:
            return Forked(NAME, told, self.log)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command(job),
                env=told,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def command(self, ticket: str, hold: tuple[CrashPoint, int] | None = None) -> Driver:
        """Serve a replay as the command does without a driver, held at a crash point if asked."""
        return Forked(NAME, self._job(hold)[1], self.log, ticket=ticket)

    def _job(self, hold: tuple[CrashPoint, int] | None) -> tuple[LaunchSpec, dict[str, str]]:
        job = LaunchSpec(NAME, 1, "stream_job.py", self.dsn or "", self.master or "")
        told = {**environment(job), **self.extra_environment}
        if hold is not None:
            told[HOLD_VARIABLE] = f"{hold[0].value}:{hold[1]}:{self.held}"
        return job, told

    @property
    def held(self) -> Path:
        return self.directory / "held"

    def wait_held(self, driver: Driver, work: Work | None = None) -> int:
        """Wait, or work, until some process stands at the crash point; return its id."""
        self._wait(lambda: self.held.exists() and self.held.read_text() != "", driver, work)
        return int(self.held.read_text())

    def kill_at(self, crash_point: CrashPoint, crossing: int = 1, work: Work | None = None) -> None:
        """Start a driver, and kill it at a crash point; work until it is there."""
        self.held.unlink(missing_ok=True)
        driver = self.start(hold=(crash_point, crossing))
        kill(self.wait_held(driver, work))
        driver.wait()

    def deliver_all(self) -> None:
        """Start a driver, and stop it once the last transaction is checkpointed."""
        driver = self.start()
        self.wait_delivered(driver)
        assert self.stop(driver) == 0

    def let_go(self) -> None:
        self.held.write_text("go")

    def first_position(self) -> dict[str, Any] | None:
        """Return where the stream began, or will begin."""
        run = Snapshots(self.store, NAME).current()
        if run is not None:
            return run.start_position
        return Checkpoints(self.store, NAME, f"{NAME}-source").load().get("out")

    def begin(self) -> dict[str, Any]:
        """Let the stream begin here; return where."""
        self.begin_at(0)
        return {"tx": 0}

    def wait_enough(self, driver: Driver, start: dict[str, Any] | None) -> None:
        """Wait until the stream has shown what it can: its end, or much of an endless log."""
        if self.transactions:
            self.wait_delivered(driver)
        else:
            wait_for("the stream", lambda: self._streamed(start) > STREAMED, PATIENCE_S)

    def close_log(self) -> None:
        """Let an endless log (``transactions=0``) end where the stopped stream has come to."""
        self.transactions = self.transactions or self._at()

    def close(self) -> None:
        """Let go of everything but the files."""
        self.store.close()

    def _streamed(self, start: dict[str, Any] | None) -> int:
        """Return the transactions since the stream began; none before."""
        start = start or self.first_position()
        return self._at() - int(start["tx"]) if start else 0

    def _at(self) -> int:
        """Return the last transaction that is checkpointed."""
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")
        return int((checkpoints.load().get("out") or {"tx": 0})["tx"])

    def wait_delivered(self, driver: Driver) -> None:
        """Wait until the last transaction is checkpointed."""
        checkpoints = Checkpoints(self.store, NAME, f"{NAME}-source")
        self._wait(lambda: (checkpoints.load().get("out") or {}).get("tx") == self.transactions)

    def stop(self, driver: Driver) -> int:
        pipelines.ask_to_stop(self.store, NAME)
        return driver.wait(PATIENCE_S)

    def judge(self, start: dict[str, Any]) -> list[str]:
        """Ask the oracle: every transaction after ``start`` had to arrive."""
        return judge(self.history(start), self.seen())

    def history(self, start: dict[str, Any]) -> list[Change]:
        """Return every change after a position."""
        return [
            Change((tx, row), ("script.rows", key), {"id": key, "tx": tx, "row": row})
            for tx, row, key in self._source().events(int(start["tx"]) + 1, self.transactions)
        ]

    def rows(self, start: dict[str, Any]) -> dict[Any, Any] | None:
        """Return the rows that a consumer must hold in the end."""
        since = 1 if self.snapshot != "never" else int(start["tx"]) + 1
        return {
            ("script.rows", key): {"id": key, "tx": tx, "row": row}
            for tx, row, key in self._source().events(since, self.transactions)
        }

    def seen(self) -> list[Seen]:
        """Return what a consumer sees."""
        return seen_in_file(
            self.output, lambda event: (event["after"]["tx"], event["after"]["row"])
        )

    def _source(self) -> ScriptedSource:
        return ScriptedSource(id=f"{NAME}-source", transactions=self.transactions, rows=3, keys=60)

    def _wait(self, ready: Any, driver: Driver | None = None, work: Work | None = None) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            ended = driver is not None and driver.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"driver {driver}:\n{self.log.read_text()[-3000:]}")
            if work is None:
                time.sleep(0.1)
            else:
                work()


def kill(pid: int) -> None:
    """Kill at once, as a machine does."""
    os.kill(pid, signal.SIGKILL)
