"""What the preflight finds, and what a running stream warns of."""

import _sqlite3
import ctypes
import sqlite3
from contextlib import closing

import pytest

from tests.sources.turso.database import WatchfulSource, Writer, events_of, source


@pytest.fixture
def writer(path):
    writer = Writer(path)
    writer.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    yield writer
    writer.close()


def verdicts(taken):
    return {finding.check: finding.verdict for finding in taken.preflight()}


def test_all_is_well(path, writer):
    assert verdicts(source(path)) == {
        "file": "ok",
        "cdc_mode": "ok",
        "tables": "ok",
        "capture": "ok",
    }


def test_auto_says_what_it_chose(path, writer):
    found = {
        finding.check: finding.message for finding in source(path, cdc_mode="auto").preflight()
    }

    assert found["cdc_mode"] == "changes are followed by native (chosen by auto)"


@pytest.mark.parametrize(
    ("settings", "check", "verdict"),
    [
        ({"tables": ["ordres"]}, "tables", "fail"),
        ({"tables": ["orders", "ordres"]}, "patterns", "warn"),
        ({"cdc_table_name": "changes"}, "file", "fail"),
        ({"cdc_mode": "triggers"}, "triggers", "fail"),
        ({"cdc_mode": "triggers", "auto_create_triggers": True}, "triggers", "ok"),
        ({"cdc_mode": "polling"}, "polling", "warn"),
        ({"cdc_mode": "polling"}, "rowid", "warn"),
        ({"cdc_mode": "polling", "tracking_column": "moment"}, "tracking_column", "fail"),
        ({"url": "/no/such/file.db"}, "file", "fail"),
    ],
)
def test_what_is_wrong_is_found(path, writer, settings, check, verdict):
    assert verdicts(source(path, **settings))[check] == verdict


def test_it_changes_nothing(path, writer):
    before = writer.rows("SELECT name FROM sqlite_schema")

    source(path, cdc_mode="triggers", auto_create_triggers=True).preflight()

    assert writer.rows("SELECT name FROM sqlite_schema") == before


def test_a_table_without_key_is_named(path, writer):
    writer.run("CREATE TABLE loose (a)")

    (found,) = [f for f in source(path).preflight() if f.check == "primary_key"]
    assert found.data == {"tables": ["main.loose"]}


class TestWritersWithoutCapture:
    @pytest.fixture
    def careless(self, path, writer):
        careless = Writer(path, capture=False)
        yield careless
        careless.close()

    def test_preflight_names_the_table(self, path, writer, careless):
        careless.run("INSERT INTO orders VALUES (1, 'unseen')")
        writer.run("INSERT INTO orders VALUES (2, 'seen')")

        (found,) = [f for f in source(path).preflight() if f.check == "writers"]

        assert found.verdict == "warn"
        assert found.data == {"tables": ["main.orders"]}

    @pytest.mark.parametrize(
        "change", ["INSERT INTO orders VALUES (9, 'unseen')", "DELETE FROM orders WHERE id = 1"]
    )
    def test_the_stream_warns_of_it(self, path, writer, careless, caplog, change):
        writer.run("INSERT INTO orders VALUES (1, 'seen')")
        reader = source(path, WatchfulSource).open(None)
        writer.run("INSERT INTO orders VALUES (2, 'seen')", "DELETE FROM orders WHERE id = 2")
        events_of(reader)
        assert "not captured" not in caplog.text

        careless.run(change)
        events_of(reader)

        assert "main.orders" in caplog.text
        assert "rows that were not captured" in caplog.text
        reader.close()


def test_a_trigger_whose_change_comes_before_the_insert_is_named(path, writer):
    writer.run("CREATE TRIGGER late AFTER UPDATE ON orders BEGIN SELECT 1; END")
    assert "insert_triggers" not in verdicts(source(path))
    writer.run("CREATE TRIGGER touch after  insert ON orders BEGIN SELECT 1; END")
    (found,) = [f for f in source(path).preflight() if f.check == "insert_triggers"]
    assert (found.verdict, found.data["tables"]) == ("warn", ["main.orders"])


def test_a_table_made_anew_is_no_reason_to_warn(path, writer, caplog):
    writer.run("INSERT INTO orders VALUES (1, 'seen')")
    reader = source(path, WatchfulSource).open(None)
    writer.run("DROP TABLE orders", "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    writer.run("INSERT INTO orders VALUES (1, 'seen')")

    assert len(events_of(reader)) == 1
    assert "not captured" not in caplog.text
    assert "writers" not in verdicts(source(path))
    reader.close()


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"url": ":memory:"}, "source.url"),
        ({"auth_token": "planted"}, "source.auth_token"),
        ({"cdc_mode": "polling", "native_cdc": {"level": "binlog"}}, "source.native_cdc"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_key(settings, key):
    taken = source("shop.db", **settings)

    (said,) = taken.unbuilt()

    assert said.startswith(key)
    assert "planted" not in said


class TestWritersWithoutTriggers:
    """Triggers are SQLite's own, and a connection may switch them off."""

    def test_the_stream_warns_of_rows_that_no_trigger_has_seen(self, path, caplog):
        with closing(sqlite3.connect(path)) as sqlite:
            sqlite.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
            reader = source(
                path, WatchfulSource, cdc_mode="triggers", auto_create_triggers=True
            ).open(None)
            for number in range(5):
                sqlite.execute(f"INSERT INTO orders VALUES ({number}, 'seen')")
            sqlite.execute("INSERT OR REPLACE INTO orders VALUES (1, 'again')")
            sqlite.execute("DELETE FROM orders WHERE id = 2")
            sqlite.commit()
        assert len(events_of(reader)) == 7
        assert events_of(reader) == []
        assert "no trigger" not in caplog.text

        written_without_triggers(path, "INSERT INTO orders VALUES (9, 'unseen')")
        assert events_of(reader) == []
        assert "main.orders: +1 rows that no trigger has seen" in caplog.text
        reader.close()


def written_without_triggers(path, statement):
    """Run a statement over a connection as an application may set it up in C."""
    library = ctypes.CDLL(_sqlite3.__file__)  # What Python itself uses.
    opened, is_on = ctypes.c_void_p(), ctypes.c_int(9)
    assert library.sqlite3_open(str(path).encode(), ctypes.byref(opened)) == 0
    enable_trigger = 1003
    library.sqlite3_db_config(opened, enable_trigger, ctypes.c_int(0), ctypes.byref(is_on))
    assert is_on.value == 0
    assert library.sqlite3_exec(opened, statement.encode(), None, None, None) == 0
    library.sqlite3_close(opened)
