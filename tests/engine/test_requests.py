"""Copies that are asked for: served between two lanes, in order, and none lost or done twice."""

import json
import threading
import time
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.engine.base.restarts import Restarts
from airflow_provider_deltaforge.engine.catch_up.table_watch import ASKER
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot, drive_stream
from airflow_provider_deltaforge.errors import AccessError, RetryableError
from airflow_provider_deltaforge.sources.scripted import ScriptedSnapshotter, ScriptedSource
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults, result_of
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.driving import Driving
from tests.engine.in_process import QUICK, InProcess
from tests.waiting import wait_until

ENDLESS = "rate: 300"


def growing(**settings):
    """A pipeline whose log goes on growing for as long as a test can last."""
    started_ms = int(time.time() * 1000)
    source = f"{ENDLESS}, started_ms: {started_ms},"
    return InProcess(transactions=0, source=source, **settings)


def ask(pipeline, request_id="r", tables=(), where=None):
    wish = CopySelection(tuple(tables), where)
    return snapshots.request(pipeline.store, pipeline.name, wish, request_id, "me")


def state(pipeline, request_id="r"):
    return snapshots.request_state(pipeline.store, pipeline.name, request_id)


def ended(pipeline, request_id="r"):
    wait_until(lambda: state(pipeline, request_id).settled)
    return state(pipeline, request_id)


def running(pipeline):
    wait_until(lambda: pipeline.status()[0] == "running" and pipeline.log().messages())


def events(pipeline):
    return [json.loads(message.value) for message in pipeline.log().messages()]


def goes_on(pipeline):
    """Wait until the stream has carried something new."""
    at = pipeline.checkpoints().load()["out"]["tx"]
    wait_until(lambda: pipeline.checkpoints().load()["out"]["tx"] > at)
    wait_until(lambda: pipeline.status()[0] == "running")


def streamed_without_a_gap(pipeline):
    """Return the first transaction that was streamed."""
    streamed = {event["after"]["tx"] for event in events(pipeline) if event["op"] != "r"}
    assert streamed == set(range(min(streamed), max(streamed) + 1)), "the copy left a gap"
    return min(streamed)


def streams_from_where_its_copy_began(pipeline):
    began = Snapshots(pipeline.store, pipeline.name).requested().start_position["tx"]
    goes_on(pipeline)
    assert streamed_without_a_gap(pipeline) <= began + 1


@pytest.fixture
def drive():
    """Start drivers that have ended when the test has."""
    begun = []

    def start(pipeline, how=drive_stream):
        begun.append((pipeline, Driving(pipeline, how)))
        return begun[-1][1]

    yield start
    for pipeline, driving in begun:
        pipeline.log().latency_s = 0.0
        pipeline.want("stopped")
        driving.end()


def test_a_running_stream_makes_a_copy_and_goes_on(drive):
    pipeline = growing()
    drive(pipeline)
    running(pipeline)
    counted = pipeline.control.progress().sinks["out"].events
    ask(pipeline, tables=["script.rows"])
    done = ended(pipeline)
    goes_on(pipeline)

    copied = done.copied["script.rows"]
    assert (done.state, copied["chunks"], copied["rows"]) == ("done", 3, 30)
    assert copied["bytes"] > 0
    assert pipeline.control.read().requests == []
    assert pipeline.control.progress().sinks["out"].events > counted
    seen = events(pipeline)
    assert sum(event["op"] == "r" for event in seen) == 30
    streamed_without_a_gap(pipeline)


def test_a_rows_last_delivery_is_its_last_state(drive):
    pipeline = growing()
    driver = drive(pipeline)
    running(pipeline)
    ask(pipeline)
    ended(pipeline)
    copied = max(event["after"]["tx"] for event in events(pipeline) if event["op"] == "r")
    wait_until(lambda: pipeline.checkpoints().load()["out"]["tx"] >= copied)
    pipeline.want("stopped")
    driver.end()
    last = {event["after"]["id"]: event["after"]["tx"] for event in events(pipeline)}
    newest = {}
    for event in events(pipeline):
        key, tx = event["after"]["id"], event["after"]["tx"]
        newest[key] = max(newest.get(key, 0), tx)
    assert last == newest


def test_a_new_stream_carries_what_changes_while_its_first_copy_is_made(drive):
    pipeline = growing()
    ask(pipeline)
    drive(pipeline)
    ended(pipeline)
    streams_from_where_its_copy_began(pipeline)


