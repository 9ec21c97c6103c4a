"""What an Airflow home holds after a run: XComs, Variables, and every place a secret could be."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_ASK = """
import json
from airflow.models.variable import Variable
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
with create_session() as session:
    xcoms = [(x.task_id, x.key, XComModel.deserialize_value(x)) for x in session.query(XComModel)]
    variables = {v.key: v.get_val() for v in session.query(Variable)}
print("TOLD", json.dumps({"xcoms": xcoms, "variables": variables}))
"""


def told(env: Mapping[str, str]) -> tuple[dict[tuple[str, str], Any], dict[str, str]]:
    """Return XComs by (task, key), and Variables, as Airflow itself decodes and decrypts them."""
    outcome = subprocess.run(
        [sys.executable, "-c", _ASK], env=dict(env), capture_output=True, text=True, check=False
    )
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("TOLD ")]
    assert lines, outcome.stderr[-4000:]
    found = json.loads(lines[-1].removeprefix("TOLD "))
    return {(task, key): value for task, key, value in found["xcoms"]}, found["variables"]


def task_states(home: Path) -> dict[str, str]:
    """Return the states of the only DAG run's tasks."""
    with sqlite3.connect(home / "airflow.db") as database:
        return dict(database.execute("SELECT task_id, state FROM task_instance"))


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
