"""A pipeline from a real server into Kafka, Redis and a file, written to while it is verified."""

import contextlib
import fcntl
import itertools
import json
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import redis
import yaml
from confluent_kafka import Producer

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.verify.options import (
    VerifyOptions,
    VerifyProgress,
    VerifyResult,
)
from airflow_provider_deltaforge.engine.verify.verification import verify
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.servers import sql
from tests.servers.process import Server
from tests.waiting import PATIENCE_S, wait_for

_unique = itertools.count()
_fresh = itertools.count(10_000)

_MYSQL = (
    """CREATE TABLE wide (id BIGINT UNSIGNED PRIMARY KEY, i INT, big BIGINT, n DECIMAL(30,10),
       f FLOAT, d DOUBLE, s VARCHAR(200) CHARACTER SET utf8mb4, raw VARBINARY(50), j JSON,
       at DATETIME(3))""",
    "CREATE TABLE pair (a INT, b VARCHAR(20), v INT, PRIMARY KEY (a, b))",
    "CREATE TABLE bare (v INT)",
)
_POSTGRES = (
    """CREATE TABLE wide (id BIGINT PRIMARY KEY, i INT, big BIGINT, n NUMERIC(30,10),
       f REAL, d DOUBLE PRECISION, s VARCHAR(200), raw BYTEA, j JSONB, at TIMESTAMP(3))""",
    "CREATE TABLE pair (a INT, b VARCHAR(20), v INT, PRIMARY KEY (a, b))",
    "CREATE TABLE bare (v INT)",
)
ODD_TEXTS = ["größer 💶", "", 'it\'s "quoted" \\ \t\n', "<script>", "null", "ß" * 60]


