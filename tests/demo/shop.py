"""A small shop in one Turso file: tables with history, and a writer that changes rows all the time.

Every connection opens the file for several processes, because the pipeline reads it meanwhile, and
records its own changes: Turso captures the writes of connections that asked for it, no others.
"""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import turso

CUSTOMERS = 500
ORDERS = 5000

_TABLES = (
    """CREATE TABLE customers (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        city TEXT NOT NULL,
        updated_us INTEGER NOT NULL)""",
    """CREATE TABLE orders (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        customer_id INTEGER NOT NULL,
        cents INTEGER NOT NULL,
        status TEXT NOT NULL,
        updated_us INTEGER NOT NULL)""",
)
_CITIES = ("Bergen", "Porto", "Gdańsk", "Lyon", "Graz")
_STATUSES = ("placed", "paid", "shipped")
_PLACE = "INSERT INTO orders (customer_id, cents, status, updated_us) VALUES (?, ?, ?, ?)"

Change = tuple[str, int, int | None]
"""Table, key, and the row's ``updated_us``; None for a delete."""


def connect(path: Path) -> turso.Connection:
    """Open the shop beside other processes, and record what this connection changes."""
    connection = turso.connect(str(path), experimental_features="multiprocess_wal")
    connection.execute("PRAGMA unstable_capture_data_changes_conn('full')")
    return connection


def fill(path: Path) -> None:
    """Create the shop with customers and orders that exist before anything is captured."""
    with contextlib.closing(connect(path)) as connection:
        for table in _TABLES:
            connection.execute(table)
        connection.commit()
        connection.executemany(
            "INSERT INTO customers (name, city, updated_us) VALUES (?, ?, 0)",
            [(f"customer {number}", random.choice(_CITIES)) for number in range(1, CUSTOMERS + 1)],
        )
        connection.executemany(_PLACE, [(*_order(), "placed", 0) for _ in range(ORDERS)])
        connection.commit()


def rows_of(path: Path, table: str) -> dict[int, dict[str, Any]]:
    """Return a table as it is now, by primary key."""
    with contextlib.closing(connect(path)) as connection:
        cursor = connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


@dataclass
class Writer:
    """Inserts, updates and deletes in small transactions, until told to stop."""

    path: Path
    pause_s: float = 0.02
    commits: dict[Change, float] = field(default_factory=dict)
    """When each change was committed, in seconds since the epoch."""
    error: Exception | None = None
    """Why it ended by itself."""

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._write, daemon=True, name="shop-writer")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write nothing more; returns after the last commit."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(10)

    @contextlib.contextmanager
    def still(self) -> Iterator[None]:
        """Let the shop rest between two transactions while the block runs."""
        with self._turn:
            yield

    def check(self) -> None:
        """Raise what ended the writer, if anything did."""
        if self.error is not None:
            raise self.error

    def _write(self) -> None:
        try:
            with contextlib.closing(connect(self.path)) as connection:
                while not self._stopping.wait(self.pause_s):
                    with self._turn:
                        self._commit(connection)
        except turso.Error as error:
            self.error = error

    def _commit(self, connection: turso.Connection) -> None:
        """Make one transaction, and note when it was committed."""
        act: Callable[[turso.Cursor], list[Change]] = random.choices(
            (_place, _move_on, _relocate, _cancel), weights=(5, 3, 1, 1)
        )[0]
        changes = act(connection.cursor())
        connection.commit()
        committed_at = time.time()
        self.commits.update(dict.fromkeys(changes, committed_at))


def _place(cursor: turso.Cursor) -> list[Change]:
    """Place an order or two at once."""
    changes: list[Change] = []
    for _ in range(random.choice((1, 1, 2))):
        now_us = time.time_ns() // 1000
        cursor.execute(_PLACE, (*_order(), "placed", now_us))
        changes.append(("orders", cursor.lastrowid, now_us))
    return changes


def _move_on(cursor: turso.Cursor) -> list[Change]:
    """Give an order its next status."""
    key = random.randint(1, ORDERS)
    cursor.execute("SELECT status FROM orders WHERE id = ?", (key,))
    row = cursor.fetchone()
    if row is None:
        return []
    status = _STATUSES[(_STATUSES.index(row[0]) + 1) % len(_STATUSES)]
    return _update(cursor, "orders", "status", status, key)


def _relocate(cursor: turso.Cursor) -> list[Change]:
    """Move a customer."""
    return _update(
        cursor, "customers", "city", random.choice(_CITIES), random.randint(1, CUSTOMERS)
    )


def _cancel(cursor: turso.Cursor) -> list[Change]:
    """Delete an order."""
    key = random.randint(1, ORDERS)
    cursor.execute("DELETE FROM orders WHERE id = ?", (key,))
    return [("orders", key, None)] if cursor.rowcount else []


def _update(cursor: turso.Cursor, table: str, column: str, value: str, key: int) -> list[Change]:
    now_us = time.time_ns() // 1000
    cursor.execute(
        f"UPDATE {table} SET {column} = ?, updated_us = ? WHERE id = ?", (value, now_us, key)
    )
    return [(table, key, now_us)] if cursor.rowcount else []


def _order() -> tuple[int, int]:
    return random.randint(1, CUSTOMERS), random.randint(100, 50_000)
