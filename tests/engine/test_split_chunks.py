"""Chunks that are too large to be written at once are split before any of them is written."""

import json
from collections import Counter

import pytest
import yaml

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.exact_run import new_place
from tests.engine.real_run import RealRun
from tests.waiting import wait_until

ROWS = 45
WIDE = "REPEAT('x', 150000)"


@pytest.mark.parametrize("name", ["mysql", pytest.param("postgres", marks=pytest.mark.long)])
def test_parts_of_a_large_chunk_are_copied_one_by_one(name, request, redis_server, tmp_path):
    place = new_place("redis", redis_server.dsn())
    settings = {"snapshot": {"mode": "initial"}}
    sinks = {"sinks": [yaml.safe_load(place.sink)]}
    server = request.getfixturevalue(f"{name}_server")
    tuning = Tuning(chunk_bytes=5 << 20)
    run = RealRun(server, tmp_path, settings=settings, more=sinks, tuning=tuning)
    kind = "ALTER v TYPE text" if run.is_postgres else "MODIFY v mediumtext"
    values = ", ".join(f"({row}, {WIDE})" for row in range(ROWS))
    run.execute(f"ALTER TABLE t {kind}", f"INSERT INTO t VALUES {values}")
    run.start()
    wait_until(lambda: run.status().status == "running")
    run.execute("UPDATE t SET v = 'last' WHERE id = 44")
    wait_until(lambda: place.read()[-1].count(b'"last"'))

    events = [json.loads(text) for text in place.read()]
    ops = Counter((event["op"], event["after"]["id"]) for event in events)
    assert ops == {**dict.fromkeys([("r", row) for row in range(ROWS)], 1), ("u", 44): 1}
    records = Snapshots(run.store, run.name)
    done = records.done(records.current().id)
    assert len(done) == records.progress()["chunks"] > 2
    assert all(chunk.is_single_view for chunk in done.values())
    run.stop()
    place.clear()


def test_beside_a_stream_the_parts_of_a_large_chunk_join_one_by_one(
    mysql_server, redis_server, tmp_path
):
    place = new_place("redis", redis_server.dsn())
    sinks = {"sinks": [yaml.safe_load(place.sink)]}
    run = RealRun(mysql_server, tmp_path, more=sinks, tuning=Tuning(chunk_bytes=5 << 20))
    values = ", ".join(f"({row}, {WIDE})" for row in range(ROWS))
    run.execute("ALTER TABLE t MODIFY v mediumtext", f"INSERT INTO t VALUES {values}")
    run.start()
    wait_until(lambda: run.status().status == "running")
    snapshots.request(run.store, run.name, CopySelection(), "copy", "a test")
    wait_until(lambda: snapshots.request_state(run.store, run.name, "copy").settled)
    state = snapshots.request_state(run.store, run.name, "copy")
    run.stop()

    assert state.state == "done", state.reason
    records = Snapshots(run.store, run.name)
    assert len(records.done(records.requested().id)) > 2
    events = [json.loads(text) for text in place.read()]
    assert [event["after"]["id"] for event in events if event["op"] == "r"] == [*range(ROWS)]
    place.clear()
