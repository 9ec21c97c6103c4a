"""A driver: paused at any time, started again by itself, and honest about its end."""

import threading
import time

import pytest

from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.restarts import Restarts
from airflow_provider_deltaforge.engine.driver import driver
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.lane.delivery import Delivery
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import FatalError, FencedError, RetryableError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.memory import MemoryStore
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_until


@pytest.mark.parametrize("drive", [drive_stream, drive_snapshot])
def test_a_driver_paused_during_its_snapshot_stays_and_goes_on(drive):
    pipeline = InProcess(snapshot="initial")
    pipeline.log().latency_s = 1.5
    driving = Driving(pipeline, drive)
    wait_until(lambda: pipeline.status()[0] == "snapshotting")
    pipeline.want("paused")
    wait_until(lambda: pipeline.status()[0] == "paused")
    # A copier that does not hear would write its next batch in the meantime.
    time.sleep(1.0)
    assert driving.thread.is_alive()
    pipeline.log().latency_s = 0.0
    pipeline.want("running")
    wait_until(lambda: Snapshots(pipeline.store, pipeline.name).finished())
    if drive is drive_stream:
        wait_until(lambda: pipeline.status()[0] == "running")
        pipeline.want("stopped")
    assert driving.end().exit_code == 0


def test_a_driver_stopped_while_paused_during_its_snapshot_ends():
    pipeline = InProcess(snapshot="initial")
    pipeline.log().latency_s = 1.5
    driving = Driving(pipeline)
    wait_until(lambda: pipeline.status()[0] == "snapshotting")
    pipeline.want("paused")
    wait_until(lambda: pipeline.status()[0] == "paused")
    pipeline.want("stopped")
    assert driving.end().why == "stopped"
    assert pipeline.status() == ("stopped", None)


def test_a_driver_that_cannot_read_the_document_says_so_in_its_status():
    pipeline = InProcess()
    document = pipeline.document.replace("keys: 30", "keys: '${NOT_SET_HERE}'")
    pipeline.control.apply(document, "hash", f"{pipeline.name}-source")
    assert Driving(pipeline).end().exit_code == 2
    progress = pipeline.control.progress()
    assert (progress.status, progress.error_class) == ("failed", "spec")
    assert "NOT_SET_HERE" in progress.reason


def test_why_a_driver_has_failed_is_shown_also_if_the_store_is_away_just_then(monkeypatch):
    real, tried = driver.write_status, []

    def write_status(*words):
        tried.append(words)
        if len(tried) < 3:
            raise RetryableError("the store is away")
        real(*words)

    monkeypatch.setattr(driver, "write_status", write_status)
    monkeypatch.setattr(SnapshotRun, "due", _cannot)
    pipeline = InProcess()
    assert Driving(pipeline).end().exit_code == 4
    assert pipeline.status() == ("failed", "fatal")
    assert pipeline.control.progress().reason == "nothing helps"


def _cannot(*_):
    raise FatalError("nothing helps")


def test_a_lane_that_ends_retryable_is_started_again_and_the_driver_gives_up_in_words(monkeypatch):
    monkeypatch.setattr(Restarts, "wait", lambda *_: None)
    pipeline = InProcess()
    started = []

    def dies(*_):
        started.append(pipeline.status()[0])
        raise RetryableError("the log's server is shy")

    monkeypatch.setattr(Delivery, "begin", dies)
    outcome = Driving(pipeline).end()
    assert (outcome.why, outcome.exit_code) == ("failed", 3)
    assert len(started) == 6
    assert pipeline.status() == ("failed", "retryable")
    assert "shy" in pipeline.control.progress().reason


def test_a_paused_driver_outlives_a_store_that_is_away(monkeypatch):
    pipeline = InProcess()
    pipeline.want("paused")
    driving = Driving(pipeline)
    wait_until(lambda: pipeline.status()[0] == "paused")
    real, away = MemoryStore.slot, threading.Event()
    away.set()

    def slot(self, *name):
        if away.is_set() and threading.current_thread() is driving.thread:
            raise RetryableError("the store is away")
        return real(self, *name)

    monkeypatch.setattr(MemoryStore, "slot", slot)
    time.sleep(1.5)
    assert driving.thread.is_alive()
    away.clear()
    pipeline.want("stopped")
    assert driving.end().why == "stopped"


def test_a_driver_of_an_outdated_generation_never_takes_the_epoch_from_the_newer_one():
    pipeline = InProcess()
    overtaken = Control(_Overtaken(pipeline), pipeline.name)
    with pytest.raises(FencedError):
        overtaken.take_epoch("older", 1)
    assert pipeline.control.held_epoch("newer").version == pipeline.control.epoch()


class _Overtaken:
    """A store in which a newer driver starts just before the first swap."""

    def __init__(self, pipeline):
        self._pipeline = pipeline
        self._newer = False

    def __getattr__(self, name):
        return getattr(self._pipeline.store, name)

    def swap(self, *arguments):
        if not self._newer:
            self._newer = True
            self._pipeline.want("running", generation=2)
            self._pipeline.control.take_epoch("newer", 2)
        return self._pipeline.store.swap(*arguments)


def test_a_driver_started_for_a_pipeline_that_was_stopped_meanwhile_reads_nothing():
    pipeline = InProcess()
    pipeline.want("stopped")
    assert Driving(pipeline).end().why == "stopped"
    assert pipeline.checkpoints().load() == {}
    assert pipeline.status() == ("stopped", None)


@pytest.mark.parametrize("snapshot", ["never", "initial"])
def test_a_driver_says_that_it_is_stopped_when_its_lane_or_copy_could_not(monkeypatch, snapshot):
    def unheard(heartbeat, outcome):
        heartbeat._done.set()
        heartbeat.ending.set()

    pipeline = InProcess(snapshot=snapshot)
    pipeline.log().latency_s = 0.3
    driving = Driving(pipeline)
    monkeypatch.setattr(Heartbeat, "finish", unheard)
    word = "running" if snapshot == "never" else "snapshotting"
    wait_until(lambda: pipeline.status()[0] == word)
    pipeline.want("stopped")
    assert driving.end().exit_code == 0
    assert pipeline.status() == ("stopped", None)


@pytest.mark.parametrize("desired", ["paused", "stopped"])
def test_a_heartbeat_that_comes_late_does_not_undo_the_drivers_last_status(desired):
    pipeline = InProcess()
    driving = Driving(pipeline)
    wait_until(lambda: pipeline.status()[0] == "running")
    running, epoch = pipeline.control.progress(), pipeline.control.epoch()
    lane = Fence(names.EPOCHS, pipeline.name, epoch)
    pipeline.want(desired)
    wait_until(lambda: pipeline.status()[0] == desired and pipeline.control.epoch() > epoch)
    with pytest.raises(FencedError):
        pipeline.store.transact([pipeline.control.put_progress(running)], lane)
    assert pipeline.status()[0] == desired
    pipeline.want("stopped")
    driving.end()


def test_a_driver_says_that_it_begins_before_a_lane_is_there_to_speak(monkeypatch):
    real, said = LocalRunner.stream, []

    def stream(runner, job, window_s):
        said.append(pipeline.status()[0])
        return real(runner, job, window_s)

    monkeypatch.setattr(LocalRunner, "stream", stream)
    pipeline = InProcess()
    driving = Driving(pipeline)
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("paused")
    wait_until(lambda: pipeline.status()[0] == "paused")
    pipeline.want("running")
    wait_until(lambda: pipeline.status()[0] == "running")
    pipeline.want("stopped")
    assert driving.end().why == "stopped"
    assert said == ["starting"] * 2
