"""A copy beside a stream that runs on Spark, and a snapshot job on Spark."""

import pytest

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from tests.engine.scripted_run import NAME, ScriptedRun
from tests.engine.spark_kills import end_family, judged, started
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_stream_on_spark_makes_way_for_copies_and_goes_on(tmp_path):
    run = ScriptedRun(tmp_path, master="local[2]", transactions=0, rate=100)
    run.begin_at(0)

    def at():
        return (Checkpoints(run.store, NAME, f"{NAME}-source").load().get("out") or {})["tx"]

    def ended(request_id):
        wait_until(lambda: snapshots.request_state(run.store, NAME, request_id).settled)
        return snapshots.request_state(run.store, NAME, request_id)

    driver = started(run, None)
    try:
        wait_until(lambda: at() > 0)
        for name, tables in (("bad", ("nowhere",)), ("good", ("script.rows",)), ("all", ())):
            snapshots.request(run.store, NAME, CopySelection(tables), name, "a test")
        bad, good, everything = ended("bad"), ended("good"), ended("all")
        before = at()
        wait_until(lambda: at() > before + 50)
        assert run.control.progress().status == "running"
        assert run.stop(driver) == 0
    finally:
        end_family(driver)

    assert (bad.state, bad.error_class) == ("failed", "spec")
    assert [(one.state, one.rows) for one in (good, everything)] == [("done", 60)] * 2
    run.close_log()
    assert judged(run, {"tx": 0}) == []
    run.store.close()