def test_no_copy_is_made_before_a_new_stream_could_place_its_start(drive, monkeypatch):
    pipeline = growing()
    real = ScriptedSource.beginning
    back_at = time.monotonic() + 2

    def away_at_first(source):
        if time.monotonic() < back_at:
            raise RetryableError("the server is away")
        return real(source)

    monkeypatch.setattr(ScriptedSource, "beginning", away_at_first)
    ask(pipeline)
    drive(pipeline)
    ended(pipeline)
    streams_from_where_its_copy_began(pipeline)


def test_a_new_stream_whose_source_is_away_says_so_while_a_copy_waits(drive, monkeypatch):
    pipeline = growing()
    real, back = ScriptedSource.beginning, threading.Event()

    def away_at_first(source):
        if not back.is_set():
            raise RetryableError("the server is away")
        return real(source)

    monkeypatch.setattr(ScriptedSource, "beginning", away_at_first)
    ask(pipeline)
    drive(pipeline)
    wait_until(lambda: pipeline.status() == ("blocked", "retryable"))
    lane = pipeline.control.epoch()
    for _ in range(2):  # The request is seen with each beat.
        said = pipeline.control.progress().heartbeat_at_ms
        wait_until(lambda: pipeline.control.progress().heartbeat_at_ms != said)  # noqa: B023
    assert pipeline.status() == ("blocked", "retryable")
    assert pipeline.control.epoch() == lane
    back.set()
    assert ended(pipeline).state == "done"


def test_requests_are_served_in_the_order_of_asking(drive):
    pipeline = growing()
    ask(pipeline, "first")
    ask(pipeline, "second", tables=["rows"])
    drive(pipeline)
    first, second = ended(pipeline, "first"), ended(pipeline, "second")
    goes_on(pipeline)

    assert (first.state, second.state) == ("done", "done")
    assert first.finished_at_ms <= second.started_at_ms


@pytest.mark.parametrize(
    ("wish", "reason"),
    [({"tables": ["shop.unknown"]}, "one table"), ({"tables": ["rows"], "where": "1"}, "no SQL")],
    ids=["table", "where"],
)
def test_a_bad_request_fails_and_the_stream_goes_on(drive, wish, reason):
    pipeline = growing()
    driver = drive(pipeline)
    running(pipeline)
    ask(pipeline, "bad", **wish)
    ask(pipeline, "good")
    failed, done = ended(pipeline, "bad"), ended(pipeline, "good")
    goes_on(pipeline)

    assert (failed.state, failed.error_class) == ("failed", "spec")
    assert reason in failed.reason
    assert done.state == "done"
    assert driver.thread.is_alive()


def test_a_copy_that_a_sink_refuses_leaves_no_error_behind_at_the_stream(drive):
    def refuses(value):
        if b'"op":"r"' in value:
            raise AccessError("rows of a copy may not be written there")
        return False

    pipeline = growing()
    drive(pipeline)
    running(pipeline)
    pipeline.log().refuses = refuses
    ask(pipeline)
    assert ended(pipeline).state == "failed"
    assert "may not be written" in ended(pipeline).reason
    goes_on(pipeline)
    assert pipeline.control.progress().sinks["out"].reason is None


def test_a_source_that_stays_away_fails_the_request_and_not_the_stream(drive, monkeypatch):
    def away(*_):
        raise RetryableError("the server is away")

    monkeypatch.setattr(Restarts, "wait", lambda *_: None)
    monkeypatch.setattr(ScriptedSnapshotter, "read", away)
    pipeline = growing()
    driver = drive(pipeline)
    running(pipeline)
    ask(pipeline)
    failed = ended(pipeline)
    goes_on(pipeline)

    assert (failed.state, failed.error_class) == ("failed", "retryable")
    assert "the server is away" in failed.reason
    assert driver.thread.is_alive()


def test_a_pause_during_a_copy_ends_it_at_a_chunk_and_it_goes_on_with_the_same_run(drive):
    pipeline = growing()
    drive(pipeline)
    running(pipeline)
    pipeline.log().latency_s = 1.5
    ask(pipeline)
    records = Snapshots(pipeline.store, pipeline.name)
    wait_until(lambda: records.requested() and records.done(records.requested().id))
    before = records.requested()
    pipeline.want("paused")
    wait_until(lambda: pipeline.status()[0] == "paused")
    kept = records.done(before.id)
    pipeline.log().latency_s = 0.0
    pipeline.want("running")
    done = ended(pipeline)
    goes_on(pipeline)

    assert done.state == "done"
    assert records.requested().id == before.id
    assert {chunk: records.done(before.id)[chunk] for chunk in kept} == kept


