"""Two small tables that eight writers never leave alone, one of them with a key of texts."""

import bisect
import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pymysql

from tests.e2e import postgres_shop, shop
from tests.oracle import mysql_history, postgres_history
from tests.oracle.readers import NameOf
from tests.oracle.verdict import Change
from tests.servers.process import Server

WRITERS = 8
PLAIN = "mysql plain"
"""MySQL without GTIDs."""
PAUSE_S = 0.005
"""Of each writer between two transactions."""
_KEYS = 240
_LETTERS = "aAbBzZäÄéÉ_- .09"
_COLLATIONS = {
    "mysql": "utf8mb4_0900_ai_ci",
    PLAIN: "utf8mb4_0900_ai_ci",
    "mariadb": "utf8mb4_general_ci",
    "postgres": '"und-x-icu"',
}
_KEPT = 10
"""One of so many keys is of a row that stays, and changes only."""
_MOVED = 0.08
"""How many of the changes give a row another key, which lies anywhere in the table."""


def _text(number: int) -> str:
    """Return a key that no collation takes for another one's."""
    letters = "".join(random.Random(number).choices(_LETTERS, k=2))
    return f"{letters}{number:04}"


class HotHistory:
    """Every change of tables from their first row on, with the place of each in the log.

    Args:
        placed: the changes in their order, each with the place of its transaction.
        place_of: says of a position which places lie at or before it: all up to what it returns.
        name_of: says of an event of ours which change it is.
    """

    def __init__(
        self,
        placed: Sequence[tuple[Any, Change]],
        place_of: Callable[[Mapping[str, Any]], Any],
        name_of: NameOf,
    ) -> None:
        self._places = [place for place, _ in placed]
        self.changes = [change for _, change in placed]
        self._place_of, self.name_of = place_of, name_of

    def count(self, position: Mapping[str, Any]) -> int:
        """Return how many changes lie at or before a position."""
        return bisect.bisect_right(self._places, self._place_of(position))


def rows_after(changes: Iterable[Change]) -> dict[Any, Any]:
    """Return the rows that are there after changes of tables that were empty before."""
    rows: dict[Any, Any] = {}
    for change in changes:
        rows.pop(change.moved_from, None)
        rows.pop(change.key, None)
        if change.state is not None:
            rows[change.key] = change.state
    return rows


