"""Reading a stream in tests: open a source, write something, collect what arrives."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_provider_deltaforge.events.change import ChangeBatch, Position
from airflow_provider_deltaforge.sources.mysql.source import MySqlSource
from airflow_provider_deltaforge.sources.mysql.tuning import MYSQL_TUNING
from tests.servers.process import Server


def tuned(**tuning: Any) -> type[MySqlSource]:
    """Return a kind of source that waits otherwise than the one that runs."""
    changed = replace(MYSQL_TUNING, **tuning)
    return type("TunedSource", (MySqlSource,), {"__module__": __name__, "tuning": changed})


def source_of(
    server: Server, database: str, kind: type[MySqlSource] = MySqlSource, **settings: Any
) -> MySqlSource:
    """Return a source that captures one database."""
    settings.setdefault("tables", [f"{database}.*"])
    settings.setdefault("id", f"source-{database}")
    dsn = f"mysql://df:df-secret@{server.host}:{server.port}/{database}"
    return kind(**{"dsn": dsn, **settings})


def batches(
    source: MySqlSource, start: Position, end: Position, timeout_s: float = 120
) -> Iterator[ChangeBatch]:
    """Yield everything between two positions."""
    reader = source.open(start)
    deadline = time.monotonic() + timeout_s
    try:
        position = start
        while source.compare(position, end) < 0:
            assert time.monotonic() < deadline, f"still at {position}, not at {end}"
            segment = reader.read(0.5)
            if segment is not None:
                batch = reader.decode(segment)
                position = batch.end
                yield batch
    finally:
        reader.close()


def rows(source: MySqlSource, start: Position, end: Position | None = None) -> list[dict[str, Any]]:
    """Return the change events between two positions as dictionaries."""
    end = source.head() if end is None else end
    return [row for batch in batches(source, start, end) for row in batch.rows.to_pylist()]


def shape(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return (op, table, before, after, key) with texts."""
    images = (row[name] and row[name].decode() for name in ("before", "after", "key"))
    return (row["op"], row["table"], *images)
