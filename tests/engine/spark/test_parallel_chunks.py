"""As many chunks of a table are copied at the same time as the document says."""

import sys

import pytest

from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.spark, pytest.mark.long]

HANDS = 4


def test_the_chunks_of_a_table_are_copied_at_the_same_time(monkeypatch, tmp_path):
    place, wanted, patience_s = str(tmp_path), HANDS, PATIENCE_S

    def meet(job, run_id, hands):
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

    monkeypatch.setattr(runner, "_copied", meet)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--master local[{HANDS}] pyspark-shell")
    spark = session("hands")
    try:
        hands = [[f"chunk-{number}"] for number in range(HANDS)]
        copied = list(runner.SparkRunner(spark).copy(None, "run", [hands], 1))
    finally:
        spark.stop()
    assert [one.outcome for one in copied] == [None] * HANDS
    assert [one.rows for one in copied] == [HANDS] * HANDS
