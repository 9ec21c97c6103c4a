"""The Spark applications ``stream_job.py`` and ``snapshot_job.py``: arguments to a driver."""

import argparse
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.process_memory import stay_lean
from airflow_provider_deltaforge.engine.driver.driver import (
    DriverArguments,
    drive_snapshot,
    drive_stream,
)
from airflow_provider_deltaforge.engine.spark.container_secrets import take_variables
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.storage.location import ENVIRONMENT, StoreLocation
from airflow_provider_deltaforge.telemetry import logs

_PARENT_POLL_S = 1.0


Beside = Callable[[str, StoreLocation], AbstractContextManager[bool]]
"""Sends a pipeline's metrics while its driver works; yields whether it does."""


def _nothing(_name: str, _location: StoreLocation) -> AbstractContextManager[bool]:
    return nullcontext(enter_result=False)


def stream_main(arguments: Sequence[str] | None = None, beside: Beside = _nothing) -> int:
    """Run ``stream_job.py``; return its exit code."""
    parsed = _parser("Run one pipeline on Spark until it is told to end.").parse_args(arguments)
    return _run(parsed, "stream", drive_stream, beside)


def snapshot_main(arguments: Sequence[str] | None = None, beside: Beside = _nothing) -> int:
    """Run ``snapshot_job.py``; return its exit code."""
    parser = _parser("Copy a pipeline's tables on Spark.")
    parser.add_argument(
        "--requests",
        action="store_true",
        help="only what was asked for; without it the pipeline's own snapshot first, if due",
    )
    parsed = parser.parse_args(arguments)
    return _run(
        parsed,
        "snapshot",
        lambda assignment, runner: drive_snapshot(assignment, runner, own=not parsed.requests),
        beside,
    )


def _parser(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pipeline", required=True, help="name, as applied to the state store")
    parser.add_argument("--generation", required=True, type=int, help="of the control record")
    return parser


def _run(parsed: argparse.Namespace, kind: str, drive: Any, beside: Beside) -> int:
    stay_lean()
    from airflow_provider_deltaforge.engine.spark.runner import SparkRunner
    from airflow_provider_deltaforge.engine.spark.session import (
        jvm_may_die,
        session,
        share_variables,
    )

    end_with_parent()
    outcome: Outcome
    spark = None
    try:
        logs.configure({"pipeline": parsed.pipeline})
        take_variables()
        with jvm_may_die():
            spark = session(f"deltaforge-{kind}-{parsed.pipeline}")
            share_variables(spark)
            master, application_id = spark.sparkContext.master, spark.sparkContext.applicationId
        location = StoreLocation.from_environment()
        location.require_reachable(master)
    except DeltaForgeError as error:
        outcome = Outcome.of(error)
    else:
        with beside(parsed.pipeline, location) as pushes:
            assignment = DriverArguments(
                parsed.pipeline,
                travelling(location),
                parsed.generation,
                application_id,
                pushes_metrics=pushes,
            )
            outcome = drive(assignment, SparkRunner(spark))
    logging.getLogger(__name__).info("ended: %s %s", outcome.why, outcome.reason or "")
    if spark is not None:
        with suppress(RetryableError), jvm_may_die():
            spark.stop()
    return outcome.exit_code


def travelling(location: StoreLocation) -> StoreLocation:
    """Return the location as executors get it: they read the address from their environment.

    So that no password written into the DSN is part of what Spark stores or sends.
    """
    if location.backend == "sqlite":
        return location
    return StoreLocation(backend=location.backend, dsn=f"${{{ENVIRONMENT}}}")


def end_with_parent() -> None:
    """End this process when the JVM that started it is gone: nobody would run our tasks."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(3)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def main_stream(beside: Beside = _nothing) -> None:
    """Entry of the script."""
    sys.exit(stream_main(beside=beside))


def main_snapshot(beside: Beside = _nothing) -> None:
    """Entry of the script."""
    sys.exit(snapshot_main(beside=beside))
