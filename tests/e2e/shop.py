"""A shop under load: several writers, transactions of several rows, every kind of change."""

import contextlib
import random
import time
from functools import partial
from typing import Any

import pymysql

from tests.background import Background
from tests.servers import sql
from tests.servers.process import Server

TABLES = ["orders", "items"]
_LOST = (pymysql.err.OperationalError, pymysql.err.InterfaceError)

_CREATE = (
    """CREATE TABLE orders (
        id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL,
        status VARCHAR(20) NOT NULL, amount DECIMAL(12,2), note TEXT CHARACTER SET utf8mb4,
        changed DATETIME(3))""",
    """CREATE TABLE items (
        id INT PRIMARY KEY AUTO_INCREMENT, order_id BIGINT UNSIGNED, sku VARCHAR(40),
        quantity SMALLINT)""",
    "CREATE TABLE elsewhere.noise (id INT PRIMARY KEY AUTO_INCREMENT, text VARCHAR(20))",
)


def connect(server: Server, database: str | None = None) -> Any:
    return sql.connect(server, database or "", autocommit=False)


def create(server: Server, database: str, orders: int) -> None:
    """Create the tables and the orders that were there before."""
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {database}")
        cursor.execute("DROP DATABASE IF EXISTS elsewhere")
        cursor.execute("CREATE DATABASE elsewhere")
        cursor.execute(f"CREATE DATABASE {database}")
        cursor.execute(f"USE {database}")
        for statement in _CREATE:
            cursor.execute(statement)
        cursor.executemany(
            "INSERT INTO orders (customer, status, amount, note, changed)"
            " VALUES (%s, 'old', %s, 'größer 💶', NOW(3))",
            [(number % 50, number) for number in range(orders)],
        )
        cursor.executemany(
            "INSERT INTO items (order_id, sku, quantity) VALUES (%s, %s, 1)",
            [(number + 1, f"sku-{number}") for number in range(orders)],
        )
        connection.commit()


class Writers(Background):
    """Writers that go on until the block ends."""

    def __init__(self, server: Server, database: str, count: int = 3, pause_s: float = 0.015):
        super().__init__([partial(self._write, seed) for seed in range(count)])
        self._server = server
        self._database = database
        self._pause_s = pause_s
        self.transactions = 0

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        # A test may kill the server under its writers: that ends them.
        with (
            contextlib.suppress(*_LOST),
            connect(self._server, self._database) as connection,
            connection.cursor() as cursor,
        ):
            while not self._over.wait(self._pause_s):
                try:
                    for _ in range(chance.randint(1, 5)):
                        self._change(cursor, chance)
                    connection.commit()
                    self.transactions += 1
                except pymysql.err.OperationalError:  # A deadlock between writers.
                    connection.rollback()

    def _change(self, cursor: Any, chance: random.Random) -> None:
        order = chance.randint(1, 400)
        kind = chance.random()
        if kind < 0.4:
            cursor.execute(
                "UPDATE orders SET status = %s, amount = amount + 1.25, changed = NOW(3)"
                " WHERE id = %s",
                (chance.choice(["paid", "packed", "shipped"]), order),
            )
        elif kind < 0.7:
            cursor.execute(
                "INSERT INTO orders (customer, status, amount, changed)"
                " VALUES (%s, 'new', 9.99, NOW(3))",
                (order,),
            )
            cursor.execute(
                "INSERT INTO items (order_id, sku, quantity) VALUES (LAST_INSERT_ID(), 'x', %s)",
                (chance.randint(1, 9),),
            )
        elif kind < 0.85:
            cursor.execute("INSERT INTO elsewhere.noise (text) VALUES ('not captured')")
        else:
            cursor.execute("DELETE FROM items WHERE id = %s", (order,))


def settle() -> None:
    """Let the last commit reach the log."""
    time.sleep(0.2)
