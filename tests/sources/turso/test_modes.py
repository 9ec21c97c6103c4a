"""Triggers, polling and auto, on files of both engines."""

import sqlite3

import pytest

from airflow_provider_deltaforge.errors import (
    FatalError,
    PositionLostError,
    RetryableError,
    SchemaError,
    SpecError,
)
from airflow_provider_deltaforge.sources.turso.files import FileDatabase
from airflow_provider_deltaforge.sources.turso.shadows import Shadows, misfits
from airflow_provider_deltaforge.sources.turso.source import TursoSource
from airflow_provider_deltaforge.sources.turso.tables import CapturedTables, captured_tables
from airflow_provider_deltaforge.sources.turso.tuning import TursoTuning
from tests.sources.turso.database import Writer, chunks_of, copied, events_of, source, told

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, price REAL)"
NOTES = "CREATE TABLE notes (word TEXT PRIMARY KEY, pic BLOB) WITHOUT ROWID"


class HastySource(TursoSource):
    """A source that hardly waits for others who have the file."""

    tuning = TursoTuning(busy_s=0.05)


class SqliteWriter:
    """An application that knows nothing of Turso; each ``run`` is a transaction."""

    def __init__(self, path):
        self.connection = sqlite3.connect(path)

    def run(self, *statements):
        for statement in statements:
            self.connection.execute(statement)
        self.connection.commit()

    def close(self):
        self.connection.close()


def turso_writer(path):
    return Writer(path, capture=False)


@pytest.fixture(params=[SqliteWriter, turso_writer], ids=["sqlite", "turso"])
def writer(request, path):
    writer = request.param(path)
    writer.run(ORDERS)
    yield writer
    writer.close()


@pytest.fixture
def sqlite_writer(path):
    writer = SqliteWriter(path)
    writer.run(ORDERS)
    yield writer
    writer.close()


TRIGGERS = {"cdc_mode": "triggers", "auto_create_triggers": True}


