"""Serves the replays and snapshots that were asked for, one after the other, while no lane runs.

Everything up to the checkpoint is delivered then, and the log is not read meanwhile. Afterwards
the stream goes on from that checkpoint: changes that the copied rows already contained may come
again, so a row's last delivery is its last state.
"""

import logging
from dataclasses import replace

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.restarts import rest
from airflow_provider_deltaforge.engine.base.runner import Runner
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.catch_up.table_watch import ask_for_arrivals
from airflow_provider_deltaforge.engine.replay.requests import serve_replays
from airflow_provider_deltaforge.engine.snapshot.attempts import fails_request, take
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotRun
from airflow_provider_deltaforge.storage.records.control import Control, ControlRecord
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest, SnapshotResults

_log = logging.getLogger(__name__)


def serve(context: TaskContext, runner: Runner) -> Outcome | None:
    """Serve every pending request, in order.

    Returns:
        None when nothing is left to serve; else why the driver must end, with requests left.

    Raises:
        RetryableError: the store is away.
    """
    results = SnapshotResults(context.store, context.pipeline.name)
    while True:
        if (ended := rest(context)) is not None:
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
            ended = _serve_one(context, runner, request)
            if ended is not None:
                return ended
        _remove(context.control, request.ticket)
        reach(CrashPoint.REQUEST_REMOVED)


def _serve_one(context: TaskContext, runner: Runner, request: SnapshotRequest) -> Outcome | None:
    _log.info("snapshot request %s, asked for by %s", request.id, request.by)
    outcome = Outcome("cancelled")
    if request.cancelled is None:
        outcome = take(context, runner, request)
    if outcome.why == "finished":
        return None  # Its result was written together with the end of its run.
    run = SnapshotRun(
        replace(context, fence=context.control.held_epoch(context.job.driver)), request
    )
    if outcome.why == "cancelled":
        run.end(request, "cancelled", _why_cancelled(context, request))
    elif fails_request(outcome):
        run.end(request, "failed", outcome.reason, outcome.error_class)
    else:
        return outcome
    _log.info("snapshot request %s: %s %s", request.id, outcome.why, outcome.reason or "")
    return None


def _pending(context: TaskContext) -> list[SnapshotRequest]:
    record = context.control.read()
    return record.requests if record is not None else []


def _why_cancelled(context: TaskContext, request: SnapshotRequest) -> str:
    latest = [known for known in _pending(context) if known.ticket == request.ticket]
    return (latest[0].cancelled if latest else None) or "withdrawn"


def _remove(control: Control, ticket: str) -> None:
    def without(old: ControlRecord) -> ControlRecord:
        left = [request for request in old.requests if request.ticket != ticket]
        return old.model_copy(update={"requests": left})

    control.update(without)
