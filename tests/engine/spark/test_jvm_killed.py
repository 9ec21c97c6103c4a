"""A JVM that is killed under its driver, as by a host without memory, is worth a restart."""

import os
import subprocess
import sys

import pytest
from py4j.protocol import Py4JNetworkError

from airflow_provider_deltaforge.engine.base.outcome import EXIT_RETRYABLE, Outcome
from airflow_provider_deltaforge.engine.spark.session import jvm_may_die
from airflow_provider_deltaforge.errors import RetryableError
from tests.waiting import PATIENCE_S

KILLED = """
import os, signal, sys, threading, time
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.spark.runner import SparkRunner
from airflow_provider_deltaforge.engine.spark.session import session
from airflow_provider_deltaforge.storage.location import StoreLocation

spark = session("killed")
jvm = spark.sparkContext._gateway.proc.pid

def kill():
    while not spark.streams.active:
        time.sleep(0.1)
    os.kill(jvm, signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
job = DriverAssignment("", StoreLocation.from_dsn(sys.argv[1]), "driver", 1)
try:
    SparkRunner(spark).stream(job, 60)
except Exception as error:
    print(Outcome.of(error).error_class, "|", error, flush=True)
os._exit(0)
"""


def test_a_driver_whose_jvm_is_killed_ends_retryable(tmp_path):
    words = [sys.executable, "-c", KILLED, f"sqlite:///{tmp_path}/away/state.db"]
    told = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        words, env=told, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert done.stdout.startswith("retryable | Spark's JVM does not answer"), done


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("empty"), EOFError()],
)
def test_every_way_in_which_a_dead_jvm_is_noticed_is_one(error):
    with pytest.raises(RetryableError, match="killed, or ran out of memory"), jvm_may_die():
        raise error


def test_an_error_that_nobody_foresaw_ends_a_driver_so_that_it_is_started_again():
    assert Outcome.of(ZeroDivisionError()).exit_code == EXIT_RETRYABLE
