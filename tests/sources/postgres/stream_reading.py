"""Reading PostgreSQL's log in tests: open a source, write something, collect what arrives."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from airflow_provider_deltaforge.sources.postgres.tuning import POSTGRES_TUNING
from tests.servers.process import Server
from tests.waiting import PATIENCE_S, wait_for


def connect(server: Server, database: str = "postgres", **options: Any) -> Any:
    """Return a new autocommitting connection, the superuser's unless ``user`` says otherwise."""
    import psycopg

    return psycopg.connect(server.dsn(database), autocommit=True, **options)


def execute(server: Server, *statements: str, database: str = "postgres") -> list[Any]:
    """Run statements as superuser, each its own transaction; return the rows of the last one."""
    rows: list[Any] = []
    with connect(server, database) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
    return rows


def fresh(server: Server, database: str, *statements: str) -> None:
    """Make an empty database and run statements in it."""
    drop(server, database)
    execute(server, f"CREATE DATABASE {database}")
    execute(server, *statements, database=database)


def drop(server: Server, database: str) -> None:
    """Drop a database with its slots, as soon as their readers have gone."""
    drop_slots(server, database)
    execute(server, f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


def drop_slots(server: Server, database: str) -> None:
    """Drop the slots of a database: a server notices late that the reader of one has gone."""
    for (name,) in execute(
        server, f"SELECT slot_name FROM pg_replication_slots WHERE database = '{database}'"
    ):
        wait_for(f"the reader of {name} to end", partial(_free, server, name))
        # A temporary one has gone with its reader.
        named = f"FROM pg_replication_slots WHERE slot_name = '{name}'"
        execute(server, f"SELECT pg_drop_replication_slot(slot_name) {named}")


def _free(server: Server, slot: str) -> bool:
    active = f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    return execute(server, active) != [(True,)]


def tuned(**tuning: Any) -> type[PostgresSource]:
    """Return a kind of source that looks, waits and holds otherwise than the one that runs."""
    changed = replace(POSTGRES_TUNING, **tuning)
    return type("TunedSource", (PostgresSource,), {"__module__": __name__, "tuning": changed})


def source_of(
    server: Server, database: str, kind: type[PostgresSource] = PostgresSource, **settings: Any
) -> PostgresSource:
    """Return a source that captures a database's schema ``public``."""
    given = {
        "id": f"source-{database}",
        "dsn": server.dsn(database),
        "tables": ("*",),
        "publication": "df",
        "slot": database,
        **settings,
    }
    return kind(**given)


def batches(
    source: PostgresSource, start: Position, end: Position, timeout_s: float = PATIENCE_S
) -> Iterator[ChangeBatch]:
    """Yield everything between two positions, and acknowledge nothing."""
    reader = source.open(start)
    deadline = time.monotonic() + timeout_s
    try:
        position = start
        while source.compare(position, end) < 0:
            assert time.monotonic() < deadline, f"still at {position}, not at {end}"
            chunk = reader.read(0.5)
            if chunk is not None:
                batch = reader.decode(chunk)
                position = batch.end
                yield batch
    finally:
        reader.close()


def rows(
    source: PostgresSource, start: Position, end: Position | None = None
) -> list[dict[str, Any]]:
    """Return the change events between two positions as dictionaries."""
    end = source.head() if end is None else end
    return events(batches(source, start, end))


def read_until(reader: Any, met: Callable[[list[ChangeBatch]], object]) -> list[ChangeBatch]:
    """Read until a condition over the batches holds."""
    found: list[ChangeBatch] = []
    deadline = time.monotonic() + PATIENCE_S
    while not met(found):
        assert time.monotonic() < deadline, f"{len(found)} batches came"
        chunk = reader.read(0.2)
        if chunk is not None:
            found.append(reader.decode(chunk))
    return found


def events(batches: Iterable[ChangeBatch]) -> list[dict[str, Any]]:
    """Return the events of batches as dictionaries."""
    return [event for batch in batches for event in batch.rows.to_pylist()]


def slot_of(server: Server, name: str) -> tuple[str, bool]:
    """Return what a slot has confirmed, and whether it is in use."""
    sql = "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = "
    ((confirmed, active),) = execute(server, f"{sql}'{name}'")
    return confirmed, active
