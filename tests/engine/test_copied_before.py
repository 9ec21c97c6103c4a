"""Rows that a job copied before the stream began: what changed since is in the log alone."""

import json
import time

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.sources.scripted import ScriptedSource
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.engine.real_run import RealRun
from tests.engine.running import RunningLane
from tests.waiting import wait_until


def grown(transactions, **settings):
    """A pipeline whose log has so many transactions now, and a hundred more a second."""
    started_ms = int(time.time() * 1000) - 10 * transactions
    return InProcess(transactions=0, source=f"rate: 100, started_ms: {started_ms},", **settings)


def requested(pipeline):
    """Have a job copy everything, without the pipeline's own snapshot; return its run."""
    snapshots.request(pipeline.store, pipeline.name, CopySelection(), "copy", "a test")
    done = Driving(pipeline, lambda *each: drive_snapshot(*each, own=False)).end()
    assert done.why == "finished"
    return Snapshots(pipeline.store, pipeline.name).requested()


def streamed(pipeline):
    events = [json.loads(message.value) for message in pipeline.log().messages()]
    return {event["after"]["tx"] for event in events if event["op"] != "r"}


def test_a_stream_begins_where_the_log_was_when_its_rows_were_copied():
    pipeline = grown(20)
    begun = requested(pipeline).start_position["tx"]
    time.sleep(0.1)
    lane = RunningLane(pipeline)
    wait_until(lambda: len(streamed(pipeline)) > 30)
    pipeline.want("paused")
    lane.end()
    assert min(streamed(pipeline)) == begun + 1


def test_a_stream_begins_there_too_when_the_job_was_killed():
    pipeline = grown(20)
    snapshots.request(pipeline.store, pipeline.name, CopySelection(), "copy", "a test")
    request = pipeline.control.read().requests[0]
    begun = SnapshotRun(pipeline.context(), request).prepare().run.start_position["tx"]
    wait_until(lambda: pipeline.context().pipeline.spec.source.head_tx() > begun + 10)
    lane = RunningLane(pipeline)
    wait_until(lambda: len(streamed(pipeline)) > 30)
    pipeline.want("paused")
    lane.end()
    assert min(streamed(pipeline)) == begun + 1


def test_where_the_log_is_gone_a_stream_begins_at_its_end(caplog):
    pipeline = grown(20)
    begun = requested(pipeline).start_position["tx"]
    gone = f"purged_before: {begun + 10}, rate: 100"
    pipeline.document = pipeline.document.replace("rate: 100", gone)
    pipeline.apply()
    wait_until(lambda: pipeline.context().pipeline.spec.source.head_tx() > begun + 20)
    lane = RunningLane(pipeline)
    wait_until(lambda: streamed(pipeline))
    pipeline.want("paused")
    lane.end()
    assert min(streamed(pipeline)) > begun + 20
    assert "copied before may be out of date" in caplog.text


def test_the_own_snapshot_begins_there_too_and_believes_no_sink_to_be_empty():
    pipeline = grown(20, snapshot="initial")
    copied = requested(pipeline)
    plan = SnapshotRun(pipeline.context()).prepare()
    assert plan.run.start_position == copied.start_position
    assert plan.run.fresh_sinks == []


def test_sinks_that_a_request_filled_while_the_own_snapshot_was_interrupted_are_not_fresh():
    pipeline = grown(20, snapshot="initial")
    own = SnapshotRun(pipeline.context()).prepare().run
    assert own.fresh_sinks == ["out"]
    requested(pipeline)
    Driving(pipeline, drive_snapshot).end()
    finished = Snapshots(pipeline.store, pipeline.name).current()
    assert (finished.id, finished.is_open, finished.fresh_sinks) == (own.id, False, [])


def test_a_job_goes_on_with_a_copy_although_the_log_of_its_beginning_is_gone():
    """The stream has delivered that: what it still needs is there."""
    pipeline = InProcess(transactions=40)
    pipeline.begin_at(out=10)
    snapshots.request(pipeline.store, pipeline.name, CopySelection(), "copy", "a test")
    request = pipeline.control.read().requests[0]
    run = SnapshotRun(pipeline.context(), request).prepare().run
    pipeline.begin_at(out=30)
    pipeline.document = pipeline.document.replace("keys: 30,", "keys: 30, purged_before: 25,")
    pipeline.apply()
    assert Driving(pipeline, lambda *each: drive_snapshot(*each, own=False)).end().why == "finished"
    finished = Snapshots(pipeline.store, pipeline.name).requested()
    assert (finished.id, finished.is_open) == (run.id, False)


@pytest.mark.parametrize("captured", [True, False])
def test_the_rest_of_a_table_that_is_no_longer_captured_is_not_copied(captured, monkeypatch):
    pipeline = InProcess(snapshot="initial")
    SnapshotRun(pipeline.context()).prepare()
    monkeypatch.setattr(ScriptedSource, "captures", lambda *_: captured)
    assert Driving(pipeline, drive_snapshot).end().why == "finished"
    assert bool(pipeline.log().messages()) is captured


@pytest.mark.parametrize("name", ["mysql", "mariadb", "postgres"])
@pytest.mark.parametrize("mode", ["never", "initial"])
def test_what_changes_between_a_job_and_the_first_stream_arrives(name, mode, request, tmp_path):
    settings = {"snapshot": {"mode": mode}}
    run = RealRun(request.getfixturevalue(f"{name}_server"), tmp_path, settings=settings)
    run.insert(1, 2, 3)
    run.control.update(lambda old: old.model_copy(update={"desired": "running", "generation": 1}))
    requested(run)
    run.execute("UPDATE t SET v = 'late' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    run.start()
    wait_until(lambda: run.status().status == "running")
    run.insert(9)
    wait_until(lambda: 9 in applied(run))
    run.stop()
    assert applied(run) == {1: "late", 3: "x", 9: "x"}


def applied(run):
    """Return the rows that a consumer has who does what events say."""
    rows = {}
    for text in run.path().read_text().splitlines():
        event = json.loads(text)
        image = event["after"] or event["before"]
        rows[image["id"]] = event["after"] and event["after"]["v"]
    return {key: value for key, value in rows.items() if value is not None}
