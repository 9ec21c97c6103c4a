"""A table and who writes to it: one writer, who numbers every change and keeps the whole truth.

Nothing here reads a log of a server: what happened is what this writer has committed.
"""

import contextlib
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pymysql

from tests.servers import sql
from tests.servers.process import HOST, Server

KEYS = 150
_NOTE = "größer 💶 "


@dataclass(frozen=True)
class Entry:
    """One committed change: ``number`` is the row's; a deletion has that of the row it took."""

    op: str
    id: int
    number: int


class Database(Protocol):
    """What a ledger asks of a server."""

    def settings(self, port: int | None) -> str:
        """Return the source's settings, in YAML between braces, through another port if asked."""

    def run(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        """Run statements in one transaction."""

    def rows(self) -> dict[int, int]:
        """Return each row's number by its id, as the table is now."""

    def close(self) -> None:
        """Let the server forget the table."""


@dataclass
class Ledger:
    """What was written, in the order of commits."""

    database: Database
    chance: random.Random
    row_bytes: int = 0
    """How much each row is to hold; 0 for rows of a few hundred bytes."""
    entries: list[Entry] = field(default_factory=list)
    alive: dict[int, int] = field(default_factory=dict)

    def fill(self) -> None:
        """Write every second row, so that a copy has something to read."""
        self._transact([("c", key) for key in range(0, KEYS, 2)])

    def write(self, changes: int) -> None:
        """Insert, update and delete rows, in transactions of several."""
        while changes > 0:
            count = min(changes, self.chance.randint(1, 12))
            self._transact([("", self.chance.randrange(KEYS)) for _ in range(count)])
            changes -= count

    def _transact(self, wanted: list[tuple[str, int]]) -> None:
        alive, made, statements = dict(self.alive), [], []
        number = len(self.entries)
        for op, key in wanted:
            number += 1
            note = "x" * self.row_bytes or _NOTE * self.chance.randint(0, 30)
            if key not in alive:
                made.append(Entry("c", key, number))
                statement = ("INSERT INTO t (id, n, note) VALUES (%s, %s, %s)", (key, number, note))
            elif not op and self.chance.random() < 0.25:
                made.append(Entry("d", key, alive.pop(key)))
                statements.append(("DELETE FROM t WHERE id = %s", (key,)))
                continue
            else:
                made.append(Entry("u", key, number))
                statement = ("UPDATE t SET n = %s, note = %s WHERE id = %s", (number, note, key))
            alive[key] = number
            statements.append(statement)
        self.database.run(statements)
        self.entries += made
        self.alive = alive


class MysqlDatabase:
    """A database of its own in MySQL or MariaDB."""

    type = "mysql"

    def __init__(self, server: Server, _: Path) -> None:
        self._server, self._name = server, f"chaos_{time.time_ns()}"
        create = (
            "CREATE TABLE t (id INT PRIMARY KEY, n BIGINT, note MEDIUMTEXT CHARACTER SET utf8mb4)"
        )
        with self._connected() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {self._name}")
            cursor.execute(f"USE {self._name}")
            cursor.execute(create)

    def settings(self, port: int | None) -> str:
        dsn = f"mysql://df:df-secret@{HOST}:{port or self._server.port}/"
        return f"dsn: '{dsn}', tables: ['{self._name}.*']"

    def run(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with self._connected(self._name) as connection, connection.cursor() as cursor:
            for statement, values in statements:
                cursor.execute(statement, values)
            connection.commit()

    def rows(self) -> dict[int, int]:
        with self._connected(self._name) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id, n FROM t")
            return dict(cursor.fetchall())

    def close(self) -> None:
        with contextlib.suppress(pymysql.err.MySQLError), self._connected() as connection:
            connection.cursor().execute(f"DROP DATABASE {self._name}")

    def _connected(self, database: str | None = None) -> Any:
        return sql.connect(self._server, database or "", autocommit=False)


class PostgresDatabase:
    """A database of its own in PostgreSQL."""

    type = "postgres"

    def __init__(self, server: Server, _: Path) -> None:
        self._server, self._name = server, f"chaos_{time.time_ns()}"
        with psycopg.connect(server.dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._name} OWNER df")
            # A driver that is frozen keeps its slot for so long, which is a minute by default.
            connection.execute(f"ALTER DATABASE {self._name} SET wal_sender_timeout = '5s'")
        with psycopg.connect(self._owner(server.port)) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, n bigint, note text)")
            # So that a deletion says which of the row's changes it took away.
            connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")

    def settings(self, port: int | None) -> str:
        return (
            f"dsn: '{self._owner(port or self._server.port)}', tables: ['public.*'],"
            f" publication: {self._name}, slot: {self._name}, start_position: latest"
        )

    def run(self, statements: list[tuple[str, tuple[Any, ...]]]) -> None:
        with psycopg.connect(self._owner(self._server.port)) as connection:
            for statement, values in statements:
                connection.execute(statement, values)

    def rows(self) -> dict[int, int]:
        with psycopg.connect(self._owner(self._server.port)) as connection:
            return dict(connection.execute("SELECT id, n FROM t").fetchall())

    def close(self) -> None:
        from tests.e2e.postgres_shop import drop

        with contextlib.suppress(psycopg.Error, AssertionError):
            drop(self._server, self._name)

    def _owner(self, port: int) -> str:
        return f"postgresql://df:df-secret@{HOST}:{port}/{self._name}"


DATABASES = {
    "mysql": MysqlDatabase,
    "mariadb": MysqlDatabase,
    "postgres": PostgresDatabase,
}
