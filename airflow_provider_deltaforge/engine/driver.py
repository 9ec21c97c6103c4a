"""The driver of a pipeline: the snapshot if one is due, then the stream, until it is told to end.

The same steps run with Spark and without; only where chunks and lanes run differs.
"""

import logging
import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from airflow_provider_deltaforge.engine.board import Board
from airflow_provider_deltaforge.engine.copying import Copied
from airflow_provider_deltaforge.engine.heart import Heart
from airflow_provider_deltaforge.engine.job import Bench, Job, place
from airflow_provider_deltaforge.engine.outcome import Outcome
from airflow_provider_deltaforge.engine.snapshot import SnapshotRun
from airflow_provider_deltaforge.engine.staying import Deaths, rest, say
from airflow_provider_deltaforge.engine.watching import guarding, showing_troubles
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.sources.contract import TableChunk
from airflow_provider_deltaforge.storage.choice import check_store
from airflow_provider_deltaforge.storage.control import Control, Progress
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.telemetry.redaction import redacted

_FOREVER_S = 10.0**9
_SNAPSHOT_DONE = "snapshot finished"

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Where the work of a pipeline runs."""

    def copy(
        self, job: Job, run_id: str, tables: list[list[list[TableChunk]]], at_once: int
    ) -> Iterable[Copied]:
        """Copy chunks in parallel and yield what becomes of each, in any order.

        Args:
            job: what they belong to.
            run_id: the snapshot run.
            tables: per table, the chunks in as many hands as may work on it at the same time.
            at_once: tables that may be worked on at the same time.
        """

    def stream(self, job: Job, window_s: float) -> Outcome:
        """Run lanes, window after window, until one ends for another reason than its window.

        Raises:
            RetryableError: a lane died without an outcome; it may be started again.
        """


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a driver process is asked to do."""

    pipeline: str
    location: StoreLocation
    generation: int
    application_id: str | None = None


def drive_stream(assignment: Assignment, runner: Runner) -> Outcome:
    """Run a pipeline: its own snapshot if due, then its stream."""
    return _driven(assignment, lambda bench: _snapshot_then_stream(bench, runner))


def drive_snapshot(
    assignment: Assignment, runner: Runner, wish: dict[str, Any] | None = None
) -> Outcome:
    """Run one snapshot and end."""
    return _driven(assignment, lambda bench: _snapshot(bench, runner, wish, "finished"))


def _driven(assignment: Assignment, work: Callable[[Bench], Outcome]) -> Outcome:
    """Become the pipeline's driver and work; an error becomes an outcome."""
    driver = uuid.uuid4().hex
    try:
        bench = _take_over(assignment, driver)
        try:
            # Asked to pause or stop before it was there: then it must not read a thing.
            outcome = rest(bench) or work(bench)
        finally:
            bench.store.close()
    except Exception as error:  # noqa: BLE001 - a driver's end is data, for its exit code
        outcome = _failed(error)
    if outcome.why == "failed":
        _say_failed(assignment, driver, outcome)
    return outcome


def _say_failed(assignment: Assignment, driver: str, outcome: Outcome) -> None:
    """Leave the reason in the progress, unless another driver is there or the store is away."""
    with suppress(DeltaForgeError):
        store = assignment.location.open()
        try:
            control = Control(store, assignment.pipeline)
            say(control, control.held_epoch(driver), "failed", outcome)
        finally:
            store.close()


def _take_over(assignment: Assignment, driver: str) -> Bench:
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
    fence = control.take_epoch(driver, assignment.generation)
    starting = _starting(assignment, fence.version)
    if former is not None and former.generation == assignment.generation:
        counted = former.model_dump(include={"events", "bytes", "batches", "tables", "extra"})
        starting = starting.model_copy(update={**counted, "sinks": former.sinks})
    store.transact([control.put_progress(starting)], fence)
    store.close()
    job = Job(
        document,
        assignment.location,
        driver,
        assignment.generation,
        assignment.application_id,
    )
    bench = Bench.open(job, renew=False)
    bench.pipeline.refuse_unbuilt()
    check_store(document, assignment.location)
    return bench


def _starting(assignment: Assignment, epoch: int) -> Progress:
    """Say at once that a driver is here; a former driver's last words no longer count."""
    now_ms = int(time.time() * 1000)
    host, pid = place()
    return Progress(
        status="starting",
        since_ms=now_ms,
        epoch=epoch,
        generation=assignment.generation,
        heartbeat_at_ms=now_ms,
        host=host,
        pid=pid,
        application_id=assignment.application_id,
    )


