"""Chunks are read as their tables are, and survive what happens meanwhile."""

import json
import threading

import pytest

from airflow_provider_deltaforge.errors import AccessError, FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.sources.postgres.snapshot.copy_out import (
    PART_BYTES,
    CopyTag,
    copy_out,
    through_libpq,
)
from tests.sources.postgres.copying import begun, copied, source_of
from tests.sources.postgres.stream_reading import connect, events, execute, tuned
from tests.waiting import wait_for

NAME = "copied"


def test_a_table_rewritten_before_its_view_is_read_whole(shop, either):
    """The view opens behind the lock: one that is older than a rewritten table sees no rows."""
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, a int)",
        "INSERT INTO t SELECT i, i FROM generate_series(1, 50) i",
    )
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(100)
    found = []
    with connect(either, NAME) as altering:
        altering.execute("BEGIN")
        altering.execute("ALTER TABLE t ALTER a TYPE text")
        reading = threading.Thread(
            target=lambda: found.extend(events(snapshotter.read(chunk, "run"))), daemon=True
        )
        reading.start()
        blocked = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_for("a reader at the lock", lambda: execute(either, blocked, database=NAME))
        altering.execute("COMMIT")
    reading.join()
    snapshotter.close()
    assert len(found) == 50
    assert found[0]["after"] == b'{"id":1,"a":"1"}'


def test_a_table_that_stays_locked_is_retryable(shop, either):
    source = shop("CREATE TABLE t (id int PRIMARY KEY)", kind=tuned(lock_wait_s=0.1))
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(100)
    with connect(either, NAME) as altering:
        altering.execute("BEGIN")
        altering.execute("LOCK TABLE t")
        with pytest.raises(RetryableError, match=r"public\.t"):
            list(snapshotter.read(chunk, "run"))
        altering.execute("ROLLBACK")
    assert [batch.rows.num_rows for batch in snapshotter.read(chunk, "run")] == [0]
    snapshotter.close()


def test_ids_name_the_run_the_cut_and_the_key(shop, either):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "CREATE TABLE u (v int)",
        "INSERT INTO u VALUES (1), (1)",
    )
    batches = copied(source)
    first = [event["event_id"] for event in events(batches)]
    assert len(set(first)) == 4
    repeated = copied(source)
    again = [event["event_id"] for event in events(repeated)]
    # What the server itself writes meanwhile moves the cut, and a cut has ids of its own.
    ends = [[batch.end for batch in one] for one in (batches, repeated)]
    assert (first == again) == (ends[0] == ends[1])
    assert not set(first) & {event["event_id"] for event in events(copied(source, run="two"))}
    execute(either, "UPDATE t SET v = 3 WHERE id = 1", database=NAME)
    assert not set(first) & {event["event_id"] for event in events(copied(source))}


def test_a_batch_ends_its_transaction_and_knows_what_its_view_contains(shop, either):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2), (3)",
    )
    snapshotter = source.open_snapshot()
    position = snapshotter.begin()
    (chunk,) = snapshotter.plan(10)
    with connect(either, NAME) as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (4)")
        (xid,) = writer.execute("SELECT pg_current_xact_id()::text").fetchone()
        (batch,) = snapshotter.read(chunk, "run")
        writer.execute("COMMIT")
    snapshotter.close()
    assert batch.rows.column("tx_end").to_pylist() == [False, False, True]
    assert batch.rows.column("row").to_pylist() == [0, 1, 2]
    assert set(batch.rows.column("op").to_pylist()) == {"r"}
    assert batch.rows.column("db").to_pylist()[0] == NAME
    assert batch.rows.column("schema").to_pylist()[0] == "public"
    assert batch.rows.column("before").null_count == 3
    assert batch.rows.column("schema_version").to_pylist()[0] == batch.schemas[0].fingerprint
    assert batch.positions.after(0) == batch.end
    assert batch.rows.validate(full=True) is None
    assert source.compare(position, batch.end) <= 0
    visible = execute(
        either,
        f"SELECT pg_visible_in_snapshot('{xid}', '{batch.end['snapshot']}'::pg_snapshot)",
    )
    assert visible == [(False,)]


def test_an_altered_table_is_read_with_its_new_columns(shop, either):
    source = shop("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, 2)")
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(10)
    execute(
        either,
        "ALTER TABLE t ADD b int NOT NULL DEFAULT 7, DROP a",
        'ALTER TABLE t ADD "new ""name""" text',
        database=NAME,
    )
    (event,) = events(snapshotter.read(chunk, "run"))
    snapshotter.close()
    assert json.loads(event["after"]) == {"id": 1, "b": 7, 'new "name"': None}


