"""A pipeline from PostgreSQL into this process, and a wire on which bytes can be changed."""

import itertools
import select
import socket
import threading

from tests.servers.process import HOST
from tests.sources.mysql.table_run import TablesRun
from tests.waiting import wait_for

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", publication: df, slot: "{database}", tables: {tables},
              on_undecodable: {policy}, snapshot: {{mode: never}}}}
  batch: {{max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: out, log: {name}}}}}
"""

_unique = itertools.count()


class PostgresTableRun(TablesRun):
    """One pipeline over a database."""

    def __init__(self, server, database, policy="stop_table", port=None, tables='["*"]'):
        name = f"{database}-{next(_unique)}"
        dsn = server.dsn(database).replace(str(server.port), str(port or server.port))
        document = DOCUMENT.format(
            name=name, dsn=dsn, database=database, policy=policy, tables=tables
        )
        super().__init__(name, document)

    def wait_until_named(self, *names):
        """Wait until it is stored that there are tables of these names."""
        wait_for("names", lambda: self.tables.named().tables.keys() >= set(names))


class Wire:
    """Carries connections to a server, and changes what the server says where it is told to.

    Args:
        server: behind it.

    Attributes:
        changes: what is put instead of which bytes; of the same length.
    """

    def __init__(self, server):
        self.changes = {}
        self._server = server
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listener.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((self._server.host, self._server.port))
            threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client, server):
        with client, server:
            while True:
                for sender in select.select([client, server], [], [])[0]:
                    try:
                        data = sender.recv(1 << 20)
                        for old, new in self.changes.items() if sender is server else ():
                            data = data.replace(old, new)
                        (client if sender is server else server).sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
