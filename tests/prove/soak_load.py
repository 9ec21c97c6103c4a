"""What a soak writes, and who reads it: each change of a row carries the row's next number.

A consumer that sees the numbers of each row rise by one has lost nothing, has seen nothing twice
and nothing late; however long it reads, it keeps no more than a number for each row.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import orjson
import pymysql
from confluent_kafka import Consumer, TopicPartition

from tests.background import Background
from tests.servers import sql
from tests.servers.process import Server

TABLE = "readings"
ROWS = 20_000
"""Keys; a row that is deleted comes back with the next number."""
_WRITERS = 4
_IN_TRANSACTION = 20
_DELETED = 0.05
_AGAIN_S = 0.5
_SHOWN = 20
_AWAY = (pymysql.err.OperationalError, pymysql.err.InterfaceError, OSError)

Numbers = dict[int, int]


class Writers(Background):
    """Writers at a steady rate, each of rows of its own; they outlive their server.

    Args:
        server: MySQL.
        database: has the table.
        rate: rows a second, all writers together.
    """

    def __init__(self, server: Server, database: str, rate: int) -> None:
        super().__init__([partial(self._write, number) for number in range(_WRITERS)])
        self._server, self._database, self._rate = server, database, rate
        self.written = [0] * _WRITERS

    def create(self) -> None:
        """Create the table."""
        sql.execute(
            self._server,
            f"CREATE DATABASE {self._database}",
            f"CREATE TABLE {self._database}.{TABLE} "
            "(id INT PRIMARY KEY, n BIGINT NOT NULL, note VARCHAR(200))",
        )

    def _write(self, writer: int) -> None:
        chance = random.Random(writer)
        mine = range(writer, ROWS, _WRITERS)
        last: Numbers = dict.fromkeys(mine, 0)
        there: set[int] = set()
        began, due = time.monotonic(), 0
        pace = _WRITERS * _IN_TRANSACTION / self._rate
        while not self._over.is_set():
            with contextlib.suppress(*_AWAY), self._connected() as connection:
                self._look(connection, mine, last, there)
                began, due = time.monotonic(), 0
                while not self._over.is_set():
                    keys = chance.sample(mine, _IN_TRANSACTION)
                    self._transact(connection, keys, chance, last, there)
                    self.written[writer] += len(keys)
                    due += 1
                    self._over.wait(max(0.0, began + due * pace - time.monotonic()))
            self._over.wait(_AGAIN_S)

    def _transact(
        self,
        connection: Any,
        keys: list[int],
        chance: random.Random,
        last: Numbers,
        there: set[int],
    ) -> None:
        gone = [key for key in keys if key in there and chance.random() < _DELETED]
        kept = [key for key in keys if key not in gone]
        with connection.cursor() as cursor:
            rows = [(key, last[key] + 1, f"reading {last[key] + 1} " + "x" * 100) for key in kept]
            cursor.executemany(
                f"INSERT INTO {TABLE} (id, n, note) VALUES (%s, %s, %s) "
                "ON DUPLICATE KEY UPDATE n = VALUES(n), note = VALUES(note)",
                rows,
            )
            for key in gone:
                cursor.execute(f"DELETE FROM {TABLE} WHERE id = %s", (key,))
            connection.commit()
        for key in kept:
            last[key] += 1
        there |= {*kept}
        there -= {*gone}

    def _look(self, connection: Any, mine: range, last: Numbers, there: set[int]) -> None:
        """Learn what is there: the answer to the last commit may have been lost with the server."""
        there.clear()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT id, n FROM {TABLE} WHERE id %% {_WRITERS} = %s", (mine[0],))
            for key, number in cursor.fetchall():
                last[key] = number
                there.add(key)
        connection.commit()

    def _connected(self) -> Any:
        return sql.connect(self._server, self._database, autocommit=False)

    def rows(self) -> Numbers:
        """Return every row's number as the table has it."""
        query = f"SELECT id, n FROM {self._database}.{TABLE}"
        return {int(key): int(number) for key, number in sql.execute(self._server, query)}


class Reader(Background):
    """Reads the topic as it grows, and judges each event.

    Args:
        brokers: of Kafka; they may go and come back.
        topic: with append times.
    """

    def __init__(self, brokers: str, topic: str) -> None:
        super().__init__([self._read])
        self._topic = topic
        self._settings = {
            "bootstrap.servers": brokers,
            "group.id": "soak",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
        self._lock = threading.Lock()
        self._waits: list[int] = []
        self.held: Numbers = {}
        self._last: Numbers = {}
        self.events = 0
        self.faults = 0
        self.wrong: list[str] = []

    def waits(self) -> list[int]:
        """Return how long events took from commit to append since the last call, in ms."""
        with self._lock:
            waits, self._waits = self._waits, []
        return waits

    def _read(self) -> None:
        consumer = Consumer(self._settings)
        consumer.assign([TopicPartition(self._topic, 0, 0)])  # No group, which could begin anew.
        try:
            while not self._over.is_set():
                for message in consumer.consume(5_000, timeout=0.5):
                    if message.error() is None:
                        self._take(message)
        finally:
            consumer.close()

    def _take(self, message: Any) -> None:
        event = orjson.loads(message.value())
        if event["op"] == "ddl":
            return
        with self._lock:
            self._waits.append(message.timestamp()[1] - event["ts_ms"])
        self.events += 1
        for fault in self.judge(event):
            self.faults += 1
            if len(self.wrong) < _SHOWN:
                self.wrong.append(fault)

    def judge(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Take in one event of a row; yield what is wrong with it."""
        op = event["op"]
        row = event["before"] if op == "d" else event["after"]
        key, number = row["id"], row["n"]
        last = self._last.get(key, 0)
        if op == "d" and (number != last or key not in self.held):
            yield f"row {key} was deleted at {number}; {last} came before"
        elif op != "d" and number != last + 1:
            yield f"row {key} has {number} behind {last}"
        elif op != "d" and (op == "c") is (key in self.held):
            yield f"row {key} came with {op} at {number}, and was there: {key in self.held}"
        self._last[key] = max(number, last)
        if op == "d":
            self.held.pop(key, None)
        else:
            self.held[key] = number
