"""As many chunks of a table are copied at the same time as the document says."""

import pytest

from airflow_provider_deltaforge.engine.base.runner import CopyPlan
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.engine.spark.apart import spark_process
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.long]

HANDS = 4


def copied(place):
    """Copy with ``HANDS`` workers, each of which looks how many are there; return what they say."""
    wanted, patience_s = HANDS, PATIENCE_S

    def meet(job, run_id, hands, rate, scope):
        """Wait for all hands: taken one after the other, none would ever meet another."""
        import time
        from pathlib import Path

        from airflow_provider_deltaforge.engine.base.runner import ChunkResult

        for (chunk,) in hands:
            Path(place, chunk).touch()
            deadline = time.monotonic() + patience_s
            while len(list(Path(place).iterdir())) < wanted and time.monotonic() < deadline:
                time.sleep(0.05)
            yield ChunkResult(chunk, "t", len(list(Path(place).iterdir())))

    runner.copy_on_executor = meet  # This process is for nothing else.
    job = DriverAssignment("", StoreLocation.from_dsn("memory://hands"), "driver", 1)
    spark = session("hands")
    try:
        hands = [[f"chunk-{number}"] for number in range(HANDS)]
        return list(runner.SparkRunner(spark).copy(job, "run", CopyPlan([hands], 1, HANDS)))
    finally:
        spark.stop()


def test_the_chunks_of_a_table_are_copied_at_the_same_time(tmp_path):
    with spark_process(HANDS) as process:
        results = process.submit(copied, str(tmp_path)).result()
    assert [result.outcome for result in results] == [None] * HANDS
    assert [result.rows for result in results] == [HANDS] * HANDS
