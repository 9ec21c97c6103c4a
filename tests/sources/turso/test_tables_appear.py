"""A table made later is followed without a restart, and its rows of before are copied."""

import json
import sqlite3

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint
from airflow_provider_deltaforge.errors import FatalError
from airflow_provider_deltaforge.sources.reader_contract import ReportsAppearedTables
from airflow_provider_deltaforge.storage.records.tables import TableRecords
from tests.engine.scripted_run import NAME, kill
from tests.sources.turso.database import Writer, chunks_of, events_of, source, told
from tests.sources.turso.shop_run import ShopRun

MADE = "CREATE TABLE visits (id INTEGER PRIMARY KEY, version INTEGER, note TEXT)"
FILLED = "INSERT INTO visits VALUES (1, 0, 'a'), (2, 0, 'b')"


def tables_of(reader):
    assert isinstance(reader, ReportsAppearedTables)
    return [found.table for found in reader.appeared_tables()]


@pytest.fixture
def captured(path, opened):
    """A file with a capturing writer, followed from its head."""
    writer = Writer(path)
    writer.run("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
    before = source(path).head()
    yield writer, opened(before), before
    writer.close()


def test_native_a_table_made_and_filled_under_capture_needs_no_copy(captured):
    writer, reader, _ = captured
    writer.run(MADE, FILLED)
    assert [told(event)[3]["id"] for event in events_of(reader)] == [1, 2]
    assert tables_of(reader) == []


def test_native_a_table_made_from_a_query_is_copied(captured, path, opened):
    writer, reader, before = captured
    writer.run("INSERT INTO customers VALUES (1), (2)")
    writer.run("CREATE TABLE visits AS SELECT * FROM customers")
    *_, last = chunks_of(reader)
    [found] = reader.appeared_tables()
    assert found.table == "main.visits"
    taken = source(path)
    assert taken.covers(last.end, found.position)
    assert not taken.covers(before, found.position)
    assert tables_of(opened(last.end)) == []


def test_native_a_table_made_without_capture_is_copied_once(captured, path, opened):
    _, reader, before = captured
    other = Writer(path, capture=False)
    other.run(MADE, FILLED)
    other.close()
    # Nothing is captured: a chunk without rows moves the checkpoint to a place that knows it.
    *_, last = chunks_of(reader)
    assert tables_of(reader) == ["main.visits"]
    assert last.end["last_change_id"] == before["last_change_id"]
    assert tables_of(opened(last.end)) == []
    # Killed before that was stored.
    assert tables_of(opened(before)) == ["main.visits"]


def test_native_a_table_renamed_into_the_pattern_is_copied(path, opened):
    writer = Writer(path)
    writer.run("CREATE TABLE draft (id INTEGER PRIMARY KEY)", "INSERT INTO draft VALUES (1)")
    reader = opened(source(path, tables=["final%"]).head(), tables=["final%"])
    writer.run("ALTER TABLE draft RENAME TO final_orders")
    writer.run("INSERT INTO final_orders VALUES (2)")
    assert [told(event)[3] for event in events_of(reader)] == [{"id": 2}]
    assert tables_of(reader) == ["main.final_orders"]
    writer.close()


def test_triggers_a_table_with_rows_is_copied_once(path, opened):
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
    asked = {"cdc_mode": "triggers", "auto_create_triggers": True}
    before = source(path, **asked).head()
    reader = opened(before, **asked)
    with sqlite3.connect(path) as writer:
        writer.execute(MADE)
        writer.execute(FILLED)
        writer.execute("CREATE TABLE empty (id INTEGER PRIMARY KEY)")
    *_, last = chunks_of(reader)
    assert tables_of(reader) == ["main.visits"]
    with sqlite3.connect(path) as writer:
        writer.execute("INSERT INTO visits VALUES (3, 0, 'c')")
    assert [told(event)[3]["id"] for event in events_of(reader)] == [3]
    assert tables_of(opened(last.end, **asked)) == []
    # Killed between the making of the triggers and the first checkpoint behind it.
    assert tables_of(opened(before, **asked)) == ["main.visits"]


REBUILD = """
    BEGIN;
    CREATE TABLE fresh (id INTEGER PRIMARY KEY, version INTEGER, note TEXT, more INTEGER);
    INSERT INTO fresh SELECT *, 0 FROM visits;
    DROP TABLE visits;
    ALTER TABLE fresh RENAME TO visits;
    COMMIT;
"""
MOVED = """
    BEGIN;
    ALTER TABLE visits RENAME TO former;
    CREATE TABLE visits (id INTEGER PRIMARY KEY, version INTEGER, note TEXT);
    INSERT INTO visits SELECT * FROM former;
    COMMIT;
"""


@pytest.mark.parametrize("when", ["it runs", "it is stopped", "another looks first"])
@pytest.mark.parametrize("change", [REBUILD, MOVED])
def test_triggers_a_table_made_again_under_its_name_is_copied(path, opened, change, when):
    """Migrations do it where SQLite cannot alter a table; our triggers go, or go along."""
    asked = {"cdc_mode": "triggers", "auto_create_triggers": True, "tables": ["visits"]}
    with sqlite3.connect(path) as writer:
        writer.execute(MADE)
        writer.execute(FILLED)
    before = source(path, **asked).head()
    reader = opened(before, **asked) if when == "it runs" else None
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript(change)
    writer.execute("UPDATE visits SET note = 'changed' WHERE id = 1")
    if when == "another looks first":
        source(path, **asked).head()
    reader = reader or opened(before, **asked)
    assert events_of(reader) == []
    assert tables_of(reader) == ["main.visits"]
    writer.execute("DELETE FROM visits WHERE id = 2")
    *_, last = chunks_of(reader)
    assert tables_of(opened(last.end, **asked)) == []
    if change is MOVED:
        writer.execute("DELETE FROM former")
        assert events_of(reader) == []
    writer.close()


@pytest.mark.parametrize("more", ["", " WITHOUT ROWID"])
def test_triggers_the_last_event_of_a_row_holds_what_the_applications_triggers_did(
    path, opened, more
):
    """Triggers that were made after ours run before them."""
    asked = {"cdc_mode": "triggers", "auto_create_triggers": True}
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute(MADE + more)
    reader = opened(source(path, **asked).head(), **asked)
    for event, note in (("INSERT", "inserted"), ("UPDATE OF version", "updated")):
        writer.execute(
            f"CREATE TRIGGER {note} AFTER {event} ON visits BEGIN "
            f"UPDATE visits SET note = '{note}' WHERE id = NEW.id; END"
        )
    writer.execute("CREATE TRIGGER gone AFTER INSERT ON visits WHEN NEW.id = 9 BEGIN "
                   "DELETE FROM visits WHERE id = NEW.id; END")  # fmt: skip
    writer.execute(FILLED)
    writer.execute("UPDATE visits SET version = 7 WHERE id = 2")
    writer.execute("INSERT INTO visits VALUES (9, 0, '')")
    last = {}
    for event in map(told, events_of(reader)):
        last[(event[3] or event[2])["id"]] = event[3]
    rows = writer.execute("SELECT id, version, note FROM visits").fetchall()
    assert [tuple(row.values()) for row in last.values() if row] == rows
    assert last[9] is None
    writer.close()


def test_triggers_columns_may_have_the_names_of_ours(path, opened):
    asked = {"cdc_mode": "triggers", "auto_create_triggers": True}
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, last TEXT, now TEXT, op TEXT)")
    reader = opened(source(path, **asked).head(), **asked)
    writer.execute("INSERT INTO visits VALUES (1, 'a', 'b', 'c')")
    writer.execute("UPDATE visits SET last = 'd'")
    *_, changed = map(told, events_of(reader))
    assert changed[3] == {"id": 1, "last": "d", "now": "b", "op": "c"}
    writer.close()