def _snapshot_then_stream(bench: Bench, runner: Runner) -> Outcome:
    outcome = Outcome("finished")
    if SnapshotRun(bench).due():
        outcome = _snapshot(bench, runner, None, "window")
    if outcome.why not in ("finished", "window"):
        return outcome
    return _stream(bench, runner)


def _stream(bench: Bench, runner: Runner) -> Outcome:
    deaths = Deaths()
    window_s = float(bench.pipeline.spec.trigger.window)
    while True:
        try:
            outcome = runner.stream(bench.job, window_s)
        except RetryableError as error:
            outcome = Outcome.of(error)
        if _is_retryable(outcome) and deaths.may_go_on():
            _log.warning("lane died, starting it again", extra={"reason": outcome.reason})
            with suppress(RetryableError):
                say(bench.control, bench.control.held_epoch(bench.job.driver), "starting", outcome)
            deaths.wait()
            continue
        if outcome.why != "paused":
            return outcome
        ended = rest(bench)
        if ended is not None:
            return ended


def _is_retryable(outcome: Outcome) -> bool:
    return outcome.why == "failed" and outcome.error_class == RetryableError.error_class


def _snapshot(bench: Bench, runner: Runner, wish: dict[str, Any] | None, ends_as: Any) -> Outcome:
    deaths = Deaths()
    while True:
        outcome = _attempt_snapshot(bench, runner, wish, ends_as, deaths)
        if outcome is None:
            deaths.wait()
        elif outcome.why != "paused":
            return outcome
        elif (ended := rest(bench)) is not None:
            return ended
        # A task of before may still live on a lost executor: it is fenced from here on.
        bench = replace(bench, fence=bench.control.renew_epoch(bench.job.driver))


def _attempt_snapshot(
    bench: Bench, runner: Runner, wish: dict[str, Any] | None, ends_as: Any, deaths: Deaths
) -> Outcome | None:
    """Copy what is left; None when tasks died and the rest may be tried again."""
    board = Board()
    heart = Heart(bench, board, _FOREVER_S, "snapshotting")
    heart.start()
    try:
        run = SnapshotRun(bench, wish)
        outcome = Outcome("finished")
        if wish is not None or run.due():
            outcome = _copy_all(bench, runner, run, heart, board)
        if outcome.why == "finished":
            outcome = Outcome(ends_as, reason=_SNAPSHOT_DONE if ends_as == "finished" else None)
    except Exception as error:  # noqa: BLE001 - must reach the progress record
        outcome = _failed(error)
    if _is_retryable(outcome) and deaths.may_go_on():
        _log.warning("snapshot tasks died, going on with the rest: %s", outcome.reason)
        heart.finish(Outcome("window"))  # The status stays: the snapshot is still under way.
        return None
    heart.finish(outcome)
    return outcome


def _copy_all(
    bench: Bench, runner: Runner, run: SnapshotRun, heart: Heart, board: Board
) -> Outcome:
    settings = bench.pipeline.spec.source.snapshot
    plan = run.prepare()
    hands = settings.max_parallel_chunks if settings.intra_table_parallel else 1
    tables = [_dealt(chunks, hands) for chunks in plan.remaining.values()]
    with guarding(run, plan, heart) as lost, showing_troubles(bench, board):
        for copied in runner.copy(bench.job, plan.run.id, tables, settings.max_parallel_tables):
            if lost:
                return Outcome.of(lost[0])
            if copied.outcome is not None:
                heart.end(copied.outcome.why)
                return copied.outcome
            board.copied(copied.table, copied.rows, copied.sink_bytes)
        if lost:
            return Outcome.of(lost[0])
    if heart.failure is not None:
        raise heart.failure
    if heart.ending.is_set():
        return Outcome(heart.why)
    run.finish(plan)
    return Outcome("finished")


def _dealt(chunks: list[TableChunk], hands: int) -> list[list[TableChunk]]:
    """Deal a table's chunks to so many hands."""
    return [chunks[hand::hands] for hand in range(min(hands, len(chunks)))]


def _failed(error: Exception) -> Outcome:
    """Log an error with its way, and return it as an outcome."""
    _log.error("%s", redacted("".join(traceback.format_exception(error))))
    return Outcome.of(error)
