"""Takes one snapshot to its end: waits out pauses, tries again when tasks die, watches the log."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from airflow_provider_deltaforge.engine.base.data_drift import DataDriftCounter
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.outcome import Outcome, Why, logged
from airflow_provider_deltaforge.engine.base.processor_stats import ProcessorStats
from airflow_provider_deltaforge.engine.base.restarts import Restarts, wait_while_paused
from airflow_provider_deltaforge.engine.base.runner import CopyPlan, Runner
from airflow_provider_deltaforge.engine.base.schema_sensing import LaneSensing
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.deliver.sink_positions import SinkPositions
from airflow_provider_deltaforge.engine.read.registrar import lookup, registry_of
from airflow_provider_deltaforge.engine.snapshot.chunk_copy import SINK, CopyErrors
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import (
    FindExtra,
    SnapshotPlan,
    SnapshotRun,
)
from airflow_provider_deltaforge.errors import (
    DeltaForgeError,
    PositionLostError,
    RetryableError,
)
from airflow_provider_deltaforge.storage.contract import Write
from airflow_provider_deltaforge.storage.records.checkpoints import Checkpoints
from airflow_provider_deltaforge.storage.records.gaps import Gaps
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest
from airflow_provider_deltaforge.storage.records.tables import TableRecords

_FOREVER_S = 10.0**9
_GUARD_S = 30.0
_SHOW_S = 1.0

_log = logging.getLogger(__name__)


class _EndedError(Exception):
    """Nobody waits for the plan of a copy any more."""

    def __init__(self, why: Why) -> None:
        super().__init__(why)
        self.why: Why = why


def take(
    context: TaskContext,
    runner: Runner,
    request: SnapshotRequest | None = None,
    find_extra: FindExtra | None = None,
) -> Outcome:
    """Copy what is left of a snapshot.

    Args:
        context: the driver's.
        runner: where the chunks are copied.
        request: what was asked for; None for the pipeline's own snapshot.
        find_extra: finds the rows that sinks hold and tables that stopped do not.

    Returns:
        ``finished``, or why it ended before.
    """
    deaths = Restarts()
    while True:
        # A lane or task of before may still live on a lost executor: it is fenced from here on.
        context = replace(context, fence=context.control.renew_epoch(context.job.driver))
        outcome = _attempt(context, runner, request, deaths, find_extra)
        if outcome is None:
            deaths.wait(context.job)
        elif outcome.why != "paused":
            return outcome
        elif (ended := wait_while_paused(context)) is not None:
            return ended


def fails_request(outcome: Outcome) -> bool:
    """Return whether an end concerns the request only: then the pipeline goes on without it.

    Also when trying again did not help: a stream waits for its source for ever, and somebody's
    copy must not take that from it.
    """
    return outcome.why == "failed" and outcome.error_class not in ("fenced", "position_lost")


def needs_the_log_to_wait(context: TaskContext) -> bool:
    """Return whether copies can only be made while no lane runs.

    Where the source does not say what views contain, or a table has stopped: the lane passes its
    changes over, so that nothing tells which of its rows are out of date.
    """
    spec, name = context.pipeline.spec, context.pipeline.name
    if TableRecords(context.store, name).stopped():
        return True
    known = Checkpoints(context.store, name, spec.source.id).load()
    return not known or not all(spec.source.knows_views(at) for at in known.values())


def may_be_copied(context: TaskContext, request: SnapshotRequest) -> bool:
    """Return whether the stream has passed what stopped tables.

    That lies in front of the log's end as of when a copy was first looked at. Copied before, a
    table would stop again where it stopped.

    Raises:
        RetryableError: source or store are away.
    """
    spec, name = context.pipeline.spec, context.pipeline.name
    records = TableRecords(context.store, name)
    if not records.stopped():
        return True
    known = Checkpoints(context.store, name, spec.source.id).load()
    awaited = records.awaited(request.ticket)
    if awaited is None:
        awaited = spec.source.head()
        write = records.await_position(request.ticket, awaited)
        context.store.transact([write], context.fence)
    with suppress(PositionLostError):  # Of another history: the lane looks into that.
        given_up = Gaps(context.store, name).open()
        stands = [known[s.id] for s in spec.sinks if s.id in known and s.id not in given_up]
        return all(spec.source.covers(at, awaited) for at in stands)
    return False


def _attempt(
    context: TaskContext,
    runner: Runner,
    request: SnapshotRequest | None,
    deaths: Restarts,
    find_extra: FindExtra | None,
) -> Outcome | None:
    """Copy what is left; None when tasks died and the rest may be tried again."""
    spec = context.pipeline.spec
    stats = LaneStats(
        {sink.id: SinkStats() for sink in spec.sinks},
        processors=ProcessorStats(processor.id for processor in spec.processors),
    )
    heartbeat = Heartbeat(context, stats, _FOREVER_S, "snapshotting")
    try:
        heartbeat.start()
        check = _EndingCheck(context, heartbeat, request)
        run = SnapshotRun(context, request, find_extra=find_extra, check=check)
        outcome = Outcome("finished")
        if run.due():
            if request is None:
                SinkPositions(context, stats, heartbeat).see_others()
            outcome = _copy_all(context, runner, run, heartbeat, stats)
    except Exception as error:  # noqa: BLE001 - must reach the progress record
        outcome = logged(error)
    if outcome.is_retryable and deaths.may_go_on():
        _log.warning("snapshot tasks died, going on with the rest: %s", outcome.reason)
        heartbeat.finish(Outcome("window"))  # The status stays: the snapshot is still under way.
        return None
    done = outcome.why in ("finished", "cancelled")
    goes_on = done or (request is not None and fails_request(outcome))
    heartbeat.finish(Outcome("window") if goes_on else outcome)
    return outcome


def _copy_all(
    context: TaskContext, runner: Runner, run: SnapshotRun, heartbeat: Heartbeat, stats: LaneStats
) -> Outcome:
    settings = context.pipeline.spec.source.snapshot
    try:
        plan = run.prepare()
    except _EndedError as ended:
        if heartbeat.failure is not None:
            raise heartbeat.failure from ended
        return Outcome(ended.why)
    drift = DataDriftCounter(context)
    drift.load()
    stats.data_drift = drift.report
    with (
        guarding(run, plan, heartbeat) as lost,
        showing_errors(context, stats),
        _sensing(context, stats) as sensing,
    ):
        stages = [CopyPlan.of(settings, stage.values()) for stage in plan.stages]
        for copied in (c for stage in stages for c in runner.copy(context.job, plan.run.id, stage)):
            stats.processors.add(copied.processors)
            stats.dead_letters.add(copied.dead_letters)
            stats.measured.add(copied.measured)
            if lost:
                return Outcome.of(lost[0])
            if copied.outcome is not None:
                heartbeat.end(copied.outcome.why)
                return copied.outcome
            stats.copied(copied.table, copied.rows, copied.taken)
            sensing.observe_samples(copied.samples)
            drift.add(copied.findings)
            drift.checkpointed(_kept(context, drift.writes()))
        if lost:
            return Outcome.of(lost[0])
    if heartbeat.failure is not None:
        raise heartbeat.failure
    if heartbeat.ending.is_set():
        return Outcome(heartbeat.why)
    drift.checkpointed(_kept(context, drift.writes(now=True)))
    run.finish(plan)
    return Outcome("finished")


class _EndingCheck:
    """Raises once a copy is to end while it is planned: sinks may be read for that.

    Args:
        context: the driver's.
        heartbeat: of the copy.
        request: what is served; None for the pipeline's own snapshot.
    """

    def __init__(
        self, context: TaskContext, heartbeat: Heartbeat, request: SnapshotRequest | None
    ) -> None:
        self._context, self._heartbeat, self._request = context, heartbeat, request
        self._looked_at = time.monotonic()

    def __call__(self) -> None:
        if self._heartbeat.ending.is_set():
            raise _EndedError(self._heartbeat.why)
        if self._request is None:
            return
        if time.monotonic() - self._looked_at > self._context.job.tuning.listen_s:
            self._looked_at = time.monotonic()
            if self._context.control.why_cancelled(self._request.ticket) is not None:
                raise _EndedError("cancelled")


@contextmanager
def _sensing(context: TaskContext, stats: LaneStats) -> Iterator[LaneSensing]:
    """Sense the schemas of what is copied, if the document asks for it."""
    sensing = LaneSensing(context, stats.measured, lookup(registry_of(context)))
    if context.pipeline.spec.schema_sensing.enabled:
        sensing.open()
    try:
        yield sensing
    finally:
        sensing.close()


def _kept(context: TaskContext, writes: Sequence[Write]) -> Sequence[Write]:
    """Store some counts under the driver's fence; return them."""
    if writes:
        context.store.transact(writes, context.fence)
    return writes


@contextmanager
def guarding(
    run: SnapshotRun, plan: SnapshotPlan, heartbeat: Heartbeat
) -> Iterator[list[Exception]]:
    """Check every 30 s that the log still begins early enough; cancel the run if not.

    Yields:
        An empty list, which holds the reason once the run is lost.
    """
    over = threading.Event()
    lost: list[Exception] = []

    def watch() -> None:
        while not over.wait(_GUARD_S):
            try:
                run.guard(plan)
            except RetryableError:
                continue
            except DeltaForgeError as error:
                lost.append(error)
                heartbeat.end("failed")
                return

    threading.Thread(target=watch, name="guard", daemon=True).start()
    try:
        yield lost
    finally:
        over.set()


@contextmanager
def showing_errors(context: TaskContext, stats: LaneStats) -> Iterator[None]:
    """Show the tasks' troubles on the driver's statistics, so that status says ``blocked``."""
    over = threading.Event()
    errors = CopyErrors(context.store, context.pipeline.name)

    def show() -> None:
        shown: set[str] = set()
        while not over.wait(_SHOW_S):
            with suppress(RetryableError):
                now = errors.read()
                for name in shown - now.keys():
                    _show(stats, name, None)
                for name, error in now.items():
                    _show(stats, name, error)
                shown = set(now)

    threading.Thread(target=show, name="errors", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _show(stats: LaneStats, name: str, error: BaseException | None) -> None:
    if name.startswith(SINK):
        stats.show_sink_error(name.removeprefix(SINK), error)  # The task has counted it.
    else:
        stats.report_error(name, error)
