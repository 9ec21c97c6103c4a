"""The stream of captured changes, against the real engine."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_deltaforge.errors import (
    FatalError,
    PositionLostError,
    RetryableError,
    SchemaError,
)
from tests.sources.turso.database import WatchfulSource, Writer, chunks_of, events_of, source, told


@pytest.fixture
def writer(path):
    writer = Writer(path)
    writer.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL)")
    yield writer
    writer.close()


def test_changes_come_with_both_images_in_commit_order(writer, opened):
    reader = opened()
    writer.run("INSERT INTO orders VALUES (1, 'tea', 2)", "INSERT INTO orders VALUES (2, 'mug', 5)")
    writer.run("UPDATE orders SET price = 3 WHERE id = 1")
    writer.run("DELETE FROM orders WHERE id = 2")

    events = events_of(reader)

    tea, mug = {"id": 1, "item": "tea", "price": 2.0}, {"id": 2, "item": "mug", "price": 5.0}
    assert [told(event) for event in events] == [
        ("c", "orders", None, tea),
        ("c", "orders", None, mug),
        ("u", "orders", tea, {**tea, "price": 3.0}),
        ("d", "orders", mug, None),
    ]
    assert [event["tx_end"] for event in events] == [False, True, True, True]
    assert [event["row"] for event in events] == [0, 1, 0, 0]
    assert len({event["tx_id"] for event in events}) == 3
    assert [event["key"] for event in events] == [
        b'{"id":1}',
        b'{"id":2}',
        b'{"id":1}',
        b'{"id":2}',
    ]
    assert {event["db"] for event in events} == {"main"}


def test_another_key_is_a_delete_and_an_insert(writer, opened):
    """The engine writes the new row where an insert has none."""
    reader = opened()
    writer.run("INSERT INTO orders (id, item) VALUES (1, 'a')", "UPDATE orders SET id = 5")
    first, gone, come = map(told, events_of(reader))
    assert (gone[0], gone[2], gone[3]) == ("d", first[3], None)
    assert (come[0], come[2], come[3]) == ("c", None, {**first[3], "id": 5})


def test_a_transaction_larger_than_a_batch_stays_one(writer, opened):
    reader = opened(batch_size=7)
    writer.many("INSERT INTO orders VALUES (?, 'x', 1)", [(i,) for i in range(20)])
    writer.run("INSERT INTO orders VALUES (100, 'y', 1)")

    chunks = chunks_of(reader)

    assert [chunk.open_tx for chunk in chunks] == [True, True, False, False]
    assert [chunk.continues for chunk in chunks] == [False, True, True, False]
    events = [row for chunk in chunks for row in reader.decode(chunk).rows.to_pylist()]
    assert [event["row"] for event in events] == [*range(20), 0]
    assert [event["tx_end"] for event in events] == [False] * 19 + [True, True]
    assert chunks[0].end == chunks[1].end
    assert reader.decode(chunks[2]).positions.after(0) == chunks[2].end


def test_every_replay_gives_the_same_ids(path, writer, opened):
    begin = source(path).head()
    writer.many("INSERT INTO orders VALUES (?, 'x', 1)", [(i,) for i in range(9)])
    writer.run("UPDATE orders SET item = 'z'")

    first = events_of(opened(begin, batch_size=4))
    again = events_of(opened(begin, batch_size=100))

    assert [event["event_id"] for event in first] == [event["event_id"] for event in again]
    assert len({event["event_id"] for event in first}) == 18


def test_a_chunk_survives_pickling(writer, opened):
    reader = opened()
    writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
    (chunk,) = chunks_of(reader)

    assert reader.decode(pickle.loads(pickle.dumps(chunk))).rows == reader.decode(chunk).rows


def test_reading_resumes_behind_each_transaction(path, writer, opened):
    begin = source(path).head()
    for number in range(5):
        writer.run(f"INSERT INTO orders VALUES ({number}, 'x', 1)")
    (chunk,) = chunks_of(opened(begin))
    positions = opened(begin).decode(chunk).positions

    left = [len(events_of(opened(positions.after(tx)))) for tx in range(5)]

    assert left == [4, 3, 2, 1, 0]


def test_tables_that_are_not_captured_move_the_position_only(path, writer, opened):
    reader = opened(tables=["orders"])
    writer.run("CREATE TABLE notes (a)", "INSERT INTO notes VALUES (1)")

    (chunk,) = chunks_of(reader)

    batch = reader.decode(chunk)
    assert batch.rows.num_rows == 0
    assert batch.end == source(path, tables=["orders"]).head()


class TestSpelling:
    """An insert is captured under the name its statement wrote, in whatever case."""

    @pytest.mark.parametrize("pattern", ["orders", "Orders", "*"])
    def test_an_insert_in_another_case_arrives(self, writer, opened, pattern):
        reader = opened(tables=[pattern])
        writer.run("INSERT INTO ORDERS VALUES (1, 'tea', 2)")
        writer.run('UPDATE "Orders" SET price = 3', "DELETE FROM oRdErS")

        events = events_of(reader)

        assert [(event["op"], event["table"]) for event in events] == [
            ("c", "orders"),
            ("u", "orders"),
            ("d", "orders"),
        ]

    def test_a_rename_among_such_rows_is_never_guessed(self, path, writer, opened):
        begin = source(path).head()
        writer.run("INSERT INTO ORDERS VALUES (1, 'tea', 2)")
        writer.run("ALTER TABLE orders RENAME COLUMN item TO thing")

        with pytest.raises(SchemaError, match=r"main\.orders was renamed, or altered"):
            events_of(opened(begin))

    def test_it_is_not_taken_for_an_uncaptured_row(self, path, writer, opened, caplog):
        reader = opened(kind=WatchfulSource)
        writer.run("INSERT INTO ORDERS VALUES (1, 'tea', 2)")

        assert len(events_of(reader)) == 1
        assert "not captured" not in caplog.text
        assert "writers" not in {found.check for found in source(path).preflight()}


class TestAlterTable:
    def test_each_row_has_the_columns_of_its_time(self, writer, opened):
        reader = opened()
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        writer.run("ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'")
        writer.run("INSERT INTO orders VALUES (2, 'mug', 5, 'blue')")
        writer.run("ALTER TABLE orders DROP COLUMN item")
        writer.run("UPDATE orders SET note = 'old' WHERE id = 1")

        assert [told(event)[3] for event in events_of(reader)] == [
            {"id": 1, "item": "tea", "price": 2.0},
            {"id": 2, "item": "mug", "price": 5.0, "note": "blue"},
            {"id": 1, "price": 2.0, "note": "old"},
        ]

    def test_a_replay_from_before_knows_the_old_columns(self, path, writer, opened):
        begin = source(path).head()
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        writer.run("ALTER TABLE orders DROP COLUMN item")
        writer.run("INSERT INTO orders VALUES (2, 5)")
        writer.run("DROP TABLE orders")

        images = [told(event)[3] for event in events_of(opened(begin))]

        assert images[:2] == [{"id": 1, "item": "tea", "price": 2.0}, {"id": 2, "price": 5.0}]

    def test_binlog_level_names_the_statement(self, writer, opened):
        reader = opened(native_cdc={"level": "binlog"})
        writer.run("ALTER TABLE orders ADD COLUMN note TEXT")
        writer.run("CREATE TABLE more (id INTEGER PRIMARY KEY)")
        writer.run("DROP TABLE more")

        events = events_of(reader)

        assert [(event["op"], event["table"]) for event in events] == [("ddl", "_ddl")] * 3
        assert b"ADD COLUMN note" in events[0]["ddl"]
        assert b"CREATE TABLE more" in events[1]["ddl"]
        assert b"DROP TABLE" in events[2]["ddl"]

    def test_a_rename_with_nothing_unread_is_followed(self, writer, opened):
        reader = opened()
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        events_of(reader)
        writer.run("ALTER TABLE orders RENAME COLUMN item TO thing")
        assert events_of(reader) == []
        writer.run("INSERT INTO orders VALUES (2, 'mug', 5)")

        (event,) = events_of(reader)

        assert told(event)[3] == {"id": 2, "thing": "mug", "price": 5.0}

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_rename_among_unread_rows_is_never_guessed(self, path, writer, opened, restarted):
        begin = source(path).head()
        reader = None if restarted else opened(begin)
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        writer.run("ALTER TABLE orders RENAME COLUMN item TO thing")
        writer.run("INSERT INTO orders VALUES (2, 'mug', 5)")

        with pytest.raises(SchemaError, match=r"main\.orders was renamed, or altered"):
            events_of(reader or opened(begin))

    def test_a_renamed_table_is_never_guessed(self, path, writer, opened):
        begin = source(path).head()
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        writer.run("ALTER TABLE orders RENAME TO sales")

        with pytest.raises(SchemaError, match=r"main\.orders"):
            events_of(opened(begin))


class TestLoss:
    def test_pruned_beyond_our_position(self, path, writer, opened):
        begin = source(path).head()
        for number in range(4):
            writer.run(f"INSERT INTO orders VALUES ({number}, 'x', 1)")
        writer.run("DELETE FROM turso_cdc WHERE change_id <= 7")

        with pytest.raises(PositionLostError, match="begins at change 8"):
            opened(begin)

    def test_pruned_up_to_our_position_is_fine(self, path, writer, opened):
        writer.run("INSERT INTO orders VALUES (1, 'x', 1)")
        begin = source(path).head()
        writer.run("INSERT INTO orders VALUES (2, 'x', 1)")
        writer.run(f"DELETE FROM turso_cdc WHERE change_id <= {begin['last_change_id']}")

        assert len(events_of(opened(begin))) == 1

    def test_emptied_so_that_it_counts_anew(self, writer, opened):
        reader = opened()
        writer.run("INSERT INTO orders VALUES (1, 'x', 1)")
        events_of(reader)
        writer.run("DELETE FROM turso_cdc")

        with pytest.raises(PositionLostError, match="counts from 1 again"):
            events_of(reader)

    def test_another_file_in_its_place(self, path, writer, opened):
        writer.run("INSERT INTO orders VALUES (1, 'x', 1)")
        position = dict(source(path).head())
        position["last_change_time"] -= 100

        with pytest.raises(PositionLostError, match="the database was replaced"):
            opened(position)


def test_a_file_without_capture_says_how_to_switch_it_on(tmp_path):
    plain = Writer(tmp_path / "plain.db", capture=False)
    plain.run("CREATE TABLE t (a)")

    with pytest.raises(FatalError, match="unstable_capture_data_changes_conn"):
        source(tmp_path / "plain.db").open(None)
    plain.close()


def test_a_missing_file_is_not_made(tmp_path):
    with pytest.raises(FatalError, match="there is no file"):
        source(tmp_path / "none.db").open(None)
    assert not (tmp_path / "none.db").exists()


def test_a_missing_file_is_named_as_the_process_looked_for_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(FatalError, match=f"there is no file {tmp_path}/none.db; .* absolute"):
        source(Path("none.db")).open(None)


def test_a_file_that_one_process_has_for_itself(path, other_process):
    other_process("import turso; c = turso.connect(PATH); c.execute('CREATE TABLE t (a)')", path)

    with pytest.raises(RetryableError, match="multiprocess_wal"):
        source(path).open(None)


def test_a_file_that_sqlite_has_open(path, writer, other_process):
    other_process(
        "import sqlite3; c = sqlite3.connect(PATH); c.execute('PRAGMA journal_mode=wal'); "
        "c.execute('SELECT count(*) FROM orders').fetchall()",
        path,
    )

    with pytest.raises(RetryableError, match="is open in SQLite"):
        source(path).open(None)


def test_a_file_of_concurrent_writers_is_refused(path):
    alone = (
        "import sys, turso; c = turso.connect(sys.argv[1], isolation_level=None); "
        "c.execute(\"PRAGMA journal_mode = 'mvcc'\").fetchall(); c.execute('CREATE TABLE t (a)')"
    )
    subprocess.run([sys.executable, "-c", alone, str(path)], check=True)

    with pytest.raises(FatalError, match="journal_mode mvcc"):
        source(path).open(None)


def test_a_capture_table_of_another_name(tmp_path):
    writer = Writer(tmp_path / "own.db", table="changes")
    writer.run("CREATE TABLE t (a INTEGER PRIMARY KEY)")
    reader = source(tmp_path / "own.db", cdc_table_name="changes").open(None)
    writer.run("INSERT INTO t VALUES (1)")

    assert [event["table"] for event in events_of(reader)] == ["t"]
    reader.close()
    writer.close()
