"""What Spark forks the Python workers of a fleet from: a process that has loaded the engine.

Spark starts this in the place of ``pyspark.daemon`` (``spark.python.daemon.module``). Each lane
needs a worker of its own, and a worker that is forked from here shares what was loaded before, so
that a lane takes a fraction of the memory, and begins at once.
"""

import gc
import os
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module

from pyspark.daemon import manager

from airflow_provider_deltaforge.engine.base.process_memory import stay_lean

SOURCES = "DELTAFORGE_WORKER_SOURCES"
"""The variable that names the packages of sources whose decoders are loaded, comma-separated."""

_PACKAGE = "airflow_provider_deltaforge"
_MODULES = ("engine.lane.lane", "engine.spark.lanes", "storage.sqlite", "storage.postgres")


def load(sources: Iterable[str]) -> None:
    """Import what every lane needs, and the compiled decoders of some packages of sources.

    What is not installed, or cannot be compiled now, is left to the lane, which says so.
    """
    stay_lean()
    for module in _MODULES:
        with suppress(ImportError):
            import_module(f"{_PACKAGE}.{module}")
    for source in sources:
        with suppress(Exception):
            import_module(f"{source}.precompile").precompile()
    # What is there now stays: looking at it again would copy its pages in every worker.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    load(filter(None, os.environ.get(SOURCES, "").split(",")))
    manager()
