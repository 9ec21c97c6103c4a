"""What the database does while it is measured: the server itself writes, no client is the limit."""

from dataclasses import dataclass
from typing import Any

from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers.process import Server
from tests.servers.sql import connect, execute

DATABASE = "bench"
TABLE = "orders"
SOURCE_TYPE = "mysql"
ROWS_PER_TRANSACTION = 64

_SETUP = (
    f"CREATE DATABASE {DATABASE}",
    f"USE {DATABASE}",
    f"""CREATE TABLE {TABLE} (
        id BIGINT UNSIGNED PRIMARY KEY AUTO_INCREMENT, customer INT NOT NULL,
        sku VARCHAR(64) NOT NULL, amount DECIMAL(10,2) NOT NULL, note TEXT,
        created DATETIME(3) NOT NULL, quantity INT)""",
    f"CREATE TABLE seed AS SELECT * FROM {TABLE} LIMIT 0",
)

_INSERTS = f"""CREATE PROCEDURE inserts(transactions INT)
BEGIN
  DECLARE done INT DEFAULT 0;
  WHILE done < transactions DO
    INSERT INTO {TABLE} (customer, sku, amount, note, created, quantity)
      SELECT customer, sku, amount, note, NOW(3), quantity FROM seed;
    COMMIT;
    SET done = done + 1;
  END WHILE;
END"""

# 10 % inserts, 80 % updates, 10 % deletes; the deleted rows are the oldest.
_MIXED = f"""CREATE PROCEDURE mixed(transactions INT)
BEGIN
  DECLARE done INT DEFAULT 0;
  DECLARE low BIGINT;
  SELECT MIN(id) INTO low FROM {TABLE};
  WHILE done < transactions DO
    INSERT INTO {TABLE} (customer, sku, amount, note, created, quantity)
      SELECT customer, sku, amount, note, NOW(3), quantity FROM seed LIMIT 6;
    UPDATE {TABLE} SET amount = amount + 1, created = NOW(3)
      WHERE id >= low + 6 AND id < low + 58;
    DELETE FROM {TABLE} WHERE id < low + 6 AND id >= low;
    COMMIT;
    SET low = low + 6;
    SET done = done + 1;
  END WHILE;
END"""


@dataclass(frozen=True)
class Written:
    """What a load wrote."""

    events: int
    log_bytes: int


def prepare(server: Server) -> None:
    """Create the table, 64 rows to copy from, and the procedures."""
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in (*_SETUP, _INSERTS, _MIXED):
            cursor.execute(statement)
        cursor.executemany(
            "INSERT INTO seed (id, customer, sku, amount, note, created, quantity)"
            " VALUES (0, %s, %s, %s, %s, NOW(3), %s)",
            [
                (n, f"sku-{n:06d}", f"{n}.50", f"note of order {n} " + "x" * 90, n % 7)
                for n in range(ROWS_PER_TRANSACTION)
            ],
        )
        connection.commit()


def load(server: Server, events: int, kind: str) -> Written:
    """Write about ``events`` row changes; return exactly how many and how much log."""
    before = _log_bytes(server)
    transactions = max(1, events // ROWS_PER_TRANSACTION)
    if kind == "mixed":
        execute(server, f"CALL inserts({transactions // 8 + 2})", database=DATABASE)
        before = _log_bytes(server)
    execute(server, f"CALL {kind}({transactions})", database=DATABASE)
    return Written(transactions * ROWS_PER_TRANSACTION, _log_bytes(server) - before)


def write_transaction(server: Server, rows: int) -> None:
    """Insert rows in one transaction, with one statement."""
    times = -(-rows // ROWS_PER_TRANSACTION)
    limit = "max_recursive_iterations" if server.name == "mariadb" else "cte_max_recursion_depth"
    execute(
        server,
        f"SET SESSION {limit} = {times}",
        f"INSERT INTO {TABLE} (customer, sku, amount, note, created, quantity)"
        " WITH RECURSIVE numbers (n) AS"
        f" (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {times})"
        " SELECT customer, sku, amount, note, NOW(3), quantity FROM seed, numbers"
        f" LIMIT {rows}",
        database=DATABASE,
    )


def _log_bytes(server: Server) -> int:
    return sum(int(row[1]) for row in execute(server, "SHOW BINARY LOGS"))


def writer(server: Server) -> Any:
    """Return a connection for ``write_some``."""
    return connect(server, DATABASE)


def write_some(connection: Any, rows: int) -> None:
    """Commit one transaction of some rows."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} (customer, sku, amount, note, created, quantity)"
            f" SELECT customer, sku, amount, note, NOW(3), quantity FROM seed LIMIT {rows}"
        )
    connection.commit()


def source_settings(server: Server, source_id: str = "bench") -> dict[str, Any]:
    """Return the source's configuration."""
    return {
        "id": source_id,
        "dsn": f"mysql://df:df-secret@{server.host}:{server.port}/{DATABASE}",
        "tables": [f"{DATABASE}.{TABLE}"],
    }


def source_alone(server: Server) -> MySqlSource:
    """Return a source that reads the backlog once more."""
    return MySqlSource(**source_settings(server))


def bare_reader(server: Server, rows: int) -> dict[str, dict[str, float]]:
    """Return nothing: MySQL has no tool that receives its log and leaves it as it is."""
    del server, rows
    return {}
