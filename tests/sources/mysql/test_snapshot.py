"""Snapshots lose nothing between their views and the stream, and survive what happens meanwhile."""

import json
import threading

import pytest

from airflow_provider_deltaforge.errors import (
    FatalError,
    PositionLostError,
    RetryableError,
    SchemaError,
    SpecError,
)
from airflow_provider_deltaforge.sources.mysql.snapshot.views import ViewOpener
from tests.servers import mysql, sql
from tests.sources.mysql.reading import copied, events, fresh_database, source_of, streamed
from tests.sources.mysql.stream_reading import tuned

WRITERS = 8
VIEWS = 25
LAST = 999_999_999


@pytest.fixture(scope="module")
def plain_server(tmp_path_factory):
    """MySQL without GTIDs."""
    server = mysql.start(tmp_path_factory.mktemp("plain"), gtid=False)
    yield server
    server.discard()


DIGITS = " UNION ALL ".join(f"SELECT {n} d" for n in range(10))
TEN_THOUSAND = "SELECT a.d + 10 * b.d + 100 * c.d + 1000 * e.d seq FROM " + ", ".join(
    f"({DIGITS}) {name}" for name in "abce"
)


def keep_writing(server, stop):
    """Insert rows one by one, each its own transaction, until told to stop."""

    def run(writer):
        connection = sql.connect(server, "racing")
        number = 0
        with connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(f"INSERT INTO t VALUES ({writer * 10_000_000 + number})")
                number += 1
        connection.close()

    threads = [threading.Thread(target=run, args=(w,), daemon=True) for w in range(WRITERS)]
    for thread in threads:
        thread.start()
    return threads


def ids_behind(source, position):
    """Return the ids in the log behind a position, up to the last row ever written."""
    found = streamed(
        source,
        position,
        lambda f: any(e["after"] == b'{"id":%d}' % LAST for e in f[-200:]),
        60,
    )
    return {json.loads(e["after"])["id"] for e in found if e["op"] == "c"}


def race(server, user="root", **settings):
    """Take views under eight writers; return (position begun at, [(cut, ids read)], all ids)."""
    fresh_database(server, "racing", "CREATE TABLE t (id bigint primary key)")
    source = source_of(server, "racing", user=user, ssl_mode="disabled", **settings)
    stop = threading.Event()
    threads = keep_writing(server, stop)
    try:
        snapshotter = source.open_snapshot()
        begun, views = snapshotter.begin(), []
        (chunk,) = snapshotter.plan(10_000_000)
        while len(views) < VIEWS or len(views[-1][1]) < 600:
            batches = list(snapshotter.read(chunk, "run"))
            views.append((batches[0].end, {json.loads(e["after"])["id"] for e in events(batches)}))
        snapshotter.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    sql.execute(server, f"INSERT INTO racing.t VALUES ({LAST})")
    everything = {number for (number,) in sql.execute(server, "SELECT id FROM racing.t")}
    return source, begun, views, everything


