"""Start a pipeline's driver, or adopt the one that runs: never two.

The generation is the supervisor's intent and is raised by compare-and-set; the epoch, which the
driver takes itself, is what fences its writes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_deltaforge.control.launching.contract import (
    Backend,
    Handle,
    JobState,
    LaunchSpec,
)
from airflow_provider_deltaforge.control.pipelines import (
    STOP_GRACE_S,
    changed,
    end_driver,
    existing,
    now_ms,
    still_speaks,
)
from airflow_provider_deltaforge.control.status import (
    START_PATIENCE_S,
    PipelineStatus,
    has_spoken,
    job_status,
    status,
)
from airflow_provider_deltaforge.control.supervise import HOPELESS, RESTARTS_MAX
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.storage import moments
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import (
    ALIVE_S,
    Control,
    ControlRecord,
    Desired,
)
from airflow_provider_deltaforge.storage.records.heartbeats import HEARTBEATS
from airflow_provider_deltaforge.storage.records.snapshots import Snapshots

SNAPSHOT_SCRIPT = "snapshot_job.py"
REQUESTS_ONLY = "--requests"
"""Argument of a snapshot job that serves requests, and takes no snapshot of the pipeline's own."""

LOCAL_SCRIPT = "local"
"""In the handle of a driver inside `deltaforge run --local`, in the place of a script."""

_LAST_WORDS = frozenset({"stopped", "failed"})
_SPARE_S = 5.0
_TURN_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Started:
    """A driver that runs now, started or adopted."""

    generation: int
    handle: Handle
    adopted: bool


def start(
    store: Store,
    job: LaunchSpec,
    backend: Backend,
    owner: str,
    *,
    resume: bool = False,
    grace_s: float = STOP_GRACE_S,
) -> Started:
    """Adopt the pipeline's driver when it runs the applied document, else start a new generation.

    The generation is raised before anything is submitted: a caller killed half-way leaves at most
    a driver of a generation that the next call outdates, which therefore ends by itself.

    Args:
        store: the state store.
        job: what to start; its generation is set here.
        backend: where.
        owner: the supervisor's token, written into the record.
        resume: a driver that is started is to work also when the pipeline was paused; otherwise
            it waits, as its predecessor did.
        grace_s: so long a driver that is replaced may take to end.

    Raises:
        SpecError: no document was applied, or the job cannot be run as asked.
        RetryableError: another supervisor started a newer generation meanwhile, or somebody
            stopped the pipeline.
    """
    control = existing(store, job.pipeline)
    seen = _read(control)
    if not _adoptable(control, seen, job, backend):
        return _start_generation(control, seen, job, backend, owner, resume=resume, grace_s=grace_s)

    def adopt(record: ControlRecord) -> ControlRecord:
        _as_seen(record, seen)
        return changed(record, owner=owner)

    record = control.update(adopt)
    return Started(record.generation, record.handle or {}, adopted=True)


def restart(store: Store, job: LaunchSpec, backend: Backend, owner: str) -> Handle | None:
    """Start the driver of the job's generation again, and count it against the budget.

    A process of it that still lives is hung, and is ended first; unless it speaks again by now.

    Returns:
        The driver's handle; None when the pipeline was stopped meanwhile, and nothing was started.

    Raises:
        RetryableError: a newer generation exists, or ``owner`` supervises it no longer.
    """
    control = existing(store, job.pipeline)
    record = _read(control)
    _same_supervision(record, job.generation, owner)
    former = record.handle
    lives = former is not None and backend.status(former).state is JobState.RUNNING
    if record.desired != "stopped" and lives and status(store, job.pipeline, backend).alive:
        return former
    moment = count_restart(store, job.pipeline, job.generation, owner)
    if _read(control).desired == "stopped":
        return None
    if former is not None and lives:
        backend.stop(former, 0)
    try:
        return _submit(control, job, backend)
    except RetryableError:
        # Where drivers run is away: a budget is for drivers that were started, and died.
        control.update(partial(_not_counted, moment=moment))
        raise


def _not_counted(record: ControlRecord, moment: int) -> ControlRecord:
    if moment not in record.restarts:
        return record
    kept = [each for each in record.restarts if each != moment]
    return changed(record, restarts=kept, restarts_total=record.restarts_total - 1)


def count_restart(store: Store, name: str, generation: int, owner: str) -> int:
    """Write a restart of ``generation`` into the record; return when it was, in ms.

    Raises:
        RetryableError: a newer generation exists, or ``owner`` supervises it no longer.
    """
    moment = now_ms()

    def count(record: ControlRecord) -> ControlRecord:
        _same_supervision(record, generation, owner)
        if record.desired == "stopped":
            return record
        kept = [*record.restarts, moment][-RESTARTS_MAX:]
        return changed(record, restarts=kept, restarts_total=record.restarts_total + 1)

    existing(store, name).update(count)
    return moment


