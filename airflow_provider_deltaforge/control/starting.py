"""Start a pipeline's driver, or adopt the one that runs: never two.

The generation is the supervisor's intent and is raised by compare-and-set; the epoch, which the
driver takes itself, is what fences its writes.
"""

from dataclasses import dataclass, replace

from airflow_provider_deltaforge.control.launch import Backend, Handle, Job, JobState
from airflow_provider_deltaforge.control.pipelines import (
    STOP_GRACE_S,
    changed,
    end_driver,
    existing,
    now_ms,
)
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.control import Control, ControlRecord

SNAPSHOT_SCRIPT = "snapshot_job.py"
REQUESTS_ONLY = "--requests"
"""Argument of a snapshot job that serves requests, and takes no snapshot of the pipeline's own."""

_RESTARTS_KEPT = 20


@dataclass(frozen=True, slots=True)
class Started:
    """A driver that runs now, started or adopted."""

    generation: int
    handle: Handle
    adopted: bool


def start(store: Store, job: Job, backend: Backend, owner: str) -> Started:
    """Adopt the pipeline's driver when it runs the applied document, else start a new generation.

    The generation is raised before anything is submitted: a caller killed half-way leaves at most
    a driver of a generation that the next call outdates, which therefore ends by itself.

    Args:
        store: the state store.
        job: what to start; its generation is set here.
        backend: where.
        owner: the supervisor's token, written into the record.

    Raises:
        SpecError: no document was applied, or the job cannot be run as asked.
        RetryableError: another supervisor started a newer generation meanwhile.
    """
    control = existing(store, job.pipeline)
    record = _read(control)
    if _adoptable(record, job, backend):
        record = control.update(lambda old: changed(old, desired=_kept(old), owner=owner))
        return Started(record.generation, record.handle or {}, adopted=True)
    return _start_generation(control, record, job, backend, owner)


def restart(store: Store, job: Job, backend: Backend) -> Handle | None:
    """Start the driver of the job's generation again, and count it against the budget.

    A process of it that still lives is hung, and is ended first.

    Returns:
        The driver's handle; None when the pipeline was stopped meanwhile, and nothing was started.

    Raises:
        RetryableError: a newer generation exists.
    """
    control = count_restart(store, job.pipeline, job.generation)
    record = _read(control)
    if record.desired == "stopped":
        return None
    hung = record.handle
    if hung and backend.status(hung).state is JobState.RUNNING:
        backend.stop(hung, 0)
    return _submit(control, job, backend)


def count_restart(store: Store, name: str, generation: int) -> Control:
    """Write a restart of ``generation`` into the record.

    Raises:
        RetryableError: a newer generation exists.
    """
    control = existing(store, name)
    moment = now_ms()

    def count(record: ControlRecord) -> ControlRecord:
        _same_generation(record, generation)
        if record.desired == "stopped":
            return record
        return changed(record, restarts=[*record.restarts, moment][-_RESTARTS_KEPT:])

    control.update(count)
    return control


def take_generation(store: Store, name: str, owner: str) -> int:
    """Claim a new generation for a driver that runs inside the calling process.

    Raises:
        SpecError: a driver of the pipeline lives.
    """
    control = existing(store, name)
    seen = _read(control)
    if seen.desired != "stopped" and control.alive(now_ms()):
        raise SpecError(
            f"pipeline {name!r} already runs (generation {seen.generation}, {seen.owner}); "
            "stop it first, or wait for it with --standby"
        )

    def claim(record: ControlRecord) -> ControlRecord:
        _same_generation(record, seen.generation)
        return _claimed(record, owner, handle=None)

    return control.update(claim).generation


def _kept(record: ControlRecord) -> str:
    """A paused pipeline stays paused when it is adopted; adopting is not resuming."""
    return "paused" if record.desired == "paused" else "running"


def _adoptable(record: ControlRecord, job: Job, backend: Backend) -> bool:
    handle = record.handle
    if handle is None or record.desired == "stopped":
        return False
    runs = (handle.get("script"), handle.get("spec_hash"), handle.get("generation"))
    same = runs == (job.script, record.spec_hash, record.generation)
    same = same and tuple(handle.get("arguments") or ()) == job.arguments
    return same and backend.status(handle).state is JobState.RUNNING


def _start_generation(
    control: Control, seen: ControlRecord, job: Job, backend: Backend, owner: str
) -> Started:
    former = seen.handle
    if former and former.get("script") != job.script and not _gives_way(former):
        state = backend.status(former).state
        if state is JobState.RUNNING and seen.desired != "stopped":
            raise RetryableError(
                f"pipeline {job.pipeline!r} is busy with {former.get('script')}; "
                "wait for it, or stop it"
            )

    def claim(record: ControlRecord) -> ControlRecord:
        _same_generation(record, seen.generation)
        return _claimed(record, owner, handle=record.handle)

    record = control.update(claim)
    if former:
        end_driver(control.store, job.pipeline, backend, former, STOP_GRACE_S)
    handle = _submit(control, replace(job, generation=record.generation), backend)
    return Started(record.generation, handle, adopted=False)


def _gives_way(former: Handle) -> bool:
    """A job that only serves requests may be ended for a stream: its driver goes on with them."""
    return REQUESTS_ONLY in (former.get("arguments") or ())


def _claimed(record: ControlRecord, owner: str, handle: Handle | None) -> ControlRecord:
    return changed(
        record,
        generation=record.generation + 1,
        desired="running",
        owner=owner,
        restarts=[],
        handle=handle,
    )


def _submit(control: Control, job: Job, backend: Backend) -> Handle:
    """Submit, and keep the handle while the generation is still ours."""
    record = _read(control)
    submitted_at_ms = now_ms()
    handle = {
        **backend.submit(job),
        "submitted_at_ms": submitted_at_ms,
        "script": job.script,
        "arguments": list(job.arguments),
        "spec_hash": record.spec_hash,
        "generation": job.generation,
    }
    try:

        def keep(latest: ControlRecord) -> ControlRecord:
            _same_generation(latest, job.generation)
            return changed(latest, handle=handle)

        control.update(keep)
    except RetryableError:
        backend.stop(handle, 0)
        raise
    return handle


def _same_generation(record: ControlRecord, expected: int) -> None:
    if record.generation != expected:
        raise RetryableError(
            f"generation {record.generation} was started meanwhile by {record.owner or 'another'}; "
            "look at its status before starting again"
        )


def _read(control: Control) -> ControlRecord:
    record = control.read()
    if record is None:
        raise SpecError(f"pipeline {control.pipeline!r} was deleted")
    return record
