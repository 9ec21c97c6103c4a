"""A pipeline from MySQL into this process, for tests of tables that stop or appear."""

import itertools
import json

from airflow_provider_deltaforge.control import pipelines, snapshots
from airflow_provider_deltaforge.control.snapshots import Wish
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.control import Control
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.snapshots import Snapshots
from airflow_provider_deltaforge.storage.tables import Tables
from tests.engine.driving import Driving
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: mysql
    config: {{id: {name}, dsn: "{dsn}", tables: {tables}, on_undecodable: {policy},
              snapshot: {{mode: {snapshot}, chunk_size: 100}}}}
  batch: {{max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
"""

_unique = itertools.count()


class TableRun:
    """One pipeline, applied and driven by a thread."""

    def __init__(self, server, tables, snapshot="never", policy="stop_table"):
        self.name = f"tables-{server.port}-{next(_unique)}"
        self.location = StoreLocation.from_dsn(f"memory://{self.name}")
        self.store = self.location.open()
        self.control = Control(self.store, self.name)
        self.tables = Tables(self.store, self.name)
        dsn = f"mysql://df:df-secret@{server.host}:{server.port}/"
        pipelines.apply(
            self.store,
            DOCUMENT.format(
                name=self.name,
                dsn=dsn,
                tables=json.dumps(tables),
                policy=policy,
                snapshot=snapshot,
            ),
        )
        self.driving = None
        self.generation = 0

    def start(self):
        self.generation += 1
        changes = {"desired": "running", "generation": self.generation}
        self.control.update(lambda old: old.model_copy(update=changes))
        self.driving = Driving(self, generation=self.generation)
        wait_for("the stream", lambda: self.ended() or self.checkpoint())
        return self

    def ended(self):
        return not self.driving.thread.is_alive()

    def stop(self):
        self.control.update(lambda old: old.model_copy(update={"desired": "stopped"}))
        return self.driving.end()

    def checkpoint(self):
        return Checkpoints(self.store, self.name, self.name).load().get("out")

    def source(self):
        return load(self.control.document(), {}).spec.source

    def snapshot_start(self):
        return Snapshots(self.store, self.name).current().start_position

    def values(self):
        return [message.value for message in memory_log(self.name).messages()]

    def status(self):
        return status(self.store, self.name)

    def events(self):
        return [json.loads(value) for value in self.values()]

    def rows(self, table):
        """Return what a consumer saw of a table, as (op, after)."""
        return [
            (event["op"], event["after"])
            for event in self.events()
            if event["source"]["table"] == table
        ]

    def wait_row(self, table, row, op=None):
        wait_for(
            f"{row} of {table} in {self.events()[-20:]}",
            lambda: any(r == row and op in (None, o) for o, r in self.rows(table)) or self.ended(),
        )
        assert (op, row) in [(op and o, r) for o, r in self.rows(table)], self.driving.outcome

    def ask(self, table):
        snapshots.request(self.store, self.name, Wish((table,)), f"copy {table}", "me")
        wait_for("the copy", lambda: self.copy(table).settled)
        return self.copy(table)

    def copy(self, table):
        return snapshots.request_state(self.store, self.name, f"copy {table}")

    def requests(self):
        return snapshots.requests(self.store, self.name)