class VerifyRun:
    """Tables of many types, and a pipeline with three sinks that follows them."""

    def __init__(
        self, server: Server, kafka: Server, redis_server: Server, directory: Path
    ) -> None:
        self.name = f"verified{next(_unique)}"
        self.server, self.kafka, self.redis_server = server, kafka, redis_server
        self.is_postgres = "postgres" in server.name
        self.file = directory / f"{self.name}.jsonl"
        self.location = StoreLocation.from_dsn(f"memory://{self.name}")
        self.store = self.location.create()
        self.control = Control(self.store, self.name)
        self._create()

    def document(self, **changes: Any) -> dict[str, Any]:
        """Return the document; changes are made to its spec."""
        dsn = f"{self.server.host}:{self.server.port}/{self.name}"
        schema = "public" if self.is_postgres else self.name
        source = {
            "id": self.name,
            "dsn": f"{'postgres' if self.is_postgres else 'mysql'}://df:df-secret@{dsn}",
            "tables": [f"{schema}.*"],
            "snapshot": {"mode": "initial", "chunk_size": 150},
            **({"slot": self.name, "publication": self.name} if self.is_postgres else {}),
        }
        topic = f"{self.name}.${{source.table}}"
        uri = f"redis://{self.redis_server.host}:{self.redis_server.port}/0"
        kafka = {"id": "kafka", "brokers": self.kafka.dsn(), "topic": topic, "tombstones": True}
        # Committed messages only, of one of the two.
        kafka["exactly_once"] = self.is_postgres
        sinks = [
            {"type": "kafka", "config": kafka},
            {"type": "redis", "config": {"id": "redis", "uri": uri, "stream": topic}},
            {"type": "file", "config": {"id": "file", "path": str(self.file)}},
        ]
        kind = "postgres" if self.is_postgres else "mysql"
        spec = {"source": {"type": kind, "config": source}, "sinks": sinks, **changes}
        return {
            "apiVersion": "deltaforge/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.name, "tenant": "tests"},
            "spec": spec,
        }

    @contextlib.contextmanager
    def running(self, **changes: Any) -> Iterator[None]:
        """Run the pipeline, its snapshot finished, while the block lasts."""
        pipelines.apply(self.store, yaml.safe_dump(self.document(**changes)))
        record = self.control.update(
            lambda old: old.model_copy(
                update={"desired": "running", "generation": old.generation + 1}
            )
        )
        outcomes: list[Outcome] = []
        arguments = DriverArguments(self.name, self.location, record.generation)
        thread = threading.Thread(
            target=lambda: outcomes.append(drive_stream(arguments, LocalRunner())), daemon=True
        )
        thread.start()
        try:
            wait_for(
                "the snapshot",
                lambda: bool(outcomes) or Snapshots(self.store, self.name).finished(),
            )
            assert not outcomes, outcomes
            yield
        finally:
            pipelines.ask_to_stop(self.store, self.name)
            thread.join(PATIENCE_S)

    def verify(self, *tables: str, sinks: tuple[str, ...] = (), **more: Any) -> VerifyResult:
        """Verify the document that is applied."""
        pipeline = load(self.control.document() or "")
        options = VerifyOptions(tables=tables, sinks=sinks, **more)
        return verify(pipeline, self.store, options, VerifyProgress(), lambda: None)

    @contextlib.contextmanager
    def writing(self, writers: int = 2) -> Iterator[None]:
        """Change rows all the time, some of them again and again, while the block lasts."""
        over = threading.Event()
        threads = [
            threading.Thread(target=self._write, args=(seed, over), daemon=True)
            for seed in range(writers)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join(30)

    def execute(self, *statements: str) -> None:
        """Run statements on the server itself."""
        if self.is_postgres:
            with psycopg.connect(self.server.dsn(self.name), autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        else:
            sql.execute(self.server, *statements, database=self.name)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query on the server itself."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return [*cursor.fetchall()]

    def send(self, table: str, key: bytes, value: bytes | None) -> None:
        """Write to Kafka with a producer that knows nothing of the pipeline's."""
        settings = {"bootstrap.servers": self.kafka.dsn(), "partitioner": "murmur2_random"}
        producer = Producer(settings)
        producer.produce(f"{self.name}.{table}", key=key, value=value)
        assert producer.flush(30) == 0

    def append(self, line: bytes) -> None:
        """Write a line into the file, as a program would that is not the pipeline's."""
        with self.file.open("ab") as file:
            # Without the lock the sink's next batch would be written over the line.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(line + b"\n")

    def select(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        """Return all rows of a table."""
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {columns} FROM {table}")
            return list(cursor.fetchall())

    @property
    def redis(self) -> Any:
        return redis.Redis(self.redis_server.host, self.redis_server.port)

    def event(self, table: str, op: str, row: Mapping[str, Any]) -> bytes:
        """Return an event that a foreign program might write."""
        place = {"db": self.name, "table": table}
        if self.is_postgres:
            place["schema"] = "public"
        after, before = (None, row) if op == "d" else (row, None)
        return json.dumps({"before": before, "after": after, "op": op, "source": place}).encode()

    def _create(self) -> None:
        rows = [_row(number) for number in range(1, 401)]
        if self.is_postgres:
            with psycopg.connect(self.server.dsn("postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {self.name}")
            self.execute(
                *_POSTGRES,
                *(f"ALTER TABLE {name} OWNER TO df" for name in ("wide", "pair", "bare")),
                f"ALTER DATABASE {self.name} OWNER TO df",
            )
        else:
            sql.execute(self.server, f"CREATE DATABASE {self.name}")
            self.execute(*_MYSQL)
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO wide VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)", rows)
            cursor.executemany(
                "INSERT INTO pair VALUES (%s,%s,%s)",
                [(n % 20, f"k{n}", n) for n in range(200)],
            )
            connection.commit()

    def _connect(self) -> Any:
        if self.is_postgres:
            return psycopg.connect(self.server.dsn(self.name))
        return sql.connect(self.server, self.name, autocommit=False)

    def _write(self, seed: int, over: threading.Event) -> None:
        chance = random.Random(seed)
        with self._connect() as connection, connection.cursor() as cursor:
            while not over.is_set():
                old = chance.randrange(1, 301)
                what = chance.random()
                if what < 0.3:
                    # A row in constant motion, which flips between two states.
                    cursor.execute("UPDATE wide SET i = 1 - i WHERE id = %s", (seed + 1,))
                elif what < 0.6:
                    cursor.execute(
                        "UPDATE wide SET s = %s, d = %s WHERE id = %s",
                        (chance.choice(ODD_TEXTS), chance.random(), old),
                    )
                elif what < 0.75:
                    cursor.execute(
                        "INSERT INTO wide VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)",
                        _row(next(_fresh)),
                    )
                elif what < 0.85:
                    cursor.execute("DELETE FROM wide WHERE id = %s", (old,))
                elif what < 0.95:
                    cursor.execute(
                        "UPDATE pair SET b = %s WHERE a = %s AND b LIKE %s",
                        (f"m{next(_fresh)}", chance.randrange(20), f"k{old}"),
                    )
                else:
                    cursor.execute("UPDATE pair SET v = v + 1 WHERE a = %s", (old % 20,))
                connection.commit()
                over.wait(0.002)


def _row(number: int) -> tuple[Any, ...]:
    odd = number % 7 == 0
    return (
        number,
        None if odd else number % 2,
        -(2**63) if odd else 2**63 - number,
        None if odd else f"{number}.0123456789",
        1 / number,
        -1e-300 * number,
        ODD_TEXTS[number % len(ODD_TEXTS)],
        None if odd else bytes([0, 255, number % 256]),
        json.dumps({"b": [number, None, "é"], "a": {"c": 1.5}}),
        "2024-02-29 23:59:59.123",
    )
