"""A copy keeps within its connections and its rate, shows both, and says how long it will take."""

import time

from airflow_provider_deltaforge.engine.base.runner import CopyPlan
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.sources.shared.snapshot_settings import SnapshotSettings
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_for

PARALLEL = "initial, intra_table_parallel: true, max_parallel_chunks: 3"


def chunks(count):
    return [TableChunk(f"t:{at}", "db", None, "t") for at in range(count)]


def test_the_rate_is_divided_among_those_who_may_read_at_the_same_time():
    settings = SnapshotSettings(
        max_parallel_tables=2,
        intra_table_parallel=True,
        max_parallel_chunks=4,
        max_connections=5,
        max_rows_per_s=1000,
        max_bytes_per_s=100_000,
    )
    plan = CopyPlan.of(settings, [chunks(10), chunks(2), chunks(7)])
    assert [[len(share) for share in table] for table in plan.tables] == [
        [3, 3, 2, 2], [1, 1], [2, 2, 2, 1],
    ]  # fmt: skip
    assert (plan.at_once, plan.workers) == (2, 5)
    assert (plan.rate.rows_per_s, plan.rate.bytes_per_s) == (200, 20_000)
    assert plan.rate.seconds(100, 40_000) == 2
    assert CopyPlan.of(SnapshotSettings(), [chunks(9)]).rate.seconds(10**9, 10**9) == 0
    assert CopyPlan.of(SnapshotSettings(), []).workers == 1


def test_no_more_connections_read_than_the_document_allows():
    pipeline = InProcess(snapshot=f"{PARALLEL}, max_connections: 2", name="two-readers")
    pipeline.log().hold()
    driving = Driving(pipeline, drive_snapshot)
    begun = Snapshots(pipeline.store, pipeline.name)
    wait_for("two chunks", lambda: (run := begun.current()) and len(begun.cuts(run.id)) == 2)
    time.sleep(0.3)  # A third reader would begin at once.
    assert len(begun.cuts(begun.current().id)) == 2
    pipeline.log().let_go()
    assert driving.end().why == "finished"
    assert begun.progress()["limits"] == {"max_connections": 2}
    assert begun.progress()["chunks_done"] == 3


def test_a_copy_takes_as_long_as_its_rate_says():
    pipeline = InProcess(snapshot=f"{PARALLEL}, max_rows_per_s: 60")
    began = time.monotonic()
    assert Driving(pipeline, drive_snapshot).end().why == "finished"
    # Three readers of ten rows each, at twenty rows a second.
    assert time.monotonic() - began >= 0.45
    progress = Snapshots(pipeline.store, pipeline.name).progress()
    assert progress["bytes"] == sum(table["bytes"] for table in progress["tables"].values()) > 0
    assert progress["eta_s"] == 0


def test_whoever_waits_for_the_rate_ends_at_once_when_asked_to():
    pipeline = InProcess(snapshot="initial, max_rows_per_s: 1")
    driving = Driving(pipeline, drive_snapshot)
    wait_for("rows", lambda: pipeline.log().messages())
    pipeline.want("stopped")
    began = time.monotonic()
    assert driving.end().why == "stopped"
    assert time.monotonic() - began < 15  # The rows that are left would take half a minute.
