"""Logical messages of the outbox's prefixes are told from others, in every form they can have."""

import json
import logging

import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.postgres.wal.message_prefixes import Prefixes
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import connect, rows, source_of

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def test_messages_of_the_outbox(postgres_server: Server, database: str) -> None:
    outbox = {"prefixes": ["outbox", "app.events_%"]}
    source = source_of(postgres_server, database, wal_messages=("raw",), outbox=outbox)
    start = source.beginning()
    emit = "SELECT pg_logical_emit_message({}, '{}', '{}')"
    with connect(postgres_server, database) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.execute(emit.format("true", "outbox", ' {"aggregate_id": 7, "n": {}} '))
        connection.execute(emit.format("true", "outbox_other", "{}"))
        connection.execute(emit.format("true", "app.events_1", "[1]"))
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        connection.execute(emit.format("true", "outbox", '{"rolled": "back"}'))
        connection.execute(emit.format("false", "outbox", '{"stays": true}'))
        connection.execute("ROLLBACK")
        connection.execute(emit.format("true", "raw", "{}"))
        connection.execute(emit.format("true", "outbox", "no json"))
    found = rows(source, start)
    shown = [(row["schema"], row["table"], json.loads(row["after"])) for row in found]
    assert shown == [
        ("public", "t", {"id": 1, "v": "x"}),
        ("__outbox", "outbox", {"aggregate_id": 7, "n": {}}),
        ("__outbox", "app.events_1", [1]),
        ("__outbox", "outbox", {"stays": True}),
        ("__wal_message", "raw", {}),
        ("__outbox", "outbox", {"_base64": "bm8ganNvbg=="}),
    ]
    assert {row["op"] for row in found} == {"c"}
    assert {row["db"] for row in found} == {database}
    assert [row["tx_id"] is None for row in found] == [False, False, False, True, False, False]
    ids = [row["event_id"] for row in found]
    assert len(set(ids)) == len(ids)
    assert [row["event_id"] for row in rows(source, start)] == ids


def test_an_old_server_sends_no_messages(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FatalError, match=r"source\.outbox"):
        Prefixes(("outbox",), ("*",)).check(130012)
    with caplog.at_level(logging.WARNING):
        Prefixes((), ("*",)).check(130012)
    assert "none is captured" in caplog.text
    Prefixes(("outbox",)).check(140000)
