"""Drivers forked from a process that has imported everything: a start without its seconds.

The server process has one thread and no connection, so that a fork of it is as good as a process
of its own; it can be killed like one, and nothing of it is shared with the next.
"""

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from airflow_provider_deltaforge.engine.base import crash_points
from airflow_provider_deltaforge.engine.base.tuning import Tuning
from airflow_provider_deltaforge.engine.driver.driver import DriverArguments, drive_stream
from airflow_provider_deltaforge.engine.driver.local import LocalRunner
from airflow_provider_deltaforge.engine.replay.requests import replay_here
from airflow_provider_deltaforge.plugins import PROCESSORS, SINKS
from airflow_provider_deltaforge.storage.location import StoreLocation
from tests.engine import appending, picky

# Whoever waits for one of them to speak or to hear waits less.
_QUICK = Tuning(beat_s=0.1, control_s=0.1, listen_s=0.2, cancelled_s=0.2)
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        __name__,
        "airflow_provider_deltaforge.engine.read.registrar",
        "airflow_provider_deltaforge.sinks.file",
        "airflow_provider_deltaforge.sources.postgres.wal.decoder",
        "airflow_provider_deltaforge.sources.postgres.wal.reader",
        "airflow_provider_deltaforge.sources.postgres.snapshot.snapshotter",
        "confluent_kafka.admin",
        "nats",
        "psycopg",
        "pymysql",
        "redis",
        "tests.engine.precompiled",
    ]
)


@cache
def prepare() -> None:
    """Start the server, and return when it has imported everything."""
    first = _context.Process(target=_nothing, daemon=True)
    first.start()
    first.join()


class Forked:
    """A driver that runs a pipeline without Spark; looks like ``subprocess.Popen``.

    Args:
        pipeline: its name.
        environment: of the driver.
        log: receives what it says.
        generation: of the control record.
        ticket: of a replay that it serves, instead of running the pipeline.
    """

    def __init__(
        self,
        pipeline: str,
        environment: Mapping[str, str],
        log: Path,
        generation: int = 1,
        *,
        ticket: str | None = None,
    ) -> None:
        self.args = ("forked", pipeline)
        told = (pipeline, dict(environment), str(log), generation, ticket)
        self._process = _context.Process(target=_run, args=told, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _nothing() -> None:
    pass


def _run(
    pipeline: str, environment: dict[str, str], log: str, generation: int, ticket: str | None
) -> None:
    os.setsid()
    with Path(log).open("ab") as told:
        os.dup2(told.fileno(), 1)
        os.dup2(told.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    crash_points.arm()
    PROCESSORS.shipped.update(picky.PLACE)
    SINKS.shipped.update(appending.PLACE)
    logging.basicConfig(level=logging.INFO)
    location = StoreLocation.from_environment()
    if ticket is not None:
        told = replay_here(pipeline, location, ticket, print, threading.Event())
        sys.exit(told is None)
    assignment = DriverArguments(pipeline, location, generation, tuning=_QUICK)
    sys.exit(drive_stream(assignment, LocalRunner()).exit_code)
