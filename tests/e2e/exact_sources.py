"""Shops that a pipeline delivers exactly once from, by type of source.

A new kind of source is one class and one entry of ``SHOPS``.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import psycopg

from tests.e2e import postgres_shop, shop, turso_shop
from tests.oracle import mysql_history, postgres_history, turso_history
from tests.oracle.readers import NameOf
from tests.oracle.verdict import Change
from tests.servers.process import Server

WIDER = "later"
"""The column that a table gets meanwhile."""


class Shop(Protocol):
    """A database of its own under load, and what its server says of it."""

    type: str
    """Of the source, in a document."""
    writers: "shop.Writers | postgres_shop.Writers | turso_shop.Writers"
    """Begin when they are entered."""
    settings: str
    """Of the source, in YAML between braces; its type comes before."""
    name_of: NameOf

    def widen(self) -> None:
        """Give a table that is written to another column."""

    def changes(self, start: Mapping[str, Any]) -> list[Change]:
        """Return every change after a position, as the server logged it."""

    def rows(self) -> dict[Any, Any]:
        """Return every captured row as it is now."""

    def settle(self) -> None:
        """Let the last commit reach the log."""

    def close(self) -> None:
        """End the writers, and let the server forget what it keeps for the shop."""


class MysqlShop:
    """A shop in MySQL, or in MariaDB."""

    type = "mysql"
    name_of = staticmethod(mysql_history.name_of)

    def __init__(self, server: Server, pause_s: float, _: Path) -> None:
        self._server = server
        self._database = _new_name()
        shop.create(server, self._database, orders=300)
        mysql_history.new_file(server)
        self.settings = (
            f"dsn: 'mysql://df:df-secret@{server.host}:{server.port}/',"
            f" tables: ['{self._database}.*']"
        )
        self.writers = shop.Writers(server, self._database, count=2, pause_s=pause_s)

    def widen(self) -> None:
        """Give a table that is written to another column."""
        with shop.connect(self._server, self._database) as connection:
            connection.cursor().execute("ALTER TABLE orders ADD COLUMN later INT")

    def changes(self, start: Mapping[str, Any]) -> list[Change]:
        """Return every change after a position, as the binary log has it."""
        return mysql_history.history(self._server, self._database, start)

    def rows(self) -> dict[Any, Any]:
        """Return every captured row as it is now."""
        return mysql_history.table_rows(self._server, self._database, shop.TABLES)

    def settle(self) -> None:
        """Let the last commit reach the log."""
        shop.settle()

    def close(self) -> None:
        """End the writers."""
        self.writers.__exit__()


class PostgresShop:
    """A shop in PostgreSQL; a slot of its own keeps what the oracle reads."""

    type = "postgres"
    name_of = staticmethod(postgres_history.name_of)

    def __init__(self, server: Server, pause_s: float, _: Path) -> None:
        self._server = server
        self._database = _new_name()
        owner = postgres_shop.create(server, self._database, orders=300)
        self._truth = postgres_history.History(server, self._database, postgres_shop.ROOTS)
        self.settings = (
            f"dsn: '{owner}', tables: ['public.*'], publication: {self._database},"
            f" slot: {self._database}, start_position: latest"
        )
        self.writers = postgres_shop.Writers(server, self._database, count=2, pause_s=pause_s)

    def widen(self) -> None:
        """Give a table that is written to another column."""
        with psycopg.connect(self._server.dsn(self._database)) as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN later int")

    def changes(self, start: Mapping[str, Any]) -> list[Change]:
        """Return every change after a position, as ``test_decoding`` prints it."""
        return self._truth.changes(start, postgres_shop.TABLES)

    def rows(self) -> dict[Any, Any]:
        """Return every captured row as it is now."""
        return postgres_history.table_rows(self._server, self._database, postgres_shop.TABLES)

    def settle(self) -> None:
        """Nothing: a commit that was answered is in the log."""

    def close(self) -> None:
        """End the writers, and drop the shop with everything that keeps the server's log."""
        self.writers.__exit__()
        self._truth.close()
        postgres_shop.drop(self._server, self._database)


class TursoShop:
    """A shop in a file of its own; the engine itself decodes what it has captured."""

    type = "turso"
    name_of = staticmethod(turso_history.name_of)

    def __init__(self, _: Server | None, pause_s: float, directory: Path) -> None:
        self._path = directory / "shop.db"
        turso_shop.create(self._path, orders=300)
        self.settings = (
            f"url: '{self._path}', tables: [orders, items], cdc_mode: native, poll_interval_ms: 20"
        )
        self.writers = turso_shop.Writers(self._path, pause_s / 2)

    def widen(self) -> None:
        """Give a table that is written to another column."""
        self.writers.alter("ALTER TABLE orders ADD COLUMN later INTEGER")

    def changes(self, start: Mapping[str, Any]) -> list[Change]:
        """Return every change after a position, as the engine decodes it."""
        return turso_history.changes(self._path, start, turso_shop.COLUMNS)

    def rows(self) -> dict[Any, Any]:
        """Return every captured row as it is now."""
        return turso_history.table_rows(self._path, turso_shop.TABLES)

    def settle(self) -> None:
        """Nothing: a commit is in the file."""

    def close(self) -> None:
        """End the writer."""
        self.writers.__exit__()


SHOPS: dict[str, Callable[[Any, float, Path], Shop]] = {
    "mysql": MysqlShop,
    "mariadb": MysqlShop,
    "postgres": PostgresShop,
    "turso": TursoShop,
}
"""From a server (none for a file), the writers' pause and an own directory to a new shop."""
SERVERLESS = frozenset({"turso"})


def _new_name() -> str:
    return f"shop_{time.time_ns()}"