def test_a_withdrawn_copy_ends_at_a_chunk_and_the_stream_goes_on(drive):
    pipeline = growing()
    drive(pipeline)
    running(pipeline)
    pipeline.log().latency_s = 1.0
    ask(pipeline)
    wait_until(lambda: state(pipeline).state == "snapshotting")
    assert snapshots.cancel(pipeline.store, pipeline.name, "r", "nobody wants it")
    results = SnapshotResults(pipeline.store, pipeline.name)
    wait_until(lambda: results.latest("r") is not None)
    pipeline.log().latency_s = 0.0
    goes_on(pipeline)

    told = state(pipeline)
    assert (told.state, told.reason) == ("cancelled", "nobody wants it")
    assert told.rows < 30
    assert pipeline.control.read().requests == []


def test_a_request_withdrawn_before_it_began_is_recorded_and_copies_nothing(drive):
    pipeline = growing()
    pipeline.begin_at(out=0)
    ask(pipeline)
    snapshots.cancel(pipeline.store, pipeline.name, "r", "changed my mind")
    drive(pipeline)
    running(pipeline)
    goes_on(pipeline)

    assert SnapshotResults(pipeline.store, pipeline.name).latest("r").reason == "changed my mind"
    assert not any(event["op"] == "r" for event in events(pipeline))


def test_a_job_without_a_stream_serves_what_is_asked_and_nothing_else(drive):
    pipeline = InProcess(snapshot="initial")
    ask(pipeline, "first")
    ask(pipeline, "second")
    job = drive(pipeline, lambda *told: drive_snapshot(*told, own=False))

    assert job.end().why == "finished"
    assert [one.state for one in snapshots.requests(pipeline.store, pipeline.name)] == ["done"] * 2
    assert pipeline.status() == ("stopped", None)
    assert pipeline.control.progress().reason == "snapshot finished"
    assert {event["op"] for event in events(pipeline)} == {"r"}
    # The pipeline's own snapshot is still due, and the stream begins where it begins.
    assert pipeline.checkpoints().load() == {}
    assert not Snapshots(pipeline.store, pipeline.name).finished()


def test_an_unfinished_own_snapshot_is_not_lost_to_a_request(drive):
    pipeline = InProcess(snapshot="initial")
    pipeline.log().latency_s = 1.5
    records = Snapshots(pipeline.store, pipeline.name)
    job = drive(pipeline, drive_snapshot)
    wait_until(lambda: records.current() and records.done(records.current().id))
    pipeline.want("stopped")
    job.end()
    own = records.current()
    assert own.finished_at_ms is None
    pipeline.log().latency_s = 0.0
    pipeline.want("running")
    ask(pipeline)
    drive(pipeline, lambda *told: drive_snapshot(*told, own=False)).end()

    assert state(pipeline).state == "done"
    drive(pipeline, drive_snapshot).end()
    assert records.current().id == own.id
    assert records.finished()


def test_a_copy_that_was_recorded_and_not_removed_is_not_made_again(drive):
    pipeline = growing()
    pipeline.begin_at(out=0)
    ask(pipeline)
    request = pipeline.control.read().requests[0]
    results = SnapshotResults(pipeline.store, pipeline.name)
    pipeline.store.transact(results.put(result_of(request, "done")))
    drive(pipeline)
    running(pipeline)
    goes_on(pipeline)

    assert pipeline.control.read().requests == []
    assert not any(event["op"] == "r" for event in events(pipeline))


def test_a_table_that_appeared_is_copied_in_the_end_however_long_its_source_is_away(
    drive, monkeypatch
):
    """Nobody asks again: the statement that brought its rows has passed."""
    reads, back = [], threading.Event()
    real = ScriptedSnapshotter.read

    def away_at_first(*chosen):
        reads.append(chosen)
        if not back.is_set():
            raise RetryableError("the server is away")
        return real(*chosen)

    monkeypatch.setattr(Restarts, "wait", lambda *_: None)
    monkeypatch.setattr(ScriptedSnapshotter, "read", away_at_first)
    pipeline = growing(tuning=replace(QUICK, copied_again_s=0.2))
    drive(pipeline)
    running(pipeline)
    wish = CopySelection(("script.rows",))
    snapshots.request(pipeline.store, pipeline.name, wish, "appeared", ASKER)
    wait_until(lambda: len(reads) > 20)
    back.set()
    assert ended(pipeline, "appeared").state == "done"
