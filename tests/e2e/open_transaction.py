"""A transaction that stays open beside normal traffic, and what arrives meanwhile."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tests.e2e import shop
from tests.e2e.pipeline_run import PipelineRun
from tests.e2e.postgres_run import PostgresRun
from tests.sinks.kafka_reader import read_timestamps, read_topic

OPEN_ROWS = range(450, 550)
"""Orders that the open transaction changes; the writers change those up to 400."""


def connect(run: PipelineRun) -> Any:
    """Return a connection to the source that commits when it is told."""
    if isinstance(run, PostgresRun):
        return psycopg.connect(run.server.dsn(run.database))
    return shop.connect(run.server, run.database)


@dataclass
class OpenTransaction:
    """A transaction with captured rows, open from its making to ``commit``.

    Attributes:
        run: the pipeline beside it.
        opened_at: the end of the server's log before it began; PostgreSQL alone.
        beside: what the orders say that were committed while it was open.
    """

    run: PipelineRun
    opened_at: str | None = None
    beside: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.run, PostgresRun):
            [(self.opened_at,)] = _ask(self.run, "SELECT pg_current_wal_lsn()::text")
        self.began = time.time()
        self._connection = connect(self.run)
        with self._connection.cursor() as cursor:
            for order in OPEN_ROWS:
                cursor.execute("UPDATE orders SET status = 'open' WHERE id = %s", (order,))

    def pass_by(self, transactions: int) -> None:
        """Commit transactions of one order each, and wait until the checkpoint is behind them."""
        self.pass_by_unread(transactions)
        self.run.wait_caught_up()

    def pass_by_unread(self, transactions: int) -> None:
        """Commit transactions of one order each."""
        connection = connect(self.run)
        with connection.cursor() as cursor:
            for _ in range(transactions):
                name = f"beside {len(self.beside)}"
                cursor.execute("INSERT INTO orders (customer, status) VALUES (1, %s)", (name,))
                connection.commit()
                self.beside.append(name)
        connection.close()

    def commit(self) -> None:
        """Commit it."""
        self._connection.commit()
        self._connection.close()


def statuses(run: PipelineRun) -> list[str]:
    """Return the status of every delivered order that says one of ours, as they arrived."""
    read = read_topic(run.brokers, _topic(run))
    after = (json.loads(message.value).get("after") for message in read if message.value)
    found = (row["status"] for row in after if row)
    return [status for status in found if status == "open" or status.startswith("beside")]


def latencies_ms(run: PipelineRun) -> list[tuple[int, int]]:
    """Return (commit time, milliseconds until it was handed to the broker) of streamed orders."""
    found = []
    for appended, value in read_timestamps(run.brokers, _topic(run)):
        event = json.loads(value)
        if event["op"] != "r":
            found.append((event["ts_ms"], appended - event["ts_ms"]))
    return found


def wait_confirmed(run: PipelineRun, opened_at: str) -> None:
    """Wait until the slot is confirmed behind a place, while the server keeps the log from there.

    Raises:
        AssertionError: the server has let go of what the open transaction's decoding needs.
    """

    def confirmed() -> bool:
        [(moved, kept)] = _ask(
            run,
            "SELECT confirmed_flush_lsn > %s::pg_lsn, restart_lsn <= %s::pg_lsn"
            " FROM pg_replication_slots WHERE slot_name = %s",
            opened_at,
            opened_at,
            run.name,
        )
        assert kept, "the slot no longer keeps where the open transaction began"
        return bool(moved)

    run.wait(confirmed)


def _ask(run: PipelineRun, statement: str, *values: Any) -> list[Any]:
    with psycopg.connect(run.server.dsn(run.database), autocommit=True) as connection:
        return connection.execute(statement, values).fetchall()


def _topic(run: PipelineRun) -> str:
    return f"{run.name}.orders"
