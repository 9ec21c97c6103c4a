"""A file that is replaced while it is followed."""

import sqlite3

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, RetryableError
from tests.sources.turso.database import Writer, chunks_of, events_of, told

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)"


def sqlite_file(path, *statements):
    writer = sqlite3.connect(path)
    for statement in (ORDERS, *statements):
        writer.execute(statement)
    writer.commit()
    writer.close()
    return path


def turso_file(path, *statements):
    writer = Writer(path)
    writer.run(ORDERS)
    for statement in statements:
        writer.run(statement)
    writer.close()
    return path


def replace(path, other):
    for end in ("-wal", "-tshm", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
        companion = other.with_name(other.name + end)
        if companion.exists():
            companion.replace(path.with_name(path.name + end))
    other.replace(path)


def test_native_stops(path, opened):
    turso_file(path, "INSERT INTO orders VALUES (1, 'tea')", "INSERT INTO orders VALUES (2, 'mug')")
    reader = opened()
    assert events_of(reader) == []
    replace(path, turso_file(path.with_name("other.db"), "INSERT INTO orders VALUES (1, 'new')"))

    for _ in range(2):  # Asking again makes it no better.
        with pytest.raises(PositionLostError, match="the database was replaced"):
            events_of(reader)


def test_triggers_stop(path, opened):
    settings = {"cdc_mode": "triggers", "auto_create_triggers": True}
    sqlite_file(path)
    reader = opened(**settings)
    with sqlite3.connect(path) as writer:
        writer.execute("INSERT INTO orders VALUES (1, 'tea')")
    writer.close()
    (chunk,) = chunks_of(reader)
    replace(path, sqlite_file(path.with_name("other.db"), "INSERT INTO orders VALUES (1, 'new')"))
    reader.acknowledge(chunk.end)

    for _ in range(2):
        with pytest.raises(PositionLostError, match="the database was replaced"):
            events_of(reader)


def test_polling_goes_on_in_the_new_file(path, opened):
    sqlite_file(path, "INSERT INTO orders VALUES (1, 'tea')")
    reader = opened(cdc_mode="polling")
    assert events_of(reader) == []
    rows = "INSERT INTO orders VALUES (1, 'tea'), (2, 'mug')"
    replace(path, sqlite_file(path.with_name("other.db"), rows))

    assert [told(event)[3]["id"] for event in events_of(reader)] == [2]


def test_a_copy_with_the_same_changes_is_followed(path, opened):
    turso_file(path, "INSERT INTO orders VALUES (1, 'tea')")
    other = path.with_name("other.db")
    for end in ("", "-wal"):
        made = path.with_name(path.name + end)
        if made.exists():
            other.with_name(other.name + end).write_bytes(made.read_bytes())
    reader = opened()
    assert events_of(reader) == []
    replace(path, other)
    assert events_of(reader) == []
    writer = Writer(path)
    writer.run("INSERT INTO orders VALUES (2, 'mug')")

    assert [told(event)[3]["id"] for event in events_of(reader)] == [2]
    writer.close()


def test_a_file_that_is_gone_is_waited_for(path, opened):
    sqlite_file(path, "INSERT INTO orders VALUES (1, 'tea')")
    reader = opened(cdc_mode="polling")
    aside = path.with_name("aside.db")
    path.replace(aside)
    with pytest.raises(RetryableError, match="is gone"):
        events_of(reader)
    aside.replace(path)
    with sqlite3.connect(path) as writer:
        writer.execute("INSERT INTO orders VALUES (2, 'mug')")
    writer.close()

    assert [told(event)[3]["id"] for event in events_of(reader)] == [2]
