"""Tasks that copy chunks say why they cannot, in a class the driver can act on."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_provider_deltaforge.engine.base.runner import CopyPlan
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import await_workers, copy_chunks
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.scripted import ScriptedSnapshotter
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.snapshots import SnapshotRecord, Snapshots
from tests.engine.in_process import DRIVER, InProcess
from tests.waiting import PATIENCE_S

CHUNK = TableChunk("script.rows:1", "script", None, "rows", {"low": 1, "high": 10})


def test_a_fenced_task_says_fenced_and_copies_nothing():
    pipeline = InProcess(snapshot="initial")
    pipeline.control.take_epoch("newer")
    told = list(
        copy_chunks(
            DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1), "r1", [CHUNK]
        )
    )
    assert [(copied.outcome.why, copied.outcome.error_class) for copied in told] == [
        ("fenced", "fenced")
    ]
    assert pipeline.log().messages() == []


def test_a_document_that_cannot_be_read_where_the_task_runs_is_no_death_of_the_task():
    pipeline = InProcess(snapshot="initial")
    pipeline.control.take_epoch(DRIVER)
    document = pipeline.document.replace("keys: 30", "keys: '${NOT_SET_ON_THIS_EXECUTOR}'")
    told = list(
        copy_chunks(DriverAssignment(document, pipeline.location, DRIVER, 1), "r1", [CHUNK])
    )
    assert [copied.outcome.error_class for copied in told] == ["spec"]
    assert "NOT_SET_ON_THIS_EXECUTOR" in told[0].outcome.reason


def away(*_):
    raise RetryableError("the store is away")


@pytest.mark.parametrize(
    ("meanwhile", "error_class"),
    [
        (lambda pipeline, _: pipeline.control.renew_epoch(DRIVER), "fenced"),
        (lambda pipeline, _: pipeline.control.take_epoch("newer"), "fenced"),
        (lambda _, patch: patch.setattr(Control, "held_epoch", away), "retryable"),
    ],
    ids=["another lane", "another driver", "nobody knows"],
)
def test_a_worker_that_was_frozen_in_a_read_asks_for_its_fence_before_it_writes(
    monkeypatch, meanwhile, error_class
):
    pipeline = InProcess(snapshot="initial", tuning=Tuning(listen_s=3600))
    pipeline.control.take_epoch(DRIVER)
    read = ScriptedSnapshotter.read

    def frozen(*told):
        meanwhile(pipeline, monkeypatch)
        return read(*told)

    monkeypatch.setattr(ScriptedSnapshotter, "read", frozen)
    told = list(copy_chunks(pipeline.job(), "r1", [CHUNK]))

    assert [copied.outcome.error_class for copied in told] == [error_class]
    assert pipeline.log().messages() == []


def test_a_copy_that_failed_leaves_no_worker_behind_that_writes(monkeypatch):
    pipeline = InProcess(snapshot="initial")
    pipeline.control.take_epoch(DRIVER)
    run = SnapshotRecord(
        id="r1", generation=1, started_at_ms=1, start_position={}, chunk_count=2, tables={}
    )
    pipeline.store.transact(Snapshots(pipeline.store, pipeline.name).begin(run, []))
    pipeline.log().fail_next(10_000, RetryableError("the sink is away"))
    before, read, writing = set(threading.enumerate()), ScriptedSnapshotter.read, threading.Event()

    def fails_once_another_writes(snapshotter, chunk, run_id):
        if chunk == CHUNK:
            writing.wait(60)
            raise SpecError("no such column")
        yield from read(snapshotter, chunk, run_id)

    monkeypatch.setattr(ScriptedSnapshotter, "read", fails_once_another_writes)
    monkeypatch.setattr(pipeline.log(), "write", _first(writing.set, pipeline.log().write))
    other = TableChunk("script.rows:11", "script", None, "rows", {"low": 11, "high": 20})
    job = DriverAssignment(pipeline.document, pipeline.location, DRIVER, 1)
    copies = LocalRunner().copy(job, "r1", CopyPlan([[[CHUNK], [other]]], 1, 2))
    assert next(copies).outcome.error_class == "spec"
    copies.close()

    left = set(threading.enumerate()) - before
    assert not [thread.name for thread in left if thread.name.startswith("sink-")]


def test_tables_that_were_never_begun_are_not_waited_for(caplog):
    begun, over = threading.Event(), threading.Event()
    pool = ThreadPoolExecutor(1)
    working = [pool.submit(lambda: begun.set() or over.wait()), pool.submit(over.wait)]
    assert begun.wait(PATIENCE_S)
    pool.shutdown(wait=False, cancel_futures=True)
    over.set()
    working[0].result(PATIENCE_S)
    await_workers(working, within_s=0)

    assert working[1].cancelled()
    assert not caplog.records


def _first(action, then):
    def both(*told):
        action()
        return then(*told)

    return both
