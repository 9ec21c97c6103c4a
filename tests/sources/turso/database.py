"""A database file of a test: a writer that captures, and what a reader sees of it."""

import json
from pathlib import Path

import turso

from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning

CAPTURE = "PRAGMA unstable_capture_data_changes_conn('full')"
PATIENCE_S = 0.2


class Writer:
    """One capturing connection; each ``run`` is a transaction."""

    def __init__(self, path: Path, *, capture: bool = True, table: str | None = None) -> None:
        self.connection = turso.connect(str(path), experimental_features="multiprocess_wal")
        # As any application: a reader that looks for a moment must not fail a write.
        self.connection.execute("PRAGMA busy_timeout = 60000").fetchall()
        if capture:
            level = f"full,{table}" if table else "full"
            self.connection.execute(f"PRAGMA unstable_capture_data_changes_conn('{level}')")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement)
        self.connection.commit()

    def many(self, statement: str, rows: list[tuple]) -> None:
        self.connection.executemany(statement, rows)
        self.connection.commit()

    def rows(self, sql: str) -> list[tuple]:
        return self.connection.execute(sql).fetchall()

    def close(self) -> None:
        self.connection.close()


class WatchfulSource(TursoSource):
    """A source that counts rows at every look."""

    tuning = TursoTuning(audit_s=0.0)


def source(path: Path | str, kind: type[TursoSource] = TursoSource, **settings) -> TursoSource:
    """Return a source of a file that looks often."""
    asked = {"id": "shop", "url": str(path), "tables": ["*"], "cdc_mode": "native"}
    return kind(**{**asked, "poll_interval_ms": 5, **settings})


def chunks_of(reader, patience_s: float = PATIENCE_S) -> list:
    """Return everything that is there to read now."""
    chunks = []
    while (chunk := reader.read(patience_s)) is not None:
        chunks.append(chunk)
    return chunks


def events_of(reader) -> list[dict]:
    """Return the events that are there to read now."""
    return [row for chunk in chunks_of(reader) for row in reader.decode(chunk).rows.to_pylist()]


def copied(taken: TursoSource, chunk_rows: int = 10, run: str = "run", **wish) -> list[dict]:
    """Return the rows of a whole snapshot."""
    snapshotter = taken.open_snapshot()
    try:
        snapshotter.begin()
        return [
            row
            for chunk in snapshotter.plan(chunk_rows, **wish)
            for batch in snapshotter.read(chunk, run)
            for row in batch.rows.to_pylist()
        ]
    finally:
        snapshotter.close()


def row(image: bytes | None) -> dict | None:
    return None if image is None else json.loads(image)


def told(event: dict) -> tuple:
    """Return what a test asks of an event most often."""
    return event["op"], event["table"], row(event["before"]), row(event["after"])
