"""No lane begins behind one that has ended for good: it would shut its own driver out.

Nor does what ends in one pipeline of an application end anything of another.
"""

import threading
import time
from pathlib import Path

import pytest

from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.engine.spark.apart import spark_process

pytestmark = pytest.mark.spark

LAST = 3


def lane_that_says_nothing(place, last):
    """Return lanes whose last word never reaches the store; each leaves a file."""

    def run_lane(job, window_s, scope=None):
        from pathlib import Path

        from airflow_provider_deltaforge.engine.base.outcome import Outcome

        number = len([*Path(place).iterdir()]) + 1
        Path(place, str(number)).touch()
        return Outcome(last if number >= LAST else "window")

    return run_lane


@pytest.fixture(scope="module")
def spark():
    with spark_process(2) as process:
        yield process


def end_of_stream(place, last):
    """Stream until a lane ends with ``last``, under a driver that looks late; return why it did."""
    runner.run_lane = lane_that_says_nothing(place, last)  # This process is for nothing else.
    store = StoreLocation.from_dsn("memory://windows")
    job = DriverAssignment("", store, "driver", 1, tuning=Tuning(query_s=2.0))
    spark = session("windows")
    try:
        return runner.SparkRunner(spark).stream(job, 1.0).why
    finally:
        spark.stop()


@pytest.mark.parametrize("why", ["paused", "failed"])
def test_no_window_begins_behind_the_last_one_whatever_its_lane_could_store(spark, why, tmp_path):
    assert spark.submit(end_of_stream, str(tmp_path), why).result() == why
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


def cancelled_beside_another(place):
    """Cancel a copy beside the task of another pipeline; return how the two ended."""
    spark = session("windows")
    context = spark.sparkContext
    ended = {}

    def work(name, seconds):
        def task(rows):
            import time
            from pathlib import Path

            Path(place, name).touch()
            time.sleep(seconds)
            yield from rows

        context.setJobGroup(name, name)
        try:
            ended[name] = list(context.parallelize([name], 1).mapPartitions(task).toLocalIterator())
        except Exception:  # noqa: BLE001 - how it ended is what is asked for
            ended[name] = "cancelled"

    threads = [threading.Thread(target=work, args=args) for args in (("copy", 600), ("another", 5))]
    try:
        for thread in threads:
            thread.start()
        while len([*Path(place).iterdir()]) < 2:
            time.sleep(0.05)
        runner._cancel(context, "copy")
        for thread in threads:
            thread.join(60)
    finally:
        spark.stop()
    return ended


def test_a_copy_that_is_cancelled_cancels_nothing_of_other_pipelines(spark, tmp_path):
    ended = spark.submit(cancelled_beside_another, str(tmp_path)).result()
    assert ended == {"copy": "cancelled", "another": ["another"]}
