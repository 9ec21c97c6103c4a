"""Where replays of dead letters run: in the pipeline's driver, or where they were asked for."""

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from airflow_provider_deltaforge.engine.base.crash_points import CrashPoint, reach
from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.measurements import LaneMeasurements
from airflow_provider_deltaforge.engine.base.outcome import Outcome, logged
from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats, ProcessorStats
from airflow_provider_deltaforge.engine.base.required_sinks import RequiredSinks
from airflow_provider_deltaforge.engine.base.restarts import wait_while_paused
from airflow_provider_deltaforge.engine.base.retry import retry_until
from airflow_provider_deltaforge.engine.base.sink_stats import SinkStats
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.engine.base.tuning import TUNING, Tuning
from airflow_provider_deltaforge.engine.replay.replay import ReplayRun
from airflow_provider_deltaforge.errors import DeltaForgeError, FencedError, SpecError
from airflow_provider_deltaforge.storage.choice import check_store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.storage.records.requests import Replay, ReplayRequest, Replays
from airflow_provider_deltaforge.telemetry.redaction import redacted

Result = TypeVar("Result")

_FOREVER_S = 10.0**9


def serve_replays(context: TaskContext) -> Outcome | None:
    """Serve every replay that was asked for, between two lanes.

    Returns:
        None when nothing is left to serve; else why the driver must end.

    Raises:
        RetryableError: the store is away.
    """
    while (record := context.control.read()) is not None and record.replays:
        ended = wait_while_paused(context) or _serve_one(context, record.replays[0])
        if ended is not None and ended.why != "paused":
            return ended
    return None


def _serve_one(context: TaskContext, request: ReplayRequest) -> Outcome | None:
    known = Replays(context.store, context.pipeline.name).of(request.ticket)
    if known is None or not known.settled:
        # A lane of before may still live on a lost executor: it is fenced from here on.
        context = replace(context, fence=context.control.renew_epoch(context.job.driver))
        ended = _in_driver(context, request)
        if ended is not None:
            return ended
    context.control.remove_request(request.ticket)
    reach(CrashPoint.REPLAY_REMOVED)
    return None


def replay_here(
    pipeline: str,
    location: StoreLocation,
    ticket: str,
    tell: Callable[[str, BaseException | None], None],
    ending: threading.Event,
    tuning: Tuning = TUNING,
) -> Replay | None:
    """Serve one replay in this process, for a pipeline that no driver runs.

    Args:
        pipeline: its name.
        location: the state store.
        ticket: of the replay.
        tell: called with a name and the error that keeps it from going on, then with None.
        ending: set to end it.
        tuning: of its workers.

    Returns:
        What became of it; None if it was ended before.

    Raises:
        FencedError: a driver started meanwhile, and serves it.
        SpecError: the document cannot be run here.
    """
    store = location.open()
    try:
        control = Control(store, pipeline)
        document, record = control.document(), control.read()
        request = record.request(ticket) if record is not None else None
        if document is None or record is None or not isinstance(request, ReplayRequest):
            raise SpecError(f"pipeline {pipeline!r} has no replay {ticket} to serve any more")
        driver = uuid.uuid4().hex
        control.take_epoch(driver, record.generation)
        job = DriverAssignment(document, location, driver, record.generation, tuning=tuning)
        context = TaskContext.open(job, renew=False)
        try:
            context.pipeline.refuse_unbuilt()
            check_store(document, location)
            replay = _replayed(context, request, _Here(context, tell, ending))
        finally:
            context.store.close()
        if replay is not None:
            control.remove_request(ticket)
        return replay
    finally:
        store.close()


def _in_driver(context: TaskContext, request: ReplayRequest) -> Outcome | None:
    spec = context.pipeline.spec
    stats = LaneStats(
        {sink.id: SinkStats() for sink in spec.sinks},
        policy=RequiredSinks.of(spec),
        processors=ProcessorStats(processor.id for processor in spec.processors),
    )
    heartbeat = Heartbeat(context, stats, _FOREVER_S, "running", makes_way=False)
    ended: Outcome | None = None
    try:
        heartbeat.start()
        if _replayed(context, request, _InDriver(heartbeat, stats)) is None:
            ended = Outcome.of(heartbeat.failure) if heartbeat.failure else Outcome(heartbeat.why)
    except Exception as error:  # noqa: BLE001 - must reach the progress record
        ended = logged(error)
    heartbeat.finish(ended or Outcome("window"))
    return ended


def _replayed(
    context: TaskContext, request: ReplayRequest, here: "_InDriver | _Here"
) -> Replay | None:
    """Replay; what cannot work at all fails the replay, and not the pipeline."""
    replaying = ReplayRun(context, request, here)
    try:
        return replaying.run()
    except FencedError:
        raise
    except DeltaForgeError as error:
        if here.ending.is_set():
            return None
        return replaying.failed(redacted(str(error)), error.error_class)


class _InDriver:
    """In a driver: its heartbeat goes on, and its statistics show what holds it up."""

    def __init__(self, heartbeat: Heartbeat, stats: LaneStats) -> None:
        self._heartbeat = heartbeat
        self._stats = stats
        self.ending = heartbeat.ending
        self.processor_stats, self.dead_letters = stats.processors, stats.dead_letters
        self.measured = stats.measured
        self.gives_up, self.confirm = heartbeat.gives_up, heartbeat.confirm
        self.report_sink_error, self.report_error = stats.report_sink_error, stats.report_error
        self.report_processor_error = stats.report_processor_error

    def retry(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to the store until it works or the driver must end."""
        ending = self.ending
        return retry_until(call, self._stats.report_source_error, ending.is_set, ending.wait)


class _Here:
    """In the process that asked, while no driver runs: the epoch alone keeps drivers apart."""

    def __init__(
        self,
        context: TaskContext,
        tell: Callable[[str, BaseException | None], None],
        ending: threading.Event,
    ) -> None:
        self._context = context
        self._tell = tell
        self.ending = ending
        self.processor_stats, self.dead_letters = ProcessorStats(), DeadLetterStats()
        self.measured = LaneMeasurements()

    def gives_up(self) -> bool:
        """Return whether the caller does not want it any more."""
        return self.ending.is_set()

    def confirm(self) -> None:
        """Make sure that no driver has started.

        Raises:
            FencedError: one has.
        """
        if self._context.control.held_epoch(self._context.job.driver) != self._context.fence:
            raise FencedError("a driver of the pipeline has started; it goes on with the replay")

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Report an error of a sink, or None once it works again."""
        self._tell(f"sink {sink_id}", error)

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Report an error of a processor, or None once it works again."""
        self._tell(f"processor {processor_id}", error)

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Report an error of anything else, or None once it works again."""
        self._tell(name, error)

    def retry(self, call: Callable[[], Result]) -> Result:
        """Repeat a call to the store until it works or it is over."""
        store = "state store"
        return retry_until(
            call, lambda error: self._tell(store, error), self.ending.is_set, self.ending.wait
        )
