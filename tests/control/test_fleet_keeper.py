"""What a fleet does about pipelines of its folder that somebody else keeps, or has kept."""

import os
import socket
import threading
from dataclasses import replace

import pytest

from airflow_provider_deltaforge.cli.options import opened
from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.document_folder import DocumentFolder
from airflow_provider_deltaforge.control.fleet import FLEET, Fleet
from airflow_provider_deltaforge.control.fleet_keeper import FleetKeeper
from airflow_provider_deltaforge.control.launching.backends import LaunchBackends
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.launching.local import LocalBackend
from airflow_provider_deltaforge.control.launching.threads import NAME, SCRIPT, ThreadBackend
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control, Progress, heartbeat
from tests.control.bench import DOCUMENT, job_of
from tests.waiting import PATIENCE_S, wait_until

ALIVE = f"fleet:{socket.gethostname()}:{os.getppid()}:aaaaaaaa"
"""The owner token of a fleet whose process is there."""
GONE = f"fleet:{socket.gethostname()}:{2**22 + 7}:aaaaaaaa"


class Keeper:
    """A fleet in this process, whose drivers do nothing until they are asked to leave."""

    def __init__(self, dsn, directory, folder):
        def drive(job, leaving):
            self.driven.append((job.pipeline, job.generation))
            with opened(dsn) as store:
                while not leaving.wait(0.05):
                    if Control(store, job.pipeline).read().desired == "stopped":
                        break
            self.ended.append((job.pipeline, job.generation))
            return 0

        self.driven, self.ended = [], []
        self.said = []
        threads = ThreadBackend(directory, drive, term_grace_s=5)
        self.backend = LaunchBackends(LocalBackend(directory), threads=threads, chosen=NAME)
        location = StoreLocation.from_dsn(dsn)
        self.fleet = Fleet(
            location, self.backend, LaunchSpec("", 0, SCRIPT, dsn), kind=FLEET, admit=self.admit
        )
        self.room = threading.Event()
        self.room.set()
        self.keeper = FleetKeeper(
            self.fleet,
            DocumentFolder([folder], lambda *_: None),
            location,
            self.backend,
            lambda *words: self.said.append(words),
        )

    def admit(self, name):
        if not self.room.is_set():
            raise RetryableError("no room")

    def until(self, condition):
        def looked():
            self.keeper.tick()
            return condition()

        wait_until(looked)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "orders.yaml").write_text(DOCUMENT)
    return folder


@pytest.fixture
def keeper(dsn, store, tmp_path, folder):
    made = []

    def keeper():
        made.append(Keeper(dsn, tmp_path / "threads", folder))
        return made[-1]

    yield keeper
    for each in made:
        each.fleet.close(5)


def kept_elsewhere(store, owner, error_class=None):
    """A pipeline that a fleet elsewhere keeps, and whose driver has failed, or ended in order."""
    pipelines.apply(store, DOCUMENT)
    control = Control(store, "orders")
    wanted = {"owner": owner, "desired": "running", "generation": 1}
    control.update(lambda record: record.model_copy(update=wanted))
    fence = control.take_epoch("elsewhere", 1)
    progress = Progress(
        status="failed" if error_class else "stopped",
        since_ms=1,
        epoch=fence.version,
        generation=1,
        error_class=error_class,
        **heartbeat(None),
    )
    store.transact([control.put_progress(progress)], fence)


def test_a_fleet_leaves_alone_what_another_drives_and_takes_over_when_that_ends(keeper):
    first, second = keeper(), keeper()
    first.until(lambda: first.driven)
    second.until(lambda: second.said)
    [(name, words)] = second.said
    assert name == "orders"
    assert first.fleet.owner in words
    assert second.driven == []
    first.fleet.close(5)
    second.until(lambda: second.driven == [("orders", 2)])


def test_a_driver_that_starts_while_its_fleet_closes_ends_as_well(keeper, monkeypatch):
    kept = keeper()
    submitted, closed = threading.Event(), threading.Event()
    submit = ThreadBackend.submit

    def submit_slowly(backend, job):
        handle = submit(backend, job)
        submitted.set()
        closed.wait(PATIENCE_S)
        return handle

    monkeypatch.setattr(ThreadBackend, "submit", submit_slowly)
    kept.keeper.tick()
    assert submitted.wait(PATIENCE_S)
    kept.fleet.close(1)
    assert kept.ended == []
    closed.set()

    wait_until(lambda: kept.ended == [("orders", 1)])


@pytest.mark.parametrize(
    ("owner", "error_class", "is_begun"),
    [
        (ALIVE, "retryable", False),
        (GONE, "retryable", True),
        (ALIVE, "position_lost", False),
        (GONE, "position_lost", True),
        (ALIVE, None, True),
        ("airflow:dag/task/run/-1#1@abc", "retryable", False),
    ],
)
def test_who_may_be_about_to_start_it_again_is_waited_for(
    keeper, store, owner, error_class, is_begun
):
    kept_elsewhere(store, owner, error_class)
    kept = keeper()
    for _ in range(20):
        kept.keeper.tick()
        wait_until(lambda: not any(thread.is_alive() for thread in kept.keeper._busy.values()))
    assert bool(kept.driven) == is_begun


def test_what_a_person_stopped_stays_stopped_and_what_a_removed_file_stopped_goes_on(
    keeper, store, folder
):
    kept = keeper()
    kept.until(lambda: kept.driven)
    text = (folder / "orders.yaml").read_text()
    (folder / "orders.yaml").unlink()
    kept.until(lambda: Control(store, "orders").read().desired == "stopped")
    (folder / "orders.yaml").write_text(text)
    kept.until(lambda: kept.driven[1:] == [("orders", 2)])

    pipelines.ask_to_stop(store, "orders")
    kept.fleet.close(5)
    (folder / "orders.yaml").write_text(text + "# changed\n")
    again = keeper()
    again.until(lambda: again.said)
    assert "was stopped" in again.said[0][1]
    assert again.driven == []


def test_without_room_a_pipeline_waits_and_starts_when_there_is(keeper, store):
    kept = keeper()
    kept.room.clear()
    kept.until(lambda: ("orders", "no room") in kept.said)
    assert Control(store, "orders").read().generation == 0
    kept.room.set()
    kept.until(lambda: kept.driven == [("orders", 1)])


def test_a_document_that_is_back_without_room_starts_when_there_is(keeper, store, folder):
    kept = keeper()
    kept.until(lambda: kept.driven)
    file, text = folder / "orders.yaml", (folder / "orders.yaml").read_text()
    file.unlink()
    kept.until(lambda: Control(store, "orders").read().desired == "stopped" and kept.ended)
    kept.room.clear()
    file.write_text(text)
    kept.until(lambda: ("orders", "no room") in kept.said)
    for _ in range(3):
        kept.keeper.tick()
        wait_until(lambda: "orders" in kept.keeper.contents.troubles)
    kept.room.set()
    kept.until(lambda: kept.driven[1:] == [("orders", 2)])


def test_supervisors_of_processes_do_not_take_a_fleets_pipeline(keeper, store, dsn, backend):
    kept = keeper()
    kept.until(lambda: kept.driven)
    wait_until(lambda: Control(store, "orders").read().handle)
    finder = replace(kept.backend, local=backend, chosen="local", threads=None)
    with pytest.raises(RetryableError, match="busy with fleet"):
        start(store, job_of(dsn), finder, "airflow")
    assert kept.driven == [("orders", 1)]