class TestTriggers:
    def test_every_change_arrives_in_order(self, writer, opened):
        reader = opened(**TRIGGERS)
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2), (2, 'mug', 9e999)")
        writer.run("UPDATE orders SET price = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")

        tea, mug = {"id": 1, "item": "tea", "price": 2.0}, {"id": 2, "item": "mug"}
        assert [told(event) for event in events_of(reader)] == [
            ("c", "orders", None, tea),
            ("c", "orders", None, {**mug, "price": "Infinity"}),
            ("u", "orders", tea, {**tea, "price": 3.0}),
            ("d", "orders", {**mug, "price": "Infinity"}, None),
        ]

    def test_tables_share_one_order_over_small_batches(self, sqlite_writer, opened):
        sqlite_writer.run(NOTES)
        reader = opened(**TRIGGERS, batch_size=3)
        for number in range(10):
            sqlite_writer.run(
                f"INSERT INTO orders VALUES ({number}, 'x', 1)",
                f"INSERT INTO notes VALUES ('n{number}', x'00ff')",
            )

        events = events_of(reader)

        assert [event["table"] for event in events] == ["orders", "notes"] * 10
        assert told(events[1])[3] == {"word": "n0", "pic": {"_base64": "AP8="}}
        assert len({event["event_id"] for event in events}) == 20

    @pytest.mark.parametrize("names", [("log_d", "log"), ("log", "log_d")])
    def test_a_shadow_may_have_the_name_of_another_tables_trigger(
        self, path, sqlite_writer, names, opened
    ):
        database = FileDatabase(path, "sqlite")
        captured = CapturedTables(("*",), "turso_cdc")
        shadows = Shadows(database, captured, create=True)
        for name in names:
            sqlite_writer.run(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v)")
            assert name in shadows.prepared(0)
        assert misfits(database, captured_tables(database, captured)) == {}
        database.close()

        reader = opened(**TRIGGERS)
        for name in names:
            sqlite_writer.run(f"INSERT INTO {name} VALUES (1, 2)", f"DELETE FROM {name}")
        assert [(e["op"], e["table"]) for e in events_of(reader)] == [
            (op, name) for name in names for op in "cd"
        ]

    def test_only_what_is_acknowledged_is_cleaned_up(self, path, writer, opened):
        begin = source(path, **TRIGGERS).head()
        reader = opened(begin, **TRIGGERS)
        for number in range(5):
            writer.run(f"INSERT INTO orders VALUES ({number}, 'x', 1)")
        chunk = reader.read(5)
        halfway = reader.decode(chunk).positions.after(2)
        reader.acknowledge(halfway)
        reader.close()

        again = opened(halfway, **TRIGGERS)

        assert [told(event)[3]["id"] for event in events_of(again)] == [3, 4]
        with pytest.raises(PositionLostError, match="cleaned up"):
            opened(begin, **TRIGGERS)

    def test_a_reader_beside_the_pipeline_cleans_nothing(self, path, writer, opened):
        begin = source(path, **TRIGGERS).head()
        writer.run("INSERT INTO orders VALUES (1, 'x', 1)")
        beside = source(path, **TRIGGERS).beside("check").open(begin)
        chunk = beside.read(5)
        beside.acknowledge(chunk.end)
        beside.close()

        assert len(events_of(opened(begin, **TRIGGERS))) == 1

    def test_without_leave_to_make_them_the_error_holds_the_sql(self, path, sqlite_writer, opened):
        with pytest.raises(FatalError, match="auto_create_triggers") as caught:
            opened(cdc_mode="triggers")

        script = str(caught.value).partition("):\n")[2]
        sqlite_writer.connection.executescript(script)
        reader = opened(cdc_mode="triggers")
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        assert [event["op"] for event in events_of(reader)] == ["c"]

    def test_a_new_column_is_never_missed_silently(self, sqlite_writer, opened):
        reader = opened(**TRIGGERS)
        sqlite_writer.run("ALTER TABLE orders ADD COLUMN note TEXT")
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2, 'green')")

        with pytest.raises(SchemaError, match=r"main\.orders was altered"):
            events_of(reader)

    def test_a_new_column_before_the_next_change_is_followed(self, sqlite_writer, opened):
        reader = opened(**TRIGGERS)
        sqlite_writer.run("ALTER TABLE orders ADD COLUMN note TEXT")
        assert events_of(reader) == []
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2, 'green')")

        (event,) = events_of(reader)
        assert told(event)[3] == {"id": 1, "item": "tea", "price": 2.0, "note": "green"}

    def test_what_is_delivered_does_not_stop_a_new_column(self, sqlite_writer, opened):
        reader = opened(**TRIGGERS)
        for number in range(3):  # Faster than the shadows are cleaned up.
            sqlite_writer.run(f"INSERT INTO orders VALUES ({number}, 'tea', 2)")
            (chunk,) = chunks_of(reader, 0.05)
            reader.acknowledge(chunk.end)
        sqlite_writer.run("ALTER TABLE orders ADD COLUMN note TEXT")
        assert events_of(reader) == []
        sqlite_writer.run("INSERT INTO orders VALUES (9, 'mug', 5, 'blue')")

        (event,) = events_of(reader)
        assert told(event)[3]["note"] == "blue"

    @pytest.mark.parametrize("change", ["RENAME TO sales", "DROP TABLE"])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_table_gone_among_unread_changes_is_never_skipped(
        self, path, sqlite_writer, opened, change, restarted
    ):
        begin = source(path, **TRIGGERS).head()
        reader = None if restarted else opened(begin, **TRIGGERS)
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        drop = change == "DROP TABLE"
        sqlite_writer.run("DROP TABLE orders" if drop else f"ALTER TABLE orders {change}")

        with pytest.raises(SchemaError, match=r"main\.orders was renamed or dropped"):
            events_of(reader or opened(begin, **TRIGGERS))

    def test_its_name_back_makes_it_readable_again(self, path, sqlite_writer, opened):
        begin = source(path, **TRIGGERS).head()
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        sqlite_writer.run("ALTER TABLE orders RENAME TO sales")
        with pytest.raises(SchemaError, match="give it its name back"):
            opened(begin, **TRIGGERS)
        sqlite_writer.run("ALTER TABLE sales RENAME TO orders")

        assert [told(event)[3]["id"] for event in events_of(opened(begin, **TRIGGERS))] == [1]

    @pytest.mark.parametrize("cleaned", [False, True])
    def test_a_rename_with_nothing_unread_is_followed(self, sqlite_writer, opened, cleaned):
        reader = opened(**TRIGGERS)
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        (chunk,) = chunks_of(reader)
        if cleaned:
            reader.acknowledge(chunk.end)
        sqlite_writer.run("ALTER TABLE orders RENAME TO sales")
        assert events_of(reader) == []
        sqlite_writer.run("INSERT INTO sales VALUES (2, 'mug', 5)")

        (event,) = events_of(reader)

        assert told(event)[:2] == ("c", "sales")
        kept = sqlite_writer.connection.execute(
            "SELECT count(*) FROM sqlite_schema WHERE name LIKE '%cdc_orders%'"
        ).fetchone()
        assert kept == (0 if cleaned else 1,)

    def test_a_rolled_back_change_never_arrives(self, sqlite_writer, opened):
        reader = opened(**TRIGGERS)
        sqlite_writer.connection.execute("INSERT INTO orders VALUES (1, 'tea', 2)")
        sqlite_writer.connection.rollback()
        sqlite_writer.run("INSERT INTO orders VALUES (2, 'mug', 2)")

        assert [told(event)[3]["id"] for event in events_of(reader)] == [2]

    def test_a_reader_of_the_application_locks_nobody_out(self, path, sqlite_writer, opened):
        reader = opened(kind=HastySource, **TRIGGERS)
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2), (2, 'mug', 5)")
        (chunk,) = chunks_of(reader)
        application = sqlite3.connect(path, timeout=0.05)
        cursor = application.execute("SELECT * FROM orders")
        cursor.fetchone()  # From here to its end, nobody can commit.
        reader.acknowledge(chunk.end)
        cursor.close()

        application.execute("INSERT INTO orders VALUES (3, 'pot', 1)")
        application.commit()

        assert [told(event)[3]["id"] for event in events_of(reader)] == [3]
        application.close()


