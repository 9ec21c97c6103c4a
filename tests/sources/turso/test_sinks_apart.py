"""Sinks that stand at different places: polling has one order for each table, not one for all."""

import sqlite3
import threading

import orjson
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.lane.lane import Lane
from airflow_provider_deltaforge.errors import PositionLostError
from airflow_provider_deltaforge.sinks.memory import memory_log
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.control import Control
from tests.sources.turso.database import source
from tests.waiting import PATIENCE_S, wait_until

DOCUMENT = """
apiVersion: deltaforge/v1
kind: Pipeline
metadata: {{name: {name}, tenant: tests}}
spec:
  source:
    type: turso
    config: {{id: app, url: {path}, tables: ["*"], cdc_mode: polling, poll_interval_ms: 5}}
  batch: {{max_events: 1, max_ms: 10}}
  sinks:
    - {{type: memory, config: {{id: one, log: {name}-one}}}}
    - {{type: memory, config: {{id: two, log: {name}-two}}}}
"""


def at(orders, notes):
    """Return a position."""
    grown = {"notes": notes, "orders": orders}
    return {
        "mode": "polling",
        "last_change_id": None,
        "table_positions": {name: last for name, last in grown.items() if last is not None},
    }


def held(log):
    """Return table and key of what a sink was given."""
    told = (orjson.loads(message.value) for message in memory_log(log).messages())
    return {(event["source"]["table"], event["after"]["id"]) for event in told}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "app.db"
    writer = sqlite3.connect(path)
    for table in ("orders", "notes"):
        writer.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
        writer.executemany(f"INSERT INTO {table} VALUES (?)", [(n,) for n in range(1, 5)])
    writer.commit()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("one", "two"),
    [((3, 1), (1, 3)), ((1, 3), (3, 1)), ((3, 1), (1, 1)), ((None, 2), (2, None))],
)
def test_no_sink_misses_a_row(path, tmp_path, one, two):
    name = f"apart-{tmp_path.name}".replace("_", "-")
    location = StoreLocation.from_dsn(f"memory://{name}")
    store, document = location.create(), DOCUMENT.format(name=name, path=path)
    pipelines.apply(store, document)
    control = Control(store, name)
    control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 1}))
    checkpoints = Checkpoints(store, name, "app")
    store.transact([checkpoints.put("one", at(*one)), checkpoints.put("two", at(*two))])
    control.take_epoch("driver")
    lane = Lane(
        TaskContext.open(DriverAssignment(document, location, "driver", 1), renew=True), 600.0
    )
    ended = []
    running = threading.Thread(target=lambda: ended.append(lane.run()), daemon=True)
    running.start()

    end = at(4, 4)
    wait_until(lambda: ended or checkpoints.load() == {"one": end, "two": end})

    control.update(lambda old: old.model_copy(update={"desired": "stopped"}))
    running.join(PATIENCE_S)
    assert [outcome.why for outcome in ended] == ["stopped"]
    for sink, (orders, notes) in (("one", one), ("two", two)):
        owed = {("orders", n) for n in range((orders or 0) + 1, 5)}
        owed |= {("notes", n) for n in range((notes or 0) + 1, 5)}
        assert held(f"{name}-{sink}") >= owed


def test_neither_of_two_covers_the_other(path):
    taken = source(path, cdc_mode="polling")
    one, two = at(3, 1), at(1, 3)

    assert not taken.covers(one, two)
    assert not taken.covers(two, one)
    assert taken.covers(at(3, 3), one)
    assert not taken.covers(at(3, None), one)
    assert taken.earliest([one, two]) == at(1, 1)
    with pytest.raises(PositionLostError, match="ahead in a table of its own"):
        taken.compare(one, two)


def test_positions_of_two_modes_are_still_refused(path):
    taken = source(path, cdc_mode="polling")
    other = {"mode": "triggers", "last_change_id": 4, "table_positions": {}}

    with pytest.raises(PositionLostError, match="of the modes"):
        taken.covers(at(1, 1), other)
    with pytest.raises(PositionLostError, match="of the modes"):
        taken.earliest([at(1, 1), other])
