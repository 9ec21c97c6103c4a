"""As many chunks of a table are copied at the same time as the document says."""

import sys

import pytest

from airflow_provider_deltaforge.engine.spark import runner
from airflow_provider_deltaforge.engine.spark.session import session

pytestmark = pytest.mark.spark

HANDS = 4
WORK_S = 10.0
"""Longer than a busy machine takes to start four Python workers."""


def test_the_hands_of_a_table_work_at_the_same_time(monkeypatch):
    def pretend(job, run_id, hands):
        import time

        from airflow_provider_deltaforge.engine.copying import Copied

        for _ in hands:
            begun = time.time()
            time.sleep(WORK_S)
            yield Copied("c", repr(begun), 1)

    monkeypatch.setattr(runner, "_copied", pretend)
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
    begun = sorted(float(one.table) for one in copied)
    assert len(begun) == HANDS
    assert begun[-1] - begun[0] < WORK_S