class TestPolling:
    def test_inserts_arrive_and_reading_resumes(self, path, writer, opened):
        begin = source(path, cdc_mode="polling").head()
        writer.run("INSERT INTO orders VALUES (7, 'tea', 2), (9, 'mug', 3)")
        reader = opened(begin, cdc_mode="polling")
        chunk = reader.read(5)
        batch = reader.decode(chunk)
        writer.run("INSERT INTO orders VALUES (12, 'pot', 3)")

        later = opened(batch.positions.after(0), cdc_mode="polling")

        assert batch.end == {
            "mode": "polling",
            "last_change_id": None,
            "table_positions": {"orders": 9},
        }
        assert [told(event)[3]["id"] for event in events_of(later)] == [9, 12]
        assert {event["op"] for event in batch.rows.to_pylist()} == {"c"}

    def test_a_number_that_was_updated_is_no_older_database(self, writer, opened):
        writer.run("CREATE TABLE logs (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT)")
        reader = opened(cdc_mode="polling", tables=["logs"])
        writer.run(
            "INSERT INTO logs (word) VALUES ('a'), ('b')", "UPDATE logs SET id = 9 WHERE id = 1"
        )
        assert [told(event)[3]["id"] for event in events_of(reader)] == [2, 9]
        writer.run("INSERT INTO logs (word) VALUES ('c')")

        assert [told(event)[3]["id"] for event in events_of(reader)] == [10]

    def test_a_word_in_a_comment_is_no_setting_of_the_table(self, writer, opened):
        writer.run(
            "CREATE TABLE logs (id INTEGER PRIMARY KEY, -- no AUTOINCREMENT\n"
            "word TEXT DEFAULT 'AUTOINCREMENT')"
        )
        reader = opened(cdc_mode="polling", tables=["logs"])
        writer.run("INSERT INTO logs VALUES (1, 'a'), (2, 'b')")
        assert [told(event)[3]["id"] for event in events_of(reader)] == [1, 2]
        writer.run("DELETE FROM logs WHERE id = 2")
        writer.run("INSERT INTO logs VALUES (3, 'c')")
        assert [told(event)[3]["id"] for event in events_of(reader)] == [3]

    def test_rows_with_one_tracking_value_stay_together(self, path, sqlite_writer, opened):
        settings = {"cdc_mode": "polling", "tracking_column": "price", "batch_size": 2}
        begin = source(path, **settings).head()
        sqlite_writer.run("INSERT INTO orders VALUES (1,'a',5),(2,'b',5),(3,'c',5),(4,'d',6)")

        events = events_of(opened(begin, **settings))

        assert [event["tx_end"] for event in events] == [False, False, True, True]
        assert [told(event)[3]["id"] for event in events] == [1, 2, 3, 4]

    def test_a_table_without_rowid_needs_a_column(self, sqlite_writer, opened):
        sqlite_writer.run(NOTES)

        with pytest.raises(FatalError, match=r"main\.notes is WITHOUT ROWID"):
            opened(cdc_mode="polling")
        with pytest.raises(FatalError, match="has no column 'moment'"):
            opened(cdc_mode="polling", tables=["notes"], tracking_column="moment")
        reader = opened(cdc_mode="polling", tables=["notes"], tracking_column="word")
        sqlite_writer.run("INSERT INTO notes VALUES ('a', NULL)")
        assert [event["key"] for event in events_of(reader)] == [b'{"word":"a"}']


