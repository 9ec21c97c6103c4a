"""What PostgreSQL does while it is measured: the same rows and changes as MySQL's workload."""

import subprocess
import time
from pathlib import Path
from typing import Any

import psycopg

from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from benchmarks.workload import ROWS_PER_TRANSACTION, Written
from tests.servers.process import Server

DATABASE = "bench"
TABLE = "orders"
SOURCE_TYPE = "postgres"
_SLOTS = ("bench", "stages", "recvlogical")
"""Slots cannot read again what they have confirmed: whoever reads the backlog has an own one."""
_COLUMNS = "customer, sku, amount, note, created, quantity"

_SETUP = (
    f"""CREATE TABLE {TABLE} (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer int NOT NULL,
        sku varchar(64) NOT NULL, amount numeric(10,2) NOT NULL, note text,
        created timestamp(3) NOT NULL, quantity int)""",
    f"CREATE TABLE seed AS SELECT * FROM {TABLE} LIMIT 0",
    f"""INSERT INTO seed ({_COLUMNS})
        SELECT n, 'sku-' || lpad(n::text, 6, '0'), n + 0.5,
          'note of order ' || n || ' ' || repeat('x', 90), now(), n % 7
        FROM generate_series(0, {ROWS_PER_TRANSACTION - 1}) AS n""",
    f"""CREATE PROCEDURE inserts(transactions int) LANGUAGE plpgsql AS $$
        BEGIN
          FOR done IN 1..transactions LOOP
            INSERT INTO {TABLE} ({_COLUMNS})
              SELECT customer, sku, amount, note, now(), quantity FROM seed;
            COMMIT;
          END LOOP;
        END $$""",
    # 10 % inserts, 80 % updates, 10 % deletes; the deleted rows are the oldest.
    f"""CREATE PROCEDURE mixed(transactions int) LANGUAGE plpgsql AS $$
        DECLARE low bigint;
        BEGIN
          SELECT min(id) INTO low FROM {TABLE};
          FOR done IN 1..transactions LOOP
            INSERT INTO {TABLE} ({_COLUMNS})
              SELECT customer, sku, amount, note, now(), quantity FROM seed LIMIT 6;
            UPDATE {TABLE} SET amount = amount + 1, created = now()
              WHERE id >= low + 6 AND id < low + 58;
            DELETE FROM {TABLE} WHERE id < low + 6 AND id >= low;
            COMMIT;
            low := low + 6;
          END LOOP;
        END $$""",
    f"CREATE PUBLICATION bench FOR TABLE {TABLE}",
    *(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')" for slot in _SLOTS),
)
_STEADY = (
    f"INSERT INTO {TABLE} ({_COLUMNS})"
    " SELECT customer, sku, amount, note, now(), quantity FROM seed LIMIT {rows}"
)


def prepare(server: Server) -> None:
    """Create the table, 64 rows to copy from, the procedures and the slots."""
    _execute(server, f"CREATE DATABASE {DATABASE}", database="postgres")
    for statement in _SETUP:
        _execute(server, statement)


def load(server: Server, events: int, kind: str) -> Written:
    """Write about ``events`` row changes; return exactly how many and how much log."""
    transactions = max(1, events // ROWS_PER_TRANSACTION)
    if kind == "mixed":
        _execute(server, f"CALL inserts({transactions // 8 + 2})")
    before = _log_bytes(server)
    _execute(server, f"CALL {kind}({transactions})")
    return Written(transactions * ROWS_PER_TRANSACTION, _log_bytes(server) - before)


def write_transaction(server: Server, rows: int) -> None:
    """Insert rows in one transaction, with one statement."""
    times = -(-rows // ROWS_PER_TRANSACTION)
    _execute(
        server,
        f"INSERT INTO {TABLE} ({_COLUMNS})"
        " SELECT customer, sku, amount, note, now(), quantity"
        f" FROM seed, generate_series(1, {times}) LIMIT {rows}",
    )


def writer(server: Server) -> Any:
    """Return a connection that commits each statement."""
    return _connect(server, DATABASE)


def write_some(connection: Any, rows: int) -> None:
    """Commit one transaction of some rows."""
    connection.execute(_STEADY.format(rows=rows))


def source_settings(server: Server, source_id: str = "bench", slot: str = "bench") -> Any:
    """Return the source's configuration."""
    return {
        "id": source_id,
        "dsn": server.dsn(DATABASE),
        "tables": [f"public.{TABLE}"],
        "publication": "bench",
        "slot": slot,
    }


def source_alone(server: Server) -> PostgresSource:
    """Return a source that reads the backlog once more."""
    return PostgresSource(**source_settings(server, slot="stages"))


def bare_reader(server: Server, rows: int) -> dict[str, dict[str, float]]:
    """Let the server's own tool receive the backlog, decoding nothing; rows per second."""
    [(end,)] = _execute(server, "SELECT pg_current_wal_lsn()")
    command = [
        str(Path(server.attributes["programs"]) / "pg_recvlogical"),
        f"--dbname={server.dsn(DATABASE)}",
        "--slot=recvlogical",
        "--start",
        "--no-loop",
        f"--endpos={end}",
        "--file=/dev/null",
        "--option=proto_version=1",
        "--option=publication_names=bench",
    ]
    begun = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - begun
    return {"pg_recvlogical": {"rows_per_s": round(rows / seconds)}}


def _log_bytes(server: Server) -> int:
    [(written,)] = _execute(server, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
    return int(written)


def _connect(server: Server, database: str) -> Any:
    return psycopg.connect(server.dsn(database), autocommit=True)


def _execute(server: Server, statement: str, database: str = DATABASE) -> list[Any]:
    with _connect(server, database) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []
