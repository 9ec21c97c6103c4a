"""The driver of a pipeline: the snapshot if one is due, then the stream, until it is asked to end.

The same steps run with Spark and without; only where chunks and lanes run differs.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.log_shipper import LogOrigin, shipped_log
from airflow_provider_deltaforge.engine.base.outcome import EXIT_RETRYABLE, Outcome, logged
from airflow_provider_deltaforge.engine.base.restarts import (
    Restarts,
    wait_while_paused,
    write_status,
)
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.runner import Runner
from airflow_provider_deltaforge.engine.base.task_context import (
    DriverAssignment,
    TaskContext,
    place,
)
from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.engine.catch_up.start_positions import lagging
from airflow_provider_deltaforge.engine.catch_up.table_watch import ask_for_arrivals
from airflow_provider_deltaforge.engine.replay.requests import serve_replays
from airflow_provider_deltaforge.engine.snapshot.attempts import (
    fails_request,
    may_be_copied,
    needs_the_log_to_wait,
    take,
)
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.spec.document import Pipeline
from airflow_provider_deltaforge.storage.choice import check_store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.checkpoints import has_begun, why_source_is_refused
from airflow_provider_deltaforge.storage.records.control import (
    Control,
    Progress,
    heartbeat,
)
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest, SnapshotResults
from airflow_provider_deltaforge.storage.records.stats import count_gaps

_SNAPSHOT_DONE = "snapshot finished"
_LAST_WORD_S = 60.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DriverArguments:
    """What a driver process is asked to do."""

    pipeline: str
    location: StoreLocation
    generation: int
    application_id: str | None = None
    leaving: threading.Event | None = None
    """Set once this process is to end, whether or not the store is there to say so."""
    tuning: Tuning = TUNING
    pushes_metrics: bool = False
    """This process sends its metrics to OpenTelemetry."""


def drive_stream(assignment: DriverArguments, runner: Runner) -> Outcome:
    """Run a pipeline: its own snapshot if due, then its stream, and what is asked for meanwhile."""
    return _driven(assignment, lambda context: _snapshot_then_stream(context, runner))


def drive_snapshot(assignment: DriverArguments, runner: Runner, *, own: bool = True) -> Outcome:
    """Take the pipeline's own snapshot if due, serve every request, and end.

    Args:
        assignment: the pipeline.
        runner: where.
        own: False serves the requests only.
    """
    return _driven(assignment, lambda context: _snapshots_only(context, runner, own=own))


def _driven(assignment: DriverArguments, work: Callable[[TaskContext], Outcome]) -> Outcome:
    """Become the pipeline's driver and work; an error becomes an outcome."""
    driver = uuid.uuid4().hex
    origin = LogOrigin(assignment.location, assignment.pipeline, driver, assignment.generation)
    with shipped_log(origin):
        outcome = _worked(assignment, driver, work)
        if outcome.why == "failed":
            _say_failed(assignment, driver, outcome)
    return outcome


def _worked(
    assignment: DriverArguments, driver: str, work: Callable[[TaskContext], Outcome]
) -> Outcome:
    try:
        context = _take_over(assignment, driver)
        try:
            # Asked to pause or stop before it was there: then it must not read a thing.
            outcome = wait_while_paused(context) or _begin(context, work)
            if outcome.why == "stopped":
                _see_it_said(context)
        finally:
            context.store.close()
    except Exception as error:  # noqa: BLE001 - a driver's end is data, for its exit code
        outcome = logged(error)
    return outcome


def _begin(context: TaskContext, work: Callable[[TaskContext], Outcome]) -> Outcome:
    """Work, unless that would skip what the source's former id has not delivered.

    Raises:
        SpecError: the pipeline's positions belong to another id.
    """
    name, source_id = context.pipeline.name, context.pipeline.spec.source.id
    if refusal := why_source_is_refused(context.store, name, source_id):
        raise SpecError(refusal)
    return work(context)


def _see_it_said(context: TaskContext) -> None:
    """Report that it is stopped, if the store was away when its lane or its copy did so."""
    with suppress(DeltaForgeError):  # Started again meanwhile, perhaps.
        context.job.in_time(lambda: wait_while_paused(context))


def _say_failed(assignment: DriverArguments, driver: str, outcome: Outcome) -> None:
    """Leave the reason in the progress, unless another driver is there or the store stays away.

    One that is started again need not wait for the store: its successor says how it is.
    """
    goes_on = outcome.exit_code == EXIT_RETRYABLE
    deadline = time.monotonic() + (0.0 if goes_on else _LAST_WORD_S)

    def over() -> bool:
        leaves = assignment.leaving is not None and assignment.leaving.is_set()
        return leaves or time.monotonic() >= deadline

    def attempt() -> None:
        store = assignment.location.open()
        try:
            control = Control(store, assignment.pipeline)
            write_status(control, driver, "failed", outcome)
        finally:
            store.close()

    with suppress(DeltaForgeError):
        retry_until(attempt, lambda _: None, over, time.sleep)


def _take_over(assignment: DriverArguments, driver: str) -> TaskContext:
    store = assignment.location.open()
    control = Control(store, assignment.pipeline)
    document = control.document()
    if document is None:
        raise SpecError(f"pipeline {assignment.pipeline!r} was never applied to this state store")
    record = control.read()
    if record is None or record.generation != assignment.generation:
        generation = record.generation if record else None
        raise SpecError(
            f"generation {assignment.generation} of {assignment.pipeline!r} is over; the record "
            f"says {generation}"
        )
    former = control.progress()
    location = assignment.location.of(store)  # Not another one, should this be away later.
    fence = control.take_epoch(driver, assignment.generation)
    starting = _starting(assignment, fence.version, former)
    if former is not None and former.generation == assignment.generation:
        starting = starting.model_copy(update={**former.counted(), **count_gaps(former)})
    store.transact([control.put_progress(starting)], fence)
    store.close()
    job = DriverAssignment(
        document,
        location,
        driver,
        assignment.generation,
        assignment.application_id,
        assignment.leaving,
        assignment.tuning,
        assignment.pushes_metrics,
    )
    context = TaskContext.open(job, renew=False)
    context.pipeline.refuse_unbuilt()
    check_store(document, assignment.location)
    return context


def _starting(assignment: DriverArguments, epoch: int, former: Progress | None) -> Progress:
    """Report at once that a driver is here; a former driver's last status no longer counts."""
    now_ms = int(time.time() * 1000)
    host, pid = place()
    return Progress(
        status="starting",
        since_ms=now_ms,
        epoch=epoch,
        generation=assignment.generation,
        **heartbeat(former),
        host=host,
        pid=pid,
        application_id=assignment.application_id,
        minute=former.minute if former is not None else None,
        **count_gaps(former),
    )


def _snapshot_then_stream(context: TaskContext, runner: Runner) -> Outcome:
    ended = _own_snapshot(context, runner)
    return ended if ended is not None else _stream(context, runner)


def _snapshots_only(context: TaskContext, runner: Runner, *, own: bool) -> Outcome:
    ended = _own_snapshot(context, runner) if own else None
    if ended is None:
        ended = serve(context, runner)
    if ended is not None:
        return ended
    done = Outcome("finished", reason=_SNAPSHOT_DONE)
    with suppress(RetryableError):
        write_status(context.control, context.job.driver, "stopped", done)
    return done


def _own_snapshot(context: TaskContext, runner: Runner) -> Outcome | None:
    """Take the pipeline's own snapshot if it is due; None when the driver may go on."""
    if not SnapshotRun(context).due():
        return None
    outcome = take(context, runner, find_extra=_find_extra)
    return outcome if outcome.why != "finished" else None


def _stream(context: TaskContext, runner: Runner) -> Outcome:
    deaths = Restarts()
    window_s = float(context.pipeline.spec.trigger.window)
    while True:
        try:
            # A lane keeps where it begins before copies are made: one that began at the head after
            # a copy would miss what has changed meanwhile.
            ended = None
            if has_begun(context.store, context.pipeline.name, context.pipeline.spec.source.id):
                lags = lagging(context.store, context.pipeline)
                ended = serve_replays(context) if lags else serve(context, runner, is_live=True)
            outcome = ended or _carry(context, runner, window_s)
        except RetryableError as error:
            outcome = Outcome.of(error)
        if outcome.is_retryable and deaths.may_go_on():
            _log.warning("lane died, starting it again", extra={"reason": outcome.reason})
            with suppress(RetryableError):
                write_status(context.control, context.job.driver, "starting", outcome)
            deaths.wait(context.job)
            if context.job.leaves:
                return Outcome("stopped")
            continue
        if outcome.why == "request":
            continue
        if outcome.why != "paused":
            return outcome
        ended = wait_while_paused(context)
        if ended is not None:
            return ended


def _carry(context: TaskContext, runner: Runner, window_s: float) -> Outcome:
    """Run lanes; until one is placed, which may take a while, nobody else speaks."""
    control = context.control
    with suppress(RetryableError):
        progress = control.progress()
        if (
            progress is not None and progress.status != "starting"
        ):  # That may say why it begins again.
            write_status(control, context.job.driver, "starting")
    return runner.stream(context.job, window_s)


def serve(context: TaskContext, runner: Runner, *, is_live: bool = False) -> Outcome | None:
    """Serve every pending request, in order, while no lane runs.

    Everything up to the checkpoint is delivered then, and the log is not read meanwhile.
    Afterwards the stream goes on from that checkpoint: changes that the copied rows already
    contained may come again, so a row's last delivery is its last state.

    Args:
        context: the driver's.
        runner: where chunks are copied.
        is_live: a lane follows, which makes most copies while it runs.

    Returns:
        None when nothing is left to serve; else why the driver must end, with requests left.

    Raises:
        RetryableError: the store is away.
    """
    results = SnapshotResults(context.store, context.pipeline.name)
    while True:
        if (ended := wait_while_paused(context)) is not None:
            return ended
        if (ended := serve_replays(context)) is not None:
            return ended
        ask_for_arrivals(replace(context, fence=context.control.held_epoch(context.job.driver)))
        pending = _pending(context)
        if not pending:
            return None
        request = pending[0]
        # Without this a driver killed between recording and removing would copy again.
        if results.of(request.ticket) is None:
            is_wanted = request.cancelled is None
            if is_live and is_wanted and _is_for_the_lane(context, request):
                return None
            ended = _serve_one(context, runner, request)
            if ended is not None:
                return ended
        context.control.remove_request(request.ticket)
        reach(CrashPoint.REQUEST_REMOVED)


def _is_for_the_lane(context: TaskContext, request: SnapshotRequest) -> bool:
    """Return whether a lane serves a request, or has to come further before that."""
    if not needs_the_log_to_wait(context):
        return True
    held = replace(context, fence=context.control.held_epoch(context.job.driver))
    with suppress(RetryableError):
        return not may_be_copied(held, request)
    return True


def _serve_one(context: TaskContext, runner: Runner, request: SnapshotRequest) -> Outcome | None:
    _log.info("snapshot request %s, asked for by %s", request.id, request.by)
    outcome = Outcome("cancelled")
    if request.cancelled is None:
        outcome = take(context, runner, request, _find_extra)
    if outcome.why == "finished":
        return None  # Its result was written together with the end of its run.
    run = SnapshotRun(
        replace(context, fence=context.control.held_epoch(context.job.driver)), request
    )
    if outcome.why == "cancelled":
        run.end(request, "cancelled", context.control.why_cancelled(request.ticket) or "withdrawn")
    elif fails_request(outcome):
        run.end(request, "failed", outcome.reason, outcome.error_class)
    else:
        return outcome
    _log.info("snapshot request %s: %s %s", request.id, outcome.why, outcome.reason or "")
    return None


def _find_extra(
    pipeline: Pipeline,
    sink_ids: Collection[str],
    chunks: Mapping[str, Sequence[TableChunk]],
    check: Callable[[], None],
) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
    # Its compiled checksums are for copies of tables that stopped only.
    from airflow_provider_deltaforge.engine.verify.extra_rows import extra_rows

    return extra_rows(pipeline, sink_ids, chunks, check)


def _pending(context: TaskContext) -> list[SnapshotRequest]:
    record = context.control.read()
    return record.requests if record is not None else []
