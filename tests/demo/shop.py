"""A small shop: tables with history, and a writer that changes rows all the time."""

import random
import threading
import time
from dataclasses import dataclass, field

import pymysql

from tests.servers.process import Server

CUSTOMERS = 500
ORDERS = 5000

_TABLES = (
    """CREATE TABLE customers (
        id INT PRIMARY KEY AUTO_INCREMENT,
        name VARCHAR(80) NOT NULL,
        city VARCHAR(40) NOT NULL,
        written_us BIGINT NOT NULL)""",
    """CREATE TABLE orders (
        id BIGINT PRIMARY KEY AUTO_INCREMENT,
        customer_id INT NOT NULL,
        amount DECIMAL(10,2) NOT NULL,
        status ENUM('placed','paid','shipped') NOT NULL,
        written_us BIGINT NOT NULL)""",
)
_CITIES = ("Bergen", "Porto", "Gdańsk", "Lyon", "Graz")


def connect(server: Server, database: str | None = "shop") -> pymysql.Connection:
    """Connect as the server's administrator."""
    return pymysql.connect(
        host=server.host, port=server.port, user="root", database=database, autocommit=True
    )


def fill(server: Server) -> None:
    """Create the shop with customers and orders that exist before anything is captured."""
    with connect(server, None) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("USE shop")
        for table in _TABLES:
            cursor.execute(table)
        cursor.executemany(
            "INSERT INTO customers (name, city, written_us) VALUES (%s, %s, 0)",
            [(f"customer {number}", random.choice(_CITIES)) for number in range(CUSTOMERS)],
        )
        cursor.executemany(
            "INSERT INTO orders (customer_id, amount, status, written_us) VALUES (%s, %s, %s, 0)",
            [
                (random.randint(1, CUSTOMERS), f"{random.uniform(1, 500):.2f}", "placed")
                for _ in range(ORDERS)
            ],
        )


@dataclass
class Writer:
    """Inserts, updates and deletes, each in its own transaction, until told to stop."""

    server: Server
    pause_s: float = 0.02
    counts: dict[str, int] = field(default_factory=lambda: {"c": 0, "u": 0, "d": 0})

    def __post_init__(self) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True, name="shop-writer")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self) -> None:
        """Write nothing more; returns after the last commit."""
        self._stopping.set()
        self._thread.join(10)

    def _write(self) -> None:
        with connect(self.server) as connection, connection.cursor() as cursor:
            while not self._stopping.wait(self.pause_s):
                self._change(cursor)

    def _change(self, cursor: pymysql.cursors.Cursor) -> None:
        now_us = time.time_ns() // 1000
        choice = random.random()
        if choice < 0.5:
            cursor.execute(
                "INSERT INTO orders (customer_id, amount, status, written_us) "
                "VALUES (%s, %s, 'placed', %s)",
                (random.randint(1, CUSTOMERS), f"{random.uniform(1, 500):.2f}", now_us),
            )
            self.counts["c"] += 1
        elif choice < 0.9:
            city = random.choice(_CITIES)
            table, change = random.choice(
                [("orders", "status = 1 + status % 3"), ("customers", f"city = '{city}'")]
            )
            self.counts["u"] += cursor.execute(
                f"UPDATE {table} SET {change}, written_us = %s WHERE id = %s",
                (now_us, random.randint(1, CUSTOMERS)),
            )
        else:
            self.counts["d"] += cursor.execute(
                "DELETE FROM orders WHERE id = %s", (random.randint(1, ORDERS),)
            )


def rows_of(server: Server, table: str) -> dict[int, dict[str, object]]:
    """Return a table as it is now, by primary key."""
    with (
        connect(server) as connection,
        connection.cursor(pymysql.cursors.DictCursor) as cursor,
    ):
        cursor.execute(f"SELECT * FROM {table}")
        return {row["id"]: row for row in cursor.fetchall()}
