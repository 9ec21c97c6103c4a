"""Places of the table of changes by time and number: between two transactions."""

import json
import time

import pytest

from airflow_provider_deltaforge.errors import PositionLostError, SpecError
from tests.sources.turso.database import CAPTURE, Writer, events_of, source

assert CAPTURE


@pytest.fixture
def writer(tmp_path):
    writer = Writer(tmp_path / "shop.db")
    yield writer
    writer.close()


def ids(followed, place):
    reader = followed.open(place)
    try:
        return [json.loads(event["after"])["id"] for event in events_of(reader)]
    finally:
        reader.close()


def test_whole_transactions_lie_behind_a_place_with_the_tables_of_then(writer, tmp_path):
    followed = source(tmp_path / "shop.db")
    writer.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    writer.run("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    first = followed.head()
    time.sleep(1.1)  # Changes bear whole seconds.
    between_ms = int(time.time() * 1000)
    writer.run("ALTER TABLE t ADD COLUMN note TEXT")
    writer.run("INSERT INTO t VALUES (3, 'x')")

    assert ids(followed, followed.place_at_time(between_ms)) == [3]
    inside = followed.place_at(str(first["last_change_id"]))  # The end of a transaction.
    assert ids(followed, inside) == [1, 2, 3]
    assert ids(followed, followed.place_at("1")) == [1, 2, 3]
    followed.reach(first)
    assert followed.place_at(json.dumps(first)) == first
    with pytest.raises(SpecError, match="is no place"):
        followed.place_at("soon")

    writer.run("DELETE FROM turso_cdc WHERE change_id <= 4")
    with pytest.raises(PositionLostError, match="begins at change"):
        followed.place_at("2")
    with pytest.raises(PositionLostError):
        followed.reach({**first, "last_change_id": 1})


def test_triggers_have_what_was_not_cleaned_up(writer, tmp_path):
    writer.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    followed = source(tmp_path / "shop.db", cdc_mode="triggers", auto_create_triggers=True)
    times = []
    reader = followed.open(followed.head())
    for number in (1, 2, 3):
        time.sleep(0.01)
        times.append(int(time.time() * 1000))
        writer.run(f"INSERT INTO t VALUES ({number})")

    assert ids(followed.beside("other"), followed.place_at_time(times[1] - 1)) == [2, 3]
    assert ids(followed.beside("other"), followed.place_at("3")) == [3]
    reader.acknowledge(followed.place_at("2"))
    reader.close()
    assert ids(followed.beside("other"), followed.place_at_time(times[2] - 1)) == [3]
    for lost in (lambda: followed.place_at_time(times[0]), lambda: followed.place_at("1")):
        with pytest.raises(PositionLostError, match="done up to change 1"):
            lost()
    with pytest.raises(PositionLostError, match="were cleaned up"):
        followed.reach({**followed.head(), "last_change_id": 0})


def test_without_capture_there_is_no_log(tmp_path, writer):
    writer.run("CREATE TABLE t (id INTEGER PRIMARY KEY, at INTEGER)")
    polled = source(tmp_path / "shop.db", cdc_mode="polling", tracking_column="at")
    with pytest.raises(SpecError, match="nothing can be delivered again"):
        polled.place_at_time(0)
