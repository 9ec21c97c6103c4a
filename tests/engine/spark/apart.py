"""Spark sessions in processes of their own.

PySpark starts one JVM in a process, with the cores and the environment of the first session.
"""

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor


def spark_process(cores: int) -> ProcessPoolExecutor:
    """Return a process in which a session is local, with so many cores; its JVM ends with it."""
    return ProcessPoolExecutor(
        1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
        initargs=(cores,),
    )


def _prepare(cores: int) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--master local[{cores}] pyspark-shell"
