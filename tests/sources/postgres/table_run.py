"""A pipeline from PostgreSQL into this process."""

import itertools

from tests.sources.mysql.table_run import TablesRun
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", slot: "{database}", tables: {tables},
              publication: {{name: df, create: {create}}},
              on_undecodable: {policy}, snapshot: {{mode: never}}}}
  batch: {{max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
"""

_unique = itertools.count()


class PostgresTableRun(TablesRun):
    """One pipeline over a database."""

    def __init__(
        self, server, database, policy="stop_table", port=None, tables='["*"]', create="true"
    ):
        name = f"{database}-{next(_unique)}"
        dsn = server.dsn(database).replace(str(server.port), str(port or server.port))
        document = DOCUMENT.format(
            name=name, dsn=dsn, database=database, policy=policy, tables=tables, create=create
        )
        super().__init__(name, document)

    def wait_until_named(self, *names):
        """Wait until it is stored that there are tables of these names."""
        wait_for("names", lambda: self.tables.named().tables.keys() >= set(names))