@pytest.mark.parametrize(
    ("change", "after", "default"),
    [
        ("ALTER TABLE t ADD b int DEFAULT 7", {"id": 1, "a": 2, "b": 7}, "5"),
        ("ALTER TABLE t ALTER a SET DEFAULT 6", {"id": 1, "a": 2}, "6"),
        ("ALTER TABLE t ALTER a TYPE text", {"id": 1, "a": "2"}, "5"),
        ("ALTER PUBLICATION shop_pub SET TABLE t (id)", {"id": 1}, None),
    ],
)
def test_what_changes_between_two_chunks_is_seen(shop, either, change, after, default):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, a int DEFAULT 5)", "INSERT INTO t VALUES (1, 2)"
    )
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(10)
    (first,) = events(snapshotter.read(chunk, "run"))
    assert json.loads(first["after"]) == {"id": 1, "a": 2}
    execute(either, change, database=NAME)
    (batch,) = snapshotter.read(chunk, "run")
    snapshotter.close()
    assert json.loads(events([batch])[0]["after"]) == after
    defaults = {column.name: column.default_value for column in batch.schemas[0].columns}
    assert (defaults.get("a") or "").partition("::")[0].strip("'") == (default or "")


def test_a_dropped_table_is_an_empty_chunk_with_a_warning(shop, either):
    source = shop("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int)")
    snapshotter = begun(source)
    chunks = list(snapshotter.plan(10))
    execute(either, "DROP TABLE t", database=NAME)
    batches = [batch for chunk in chunks for batch in snapshotter.read(chunk, "run")]
    snapshotter.close()
    assert [batch.rows.num_rows for batch in batches] == [0, 0]
    assert batches[0].end["snapshot"]
    assert "public.t is gone" in snapshotter.warnings[0]


def test_an_abandoned_read_leaves_a_working_snapshotter(shop):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 30000) i",
    )
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(100_000)
    reading = snapshotter.read(chunk, "run")
    first = next(reading)
    assert 0 < first.rows.num_rows < 30_000
    reading.close()
    assert sum(batch.rows.num_rows for batch in snapshotter.read(chunk, "run")) == 30_000
    snapshotter.close()
    snapshotter.close()


