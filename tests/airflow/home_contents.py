"""Every place of an Airflow home where a secret could be."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def columns_with(home: Path, secret: str) -> list[str]:
    """Return every table and column of Airflow's database with a value that holds ``secret``."""
    found = []
    with sqlite3.connect(home / "airflow.db") as database:
        database.text_factory = bytes
        for table, column in list(_columns(database)):
            values = database.execute(f'SELECT "{column}" FROM "{table}"')
            if any(secret.encode() in _bytes(value) for (value,) in values):
                found.append(f"{table}.{column}")
    return found


def files_with(directory: Path, secret: str) -> list[str]:
    """Return every file below a directory that holds ``secret``."""
    return [
        str(path.relative_to(directory))
        for path in sorted(directory.rglob("*"))
        if path.is_file() and secret.encode() in path.read_bytes()
    ]


def _columns(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in tables:
        for column in database.execute(f'PRAGMA table_info("{table.decode()}")').fetchall():
            yield table.decode(), column[1].decode()


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
