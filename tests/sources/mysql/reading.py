"""What the tests of the MySQL source share: descriptions, whole snapshots, streamed events."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from tests.servers import sql
from tests.servers.process import Server


def fresh_database(server: Server, name: str, *statements: str) -> None:
    """Make an empty database and run statements in it, in UTC and without strict mode."""
    sql.execute(server, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    session = "SET SESSION sql_mode = '', time_zone = '+00:00'"
    sql.execute(server, session, *statements, database=name)


def log_unclear_statement(server: Server) -> None:
    """Have a statement in the log that may have changed any table: it ends every pipeline."""
    fresh_database(server, "log_unclear", "CREATE TABLE t (id int)")
    sql.execute(
        server,
        "SET GLOBAL log_bin_trust_function_creators = ON",
        "CREATE FUNCTION f() RETURNS int BEGIN INSERT INTO t VALUES (7); RETURN 1; END",
        "SET binlog_format = STATEMENT",
        "SELECT f()",
        database="log_unclear",
    )


def source_of(
    server: Server,
    database: str,
    *tables: str,
    user: str = "",
    kind: type[MySqlSource] = MySqlSource,
    **more: Any,
) -> MySqlSource:
    """Return a source that captures ``tables`` (all of the database by default)."""
    dsn = server.dsn(database)
    if user:
        dsn = f"mysql://{user}@{server.host}:{server.port}/{database}"
    return kind(id="shop", dsn=dsn, tables=list(tables) or ["*"], **more)


def copied(source: MySqlSource, chunk_rows: int = 1000, run: str = "run") -> list[ChangeBatch]:
    """Return every batch of a whole snapshot."""
    snapshotter = source.open_snapshot()
    try:
        return [
            batch
            for chunk in list(snapshotter.plan(chunk_rows))
            for batch in snapshotter.read(chunk, run)
        ]
    finally:
        snapshotter.close()


def events(batches: Iterable[ChangeBatch]) -> list[dict[str, Any]]:
    """Return the events of batches as dictionaries."""
    return [event for batch in batches for event in batch.rows.to_pylist()]


def streamed(
    source: MySqlSource,
    position: Position,
    done: Callable[[list[dict[str, Any]]], bool],
    timeout_s: float = 120,
) -> list[dict[str, Any]]:
    """Return the log's events from ``position`` until ``done`` says it is enough."""
    found: list[dict[str, Any]] = []
    reader = source.open(position)
    deadline = time.monotonic() + timeout_s
    try:
        while not done(found):
            assert time.monotonic() < deadline, f"{len(found)} events, and no more came"
            segment = reader.read(0.5)
            if segment is not None:
                found += reader.decode(segment).rows.to_pylist()
    finally:
        reader.close()
    return found