def test_triggers_a_table_with_another_column_needs_no_copy(path, opened):
    asked = {"cdc_mode": "triggers", "auto_create_triggers": True}
    with sqlite3.connect(path) as writer:
        writer.execute(MADE)
        writer.execute(FILLED)
    before = source(path, **asked).head()
    reader = opened(before, **asked)
    with sqlite3.connect(path) as writer:
        writer.execute("ALTER TABLE visits ADD COLUMN more INTEGER")
    assert chunks_of(reader) == []
    with sqlite3.connect(path) as writer:
        writer.execute("INSERT INTO visits VALUES (3, 0, 'c', 7)")
    assert [told(event)[3]["more"] for event in events_of(reader)] == [7]
    assert tables_of(reader) == tables_of(opened(before, **asked)) == []


def test_polling_finds_all_rows_by_itself(path, opened):
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY)")
    reader = opened(source(path, cdc_mode="polling").head(), cdc_mode="polling")
    with sqlite3.connect(path) as writer:
        writer.execute(MADE)
        writer.execute(FILLED)
    assert [told(event)[3]["id"] for event in events_of(reader)] == [1, 2]
    assert tables_of(reader) == []


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({"cdc_mode": "triggers"}, "auto_create_triggers"),
        ({"cdc_mode": "polling", "tracking_column": "number"}, "tracking_column"),
    ],
)
def test_one_that_cannot_be_followed_is_named(path, opened, asked, remedy):
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, number INTEGER)")
    made = {**asked, "auto_create_triggers": True}
    reader = opened(source(path, **made).head(), **asked)
    with sqlite3.connect(path) as writer:
        writer.execute(MADE)
    with pytest.raises(FatalError, match=f"(?s)visits.*{remedy}|{remedy}.*visits"):
        chunks_of(reader)


@pytest.mark.parametrize("mode", [pytest.param("native", marks=pytest.mark.long), "triggers"])
def test_a_driver_killed_behind_the_checkpoint_leaves_the_copy_to_the_next(tmp_path, mode):
    run = ShopRun(tmp_path, mode=mode, tables='["*"]')
    run.begin()
    driver = run.start(hold=(CrashPoint.CHECKPOINT_STORED, 1))
    path = tmp_path / "shop.db"
    if mode == "native":
        other = Writer(path, capture=False)
        other.run(MADE, FILLED)
        other.close()
    else:
        with sqlite3.connect(path) as other:
            other.execute(MADE)
            other.execute(FILLED)
    kill(run.wait_held(driver))
    driver.wait()
    assert [one.table for one in TableRecords(run.store, NAME).arrivals()] == ["main.visits"]
    assert snapshots.requests(run.store, NAME) == []

    driver = run.start()
    run._wait(lambda: [r.state for r in snapshots.requests(run.store, NAME)] == ["done"], driver)
    run.shop._connection.execute("INSERT INTO visits VALUES (3, 0, 'c')")
    run.shop._connection.commit()
    run.wait_caught_up(driver)
    assert run.stop(driver) == 0
    seen = [json.loads(line) for line in run.output.read_text().splitlines()]
    assert [(event["op"], event["after"]["id"]) for event in seen] == [("r", 1), ("r", 2), ("c", 3)]
    run.shop.close()
