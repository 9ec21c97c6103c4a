"""Stay with a driver: watch it, start it again when it dies, and say when it is over."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airflow_provider_deltaforge.control.driver_log import keep_last_lines
from airflow_provider_deltaforge.control.launching.contract import Backend, JobState, LaunchSpec
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.control.starting import restart
from airflow_provider_deltaforge.control.status import ENDED, PipelineStatus, job_status, status
from airflow_provider_deltaforge.control.supervise import (
    DRAINED,
    DriverExit,
    HangDetector,
    RestartBudget,
    RestartDecision,
    judge,
)
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord

_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Attendance:
    """What to stay with, and as whom."""

    store: Store
    backend: Backend
    job: LaunchSpec
    owner: str
    budget: RestartBudget = field(default_factory=RestartBudget)
    finite: bool = False
    """The job ends by itself: exit code 0 is success, not a death."""


def attend(
    task: Attendance,
    *,
    stopping: Callable[[], bool],
    changed: Callable[[PipelineStatus], None],
    sleep: Callable[[float], None] = time.sleep,
) -> RestartDecision:
    """Return when the pipeline was stopped, taken over, given up, or ``stopping`` says so.

    Args:
        task: the driver to stay with.
        stopping: true once the caller wants to leave.
        changed: called about once a second with the present status.
        sleep: waits; handed in so that tests need no time.
    """
    silence = HangDetector()
    while not stopping():
        try:
            verdict = _look(task, changed, silence)
            if verdict is not None and verdict.action != "restart":
                return verdict
            if verdict is not None:
                sleep(verdict.wait_s)
                if stopping():
                    break
                restart(task.store, task.job, task.backend, task.owner)
        except RetryableError as error:
            # The store is away, or this machine lacks something: nothing is decided.
            changed(_unknown(task.job, str(error)))
        sleep(_POLL_S)
    return RestartDecision("finished", "left by its supervisor")


def settle(task: Attendance, exit_code: int | None) -> RestartDecision:
    """Decide about a driver that ended with ``exit_code``, from the record and its last words."""
    keep_last_lines(task.store, task.job.pipeline, task.backend)
    control = existing(task.store, task.job.pipeline)
    record, progress = control.read(), control.progress()
    if task.finite and exit_code == DRAINED:
        return RestartDecision("finished", "done")
    spoke = progress is not None and progress.generation == task.job.generation
    return judge(
        DriverExit(
            exit_code,
            progress.error_class if spoke and progress else None,
            (progress.reason if spoke and progress else None) or _detail_of(record, task.backend),
        ),
        wanted=record is not None and record.desired != "stopped",
        restarted_at_ms=record.restarts if record is not None else (),
        now_ms=now_ms(),
        budget=task.budget,
    )


def _look(
    task: Attendance, changed: Callable[[PipelineStatus], None], silence: HangDetector
) -> RestartDecision | None:
    record = existing(task.store, task.job.pipeline).read()
    if record is None:
        return RestartDecision("finished", "the pipeline was deleted")
    if record.owner != task.owner or record.generation != task.job.generation:
        return RestartDecision("finished", f"taken over by {record.owner}")
    present = status(task.store, task.job.pipeline, task.backend)
    changed(present)
    if record.handle is None:
        return None
    job = task.backend.status(record.handle)
    hung = silence.too_long(lost=present.status in ENDED)
    return settle(task, job.exit_code) if job.state is JobState.ENDED or hung else None


def _detail_of(record: ControlRecord | None, backend: Backend) -> str | None:
    """Return what the place that a driver ran at says of its end."""
    return job_status(record, backend).detail if record is not None else None


def _unknown(job: LaunchSpec, reason: str) -> PipelineStatus:
    return PipelineStatus(
        name=job.pipeline,
        status="lost",
        desired="running",
        generation=job.generation,
        reason=reason,
    )
