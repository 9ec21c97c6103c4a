"""A driver whose state store goes away, and comes back."""

import shutil
import time

from airflow_provider_deltaforge.storage.sqlite import SqliteStore
from tests.engine.driving import Driving
from tests.engine.in_process import InProcess
from tests.waiting import wait_until


def running(tmp_path):
    volume = tmp_path / "volume"
    pipeline = InProcess(transactions=5_000, rows=1, dsn=f"sqlite:///{volume}/state.db")
    pipeline.begin_at(out=0)
    pipeline.log().latency_s = 0.02
    driving = Driving(pipeline)
    wait_until(lambda: pipeline.status()[0] == "running" and pipeline.log().messages())
    return pipeline, driving, volume


def test_a_driver_makes_no_second_store_and_goes_on_with_the_first(tmp_path):
    pipeline, driving, volume = running(tmp_path)
    kept = volume.with_name("kept")
    volume.rename(kept)
    volume.mkdir()
    wait_until(lambda: stands_still(pipeline))
    assert driving.thread.is_alive()
    assert list(volume.iterdir()) == []

    volume.rmdir()
    kept.rename(volume)
    before = len(pipeline.log().messages())
    wait_until(lambda: len(pipeline.log().messages()) > before + 30)
    pipeline.want("stopped")
    assert driving.end().why == "stopped"
    assert pipeline.status() == ("stopped", None)


def test_a_driver_writes_nothing_into_another_store_in_its_place(tmp_path):
    pipeline, driving, volume = running(tmp_path)
    kept = volume.with_name("kept")
    volume.rename(kept)
    other = SqliteStore(volume / "state.db", create=True)
    wait_until(lambda: stands_still(pipeline))
    assert driving.thread.is_alive()
    for namespace in ("control", "progress", "checkpoints", "epochs"):
        assert other.items(namespace) == []
    other.close()

    shutil.rmtree(volume)
    kept.rename(volume)
    before = len(pipeline.log().messages())
    wait_until(lambda: len(pipeline.log().messages()) > before + 30)
    pipeline.want("stopped")
    assert driving.end().why == "stopped"


def stands_still(pipeline):
    """Say whether the driver delivers nothing for as long as many batches take."""
    before = len(pipeline.log().messages())
    time.sleep(1.0)
    return len(pipeline.log().messages()) == before
