"""A pipeline from MySQL into this process, for tests of tables that stop or appear."""

import itertools
import json

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.engine.driving import DrivenRun
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


class TablesRun(DrivenRun):
    """A pipeline whose tables are looked at one by one."""

    def __init__(self, name, document):
        super().__init__(name, document)
        self.tables = TableRecords(self.store, name)

    def source(self):
        return load(self.control.document()).spec.source  # The process knows its secrets.

    def snapshot_start(self):
        return Snapshots(self.store, self.name).current().start_position

    def values(self):
        return [message.value for message in self.messages()]

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
        snapshots.request(self.store, self.name, CopySelection((table,)), f"copy {table}", "me")
        wait_for("the copy", lambda: self.copy(table).settled)
        return self.copy(table)

    def copy(self, table):
        return snapshots.request_state(self.store, self.name, f"copy {table}")

    def requests(self):
        return snapshots.requests(self.store, self.name)


class TableRun(TablesRun):
    """One pipeline over a server."""

    def __init__(self, server, tables, snapshot="never", policy="stop_table"):
        name = f"tables-{server.port}-{next(_unique)}"
        dsn = f"mysql://df:df-secret@{server.host}:{server.port}/"
        document = DOCUMENT.format(
            name=name, dsn=dsn, tables=json.dumps(tables), policy=policy, snapshot=snapshot
        )
        super().__init__(name, document)
