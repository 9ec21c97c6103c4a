"""Logical messages of the outbox's prefixes are told from others, in every form they can have."""

import json
import logging
from collections.abc import Iterator

import pytest

from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.postgres.wal.message_prefixes import Prefixes
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import (
    connect,
    drop,
    events,
    execute,
    read_until,
    rows,
    source_of,
    tuned,
)

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


@pytest.mark.parametrize(
    "content", ["hello", "null", "[]", '{"publication": "df"}', '{"schema": 1, "table": [2]}']
)
def test_a_strange_message_with_a_prefix_of_ours_is_left_out_with_a_warning(
    postgres_server: Server,
    database: str,
    caplog: pytest.LogCaptureFixture,
    content: str,
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    with connect(postgres_server, database) as connection:
        emit = "SELECT pg_logical_emit_message(false, 'deltaforge.table_appeared', %s)"
        connection.execute(emit, (content,))
        connection.execute("INSERT INTO t VALUES (1, 'x')")
    assert [row["table"] for row in rows(source, start)] == ["t"]
    assert "deltaforge.table_appeared, but is not one of ours" in caplog.text


@pytest.fixture
def latin(postgres_server: Server) -> Iterator[str]:
    name = "latin"
    drop(postgres_server, name)
    encoded = "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    execute(postgres_server, f"CREATE DATABASE {name} {encoded}")
    execute(postgres_server, TABLE, database=name)
    yield name
    drop(postgres_server, name)


def test_json_with_line_breaks_arrives_on_one_line(postgres_server: Server, database: str) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    emit = "SELECT pg_logical_emit_message(true, 'raw', E'{\\r\\n\"a\":\\n\"b\\\\n\"}')"
    execute(postgres_server, emit, database=database)
    (row,) = rows(source, start)
    assert (json.loads(row["after"]), len(row["after"].splitlines())) == ({"a": "b\n"}, 1)


def test_messages_of_a_database_in_another_encoding_are_read(
    postgres_server: Server, latin: str
) -> None:
    source = source_of(postgres_server, latin, kind=tuned(look_s=0.1))
    start = source.beginning()
    stream = source.open(start)
    try:
        execute(
            postgres_server,
            "SELECT pg_logical_emit_message(true, 'outbox', '{\"name\": \"Müller\"}')",
            "SELECT pg_logical_emit_message(true, 'outbox', '\\xff'::bytea)",
            "CREATE TABLE größe (id int PRIMARY KEY)",
            database=latin,
        )
        found = events(read_until(stream, lambda _: stream.appeared_tables()))
        (appeared,) = stream.appeared_tables()
    finally:
        stream.close()
    assert appeared.table == "public.größe"
    shown = [json.loads(row["after"]) for row in found]
    assert shown == [{"name": "Müller"}, {"_base64": "/w=="}]


def test_an_old_server_sends_no_messages(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(FatalError, match=r"source\.outbox"):
        Prefixes(("outbox",), ("*",)).check(130012)
    with caplog.at_level(logging.WARNING):
        Prefixes((), ("*",)).check(130012)
    assert "none is captured" in caplog.text
    Prefixes(("outbox",)).check(140000)
