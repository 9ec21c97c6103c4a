"""Connections to the SQL servers, for probes and for what tests write."""

from typing import Any

from tests.servers.process import Server


def connect(server: Server, database: str = "", **options: Any) -> Any:
    """Return a new autocommitting administrator connection to MySQL or MariaDB (pymysql).

    Without TLS, for which the driver would read all certificates of the machine each time.
    """
    import pymysql

    settings = {"user": "root", "password": "", "autocommit": True, "charset": "utf8mb4"}
    settings["ssl_disabled"] = "ssl" not in options
    return pymysql.connect(
        host=server.host, port=server.port, database=database or None, **{**settings, **options}
    )


def execute(server: Server, *statements: str, database: str = "") -> list[tuple[Any, ...]]:
    """Run statements as administrator on one connection; return the rows of the last one."""
    rows: list[tuple[Any, ...]] = []
    connection = connect(server, database)
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
    finally:
        connection.close()
    return rows


def mysql_probe(server: Server) -> None:
    """Ask MySQL or MariaDB one question."""
    connection = connect(server, connect_timeout=2, read_timeout=5)
    try:
        connection.query("SELECT 1")
    finally:
        connection.close()
