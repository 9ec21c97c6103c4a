"""A source gets another id while the pipeline has positions under the former one."""

import orjson
import pytest

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.engine.driver.driver import drive_snapshot, drive_stream
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_until

BEFORE, AFTER = 20, 25
"""Transactions, each of a row of its own."""


def stopped(**settings):
    """Return a pipeline that delivered ``BEFORE`` transactions, its source renamed since."""
    pipeline = InProcess(transactions=BEFORE, rows=1, keys=30, **settings)
    if settings["snapshot"] == "never":
        pipeline.begin_at(**dict.fromkeys(pipeline.sinks, 0))
    driving = Driving(pipeline)
    wait_until(lambda: at(pipeline, "source") == BEFORE)
    pipeline.want("stopped")
    assert driving.end().exit_code == 0
    pipeline.document = pipeline.document.replace(
        f"transactions: {BEFORE}", f"transactions: {AFTER}"
    )
    return pipeline


def rename(pipeline, former, present):
    pipeline.document = pipeline.document.replace(
        f"id: {pipeline.name}-{former},", f"id: {pipeline.name}-{present},"
    )
    return pipelines.apply(pipeline.store, pipeline.document)


def at(pipeline, source, sink="out"):
    known = Checkpoints(pipeline.store, pipeline.name, f"{pipeline.name}-{source}").load()
    return known.get(sink, {}).get("tx")


def delivered(pipeline, since, sink="out"):
    """Return how many rows of copies, and which transactions, came since so many messages."""
    events = [orjson.loads(message.value) for message in pipeline.log(sink).messages()[since:]]
    changes = [event["after"]["tx"] for event in events if event["op"] != "r"]
    return len(events) - len(changes), changes


@pytest.mark.parametrize("snapshot", ["initial", "never", "always"])
@pytest.mark.parametrize("drive", [drive_stream, drive_snapshot])
def test_it_does_not_start_and_delivers_all_once_it_has_its_id_again(drive, snapshot):
    pipeline = stopped(snapshot=snapshot)
    before = len(pipeline.log().messages())
    [warning] = rename(pipeline, "source", "later").warnings

    pipeline.want("running", 2)
    assert Driving(pipeline, drive, generation=2).end().exit_code == 2
    reason = pipeline.control.progress().reason
    assert pipeline.status() == ("failed", "spec")
    assert reason == warning
    for part in ("spec.source.config.id", f"'{pipeline.name}-later'", f"'{pipeline.name}-source'"):
        assert part in reason
    assert f"`deltaforge reset {pipeline.name} --confirm {pipeline.name}`" in reason
    assert at(pipeline, "later") is None
    assert len(pipeline.log().messages()) == before

    assert rename(pipeline, "later", "source").warnings == ()
    pipeline.want("running", 3)
    driving = Driving(pipeline, generation=3)
    wait_until(lambda: at(pipeline, "source") == AFTER)
    pipeline.want("stopped", 3)
    driving.end()
    assert delivered(pipeline, before)[1] == [*range(BEFORE + 1, AFTER + 1)]


def test_reset_begins_anew_under_it_with_every_row_and_every_sink():
    pipeline = stopped(snapshot="initial", sinks=("out", "side"), optional=("side",))
    wish = Gaps(pipeline.store, pipeline.name).give_up("side", {"tx": BEFORE}, "away", "fatal")
    pipeline.store.transact([wish])
    before = {sink: len(pipeline.log(sink).messages()) for sink in pipeline.sinks}
    rename(pipeline, "source", "later")

    pipeline.want("stopped", 1)
    pipelines.reset_checkpoint(pipeline.store, pipeline.name, confirm=pipeline.name)
    assert Gaps(pipeline.store, pipeline.name).all() == []
    pipeline.want("running", 2)
    driving = Driving(pipeline, generation=2)
    for sink in pipeline.sinks:
        wait_until(lambda sink=sink: at(pipeline, "later", sink) == AFTER)
    pipeline.want("stopped", 2)
    assert driving.end().exit_code == 0
    for sink in pipeline.sinks:
        rows, _ = delivered(pipeline, before[sink], sink)
        assert rows == AFTER


def test_it_may_change_before_anything_was_delivered():
    pipeline = InProcess(snapshot="initial")
    assert rename(pipeline, "source", "later").warnings == ()
    driving = Driving(pipeline)
    wait_until(lambda: at(pipeline, "later") == pipeline.transactions)
    pipeline.want("stopped")
    assert driving.end().exit_code == 0


def test_positions_of_a_former_id_beside_those_of_the_present_one_stop_nothing():
    pipeline = InProcess()
    former = Checkpoints(pipeline.store, pipeline.name, "former")
    pipeline.store.transact([former.put("out", {"tx": 3})])
    pipeline.begin_at(out=5)
    assert pipelines.apply(pipeline.store, pipeline.document).warnings == ()


def test_a_snapshot_that_was_begun_under_the_former_one_begins_anew():
    pipeline = InProcess(snapshot="initial, max_rows_per_s: 20")
    driving = Driving(pipeline)
    wait_until(lambda: done(pipeline))
    pipeline.want("stopped")
    driving.end()
    snapshots = Snapshots(pipeline.store, pipeline.name)
    former = snapshots.current()
    assert former.is_open

    pipeline.document = pipeline.document.replace("max_rows_per_s: 20", "max_rows_per_s: 9000")
    assert rename(pipeline, "source", "later").warnings == ()
    pipeline.want("running", 2)
    driving = Driving(pipeline, generation=2)
    wait_until(lambda: at(pipeline, "later") == pipeline.transactions)
    pipeline.want("stopped", 2)
    assert driving.end().exit_code == 0
    assert snapshots.current().id != former.id
    assert len(snapshots.done(snapshots.current().id)) == snapshots.current().chunk_count


def done(pipeline):
    """Return the chunks that are done of a snapshot that goes on."""
    snapshots = Snapshots(pipeline.store, pipeline.name)
    run = snapshots.current()
    return run is not None and snapshots.done(run.id)