class HotTables:
    """A database of its own in one server.

    Args:
        kind: ``mysql``, ``PLAIN``, ``mariadb`` or ``postgres``.
        server: of that kind.
        name: of the database, in small letters.
        pause_s: of each writer between two transactions.
        moves: whether rows change their keys, too.
    """

    def __init__(
        self, kind: str, server: Server, name: str, pause_s: float, *, moves: bool = False
    ) -> None:
        self.kind, self._server, self.name, self._pause_s = kind, server, name, pause_s
        self._moves = moves
        self.is_postgres = kind == "postgres"
        self.transactions = 0
        self.first_file = ""
        """Of MySQL's log, in which the tables begin."""
        self._over = threading.Event()
        self._locks = [threading.Lock() for _ in range(WRITERS)]
        self._threads: list[threading.Thread] = []
        self._create_database()
        # It sees the first rows, too.
        self._truth = postgres_history.History(server, name) if self.is_postgres else None
        self._create_tables()

    @property
    def tables(self) -> list[str]:
        """Names, as the oracle has them."""
        return [f"public.{name}" if self.is_postgres else name for name in ("numbers", "names")]

    @property
    def settings(self) -> dict[str, Any]:
        """Of a source that captures both."""
        dsn = f"df:df-secret@{self._server.host}:{self._server.port}/"
        if self.kind == PLAIN:  # Its views need the privilege to lock tables.
            dsn = dsn.replace("df:df-secret", "root")
        if not self.is_postgres:
            return {"dsn": f"mysql://{dsn}", "tables": [f"{self.name}.*"]}
        names = {"publication": self.name, "slot": self.name}
        return {"dsn": f"postgresql://{dsn}{self.name}", "tables": ["public.*"], **names}

    def begin(self) -> None:
        """Let the writers begin."""
        for number in range(WRITERS):
            thread = threading.Thread(target=self._write, args=(number,), daemon=True)
            self._threads.append(thread)
            thread.start()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let no transaction be under way inside."""
        with contextlib.ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield

    def end(self) -> None:
        """Let the writers end."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def close(self) -> None:
        """Let the server forget everything."""
        self.end()
        if self._truth is not None:
            self._truth.close()
            postgres_shop.drop(self._server, self.name)
        else:
            with shop.connect(self._server) as connection, connection.cursor() as cursor:
                cursor.execute(f"DROP DATABASE {self.name}")

    def history(self, after: dict[str, Any]) -> list[Any]:
        """Return every change after a position, as others read it."""
        if self._truth is not None:
            return self._truth.changes(after, self.tables)
        return mysql_history.history(self._server, self.name, after)

    def whole_history(self) -> "HotHistory":
        """Return every change since the tables were made, as others read it."""
        if self._truth is not None:
            return HotHistory(
                self._truth.placed(self.tables),
                lambda position: postgres_history.number(position["lsn"]),
                postgres_history.name_of,
            )
        placed = mysql_history.placed_history(self._server, self.name, self.first_file)
        if self.kind != PLAIN:
            return HotHistory(placed, mysql_history.last_number, mysql_history.name_of)
        named, name_of = mysql_history.plain_names(placed)
        return HotHistory(named, mysql_history.place_of, name_of)

    def rows(self) -> dict[Any, Any]:
        """Return every row as it is now."""
        if self.is_postgres:
            return postgres_history.table_rows(self._server, self.name, self.tables)
        return mysql_history.table_rows(self._server, self.name, self.tables)

    def _connect(self) -> Any:
        if self.is_postgres:
            return psycopg.connect(self._server.dsn(self.name))
        return shop.connect(self._server, self.name)

    def _create_database(self) -> None:
        if self.is_postgres:
            with psycopg.connect(self._server.dsn("postgres"), autocommit=True) as server:
                server.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
                server.execute(f"CREATE DATABASE {self.name} OWNER df")
        else:
            with shop.connect(self._server) as server, server.cursor() as cursor:
                cursor.execute(f"DROP DATABASE IF EXISTS {self.name}")
                cursor.execute(f"CREATE DATABASE {self.name}")
            self.first_file = mysql_history.new_file(self._server)

    def _create_tables(self) -> None:
        collation = _COLLATIONS[self.kind]
        text = "text" if self.is_postgres else "varchar(20) CHARACTER SET utf8mb4"
        with self._connect() as connection, connection.cursor() as cursor:
            for name, kind in (("numbers", "bigint"), ("names", f"{text} COLLATE {collation}")):
                cursor.execute(f"CREATE TABLE {name} (id {kind} PRIMARY KEY, v bigint NOT NULL)")
                if self.is_postgres:
                    cursor.execute(f"ALTER TABLE {name} OWNER TO df")
            for number in range(0, _KEYS, 2):
                cursor.execute("INSERT INTO numbers VALUES (%s, %s)", (number, -number))
                cursor.execute("INSERT INTO names VALUES (%s, %s)", (_text(number), -number))
            connection.commit()

    def _write(self, writer: int) -> None:
        chance = random.Random(f"{self.name}/{writer}")
        value = (writer + 1) * 10**9
        # Each writer has rows of its own, so that none waits for another one's lock.
        mine = range(writer, _KEYS, WRITERS)
        with self._connect() as connection, connection.cursor() as cursor:
            while not self._over.wait(self._pause_s):
                with self._locks[writer]:
                    try:
                        for _ in range(chance.randint(1, 3)):
                            value += 1
                            self._change(cursor, chance, mine, value)
                        connection.commit()
                    except pymysql.err.OperationalError:  # Gaps of other writers' rows.
                        connection.rollback()
                self.transactions += 1

    def _change(self, cursor: Any, chance: random.Random, mine: Sequence[int], value: int) -> None:
        table, numbers = chance.choice(("numbers", "names")), chance.choices(mine, k=2)
        key, other = (number if table == "numbers" else _text(number) for number in numbers)
        kind = chance.random() if numbers[0] % _KEPT else 0.5
        if self._moves and kind < _MOVED:
            cursor.execute(f"SELECT 1 FROM {table} WHERE id = %s", (other,))
            if cursor.fetchone() is None:
                cursor.execute(
                    f"UPDATE {table} SET id = %s, v = %s WHERE id = %s", (other, value, key)
                )
        elif kind < 0.7:
            cursor.execute(f"UPDATE {table} SET v = %s WHERE id = %s", (value, key))
            if not cursor.rowcount:
                cursor.execute(f"INSERT INTO {table} VALUES (%s, %s)", (key, value))
        else:
            cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))
