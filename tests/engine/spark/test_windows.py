"""No lane begins behind one that has ended for good: it would shut its own driver out."""

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.engine.spark.apart import spark_process

pytestmark = pytest.mark.spark

LAST = 3


def lanes_that_say_nothing(place, last):
    """Return a source of lanes whose last word never reaches the store; each leaves a file."""

    class Reader(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802
            return {"window": 0}

        def latestOffset(self, start, limit):  # noqa: N802
            return {"window": start["window"] + 1}

        def partitions(self, start, end):
            return [InputPartition(end["window"])]

        def read(self, partition):
            import json
            from pathlib import Path

            Path(place, str(partition.value)).touch()
            why = last if partition.value >= LAST else "window"
            told = {"why": why, "error_class": None, "reason": None}
            yield (json.dumps(told),)

        def commit(self, end):
            pass

    class Lanes(DataSource):
        @classmethod
        def name(cls):
            return runner.FORMAT

        def schema(self):
            return "outcome string"

        def streamReader(self, schema):  # noqa: N802
            return Reader()

    return Lanes


@pytest.fixture(scope="module")
def spark():
    with spark_process(2) as process:
        yield process


def end_of_stream(place, last):
    """Stream until a lane ends with ``last``, under a driver that looks late; return why it did."""
    lanes = lanes_that_say_nothing(place, last)
    runner.lane_source = lambda job, window_s: lanes  # This process is for nothing else.
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
