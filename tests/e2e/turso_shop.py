"""A shop in a Turso file under load: one writer, transactions of several rows, every kind."""

import contextlib
import queue
import random
import threading
from pathlib import Path
from typing import Any

import turso

TABLES = ["orders", "items"]
COLUMNS = {
    "orders": ["id", "customer", "status", "cents", "note", "later"],
    "items": ["id", "order_id", "sku", "quantity"],
}
_CREATE = (
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, status TEXT, cents INTEGER,"
    " note TEXT)",
    "CREATE TABLE items (id INTEGER PRIMARY KEY, order_id INTEGER, sku TEXT, quantity INTEGER)",
    "CREATE TABLE noise (id INTEGER PRIMARY KEY, text TEXT)",
)


def connect(path: Path) -> Any:
    """Open the file as an application does that lets its changes be captured."""
    connection = turso.connect(str(path), experimental_features="multiprocess_wal")
    connection.execute("PRAGMA busy_timeout = 20000")
    connection.execute("PRAGMA unstable_capture_data_changes_conn('full')")
    return connection


def create(path: Path, orders: int) -> None:
    """Create the tables and the orders that were there before."""
    with contextlib.closing(connect(path)) as connection:
        for statement in _CREATE:
            connection.execute(statement)
        connection.executemany(
            "INSERT INTO orders (customer, status, cents, note) VALUES (?, 'old', ?, ?)",
            [(number % 50, number, "größer 💶 " + "x" * (number % 7)) for number in range(orders)],
        )
        connection.executemany(
            "INSERT INTO items (order_id, sku, quantity) VALUES (?, ?, 1)",
            [(number + 1, f"sku-{number}") for number in range(orders)],
        )
        connection.commit()


class Writers:
    """One writer that goes on until the block ends; a second one would only wait for its lock."""

    def __init__(self, path: Path, pause_s: float) -> None:
        self._path = path
        self._pause_s = pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._statements: queue.Queue[tuple[str, threading.Event]] = queue.Queue()
        self.transactions = 0

    def __enter__(self) -> "Writers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(60)

    def alter(self, statement: str) -> None:
        """Let the writer run a statement between two transactions."""
        done = threading.Event()
        self._statements.put((statement, done))
        assert done.wait(60), f"the writer did not run {statement}"

    def _write(self) -> None:
        chance = random.Random(1)
        with contextlib.closing(connect(self._path)) as connection:
            while not self._over.wait(self._pause_s):
                with contextlib.suppress(queue.Empty):
                    statement, done = self._statements.get_nowait()
                    connection.execute(statement)
                    connection.commit()
                    done.set()
                try:
                    for _ in range(chance.randint(1, 5)):
                        self._change(connection, chance)
                    connection.commit()
                    self.transactions += 1
                except turso.Error:  # The file is busy.
                    connection.rollback()

    def _change(self, connection: Any, chance: random.Random) -> None:
        order, kind = chance.randint(1, 400), chance.random()
        if kind < 0.4:
            connection.execute(
                "UPDATE orders SET status = ?, cents = cents + 125 WHERE id = ?",
                (chance.choice(["paid", "packed", "it's 'sent'"]), order),
            )
        elif kind < 0.7:
            connection.execute(
                "INSERT INTO orders (customer, status, cents) VALUES (?, 'new', 999)", (order,)
            )
            connection.execute(
                "INSERT INTO items (order_id, sku, quantity) VALUES (?, 'x', ?)",
                (order, chance.randint(1, 9)),
            )
        elif kind < 0.85:
            connection.execute("INSERT INTO noise (text) VALUES ('not captured')")
        else:
            connection.execute("DELETE FROM items WHERE id = ?", (order,))