def test_a_killed_connection_is_retryable_and_reopened(shop, either):
    source = shop("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(10)
    pid = snapshotter._connection.info.backend_pid
    execute(either, f"SELECT pg_terminate_backend({pid}, 60000)")
    with pytest.raises(RetryableError):
        list(snapshotter.read(chunk, "run"))
    assert len(events(snapshotter.read(chunk, "run"))) == 1
    snapshotter.close()


def test_a_connection_killed_between_rows_is_retryable(shop, either):
    source = shop(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', 900) FROM generate_series(1, 40000) i",
    )
    snapshotter = begun(source)
    (chunk,) = snapshotter.plan(100_000)
    reading = snapshotter.read(chunk, "run")
    next(reading)
    pid = snapshotter._connection.info.backend_pid
    execute(either, f"SELECT pg_terminate_backend({pid}, 60000)")
    with pytest.raises(RetryableError):
        list(reading)
    snapshotter.close()


def test_where_and_patterns_choose_what_is_copied(shop):
    source = shop(
        "CREATE TABLE a (id int PRIMARY KEY, note text)",
        "INSERT INTO a SELECT i, '100%' FROM generate_series(1, 5) i",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM a",
    )
    snapshotter = begun(source)
    where = "id % 2 = 1 AND note LIKE '100%' OR id = 4 -- the rest"
    chunks = list(snapshotter.plan(2, tables=["public.a"], where=where))
    found = [e["key"] for chunk in chunks for e in events(snapshotter.read(chunk, "run"))]
    assert found == [b'{"id":1}', b'{"id":3}', b'{"id":4}', b'{"id":5}']
    for pattern in ("nothing_like_it", "v", "other.a"):
        with pytest.raises(SpecError, match=pattern):
            list(snapshotter.plan(2, tables=[pattern]))
    with pytest.raises(SpecError, match="exactly one table"):
        list(snapshotter.plan(2, where="id = 1"))
    wrong_ones = ("no_column = 1", "id = 'x'", "id =", "id = 1); DROP TABLE b; --", "count(*) > 1")
    # They close a parenthesis, and what they open behind it would undo a chunk's bounds.
    undoing = ("id > 4) OR (true", "id > 4) OR true --", "id > 4) OR true /*", "true THEN 1 END --")
    for wrong in (*wrong_ones, *undoing):
        with pytest.raises(SpecError, match="where"):
            list(snapshotter.plan(2, tables=["a"], where=wrong))
    snapshotter.close()


def test_rows_come_as_they_are_and_once(shop, either):
    """Partitions, parents, generated and identity columns, large values; nothing without a log."""
    source = shop(
        "CREATE TABLE whole (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)",
        "CREATE TABLE part_1 PARTITION OF whole FOR VALUES IN (1)",
        "CREATE TABLE part_2 PARTITION OF whole FOR VALUES IN (2) PARTITION BY HASH (id)",
        "CREATE TABLE part_2a PARTITION OF part_2 FOR VALUES WITH (modulus 1, remainder 0)",
        "INSERT INTO whole VALUES (1, 1), (2, 2), (3, 1)",
        "CREATE TABLE parent (id int PRIMARY KEY, a text)",
        "CREATE TABLE child (b text, PRIMARY KEY (id)) INHERITS (parent)",
        "INSERT INTO parent VALUES (1, 'p')",
        "INSERT INTO child VALUES (2, 'c', 'b')",
        "CREATE TABLE made (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int, "
        "twice int GENERATED ALWAYS AS (a * 2) STORED)",
        "INSERT INTO made (a) VALUES (4)",
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "ALTER TABLE large ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO large SELECT 1, string_agg(md5(i::text), E'\\t\\n\\\\' ORDER BY i) "
        "FROM generate_series(1, 300000) i",
        "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
        "CREATE VIEW seen AS SELECT 1",
        "CREATE MATERIALIZED VIEW kept AS SELECT 1",
    )
    found = [(event["table"], json.loads(event["after"])) for event in events(copied(source))]
    ((large,),) = execute(either, "SELECT v FROM large", database=NAME)
    assert len(large) > 2 * PART_BYTES
    assert found == [
        ("child", {"id": 2, "a": "c", "b": "b"}),
        ("large", {"id": 1, "v": large}),
        ("made", {"id": 1, "a": 4}),
        ("parent", {"id": 1, "a": "p"}),
        ("whole", {"id": 1, "k": 1}),
        ("whole", {"id": 2, "k": 2}),
        ("whole", {"id": 3, "k": 1}),
    ]


def test_only_what_is_published_is_copied(shop, either):
    shop(
        "CREATE TABLE a (id int PRIMARY KEY, hidden text)",
        "INSERT INTO a VALUES (1, 'no')",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO b VALUES (1)",
        "CREATE PUBLICATION some_pub FOR TABLE a (id)",
    )
    fixed = {"publication": {"name": "some_pub", "create": False}}
    snapshotter = begun(source_of(either, NAME, **fixed))
    (chunk,) = snapshotter.plan(10)
    (event,) = events(snapshotter.read(chunk, "run"))
    snapshotter.close()
    assert event["after"] == b'{"id":1}'
    assert "public.b is not copied" in snapshotter.warnings[0]


def test_the_rights_that_are_documented_are_enough(shop, either):
    shop(
        "CREATE TABLE whole (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)",
        "INSERT INTO whole VALUES (1, 'a'), (2, 'b')",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "GRANT USAGE ON SCHEMA public TO df",
        "GRANT SELECT ON whole TO df",
        "CREATE PUBLICATION shop_pub FOR TABLE whole WITH (publish_via_partition_root = true)",
    )
    batches = copied(source_of(either, NAME, user="df:df-secret"), chunk_rows=1)
    assert [batch.rows.num_rows for batch in batches] == [1, 1, 0]


@pytest.mark.parametrize(
    ("published", "remedy"),
    [
        ("whole", "publish_via_partition_root = true"),
        ("part WITH (publish_via_partition_root = true)", 'ADD TABLE "public"."whole"'),
    ],
)
def test_rows_under_the_names_of_partitions_are_refused(shop, either, published, remedy):
    shop(
        "CREATE TABLE whole (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF whole FOR VALUES FROM (0) TO (9)",
        f"CREATE PUBLICATION shop_pub FOR TABLE {published}",
    )
    source = source_of(either, NAME, publication={"name": "shop_pub", "create": False})
    snapshotter = source.open_snapshot()
    with pytest.raises(FatalError, match=remedy) as refused:
        snapshotter.begin()
    execute(either, str(refused.value).partition("run: ")[2], database=NAME)
    assert snapshotter.begin()["lsn"]
    snapshotter.close()


def test_rows_hidden_by_a_policy_are_an_error_not_a_gap(shop, either):
    shop(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1), (2)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY half ON t USING (id > 1)",
        "GRANT SELECT ON t TO df",
        "CREATE PUBLICATION shop_pub FOR TABLE t",
    )
    source = source_of(either, NAME, user="df:df-secret")
    snapshotter = begun(source)
    with pytest.raises(AccessError, match="row-level security"):
        list(snapshotter.plan(10))
    snapshotter.close()


def test_rows_through_libpq_equal_rows_past_it(shop, either):
    """What a TLS connection goes through; its bytes are libpq's."""
    shop(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, repeat('x', i % 3000) FROM generate_series(1, 6000) i",
        f"INSERT INTO t VALUES (0, repeat('y', {PART_BYTES + 10}))",
    )
    with connect(either, NAME) as connection:
        for sql in ("SELECT * FROM t ORDER BY id", "SELECT * FROM t WHERE id < 0"):
            past = list(copy_out(connection, sql, "reading"))
            through = list(
                through_libpq(connection.pgconn, f"COPY ({sql}) TO STDOUT".encode(), "", CopyTag())
            )
            assert b"".join(past) == b"".join(through)
            assert len(past) > 2 or not b"".join(past)
            assert all(part.endswith(b"\n") for part in (*past, *through))
        for sql in ("SELECT 1 / 0", "SELECT 6000 / (6000 - id) FROM t ORDER BY id"):
            with pytest.raises(Exception, match="reading: error 22012: division by zero"):
                list(
                    through_libpq(
                        connection.pgconn, f"COPY ({sql}) TO STDOUT".encode(), "reading", CopyTag()
                    )
                )
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
            with pytest.raises(Exception, match="reading: error 22012: division by zero"):
                list(copy_out(connect(either, NAME), sql, "reading"))