class TestAuto:
    def test_native_comes_first(self, path):
        writer = Writer(path)
        writer.run(ORDERS)

        assert source(path, cdc_mode="auto").head()["mode"] == "native"
        writer.close()

    def test_then_triggers_that_are_there(self, path, writer):
        source(path, **TRIGGERS).head()

        assert source(path, cdc_mode="auto").head()["mode"] == "triggers"

    @pytest.mark.parametrize(("triggers", "mode"), [(True, "triggers"), (False, "polling")])
    def test_changes_of_tables_are_never_left_out_silently(self, path, writer, triggers, mode):
        level = {"native_cdc": {"level": "binlog"}}
        taken = source(path, cdc_mode="auto", auto_create_triggers=triggers, **level)
        (found,) = taken.preflight()

        assert found.verdict == "fail"
        with pytest.raises(SpecError, match=rf"source\.native_cdc: binlog .* by {mode}"):
            taken.open(None)

    def test_then_polling(self, path, writer):
        assert source(path, cdc_mode="auto").head()["mode"] == "polling"

    def test_a_begun_pipeline_keeps_its_mode(self, path, writer, opened):
        begin = source(path, cdc_mode="auto").head()
        source(path, **TRIGGERS).head()
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")

        assert [event["op"] for event in events_of(opened(begin, cdc_mode="auto"))] == ["c"]
        with pytest.raises(PositionLostError, match="a position of the mode polling"):
            opened(begin, **TRIGGERS)


class TestAutoSinceTheFileOffersMore:
    """What a pipeline that has begun needs must go on in the mode it began with."""

    @pytest.fixture(params=["polling", "triggers"])
    def began(self, request, path, opened):
        """Return where a pipeline stands whose file is captured since."""
        writer = Writer(path, capture=False)
        writer.run(ORDERS)
        if request.param == "triggers":
            source(path, **TRIGGERS).head()
        began = source(path, cdc_mode="auto").head()
        assert began["mode"] == request.param
        writer.connection.execute("PRAGMA unstable_capture_data_changes_conn('full')")
        writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        assert source(path, cdc_mode="auto").head()["mode"] == "native"
        yield began
        writer.close()

    def test_a_copy_goes_on(self, path, began):
        taken = source(path, cdc_mode="auto")
        snapshotter = taken.open_snapshot()
        snapshotter.guard(began)
        (chunk,) = snapshotter.plan(10)
        snapshotter.close()
        in_a_task = taken.open_snapshot()
        (batch,) = in_a_task.read(chunk, "run")
        in_a_task.close()

        assert [told(event)[3]["id"] for event in batch.rows.to_pylist()] == [1]
        assert batch.end["mode"] == began["mode"]

    def test_the_head_can_be_reached(self, path, began, opened):
        taken = source(path, cdc_mode="auto")
        head = taken.head()
        reader = opened(began, cdc_mode="auto")
        (chunk,) = chunks_of(reader)

        assert taken.compare(began, head) == -1
        assert taken.compare(head, began) == 1
        assert taken.compare(reader.decode(chunk).end, head) == 0

    def test_a_mode_the_document_asks_for_is_no_guess(self, path, began):
        snapshotter = source(path, cdc_mode="native").open_snapshot()

        with pytest.raises(PositionLostError, match=r"source\.cdc_mode is native"):
            snapshotter.guard(began)
        snapshotter.close()


class TestSnapshot:
    def test_it_copies_tables_without_rowid_by_their_key(self, path, sqlite_writer):
        sqlite_writer.run(
            "CREATE TABLE pairs (a TEXT, b BLOB, v INT, PRIMARY KEY (a, b)) WITHOUT ROWID"
        )
        for a in "xyz":
            for b in range(7):
                sqlite_writer.run(f"INSERT INTO pairs VALUES ('{a}', x'0{b}', {b})")

        rows = copied(source(path, **TRIGGERS), chunk_rows=4, tables=["pairs"])

        assert [told(row)[3]["v"] for row in rows] == [*range(7)] * 3
        assert len({row["event_id"] for row in rows}) == 21

    def test_triggers_are_there_before_the_first_row_is_read(self, path, sqlite_writer, opened):
        taken = source(path, **TRIGGERS)
        snapshotter = taken.open_snapshot()
        begin = snapshotter.begin()
        sqlite_writer.run("INSERT INTO orders VALUES (1, 'tea', 2)")
        snapshotter.close()

        assert len(events_of(opened(begin, **TRIGGERS))) == 1


def test_a_file_open_in_turso_is_not_read_by_sqlite(path, sqlite_writer, other_process, opened):
    reader = opened(cdc_mode="polling")
    other_process(
        "import turso; c = turso.connect(PATH, experimental_features='multiprocess_wal'); "
        "c.execute('SELECT count(*) FROM orders').fetchall()",
        path,
    )

    with pytest.raises(RetryableError, match="is open in Turso"):
        events_of(reader)
