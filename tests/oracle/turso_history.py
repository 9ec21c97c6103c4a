"""A Turso file's own history, decoded by the engine itself, not by our reader of its records."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import turso

from tests.oracle.verdict import Change

_DELETE, _INSERT = -1, 1


def changes(
    path: Path, after: Mapping[str, Any], columns: Mapping[str, Sequence[str]]
) -> list[Change]:
    """Return every change of the shop's tables after a position, in commit order.

    Args:
        path: of the file.
        after: a position with ``last_change_id``.
        columns: of each table; a record of before the last one came is read without it.
    """
    rows = _ask(
        path,
        "SELECT change_id, change_type, table_name, before, after FROM turso_cdc"
        " WHERE change_id > ? AND change_type < 2"
        f" AND table_name IN ({', '.join('?' * len(columns))}) ORDER BY change_id",
        (int(after.get("last_change_id") or 0), *columns),
    )
    found = []
    with contextlib.closing(opened(path)) as engine:
        for change_id, kind, table, before, image in rows:
            whole = f"main.{table}"
            former = _record(engine, columns[table], before)
            state = _record(engine, columns[table], image) if kind != _DELETE else None
            key = (state or former or {})["id"]
            moved = kind != _INSERT and former is not None and former["id"] != key
            moved_from = (whole, former["id"]) if moved and former is not None else None
            found.append(Change(int(change_id), (whole, key), state, moved_from))
    return found


def opened(path: Path) -> Any:
    """Open the file for sharing, with the patience that writers beside it ask for."""
    connection = turso.connect(str(path), experimental_features="multiprocess_wal")
    connection.execute("PRAGMA busy_timeout = 20000")
    return connection


def table_rows(path: Path, tables: Sequence[str]) -> dict[Any, Any]:
    """Return the tables as they are now, by (table, id)."""
    found = {}
    for table in tables:
        names = [row[1] for row in _ask(path, f"PRAGMA table_info({table})")]
        for row in _ask(path, f"SELECT {', '.join(names)} FROM {table}"):
            state = dict(zip(names, row, strict=True))
            found[f"main.{table}", state["id"]] = state
    return found


def name_of(event: dict[str, Any]) -> int:
    """Return where an event of ours says it stands in the capture table."""
    return int(event["source"]["change_id"])


def _record(engine: Any, columns: Sequence[str], image: bytes | None) -> dict[str, Any] | None:
    if image is None:
        return None
    try:
        sql = "SELECT bin_record_json_object(?, ?)"
        [(text,)] = engine.execute(sql, (json.dumps(columns), image)).fetchall()
    except turso.DatabaseError as error:
        if "fewer columns" not in str(error):
            raise
        return _record(engine, columns[:-1], image)
    state: dict[str, Any] = json.loads(text)
    return state


def _ask(path: Path, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    with contextlib.closing(opened(path)) as engine:
        found: list[tuple[Any, ...]] = engine.execute(sql, values).fetchall()
        return found
