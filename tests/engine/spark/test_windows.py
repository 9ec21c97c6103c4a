"""No lane begins behind one that has ended for good: it would shut its own driver out."""

import sys
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session
from airflow_provider_deltaforge.storage.location import StoreLocation

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2] pyspark-shell")
        made = session("windows")
        yield made
        made.stop()


@pytest.mark.parametrize("why", ["paused", "failed"])
def test_no_window_begins_behind_the_last_one_whatever_its_lane_could_store(
    spark, why, monkeypatch, tmp_path
):
    place = str(tmp_path)
    lanes = lanes_that_say_nothing(place, why)
    monkeypatch.setattr(runner, "lane_source", lambda job, window_s: lanes)
    monkeypatch.setattr(runner, "_POLL_S", 2.0)  # A driver that looks late.
    job = DriverAssignment("", StoreLocation.from_dsn("memory://windows"), "driver", 1)

    outcome = runner.SparkRunner(spark).stream(job, 1.0)

    assert outcome.why == why
    assert sorted(path.name for path in Path(place).iterdir()) == ["1", "2", "3"]
