"""What many cases do and check."""

import time
from collections.abc import Callable

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.starting import Started, start
from tests.airflow.service.processes import Driver
from tests.airflow.service.supervised import POLL_S, Supervised, TaskRun

_OBSERVED_S = 6.0
"""How long something that must stay as it is, is looked at: twice the trigger's grace."""


def stays(pipeline: Supervised, what: str, holds: Callable[[], object]) -> None:
    """Look for a while, and fail as soon as it does not hold."""
    end = time.monotonic() + _OBSERVED_S
    while time.monotonic() < end:
        assert holds(), f"{what} did not stay"
        time.sleep(POLL_S)
    pipeline.say(f"{what} stays")


def same_driver(pipeline: Supervised, driver: Driver) -> None:
    """Assert that this driver and no other has worked for the pipeline, and still does."""
    assert pipeline.processes.living() == {driver}, "another driver lives"
    assert pipeline.processes.seen == {driver}, "another driver was started"
    pipeline.wait_delivers()
    pipeline.say("the same driver delivers on")


def only(pipeline: Supervised) -> Driver:
    """Return the one living driver."""
    living = pipeline.processes.living()
    assert len(living) == 1, f"{len(living)} drivers live"
    return living.pop()


def stopped_by_request(pipeline: Supervised, run: TaskRun) -> None:
    """Stop the stream as a person does; the task that watches it must be skipped, not green."""
    attempt = run.task["try_number"]
    pipelines.stop(pipeline.store, pipeline.name, pipeline.stage.backend)
    pipeline.say("stopped by request")
    run.ends_as("skipped", attempt)
    pipeline.wait_gone()


def handed_on(pipeline: Supervised, run: TaskRun) -> None:
    """Let another supervisor adopt the driver; the task must notice, and end visibly.

    This shows that somebody watches for the task, and leaves the stream to the next case.
    """
    driver, attempt = only(pipeline), run.task["try_number"]
    assert started_by_another(pipeline).adopted
    pipeline.say("adopted by another supervisor")
    run.ends_as("failed", attempt)
    assert pipeline.processes.living() == {driver}
    assert pipeline.record.desired == "running", "the failed task stopped another's stream"


def started_by_another(pipeline: Supervised) -> Started:
    """Adopt or start the stream as a supervisor beside Airflow does."""
    stage = pipeline.stage
    job = LaunchSpec(pipeline.name, 0, "stream_job.py", stage.dsn, stage.master)
    return start(pipeline.store, job, stage.backend, "cli:another")
