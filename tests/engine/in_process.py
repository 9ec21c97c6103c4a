"""A pipeline in this process: its store in memory, or in a file; one lane or driver at a time."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.sinks.memory import MemoryLog, memory_log
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control

NAME = "inside"
DRIVER = "driver"

QUICK = Tuning(beat_s=0.05, control_s=0.05, room_s=0.05, sink_commands_s=0.05)
"""Lanes and drivers hear soon what is wanted of them."""

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: scripted
    config:
      {{id: {name}-source, transactions: {transactions}, rows: {rows}, keys: {keys}, {source}
       snapshot: {{mode: {snapshot}, chunk_size: 10}}}}
  batch: {{{batch}max_events: 30, max_ms: 10}}
  processors: [{processors}]
  journal: {{{journal}}}
  {policy}
  sinks:
{sinks}
"""

_unique = itertools.count()


@dataclass
class InProcess:
    """One applied pipeline, wanted to run."""

    transactions: int = 20
    rows: int = 3
    snapshot: str = "never"
    keys: int = 30
    source: str = ""
    batch: str = ""
    sinks: tuple[str, ...] = ("out",)
    sink: str = ""
    processors: str = ""
    journal: str = ""
    policy: str = ""
    optional: tuple[str, ...] = ()
    name: str = field(default_factory=lambda: f"{NAME}-{next(_unique)}")
    dsn: str = ""
    tuning: Tuning = QUICK

    def __post_init__(self) -> None:
        self.location = StoreLocation.from_dsn(self.dsn or f"memory://{self.name}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)
        lines = [
            f"    - {{type: memory, config: {{id: {sink}, log: {self.name}-{sink}, {self.sink}"
            f"{'required: false' if sink in self.optional else ''}}}}}"
            for sink in self.sinks
        ]
        self.document = DOCUMENT.format(
            name=self.name,
            transactions=self.transactions,
            rows=self.rows,
            source=self.source,
            batch=self.batch,
            processors=self.processors,
            journal=self.journal,
            policy=self.policy,
            snapshot=self.snapshot,
            keys=self.keys,
            sinks="\n".join(lines),
        )
        self.apply()
        self.want("running")

    def apply(self) -> None:
        """Apply the document as it is now."""
        pipelines.apply(self.store, self.document)

    def want(self, desired: str, generation: int = 1) -> None:
        self.control.update(
            lambda old: old.model_copy(update={"desired": desired, "generation": generation})
        )

    def begin_at(self, **tx: int) -> None:
        """Set the checkpoints of sinks, as if everything before were delivered."""
        checkpoints = self.checkpoints()
        self.store.transact([checkpoints.put(sink, {"tx": at}) for sink, at in tx.items()])

    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.store, self.name, f"{self.name}-source")

    def context(self) -> TaskContext:
        """Open a lane's context under a driver of generation 1."""
        self.control.take_epoch(DRIVER)
        return TaskContext.open(self.job(), renew=True)

    def job(self) -> DriverAssignment:
        """Return what a driver of generation 1 hands to its workers."""
        return DriverAssignment(self.document, self.location, DRIVER, 1, tuning=self.tuning)

    def log(self, sink: str = "out") -> MemoryLog:
        return memory_log(f"{self.name}-{sink}")

    def request_copy(self) -> Callable[[], Any]:
        """Ask for a copy of all tables; return what tells how far it is."""
        snapshots.request(self.store, self.name, CopySelection(), "copy", "a test")
        return lambda: snapshots.request_state(self.store, self.name, "copy")

    def status(self) -> tuple[str, Any]:
        progress = self.control.progress()
        return (progress.status, progress.error_class) if progress else ("", None)