def counts_restart(store: Store, name: str, generation: int, owner: str) -> bool:
    """Write a restart into the record; return False where another has taken over.

    Raises:
        RetryableError: the store is away.
    """
    try:
        count_restart(store, name, generation, owner)
    except RetryableError:
        record = Control(store, name).read()
        if record is not None and (record.owner, record.generation) == (owner, generation):
            raise
        return False
    return True


def comes_back(present: PipelineStatus) -> bool:
    """Return whether the supervisor of a stream that died may be about to start it again."""
    streams = (present.handle or {}).get("script") != SNAPSHOT_SCRIPT
    died = present.status == "lost" or (
        present.status == "failed" and present.error_class not in HOPELESS
    )
    return streams and died and present.desired == "running"


def take_generation(  # noqa: PLR0913 - a place and a way to wait
    store: Store,
    name: str,
    owner: str,
    *,
    handle: Handle | None = None,
    backend: Backend | None = None,
    tell: Callable[[str], object] = lambda _: None,
    rest: Callable[[float], object] = time.sleep,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Claim a new generation for a driver that runs inside the calling process.

    A former driver whose process is known to be gone is succeeded at once. One that may live
    elsewhere is waited for, as long as its heartbeat might still come.

    Args:
        store: the state store.
        name: the pipeline.
        owner: the supervisor's token, written into the record.
        handle: of the calling process, from ``LocalBackend.occupied``.
        backend: asked about the former driver's process.
        tell: called once with a text when it waits, and for whom.
        rest: waits for so many seconds.
        stopping: true once the caller wants to leave.

    Raises:
        SpecError: a driver of the pipeline lives on this machine.
        RetryableError: one on another goes on, or somebody started or stopped the pipeline
            meanwhile.
    """
    _await_turn(store, name, backend, tell, rest, stopping)
    control = existing(store, name)
    seen = _read(control)

    def claim(record: ControlRecord) -> ControlRecord:
        _as_seen(record, seen)
        claimed = _claimed(record, owner, "running", handle=None)
        own = handle and {
            **handle,
            **_now(control),
            "script": LOCAL_SCRIPT,
            "spec_hash": record.spec_hash,
            "generation": claimed.generation,
        }
        return changed(claimed, handle=own)

    return control.update(claim).generation


def _await_turn(
    store: Store,
    name: str,
    backend: Backend | None,
    tell: Callable[[str], object],
    rest: Callable[[float], object],
    stopping: Callable[[], bool],
) -> None:
    began: float | None = None
    while (held := holder(store, name, backend)) is not None:
        seen = _read(existing(store, name))
        words = f"pipeline {name!r} already runs (generation {seen.generation}, {seen.owner})"
        if job_status(seen, backend).state is JobState.RUNNING:
            raise SpecError(f"{words}; stop it first, or wait for it with --standby")
        # One that starts may be silent for longer. Whoever gave up earlier, and is started again,
        # would listen from the beginning, and never outlast one that died while it started.
        silent_s = START_PATIENCE_S if held.status == "starting" else ALIVE_S
        if began is None:
            began = HEARTBEATS.now()
            wait_s = silent_s + _SPARE_S
            tell(f"{held.words} elsewhere; waiting for up to {wait_s:.0f} s until it is gone")
        if HEARTBEATS.now() >= began + silent_s + _SPARE_S or stopping():
            raise RetryableError(
                f"{words} on another machine, and was heard within the last {silent_s:.0f} s: stop "
                "it first, or wait for it with --standby"
            )
        rest(_TURN_POLL_S)


def holder(store: Store, name: str, backend: Backend | None) -> PipelineStatus | None:
    """Return the status of the driver that holds a pipeline; None when it is free.

    It is free once nobody wants it to run, when its driver said that it ended, when that driver's
    process is known to be gone, and when it was silent for so long that it counts as lost.
    """
    present = status(store, name, backend)
    if present.desired == "stopped" or present.status in {"pending", "stopped", "failed"}:
        return None
    control = existing(store, name)
    record = _read(control)
    if job_status(record, backend).state is JobState.ENDED:
        return None
    if present.status != "lost":
        return present
    # Lost by a doubtful time of its last heartbeat is enough for people, not for a successor.
    progress, heard = control.listen()
    spoke = progress is not None and has_spoken(record, progress)
    return present if spoke and heard.silence_s < ALIVE_S else None


def _adoptable(control: Control, record: ControlRecord, job: LaunchSpec, backend: Backend) -> bool:
    handle = record.handle
    if handle is None or record.desired == "stopped":
        return False
    runs = (handle.get("script"), handle.get("spec_hash"), handle.get("generation"))
    same = runs == (job.script, record.spec_hash, record.generation)
    if not same or tuple(handle.get("arguments") or ()) != job.arguments:
        return False
    progress = control.progress()
    if progress is not None and has_spoken(record, progress) and progress.status in _LAST_WORDS:
        return False  # It is about to be gone; whoever adopts it inherits its failure.
    state = backend.status(handle).state
    if state is JobState.UNKNOWN:
        return _speaks(control, record.generation)
    return state is JobState.RUNNING


def _speaks(control: Control, generation: int) -> bool:
    """Return whether a driver that runs elsewhere is there: only its heartbeat shows it."""
    progress = control.progress()
    spoke = progress is not None and progress.generation == generation
    return spoke and still_speaks(control)


def _start_generation(
    control: Control,
    seen: ControlRecord,
    job: LaunchSpec,
    backend: Backend,
    owner: str,
    *,
    resume: bool,
    grace_s: float,
) -> Started:
    former = seen.handle
    if former and former.get("script") != job.script and not _gives_way(control, former):
        state = backend.status(former).state
        if state is JobState.RUNNING and seen.desired != "stopped":
            raise RetryableError(
                f"pipeline {job.pipeline!r} is busy with {former.get('script')}; "
                "wait for it, or stop it"
            )

    def claim(record: ControlRecord) -> ControlRecord:
        _as_seen(record, seen)
        waits = record.desired == "paused" and not resume
        return _claimed(record, owner, "paused" if waits else "running", handle=record.handle)

    record = control.update(claim)
    if former:
        end_driver(control.store, job.pipeline, backend, former, grace_s)
    handle = _submit(control, replace(job, generation=record.generation), backend)
    return Started(record.generation, handle, adopted=False)


def _gives_way(control: Control, former: Handle) -> bool:
    """A job that only serves requests may be ended for a stream: its driver goes on with them.

    So may the job of the pipeline's own snapshot once that is finished.
    """
    if former.get("script") == LOCAL_SCRIPT:
        return True  # It drains when it sees the newer generation.
    if REQUESTS_ONLY in (former.get("arguments") or ()):
        return True
    if former.get("script") != SNAPSHOT_SCRIPT:
        return False
    run = Snapshots(control.store, control.pipeline).current()
    if run is None or run.finished_at_ms is None:
        return False
    # With mode ``always`` a run that was finished before this job says nothing about its own.
    in_this_job = run.finished_at_ms >= int(former.get("submitted_at_ms", 0))
    return in_this_job or run.generation == former.get("generation")


def _claimed(
    record: ControlRecord, owner: str, desired: Desired, handle: Handle | None
) -> ControlRecord:
    return changed(
        record,
        generation=record.generation + 1,
        desired=desired,
        owner=owner,
        restarts=[],
        handle=handle,
    )


def _submit(control: Control, job: LaunchSpec, backend: Backend) -> Handle:
    """Submit, and keep the handle while the generation is still ours."""
    record = _read(control)
    handle = {
        **_now(control),
        **backend.submit(job),
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


def _now(control: Control) -> Handle:
    """Return the present moment; a driver that is waited for reports after it."""
    former = control.progress()
    after = [former.epoch, former.beat] if former is not None else [0, 0]
    return {
        "submitted_at_ms": now_ms(),
        "submitted_s": moments.now(),
        "boot": moments.boot(),
        "after": after,
    }


def _same_generation(record: ControlRecord, expected: int) -> None:
    if record.generation != expected:
        raise RetryableError(
            f"generation {record.generation} was started meanwhile by {record.owner or 'another'}; "
            "look at its status before starting again"
        )


def _same_supervision(record: ControlRecord, generation: int, owner: str) -> None:
    _same_generation(record, generation)
    if record.owner != owner:
        raise RetryableError(
            f"taken over by {record.owner or 'another'}, which restarts it if it has to; "
            "look at its status before starting again"
        )


def _as_seen(record: ControlRecord, seen: ControlRecord) -> None:
    """Refuse to overwrite somebody else's start or stop since ``seen``."""
    _same_generation(record, seen.generation)
    if record.desired == "stopped" != seen.desired:
        raise RetryableError("it was stopped at this moment; start it again if it is to run")


def _read(control: Control) -> ControlRecord:
    record = control.read()
    if record is None:
        raise SpecError(f"pipeline {control.pipeline!r} was deleted")
    return record
