"""Requests to a libSQL server and its answers: what the front of the tests is held equal to.

``python -m tests.sources.turso.exchanges URL`` records the answers of a real server that is new.
"""

import json
import sys
from pathlib import Path
from typing import Any

import httpx

RECORDED = Path(__file__).with_name("exchanges.json")
_VARYING = (
    "query_duration_ms",
    "rows_read",
    "rows_written",
    "replication_index",
    "affected_row_count",
    "last_insert_rowid",
    "decltype",
    "message",
)
_KINDS = (
    "(9223372036854775807, 1.0, 9e999, 'ü😀', x'00ff01', NULL), "
    "(-9223372036854775808, 0.1, -9e999, '', x'', 2)"
)
_LARGE = (
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r LIMIT 12) "
    "SELECT hex(zeroblob(500000)) FROM r"
)
_IN_TRANSACTION = {"type": "not", "cond": {"type": "is_autocommit"}}


def exchanges(url: str) -> list[Any]:
    """Return each answer of a server to the same requests, without what varies."""
    with httpx.Client(base_url=url, timeout=30) as client:
        return [*_talk(client, "pipeline"), *_talk(client, "cursor"), *_refusals(client)]


def _talk(client: httpx.Client, path: str) -> list[Any]:
    """Use one stream from its beginning to its end."""
    table = f"kinds_{path}"
    statements: list[tuple[str, list[Any], bool]] = [
        (f"CREATE TABLE {table} (i INTEGER, r REAL, n, t TEXT, b BLOB, x)", [], False),
        (f"INSERT INTO {table} VALUES {_KINDS}", [], False),
        (f"SELECT * FROM {table}", [], False),
        (f"SELECT t FROM {table} WHERE i > ? AND t = ?", [_integer(0), _text("ü😀")], False),
        ("SELECT nope", [], False),
        ("SELECT * FROM nowhere", [], False),
        (f"CREATE UNIQUE INDEX {table}_i ON {table} (i)", [], False),
        (f"INSERT INTO {table} VALUES (9223372036854775807, 1, 1, 1, 1, 1)", [], False),
        ("SELECT 'left out'", [], True),
        ("BEGIN", [], False),
        (f"SELECT count(*) FROM {table}", [], True),
        ("COMMIT", [], True),
        ("SELECT 'left out'", [], True),
        ("BEGIN IMMEDIATE", [], False),
        (f"DELETE FROM {table}", [], True),
        ("ROLLBACK", [], True),
        (f"SELECT count(*) FROM {table}", [], False),
    ]
    if path == "pipeline":  # A cursor is not bound.
        statements.append((_LARGE, [], False))
    baton, answers = None, []
    for sql, args, is_bound in statements:
        step: dict[str, Any] = {"stmt": {"sql": sql, "args": args}}
        if is_bound:
            step["condition"] = _IN_TRANSACTION
        batch = {"steps": [step]}
        asked = {"requests": [{"type": "batch", "batch": batch}]}
        body = {"baton": baton, **(asked if path == "pipeline" else {"batch": batch})}
        response = client.post(f"/v3/{path}", json=body)
        answers.append([sql, *_answer(response)])
        baton = json.loads(response.text.splitlines()[0])["baton"]
    body = {"baton": baton, "requests": [{"type": "close"}]}
    answers.append(["close", *_answer(client.post("/v3/pipeline", json=body))])
    again = client.post("/v3/pipeline", json=body)
    return [*answers, ["its baton once more", again.status_code]]


def _refusals(client: httpx.Client) -> list[Any]:
    batch = {"steps": [{"stmt": {"sql": "SELECT CAST(x'ff' AS TEXT)"}}]}
    asked = {"requests": [{"type": "batch", "batch": batch}]}
    return [
        ["a TEXT that is none", client.post("/v3/pipeline", json=asked).status_code],
        [
            "another's baton",
            client.post("/v3/cursor", json={"baton": "x", "batch": batch}).status_code,
        ],
        ["no such place", client.post("/v4/pipeline", json=asked).status_code],
    ]


def _answer(response: httpx.Response) -> list[Any]:
    return [
        response.status_code,
        [_constant(json.loads(line)) for line in response.text.splitlines()],
    ]


def _constant(value: Any, key: str = "") -> Any:
    """Return an answer without what differs from one time or server to the next."""
    if isinstance(value, dict):
        return {k: _constant(v, k) for k, v in value.items() if k not in _VARYING}
    if isinstance(value, list):
        return [_constant(each) for each in value]
    return "a baton" if key == "baton" and value is not None else value


def _integer(value: int) -> dict[str, Any]:
    return {"type": "integer", "value": str(value)}


def _text(value: str) -> dict[str, Any]:
    return {"type": "text", "value": value}


if __name__ == "__main__":
    lines = (json.dumps(each, ensure_ascii=False) for each in exchanges(sys.argv[1]))
    RECORDED.write_text("[\n" + ",\n".join(lines) + "\n]\n")
