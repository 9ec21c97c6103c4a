"""A pipeline in this process, while the server of its source is replaced by another."""

import itertools
import json
from typing import Any

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.failover import Failovers, Reconciliation
from tests.engine.driving import Driving
from tests.servers.process import Server
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: {kind}
    config: {{id: {name}-source, dsn: "{dsn}", tables: ["{tables}"], {settings}}}
  batch: {{max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
"""

_unique = itertools.count()


class FailoverRun:
    """One pipeline, and the driver that runs it."""

    def __init__(
        self, server: Server, database: str, *, kind: str = "mysql", **settings: Any
    ) -> None:
        self.name = f"failover-{next(_unique)}"
        self.location = StoreLocation.from_dsn(f"memory://{self.name}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)
        self.lead_to(server, database, kind=kind, **settings)
        self.records = Failovers(self.store, f"{self.name}-source")
        self.generation = 0
        self._driving: Driving | None = None

    def lead_to(
        self, server: Server, database: str, *, kind: str = "mysql", **settings: Any
    ) -> None:
        """Apply the document with this server's address."""
        document = DOCUMENT.format(
            name=self.name,
            kind=kind,
            dsn=server.dsn(database),
            tables=f"{database if kind == 'mysql' else 'public'}.*",
            settings=", ".join(f"{key}: {json.dumps(value)}" for key, value in settings.items()),
        )
        pipelines.apply(self.store, document)

    def start(self) -> Driving:
        self.generation += 1
        self.want("running")
        driving = self._driving = Driving(self, generation=self.generation)
        wait_for("where it begins", lambda: driving.outcome or self.position() is not None)
        return driving

    def stop(self, driving: Driving) -> Any:
        self.want("stopped")
        return driving.end()

    def want(self, desired: str) -> None:
        self.control.update(
            lambda old: old.model_copy(update={"desired": desired, "generation": self.generation})
        )

    def status(self) -> str:
        progress = self.control.progress()
        return progress.status if progress is not None else ""

    def reason(self) -> str:
        progress = self.control.progress()
        return (progress.reason if progress is not None else None) or ""

    def position(self) -> Any:
        return Checkpoints(self.store, self.name, f"{self.name}-source").load().get("out")

    def events(self) -> list[dict[str, Any]]:
        """Return what was delivered, in order."""
        return [
            json.loads(message.value or b"null") for message in memory_log(self.name).messages()
        ]

    def keys(self) -> list[int]:
        """Return the ids of the rows that were delivered, in order."""
        return [event["after"]["id"] for event in self.events() if event["op"] == "c"]

    def wait_for_keys(self, *ids: int) -> None:
        wait_for(f"rows {ids}", lambda: self._ended() or set(ids) <= set(self.keys()))
        assert set(ids) <= set(self.keys()), self._ended()

    def _ended(self) -> Any:
        return self._driving.outcome if self._driving is not None else None

    def settled(self) -> list[Reconciliation]:
        return self.records.history()
