"""Copy and log together lose nothing, whatever commits while the views open."""

import json
import threading
from contextlib import contextmanager

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from tests.servers import postgres
from tests.sources.postgres.copying import begun, fresh_database, source_of
from tests.sources.postgres.stream_reading import (
    connect,
    drop_slots,
    events,
    execute,
    read_until,
    tuned,
)
from tests.waiting import wait_for

NAME = "seamed"
HASTY = tuned(settle_s=0.2)
WRITERS = 3
ROWS = 2000
LAST = 999_999_999


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory):
    """PostgreSQL that keeps little log for slots, and asks nobody else before it commits."""
    server = postgres.start(
        tmp_path_factory.mktemp("strict"),
        args=[
            "max_slot_wal_keep_size=1MB",
            "min_wal_size=32MB",
            "max_wal_size=32MB",
            "max_prepared_transactions=4",
        ],
    )
    yield server
    server.discard()


@contextmanager
def writing(server, database):
    """Insert, update, re-key and delete rows from several sessions, until the block ends."""
    stop = threading.Event()

    def run(writer):
        with connect(server, database) as connection:
            number = writer
            while not stop.is_set():
                number += WRITERS
                connection.execute(
                    "INSERT INTO t VALUES (%s, 'new', %s) ON CONFLICT DO NOTHING",
                    (number * 7919 % (3 * ROWS), "n" * (number % 40)),
                )
                connection.execute(
                    "UPDATE t SET note = 'changed', big = big || 'x' WHERE id = %s",
                    (number * 31 % ROWS,),
                )
                connection.execute(
                    "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS "
                    "(SELECT FROM t other WHERE other.id = %s)",
                    (4 * ROWS + number, number * 13 % ROWS, 4 * ROWS + number),
                )
                connection.execute("DELETE FROM t WHERE id = %s", (number * 17 % ROWS,))

    threads = [threading.Thread(target=run, args=(w,), daemon=True) for w in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def replayed(source, position, found):
    """Apply the log behind a position, up to the last row ever written, to the rows found."""
    return replay(source.open(position), found)


def replay(reader, found):
    """Apply what a reader reads, up to the last row ever written, to the rows found."""
    try:
        while f'{{"id":{LAST}}}' not in found:
            chunk = reader.read(0.5)
            if chunk is None:
                continue
            for event in reader.decode(chunk).rows.to_pylist():
                if event["before"] is not None and event["op"] == "u":
                    found.pop(f'{{"id":{json.loads(event["before"])["id"]}}}', None)
                key = event["key"].decode()
                if event["op"] == "d":
                    found.pop(key, None)
                else:
                    found[key] = json.loads(event["after"])
    finally:
        reader.close()
    return found


def test_snapshot_and_log_make_the_whole(shop, either):
    """In two runs, the second of which goes on with the position of the first."""
    source = shop(
        "CREATE TABLE t (id bigint PRIMARY KEY, note text, big text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t SELECT i, 'old', repeat('o', i % 50) FROM generate_series(1, {ROWS}) i",
    )
    found = {}
    with writing(either, NAME):
        snapshotter = source.open_snapshot()
        position = snapshotter.begin()
        chunks = list(snapshotter.plan(150))
        half = len(chunks) // 2
        for chunk in chunks[:half]:
            for event in events(snapshotter.read(chunk, "run")):
                found[event["key"].decode()] = json.loads(event["after"])
        snapshotter.close()
        resumed = source.open_snapshot()
        resumed.guard(position)
        for chunk in chunks[half:]:
            for event in events(resumed.read(chunk, "run")):
                found[event["key"].decode()] = json.loads(event["after"])
        resumed.guard(position)
        resumed.close()
    execute(either, f"INSERT INTO t VALUES ({LAST})", database=NAME)
    copied_alone = dict(found)
    replayed(source, position, found)
    (whole,) = execute(either, "SELECT json_agg(t) FROM t", database=NAME)[0]
    assert {row["id"]: row for row in found.values()} == {row["id"]: row for row in whole}
    assert copied_alone != found


@contextmanager
def committing(server, database):
    """Hold a transaction whose commit is in the log, and whose rows nobody sees yet."""
    execute(
        server,
        "ALTER SYSTEM SET synchronous_standby_names = 'nobody'",
        "SELECT pg_reload_conf()",
    )

    def commit():
        with connect(server, database, application_name="committing") as connection:
            connection.execute("SET synchronous_commit = on")
            connection.execute("INSERT INTO t VALUES (2)")

    thread = threading.Thread(target=commit, daemon=True)
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_for(
        "standby setting",
        lambda: "nobody" in str(execute(server, "SHOW synchronous_standby_names")),
    )
    thread.start()
    wait_for("a commit without answer", lambda: execute(server, waiting))
    try:
        yield
    finally:
        # Without a standby the server shows the rows all the same once the wait is cancelled.
        execute(
            server,
            "ALTER SYSTEM RESET synchronous_standby_names",
            "SELECT pg_reload_conf()",
            f"SELECT pg_cancel_backend(pid) FROM ({waiting}) w",
        )
        thread.join()


def test_no_view_opens_while_a_commit_in_the_log_is_invisible(strict_server):
    fresh_database(
        strict_server,
        NAME,
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "CREATE SCHEMA other",
        "CREATE TABLE other.t (id int)",
    )
    source = source_of(strict_server, NAME, kind=HASTY, start_position="latest")
    begun(source).close()
    snapshotter = source.open_snapshot()
    with connect(strict_server, NAME) as idle:
        # One that only stands open must not hold the snapshot up.
        idle.execute("BEGIN")
        idle.execute("INSERT INTO other.t VALUES (3)")
        with committing(strict_server, NAME):
            assert execute(strict_server, "SELECT id FROM t", database=NAME) == [(1,)]
            with pytest.raises(RetryableError, match="may be committing"):
                snapshotter.begin()
            with pytest.raises(RetryableError, match="may be committing"):
                list(snapshotter.plan(10))
        snapshotter.begin()
        (chunk,) = snapshotter.plan(10)
        found = [event["key"] for event in events(snapshotter.read(chunk, "run"))]
        idle.execute("ROLLBACK")
    snapshotter.close()
    drop_slots(strict_server, NAME)
    assert found == [b'{"id":1}', b'{"id":2}']


def test_rows_written_before_their_table_was_published_are_waited_for(shop, either):
    """The log does not have them: neither the server nor the reader would ever tell of them."""
    source = shop("CREATE TABLE old (id int PRIMARY KEY)")
    begun(source).close()
    execute(either, "CREATE TABLE new (id int PRIMARY KEY)", database=NAME)
    with connect(either, NAME) as writer, connect(either, NAME) as other:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO new VALUES (1)")
        snapshotter = source.open_snapshot()
        position = snapshotter.begin()  # Publishes the table.
        other.execute("BEGIN")
        other.execute("INSERT INTO old VALUES (1)")
        hasty = source_of(either, NAME, kind=HASTY).open_snapshot()
        with pytest.raises(RetryableError, match="before they were published"):
            list(hasty.plan(10, tables=["new"]))
        hasty.close()
        writer.execute("INSERT INTO new VALUES (2)")
        writer.execute("COMMIT")
        (chunk,) = snapshotter.plan(10, tables=["new"])
        other.execute("ROLLBACK")
    found = [event["key"] for event in events(snapshotter.read(chunk, "run"))]
    snapshotter.close()
    execute(either, f"INSERT INTO old VALUES ({LAST})", database=NAME)
    assert found == [b'{"id":1}', b'{"id":2}']
    # Why it is waited for: of the transaction's two rows, the log has the second one only.
    assert set(replayed(source, position, {})) == {'{"id":2}', f'{{"id":{LAST}}}'}


def test_rows_written_before_their_schema_was_published_are_waited_for(shop, either):
    shop("CREATE TABLE old (id int PRIMARY KEY)", "CREATE SCHEMA late")
    source = source_of(either, NAME, "old", "late.*", kind=HASTY)
    begun(source).close()
    execute(either, "CREATE TABLE late.new (id int PRIMARY KEY)", database=NAME)
    with connect(either, NAME) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO late.new VALUES (1)")
        execute(either, "ALTER PUBLICATION shop_pub ADD TABLES IN SCHEMA late", database=NAME)
        snapshotter = begun(source)
        with pytest.raises(RetryableError, match="before they were published"):
            list(snapshotter.plan(10, tables=["late.new"]))
        writer.execute("COMMIT")
        assert len(list(snapshotter.plan(10, tables=["late.new"]))) == 1
    snapshotter.close()


def test_a_lost_slot_is_noticed(strict_server):
    fresh_database(strict_server, NAME, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    source = source_of(strict_server, NAME)
    snapshotter = source.open_snapshot()
    position = snapshotter.begin()
    snapshotter.guard(position)
    state = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'seamed_slot'"
    for _ in range(20):
        execute(strict_server, "SELECT pg_switch_wal()", "CHECKPOINT", database=NAME)
        execute(strict_server, "SELECT pg_logical_emit_message(false, '', repeat('x', 1 << 20))")
        if execute(strict_server, state) == [("lost",)]:
            break
    with pytest.raises(PositionLostError, match="max_slot_wal_keep_size"):
        snapshotter.guard(position)
    execute(strict_server, "SELECT pg_drop_replication_slot('seamed_slot')")
    with pytest.raises(PositionLostError, match="does not exist"):
        snapshotter.guard(position)
    begun(source).close()
    with pytest.raises(PositionLostError, match="confirmed"):
        snapshotter.guard(position)
    with pytest.raises(PositionLostError, match="cluster"):
        snapshotter.guard({**position, "system_id": "1"})
    snapshotter.close()
    drop_slots(strict_server, NAME)


def test_a_row_that_its_key_moves_behind_the_copy_keeps_its_large_value(shop, either):
    """With the default identity the log leaves the value out, and no chunk has the row."""
    source = shop(
        "CREATE TABLE t (id bigint PRIMARY KEY, big text, n int[])",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL, ALTER n SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT 10 * i, repeat(chr(64 + i), 3000), array_fill(i, ARRAY[2000])"
        " FROM generate_series(1, 6) i",
    )
    snapshotter = source.open_snapshot()
    position = snapshotter.begin()
    found = {}

    def copy(chunks):
        for chunk in chunks:
            for event in events(snapshotter.read(chunk, "run")):
                found[event["key"].decode()] = json.loads(event["after"])

    first, *rest = snapshotter.plan(2)
    copy([first])
    execute(
        either,
        "UPDATE t SET id = 5 WHERE id = 60",
        "UPDATE t SET id = 6 WHERE id = 50",
        "UPDATE t SET id = 7 WHERE id = 6",
        "UPDATE t SET id = 8 WHERE id = 40",
        "UPDATE t SET big = 'new', n = NULL WHERE id = 8",
        "UPDATE t SET id = 9 WHERE id = 30",
        "DELETE FROM t WHERE id = 9",
        database=NAME,
    )
    copy(rest)
    snapshotter.close()
    assert [row["id"] for row in found.values()] == [10, 20]
    reader = source.open(position)
    execute(
        either,
        "UPDATE t SET id = 4 WHERE id = 5",
        "INSERT INTO t VALUES (5, 'other', '{1}')",
        f"INSERT INTO t VALUES ({LAST})",
        database=NAME,
    )
    (whole,) = execute(either, "SELECT json_agg(t) FROM t", database=NAME)[0]
    # A reader that is killed is followed by one that finds the rows where they are by then.
    for each in (reader, source.open(position)):
        replay(each, found)
        assert {row["id"]: row for row in found.values()} == {row["id"]: row for row in whole}
        del found[f'{{"id":{LAST}}}']
    # What is written while no copy can be under way arrives as it is logged.
    reader = source.open(source.head())
    execute(either, "UPDATE t SET id = 3 WHERE id = 4", database=NAME)
    (moved,) = events(read_until(reader, events))
    reader.close()
    assert json.loads(moved["after"]) == {
        "id": 3,
        "big": {"_unchanged": True},
        "n": {"_unchanged": True},
    }


def test_a_moved_rows_large_value_is_read_where_a_copy_reads(shop, either):
    """A parent's own rows, not those of a table that inherits, but all of a partitioned table's."""
    source = shop(
        "CREATE TABLE t (id bigint PRIMARY KEY, big text)",
        "CREATE TABLE u () INHERITS (t)",
        "CREATE TABLE p (id bigint PRIMARY KEY, big text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p DEFAULT",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE p1 ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('x', 3000))",
        "INSERT INTO p VALUES (1, repeat('x', 3000))",
        "INSERT INTO u VALUES (2, 'of another')",
    )
    position = source.beginning()
    execute(either, "UPDATE ONLY t SET id = 2; UPDATE p SET id = 2", database=NAME)
    reader = source.open(position)
    moved = events(read_until(reader, events))
    reader.close()
    assert [event["table"] for event in moved] == ["t", "p"]
    assert [json.loads(event["after"]) for event in moved] == [{"id": 2, "big": "x" * 3000}] * 2


@pytest.mark.parametrize("key", [" PRIMARY KEY", ""], ids=["key", "no key"])
def test_a_prepared_transaction_counts_from_when_it_is_committed(strict_server, key):
    """Of a table without a key, too: it is one chunk, so every change is within one cut."""
    fresh_database(
        strict_server, NAME, f"CREATE TABLE t (id int{key})", "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    source = source_of(strict_server, NAME)
    snapshotter = source.open_snapshot()
    begun_at = snapshotter.begin()
    with connect(strict_server, NAME) as session:
        for number, name in enumerate(("within", "across")):
            session.execute("BEGIN")
            session.execute(f"INSERT INTO t VALUES ({number})")
            session.execute(f"PREPARE TRANSACTION '{name}'")
        session.execute("COMMIT PREPARED 'within'")
        (chunk,) = snapshotter.plan(100)
        batches = list(snapshotter.read(chunk, "run"))
        session.execute("COMMIT PREPARED 'across'")
        session.execute(f"INSERT INTO t VALUES ({LAST})")
    snapshotter.close()

    reader = source.open(begun_at)
    found = read_until(reader, lambda read: any(LAST in ids_in(batch) for batch in read))
    reader.close()

    assert ids_in(*batches) == [0]
    shown = {
        number: is_shown
        for batch in found
        for number, is_shown in zip(
            ids_in(batch), source.visible(batches[0].end, batch).tolist(), strict=True
        )
    }
    assert shown == {0: True, 1: False, LAST: False}
    drop_slots(strict_server, NAME)


def ids_in(*batches):
    return [json.loads(text)["id"] for batch in batches for text in batch.rows["after"].to_pylist()]