def check_race(source, begun, views, everything):
    """Assert that every view and the log behind its cut, or behind the start, make the whole."""
    behind_start = ids_behind(source, begun)
    assert len(everything) > 500
    for cut, seen in views:
        assert seen | behind_start == everything
        assert source.compare(begun, cut) <= 0
    for cut, seen in views[:: len(views) // 5]:
        assert seen | ids_behind(source, cut) == everything


def told_visible(source, begun, views):
    """Return by view what the source says of the log's ids: which the view contained."""
    found = [set() for _ in views]
    reader = source.open(begun)
    last = False
    while not last:
        segment = reader.read(0.5)
        if segment is None:
            continue
        batch = reader.decode(segment)
        ids = [json.loads(text)["id"] for text in batch.rows["after"].to_pylist()]
        for visible, (cut, _) in zip(found, views, strict=True):
            shown = source.visible(cut, batch)
            visible.update(number for number, is_shown in zip(ids, shown, strict=True) if is_shown)
        last = LAST in ids
    reader.close()
    return found


def test_no_change_is_lost_under_writers(server):
    source, begun, views, everything = race(server)
    check_race(source, begun, views, everything)
    behind_start = ids_behind(source, begun)
    # A machine that is busy may leave no moment between two commits.
    exact = [not cut.get("inexact") for cut, _ in views]
    for is_exact, visible, (_, seen) in zip(
        exact, told_visible(source, begun, views), views, strict=True
    ):
        assert visible <= seen
        assert not is_exact or visible == seen & behind_start


def test_a_mariadb_cut_is_exact(mariadb_server):
    source, begun, views, _ = race(mariadb_server)
    for cut, seen in views[:: len(views) // 5]:
        assert not seen & ids_behind(source, cut)
    behind_start = ids_behind(source, begun)
    for visible, (_, seen) in zip(told_visible(source, begun, views), views, strict=True):
        assert visible == seen & behind_start


def test_no_change_is_lost_without_gtids(plain_server):
    source, begun, views, everything = race(plain_server)
    check_race(source, begun, views, everything)
    behind_start = ids_behind(source, begun)
    for visible, (_, seen) in zip(told_visible(source, begun, views), views, strict=True):
        assert visible == seen & behind_start


def test_a_view_among_commits_that_never_pause_says_what_it_contains(mysql_server):
    """With one attempt; what an inexact cut names is a part of that, and never more."""
    source, begun, views, everything = race(mysql_server, kind=tuned(quiet_views=1, settled_s=0.01))
    check_race(source, begun, views, everything)
    behind_start = ids_behind(source, begun)
    for visible, (cut, seen) in zip(told_visible(source, begun, views), views, strict=True):
        assert visible <= seen
        assert cut.get("inexact") or visible == seen & behind_start


@pytest.mark.parametrize("name", ["mysql_server", "mariadb_server"])
def test_all_parts_of_a_large_transaction_are_in_a_view_or_none(name, request):
    server = request.getfixturevalue(name)
    fresh_database(server, "wide", "CREATE TABLE t (id int primary key, note varchar(800))")
    source = source_of(server, "wide", user="root", ssl_mode="disabled")
    snapshotter = source.open_snapshot()
    begun = snapshotter.begin()
    rows = "SELECT seq + {}, repeat('x', 800) FROM (" + TEN_THOUSAND + ") numbers"
    sql.execute(server, f"INSERT INTO wide.t {rows.format(0)}")
    (chunk,) = snapshotter.plan(10_000_000)
    cut = next(iter(snapshotter.read(chunk, "run"))).end
    sql.execute(server, f"INSERT INTO wide.t {rows.format(20_000)}")
    snapshotter.close()

    reader, told, parts = source.open(begun), {}, 0
    while len(told) < 20_000:
        segment = reader.read(0.5)
        if segment is not None:
            batch = reader.decode(segment)
            parts += batch.open_tx
            ids = [json.loads(text)["id"] for text in batch.rows["after"].to_pylist()]
            told.update(zip(ids, source.visible(cut, batch).tolist(), strict=True))
    reader.close()

    assert parts > 0
    assert {number for number, is_shown in told.items() if is_shown} == set(range(10_000))


def test_where_writers_never_pause_a_copy_stops_waiting_for_a_pause(mysql_server):
    fresh_database(mysql_server, "busy", "CREATE TABLE t (id int primary key)")
    sql.execute(mysql_server, "INSERT INTO busy.t WITH RECURSIVE n AS (SELECT 1 i UNION ALL "
        "SELECT i + 1 FROM n WHERE i < 200) SELECT i FROM n")  # fmt: skip
    source = source_of(mysql_server, "busy", user="root", ssl_mode="disabled")
    snapshotter = source.open_snapshot()
    snapshotter.begin()
    chunks = list(snapshotter.plan(10))

    def views():
        return int(sql.execute(mysql_server, "SHOW GLOBAL STATUS LIKE 'Com_begin'")[0][1])

    def cuts(some):
        return [next(iter(snapshotter.read(chunk, "run"))).end for chunk in some]

    # Whoever owns a GTID may be about to commit, for all that others can see.
    writer = sql.connect(mysql_server, "busy", autocommit=False)
    with writer.cursor() as cursor:
        cursor.execute("SET gtid_next = 'aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee:1'")
        cursor.execute("BEGIN")
        begun = views()
        assert all(cut["inexact"] for cut in cuts(chunks[:10]))
        opened = views() - begun
        cursor.execute("COMMIT")
        cursor.execute("SET gtid_next = AUTOMATIC")
    writer.close()
    later = cuts(chunks[10:])
    snapshotter.close()

    assert opened <= 2 * source.tuning.quiet_views + 10
    assert not any(cut.get("inexact") for cut in later)


def test_without_gtids_a_missing_privilege_is_named(plain_server):
    fresh_database(plain_server, "locked", "CREATE TABLE t (id int primary key)")
    snapshotter = source_of(plain_server, "locked").open_snapshot()
    with pytest.raises(FatalError, match="LOCK TABLES"):
        snapshotter.begin()
    snapshotter.close()


def test_a_cut_without_gtids_waits_for_writers(plain_server):
    hasty = tuned(lock_wait_s=1, lock_attempts=2)
    fresh_database(plain_server, "waiting", "CREATE TABLE t (id int primary key)")
    writer = sql.connect(plain_server, "waiting", autocommit=False)
    writer.cursor().execute("INSERT INTO t VALUES (1)")
    snapshotter = source_of(plain_server, "waiting", user="root", kind=hasty).open_snapshot()
    with pytest.raises(RetryableError, match=r"waiting\.t"):
        snapshotter.begin()
    writer.rollback()
    writer.close()
    assert snapshotter.begin()["file"]
    snapshotter.close()


def test_prepared_xa_transactions_hold_the_start_up(server):
    fresh_database(server, "prepared", "CREATE TABLE t (id int primary key)")
    writer = sql.connect(server, "prepared")
    cursor = writer.cursor()
    for statement in ("XA START 'a'", "INSERT INTO t VALUES (1)", "XA END 'a'", "XA PREPARE 'a'"):
        cursor.execute(statement)
    snapshotter = source_of(server, "prepared", user="root", ssl_mode="disabled").open_snapshot()
    with pytest.raises(RetryableError, match="XA RECOVER"):
        snapshotter.begin()
    cursor.execute("XA COMMIT 'a'")
    writer.close()
    assert snapshotter.begin()["file"]
    snapshotter.close()


def test_ids_name_the_run_the_cut_and_the_key(server):
    fresh_database(
        server,
        "named",
        "CREATE TABLE t (id int primary key, v int)",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "CREATE TABLE u (v int)",
        "INSERT INTO u VALUES (1), (1)",
    )
    source = source_of(server, "named")
    first = [event["event_id"] for event in events(copied(source, run="one"))]
    again = [event["event_id"] for event in events(copied(source, run="one"))]
    other = [event["event_id"] for event in events(copied(source, run="two"))]
    assert len(set(first)) == 4
    assert first == again  # Nothing was written in between, so the cut is the same.
    assert not set(first) & set(other)
    sql.execute(server, "UPDATE named.t SET v = 3 WHERE id = 1")
    moved = [event["event_id"] for event in events(copied(source, run="one"))]
    assert not set(first) & set(moved)


def test_a_batch_ends_its_transaction_and_knows_its_cut(server):
    fresh_database(
        server,
        "ended",
        "CREATE TABLE t (id int primary key)",
        "INSERT INTO t VALUES (1), (2), (3)",
    )
    (batch,) = copied(source_of(server, "ended"))
    assert batch.rows.column("tx_end").to_pylist() == [False, False, True]
    assert batch.rows.column("row").to_pylist() == [0, 1, 2]
    assert batch.positions.after(0) == batch.end
    assert batch.rows.validate(full=True) is None


def test_an_altered_table_is_read_with_its_new_columns(server):
    fresh_database(
        server,
        "altered",
        "CREATE TABLE t (id int primary key, a int)",
        "INSERT INTO t VALUES (1, 2)",
    )
    snapshotter = source_of(server, "altered").open_snapshot()
    (chunk,) = snapshotter.plan(10)
    sql.execute(server, "ALTER TABLE altered.t ADD b int NOT NULL DEFAULT 7 FIRST")
    (event,) = events(snapshotter.read(chunk, "run"))
    snapshotter.close()
    assert event["after"] == b'{"b":7,"id":1,"a":2}'


def test_a_view_older_than_the_table_is_opened_again(server, monkeypatch):
    fresh_database(
        server, "older", "CREATE TABLE t (id int primary key, a int)", "INSERT INTO t VALUES (1, 2)"
    )
    opened = []

    def open_and_alter(*args):
        view = real(*args)
        opened.append(view)
        if len(opened) == 1:
            sql.execute(server, "ALTER TABLE older.t ADD b int, ENGINE=InnoDB, FORCE")
        return view

    real = ViewOpener.open
    monkeypatch.setattr(ViewOpener, "open", open_and_alter)
    (event,) = events(copied(source_of(server, "older")))
    assert event["after"] == b'{"id":1,"a":2,"b":null}'
    assert len(opened) == 2


def test_a_dropped_table_is_an_empty_chunk_with_a_warning(server):
    fresh_database(server, "dropped", "CREATE TABLE t (id int primary key)")
    snapshotter = source_of(server, "dropped").open_snapshot()
    (chunk,) = snapshotter.plan(10)
    sql.execute(server, "DROP TABLE dropped.t")
    (batch,) = snapshotter.read(chunk, "run")
    snapshotter.close()
    assert batch.rows.num_rows == 0
    assert batch.end["file"]
    assert "dropped.t" in snapshotter.warnings[0]


def test_a_changed_key_asks_for_a_new_run(server):
    fresh_database(server, "rekeyed", "CREATE TABLE t (id int primary key, a int not null)")
    snapshotter = source_of(server, "rekeyed").open_snapshot()
    (chunk,) = snapshotter.plan(10)
    sql.execute(server, "ALTER TABLE rekeyed.t DROP PRIMARY KEY, ADD PRIMARY KEY (a)")
    with pytest.raises(SchemaError, match="key changed"):
        list(snapshotter.read(chunk, "run"))
    snapshotter.close()


def test_an_abandoned_read_leaves_a_working_snapshotter(server):
    rows = ", ".join(f"({i}, REPEAT('x', 500))" for i in range(30_000))
    fresh_database(
        server,
        "abandoned",
        "CREATE TABLE t (id int primary key, v text)",
        f"INSERT INTO t VALUES {rows}",
    )
    snapshotter = source_of(server, "abandoned").open_snapshot()
    (chunk,) = snapshotter.plan(100_000)
    reading = snapshotter.read(chunk, "run")
    first = next(reading)
    assert 0 < first.rows.num_rows < 30_000
    reading.close()
    assert sum(batch.rows.num_rows for batch in snapshotter.read(chunk, "run")) == 30_000
    snapshotter.close()
    snapshotter.close()


def test_a_killed_connection_is_retryable_and_reopened(server):
    fresh_database(
        server, "killed", "CREATE TABLE t (id int primary key)", "INSERT INTO t VALUES (1)"
    )
    snapshotter = source_of(server, "killed").open_snapshot()
    (chunk,) = snapshotter.plan(10)
    sql.execute(server, f"KILL {snapshotter._connection.thread_id()}")
    with pytest.raises(RetryableError):
        list(snapshotter.read(chunk, "run"))
    assert len(events(snapshotter.read(chunk, "run"))) == 1
    snapshotter.close()


def test_where_and_patterns_choose_what_is_copied(server):
    fresh_database(
        server,
        "chosen",
        "CREATE TABLE a (id int primary key)",
        "INSERT INTO a VALUES (1), (2), (3), (4), (5)",
        "CREATE TABLE b (id int primary key)",
    )
    snapshotter = source_of(server, "chosen").open_snapshot()
    chunks = list(snapshotter.plan(2, tables=["chosen.a"], where="id % 2 = 1 OR id = 4 # few"))
    found = [e["key"] for chunk in chunks for e in events(snapshotter.read(chunk, "run"))]
    assert found == [b'{"id":1}', b'{"id":3}', b'{"id":4}', b'{"id":5}']
    with pytest.raises(SpecError, match="nothing_like_it"):
        list(snapshotter.plan(2, tables=["nothing_like_it"]))
    with pytest.raises(SpecError, match="exactly one table"):
        list(snapshotter.plan(2, where="id = 1"))
    # The latter close a parenthesis, and what they open behind it would undo a chunk's bounds.
    undoing = ("id > 4) OR (true", "id > 4) OR true #", "id > 4) OR true -- ", "id > 4) OR true /*")
    for wrong in ("no_column = 1", *undoing, "id > 4 /*! ) OR (true */", "true THEN 1 END #"):
        with pytest.raises(SpecError, match="where"):
            list(snapshotter.plan(2, tables=["a"], where=wrong))
    snapshotter.close()


def test_the_guard_notices_a_purged_log(server):
    fresh_database(server, "purged", "CREATE TABLE t (id int primary key)")
    snapshotter = source_of(server, "purged").open_snapshot()
    begun = snapshotter.begin()
    snapshotter.guard(begun)
    sql.execute(server, "INSERT INTO purged.t VALUES (1)", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    sql.execute(server, "INSERT INTO purged.t VALUES (2)")
    snapshotter.guard(begun)
    last = source_of(server, "purged").head()["file"]
    sql.execute(server, f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(PositionLostError, match="binlog_expire_logs_seconds"):
        snapshotter.guard(begun)
    snapshotter.close()
