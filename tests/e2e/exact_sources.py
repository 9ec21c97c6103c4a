"""Shops that a pipeline delivers exactly once from, by type of source.

A new kind of source is one class and one entry of ``SHOPS``.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import psycopg

from tests.e2e import postgres_shop, shop
from tests.oracle import mysql_history, postgres_history
from tests.oracle.readers import NameOf
from tests.oracle.verdict import Change
from tests.servers.process import Server


class Shop(Protocol):
    """A database of its own under load, and what its server says of it."""

    writers: "shop.Writers | postgres_shop.Writers"
    """Begin when they are entered."""
    settings: str
    """Of the source, in YAML between braces; its type comes before."""
    name_of: NameOf

    def widen(self) -> None:
        """Give a table that is written to another column."""

    def changes(self, start: Mapping[str, Any]) -> list[Change]:
        """Return every change after a position, as the server logged it."""

    def settle(self) -> None:
        """Let the last commit reach the log."""

    def close(self) -> None:
        """End the writers, and let the server forget what it keeps for the shop."""


class MysqlShop:
    """A shop in MySQL."""

    name_of = staticmethod(mysql_history.name_of)

    def __init__(self, server: Server, pause_s: float) -> None:
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

    def settle(self) -> None:
        """Let the last commit reach the log."""
        shop.settle()

    def close(self) -> None:
        """End the writers."""
        self.writers.__exit__()


class PostgresShop:
    """A shop in PostgreSQL; a slot of its own keeps what the oracle reads."""

    name_of = staticmethod(postgres_history.name_of)

    def __init__(self, server: Server, pause_s: float) -> None:
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

    def settle(self) -> None:
        """Nothing: a commit that was answered is in the log."""

    def close(self) -> None:
        """End the writers, and drop the shop with everything that keeps the server's log."""
        self.writers.__exit__()
        self._truth.close()
        postgres_shop.drop(self._server, self._database)


SHOPS: dict[str, Callable[[Server, float], Shop]] = {"mysql": MysqlShop, "postgres": PostgresShop}
"""From a server and the writers' pause to a new shop."""


def _new_name() -> str:
    return f"shop_{time.time_ns()}"
