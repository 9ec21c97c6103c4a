"""What the tests of PostgreSQL's snapshot share: databases, snapshotters, whole copies."""

from typing import Any

from airflow_provider_deltaforge.events.change import ChangeBatch
from airflow_provider_deltaforge.sources.contract import Snapshotter
from airflow_provider_deltaforge.sources.postgres.source import PostgresSource
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import drop_slots, execute


def fresh_database(server: Server, name: str, *statements: str) -> None:
    """Make a database, or empty the one that is there, and run statements in it.

    Emptying is quicker: a database that is made or dropped is synchronised with the disk.
    """
    if not execute(server, f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
        execute(server, f"CREATE DATABASE {name}")
    drop_slots(server, name)
    for catalog, kind in (("pg_publication", "PUBLICATION"), ("pg_namespace", "SCHEMA")):
        column = "pubname" if kind == "PUBLICATION" else "nspname"
        found = execute(server, f"SELECT quote_ident({column}) FROM {catalog}", database=name)
        for (one,) in found:
            if not one.startswith("pg_") and one != "information_schema":
                execute(server, f"DROP {kind} {one} CASCADE", database=name)
    execute(
        server,
        "CREATE SCHEMA public",
        "GRANT ALL ON SCHEMA public TO PUBLIC",
        *statements,
        database=name,
    )


def source_of(
    server: Server,
    database: str,
    *tables: str,
    user: str = "",
    kind: type[PostgresSource] = PostgresSource,
    **more: Any,
) -> PostgresSource:
    """Return a source that captures ``tables`` (all of schema public by default)."""
    dsn = server.dsn(database)
    if user:
        dsn = f"postgresql://{user}@{server.host}:{server.port}/{database}"
    settings = {"publication": "shop_pub", "slot": f"{database}_slot", **more}
    return kind(id="shop", dsn=dsn, tables=tuple(tables or ["*"]), **settings)


def begun(source: PostgresSource) -> Snapshotter:
    """Return a snapshotter that has begun: publication and slot are there."""
    snapshotter = source.open_snapshot()
    snapshotter.begin()
    return snapshotter


def copied(source: PostgresSource, chunk_rows: int = 1000, run: str = "run") -> list[ChangeBatch]:
    """Return every batch of a whole snapshot."""
    snapshotter = begun(source)
    try:
        return [
            batch
            for chunk in list(snapshotter.plan(chunk_rows))
            for batch in snapshotter.read(chunk, run)
        ]
    finally:
        snapshotter.close()
