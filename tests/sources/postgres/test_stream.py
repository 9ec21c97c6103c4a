"""The stream of one database: order, borders, messages, and what the server is told."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_deltaforge.sources.postgres.positions import parse_lsn
from airflow_provider_deltaforge.sources.postgres.wal import (
    reader,
    replication_connection,
    replication_session,
)
from tests.servers.process import Server
from tests.sources.postgres.stream_reading import (
    batches,
    connect,
    events,
    execute,
    read_until,
    rows,
    slot_of,
    source_of,
    tuned,
)
from tests.waiting import wait_for

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def shape(row: dict[str, Any]) -> tuple[Any, ...]:
    after = row["after"] and json.loads(row["after"])
    return (row["op"], row["table"], after)


def test_changes_come_in_commit_order_with_their_transactions(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    with connect(postgres_server, database) as first, connect(postgres_server, database) as second:
        first.execute("BEGIN")
        first.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        second.execute("INSERT INTO t VALUES (3, 'c')")
        first.execute("UPDATE t SET v = 'B' WHERE id = 2")
        first.execute("COMMIT")
        second.execute("DELETE FROM t WHERE id = 3")
    found = rows(source, start)
    images = [(row["op"], json.loads(row["after"] or row["before"])["id"]) for row in found]
    assert images == [("c", 3), ("c", 1), ("c", 2), ("u", 2), ("d", 3)]
    assert [row["tx_end"] for row in found] == [True, False, False, True, True]
    assert [row["row"] for row in found] == [0, 0, 1, 2, 0]
    assert len({row["tx_id"] for row in found}) == 3
    assert {row["db"] for row in found} == {database}
    assert {row["schema"] for row in found} == {"public"}
    assert [row["event_id"] for row in rows(source, start)] == [row["event_id"] for row in found]


def test_rows_nobody_captures_count_and_are_left_out(
    postgres_server: Server, database: str
) -> None:
    execute(postgres_server, "CREATE TABLE other (id int PRIMARY KEY)", database=database)
    wide = source_of(postgres_server, database)
    start = wide.beginning()
    with connect(postgres_server, database) as connection, connection.transaction():
        connection.execute("INSERT INTO other VALUES (1), (2)")
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.execute("INSERT INTO other VALUES (3)")
    narrow = source_of(postgres_server, database, tables=("public.t",))
    (only,) = rows(narrow, start)
    everything = rows(wide, start)
    assert (only["row"], only["tx_end"]) == (2, True)
    assert only["event_id"] == everything[2]["event_id"]


def test_truncate_is_reported_per_captured_table(postgres_server: Server, database: str) -> None:
    fresh_tables = "CREATE TABLE a (id int)", "CREATE TABLE b (id int)"
    execute(postgres_server, *fresh_tables, database=database)
    source = source_of(postgres_server, database, tables=("t", "b"))
    published = source_of(postgres_server, database).beginning()
    execute(postgres_server, "TRUNCATE t, a, b RESTART IDENTITY CASCADE", database=database)
    found = rows(source, published)
    assert {(row["op"], row["table"]) for row in found} == {("t", "t"), ("t", "b")}
    told = {"sql": "TRUNCATE", "cascade": True, "restart_identity": True}
    assert [json.loads(row["ddl"]) for row in found] == [told, told]
    assert [row["tx_end"] for row in found] == [False, True]
    assert len({row["event_id"] for row in found}) == 2


def test_logical_messages_are_events_named_by_their_prefix(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database, wal_messages=("order%", "raw"))
    start = source.beginning()
    with connect(postgres_server, database) as connection:
        connection.execute("BEGIN")
        connection.execute("""SELECT pg_logical_emit_message(true, 'orders', '{"id": 1}')""")
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.execute("SELECT pg_logical_emit_message(false, 'raw', 'no json')")
        connection.execute("SELECT pg_logical_emit_message(true, 'unwanted', '{}')")
        connection.execute("COMMIT")
    found = rows(source, start)
    # One outside of any transaction comes before the commit it was written before.
    assert [shape(row) for row in found] == [
        ("c", "raw", {"_base64": "bm8ganNvbg=="}),
        ("c", "orders", {"id": 1}),
        ("c", "t", {"id": 1, "v": "x"}),
    ]
    assert [row["schema"] for row in found] == ["__wal_message", "__wal_message", "public"]
    assert [row["tx_id"] is None for row in found] == [True, False, False]
    assert [row["tx_end"] for row in found] == [True, False, True]
    assert len({row["event_id"] for row in found}) == 3
    assert rows(source, start)[0]["event_id"] == found[0]["event_id"]


def test_a_table_altered_in_the_middle_is_decoded_as_it_was_at_each_row(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    execute(
        postgres_server,
        "INSERT INTO t VALUES (1, 'a')",
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7",
        "INSERT INTO t VALUES (2, 'b')",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (3, 9)",
        "ALTER TABLE t ALTER COLUMN n TYPE numeric(6,2)",
        "INSERT INTO t VALUES (4, 1.5)",
        "ALTER TABLE t RENAME TO moved",
        "INSERT INTO moved VALUES (5, 2)",
        database=database,
    )
    images = [(row["table"], json.loads(row["after"])) for row in rows(source, start)]
    assert images == [
        ("t", {"id": 1, "v": "a"}),
        ("t", {"id": 2, "v": "b", "n": 7}),
        ("t", {"id": 3, "n": 9}),
        ("t", {"id": 4, "n": "1.50"}),
        ("moved", {"id": 5, "n": "2.00"}),
    ]


def test_partitions_come_under_their_root(postgres_server: Server, database: str) -> None:
    execute(
        postgres_server,
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_high PARTITION OF p FOR VALUES FROM (10) TO (20)",
        database=database,
    )
    source = source_of(postgres_server, database, tables=("p",))
    start = source.beginning()
    execute(postgres_server, "INSERT INTO p VALUES (1), (11)", database=database)
    assert [shape(row) for row in rows(source, start)] == [
        ("c", "p", {"id": 1}),
        ("c", "p", {"id": 11}),
    ]


def test_only_what_was_acknowledged_is_confirmed(postgres_server: Server, database: str) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    stream = source.open(start)
    for key in range(3):
        execute(postgres_server, f"INSERT INTO t VALUES ({key}, 'x')", database=database)
    found = read_until(stream, lambda got: len(events(got)) == 3)
    second = next(b.positions for b in found if b.rows.num_rows).after(0)
    stream.close()
    assert slot_of(postgres_server, database)[0] == start["lsn"]
    stream = source.open(start)
    again = read_until(stream, lambda got: len(events(got)) == 3)
    stream.acknowledge(second)
    stream.close()
    wait_for("the slot", lambda: slot_of(postgres_server, database)[0] == second["lsn"])
    assert [row["event_id"] for row in events(again)] == [row["event_id"] for row in events(found)]
    assert [json.loads(row["after"])["id"] for row in rows(source, second)] == [1, 2]


def test_an_open_transaction_is_read_after_everything_around_it_was_confirmed(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    with connect(postgres_server, database) as slow:
        slow.execute("BEGIN")
        slow.execute("INSERT INTO t VALUES (1, 'slow')")
        stream = source.open(start)
        execute(postgres_server, "INSERT INTO t VALUES (2, 'quick')", database=database)
        (quick,) = events(read_until(stream, events))
        reached = stream.position
        stream.acknowledge(reached)
        stream.close()
        slow.execute("COMMIT")
    assert json.loads(quick["after"])["id"] == 2
    (late,) = rows(source, reached)
    assert json.loads(late["after"])["v"] == "slow"


def test_the_slot_of_an_idle_table_follows_a_busy_server(
    postgres_server: Server, database: str
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    stream = source.open(start)
    execute(
        postgres_server,
        "CREATE TABLE busy (id int)",
        "INSERT INTO busy SELECT generate_series(1, 1000)",
    )
    busy = source.head()
    try:
        found = read_until(stream, lambda got: got and source.compare(got[-1].end, busy) >= 0)
        assert events(found) == []
        stream.acknowledge(found[-1].end)

        def confirmed() -> bool:
            stream.read(0.2)
            return parse_lsn(slot_of(postgres_server, database)[0]) >= parse_lsn(busy["lsn"])

        wait_for("the slot to follow", confirmed)
    finally:
        stream.close()
        execute(postgres_server, "DROP TABLE busy")


def test_chunks_hold_the_same_wherever_the_bytes_were_cut(
    postgres_server: Server, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of(postgres_server, database)
    start = source.beginning()
    for size in (1, 300, 2, 40):
        sql = f"INSERT INTO t SELECT {size * 1000} + i, repeat('x', (i * 7) % 997) FROM "
        execute(postgres_server, f"{sql} generate_series(1, {size}) i", database=database)
    end = source.head()
    whole = rows(source, start, end)
    assert len(whole) == 343
    small = source_of(postgres_server, database, tuned(segment_bytes=8192, receive_bytes=2048))
    for plain in (True, False):
        _read_in_pieces(monkeypatch, plain=plain)
        found = list(batches(small, start, end))
        assert any(batch.open_tx for batch in found)
        assert any(batch.continues for batch in found)
        names = ("event_id", "op", "after", "key", "tx_id", "row", "tx_end", "source_position")
        assert [[row[name] for name in names] for row in events(found)] == [
            [row[name] for name in names] for row in whole
        ]


def _read_in_pieces(monkeypatch: pytest.MonkeyPatch, *, plain: bool) -> None:
    """Let a socket, ours or libpq's, give out its bytes in pieces of any length."""
    chance = random.Random(7)
    kind = replication_connection.PlainSocket if plain else replication_connection.LibpqSocket
    receive = kind.receive

    def little(self: Any, view: memoryview, timeout_s: float) -> int:
        return receive(self, view[: chance.randint(1, 3000)], timeout_s)

    def start(
        reading: replication_session.ReaderSettings, *rest: Any
    ) -> replication_connection.LogSocket:
        return replication_session.start(replace(reading, plain=plain), *rest)

    monkeypatch.setattr(kind, "receive", little)
    monkeypatch.setattr(reader, "start", start)
