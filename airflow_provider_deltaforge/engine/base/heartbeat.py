"""The heartbeat of a lane: it says how the lane is, and hears what is wanted of it."""

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.engine.base.control_watcher import ControlWatcher
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.outcome import Outcome, Why
from airflow_provider_deltaforge.engine.base.process_memory import MEMORY_RETURN
from airflow_provider_deltaforge.engine.base.task_context import TaskContext, place
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.storage import distress
from airflow_provider_deltaforge.storage.contract import Put
from airflow_provider_deltaforge.storage.distress import Distress
from airflow_provider_deltaforge.storage.records.checkpoints import has_begun
from airflow_provider_deltaforge.storage.records.control import Progress, Status, heartbeat
from airflow_provider_deltaforge.storage.records.history import History, HistoryRecorder
from airflow_provider_deltaforge.storage.records.measurements import Measurements, measurements
from airflow_provider_deltaforge.storage.records.measurements import put as put_measurements
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest
from airflow_provider_deltaforge.storage.records.stats import count_gaps
from airflow_provider_deltaforge.telemetry.redaction import redacted

_DRAIN_GRACE_S = 10.0
_SUMMARY_S = 60.0
_ENDED_AS: dict[str, Status] = {
    "request": "snapshotting",
    "paused": "paused",
    "stopped": "stopped",
    "failed": "failed",
}

_log = logging.getLogger(__name__)


class Heartbeat:
    """Writes the progress record, and notices the end.

    ``ending`` is set when the lane must end; ``why`` then says for what, and ``end`` asks for it.
    """

    def __init__(
        self,
        context: TaskContext,
        stats: LaneStats,
        window_s: float,
        status: Status,
        *,
        makes_way: bool = True,
    ) -> None:
        self._context = context
        self._stats = stats
        self._report = ProgressReport(context, stats, status)
        self._log = StatusLog()
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._distress: Distress | None = None
        self.failure: Exception | None = None
        """What ended the heartbeat; ``why`` is ``failed`` then."""
        # Only a stream makes way for what was asked for; requests wait for each other.
        self._streams = makes_way and status == "running"
        self._watcher = ControlWatcher(
            context,
            window_s,
            makes_way=self._makes_way,
            ends_window=not self._streams,
        )
        self.ending = self._watcher.ending
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self, *, begins: bool = False) -> None:
        """Write the first progress and begin to beat; hear whether to run at all.

        Args:
            begins: the log is still to be opened: the word is ``starting`` until ``begun``, unless
                this lane goes on behind another one's window.

        Raises:
            FencedError: a newer driver has started.
            RetryableError: the store is away.
        """
        self._watcher.check_desired()
        self._report.resume(begins=begins)
        self._beat(None)
        self._thread.start()

    def begun(self) -> None:
        """Report ``running`` from now on: where the stream begins is durable for every sink."""
        if not self._report.has_begun:
            self._report.has_begun = True
            with suppress(RetryableError):  # The next beat says it.
                self._beat(None)

    def end(self, why: Why) -> None:
        """Ask the lane to end; the first reason stays."""
        self._watcher.end(why)

    def end_window(self) -> None:
        """Ask the lane to end if its window is over."""
        self._watcher.end_window()

    @property
    def requests(self) -> Sequence[SnapshotRequest]:
        """Return the copies that are asked for, as of the last beat."""
        return self._watcher.requests

    @property
    def why(self) -> Why:
        """Return for what the lane must end."""
        return self._watcher.why

    def gives_up(self) -> bool:
        """Return whether a delivery under way should be abandoned.

        A draining lane finishes its batch, unless a sink is away or takes too long.
        """
        if not self.ending.is_set():
            return False
        given_up = self.why in ("fenced", "superseded", "failed")
        if given_up or self._stats.blocked_by() is not None:
            return True
        return time.monotonic() - self._watcher.ended_at > _DRAIN_GRACE_S

    def confirm(self) -> None:
        """Make sure that no newer lane has started; see ``ControlWatcher.confirm``.

        Raises:
            FencedError: one has.
            RetryableError: the store is away.
        """
        self._watcher.confirm()

    def finish(self, outcome: Outcome) -> None:
        """Stop beating and write how it ended; a fenced lane writes nothing."""
        self._done.set()
        self.ending.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._context.job.tuning.beat_s)
        if outcome.why in ("fenced", "superseded"):
            return
        try:
            self._context.job.in_time(lambda: self._beat(outcome))
        except Exception as error:  # noqa: BLE001 - how it ended matters more
            _log.warning("last progress not written", extra={"reason": redacted(str(error))})

    def _makes_way(self) -> bool:
        """Return whether a lane may end for what is asked for: not before its stream has begun.

        The driver serves nothing before, and would begin lane after lane while the source is away.
        """
        pipeline = self._context.pipeline
        return self._streams and has_begun(
            self._context.store, pipeline.name, pipeline.spec.source.id
        )

    def _run(self) -> None:
        while not self._done.wait(self._context.job.tuning.beat_s):
            try:
                self._watcher.check()
                self._beat(None)
                MEMORY_RETURN.if_due()
            except FencedError:
                self.end("fenced")
                return
            except RetryableError as error:
                # The store is away: delivery stops at its next checkpoint, and goes on with it.
                self._cannot_write(redacted(str(error)))
            except Exception as error:  # noqa: BLE001 - a deaf lane would go on for ever
                self.failure = error
                self.end("failed")
                return

    def _cannot_write(self, reason: str) -> None:
        """Write beside the store why it is silent, and log each reason once."""
        reason = f"its driver lives, and cannot write to the state store: {reason}"
        if self._distress is None:
            self._distress = Distress(reason, _now_ms())
            _log.warning("heartbeat not written: %s", reason)
        self._distress = replace(self._distress, reason=reason)
        distress.write(self._distress)

    def _beat(self, outcome: Outcome | None) -> None:
        with self._writing:
            if outcome is None and self._done.is_set():
                return  # The last word is, or will be, said.
            progress = self._report.next(outcome)
            writes = [
                self._context.control.put_progress(progress),
                *self._report.history.writes(),
                *self._report.measurements(is_last=outcome is not None),
            ]
            self._context.store.transact(writes, self._context.fence)
            self._report.history.stored()
            self._log.note(progress)
            if self._distress is not None:
                self._distress = None
                distress.write(None)
                _log.warning("heartbeats are written again")


class StatusLog:
    """Logs what a lane stores of itself: each change of its status, and its work once a minute."""

    def __init__(self) -> None:
        self._noted: tuple[Status, str | None] | None = None
        self._summed_s = time.monotonic()
        self._events: int | None = None

    def note(self, progress: Progress) -> None:
        """Take in what was stored."""
        state = (progress.status, progress.error_class)
        if state != self._noted:
            self._noted = state
            level = logging.WARNING if progress.error_class else logging.INFO
            extra = {"reason": redacted(progress.reason)} if progress.reason else None
            _log.log(level, "the pipeline is %s", progress.status, extra=extra)
        now_s, former = time.monotonic(), self._events
        if former is not None and now_s - self._summed_s < _SUMMARY_S:
            return
        self._events, self._summed_s = progress.events, now_s
        if former is not None and progress.events > former:
            lag = "" if progress.lag_ms is None else f", lag {progress.lag_ms} ms"
            _log.info("%d events delivered in a minute%s", progress.events - former, lag)


class ProgressReport:
    """What the progress record says of a lane. Used by one thread at a time.

    Args:
        context: the opened job.
        stats: of the lane.
        status: while nothing is wrong.
    """

    def __init__(self, context: TaskContext, stats: LaneStats, status: Status) -> None:
        self._context = context
        self._stats = stats
        self._status: Status = status
        self._since_ms = _now_ms()
        self._was: tuple[str, str | None] = (status, None)
        self.has_begun = True
        """Whether it is durable where the stream begins; until then its word is ``starting``."""
        self._former: Progress | None = None
        self._has_run = False
        self._measured_s = float("-inf")
        self.history = HistoryRecorder(History(context.store, context.pipeline.name))

    def resume(self, *, begins: bool) -> None:
        """Go on with the counters of the driver's last lane; see ``Heartbeat.start``.

        Raises:
            RetryableError: the store is away.
        """
        former = self._former = self._context.control.progress()
        goes_on = former is not None and former.generation == self._context.job.generation
        if former is not None and goes_on:
            self._stats.resume(former)
        self._stats.counted.count_gaps = count_gaps(former)["count_gaps"]
        measured = measurements(self._context.store, self._context.pipeline.name)
        if measured is not None and measured.generation == self._context.job.generation:
            self._stats.measured.resume(measured.counts, list(self._stats.sinks))
        self.history.resume(former.minute if former is not None else None, self._stats.report())
        self.has_begun = not begins or (
            former is not None and goes_on and former.status == "running"
        )
        self._has_run = begins and self.has_begun

    def next(self, outcome: Outcome | None) -> Progress:
        """Return the record of now, or of how the lane ended.

        It has another number than the one before, also if that was not stored: perhaps it was.
        """
        status, reason, error_class = self._judge(outcome)
        if (status, error_class) != self._was:
            self._was, self._since_ms = (status, error_class), _now_ms()
        stats = self._stats.report(begins=not self.has_begun)
        self._has_run = stats.has_run = self._has_run or status == "running"
        journal = self._context.pipeline.spec.journal
        stats.dlq.max_entries = journal.dlq.max_entries if journal.enabled else None
        stats.has_ended = outcome is not None
        host, pid = place()
        self._former = Progress(
            **stats.fields(),
            **heartbeat(self._former),
            status=status,
            since_ms=self._since_ms,
            reason=reason,
            error_class=error_class,
            epoch=self._context.fence.version,
            generation=self._context.job.generation,
            batch_id=stats.batches,
            host=host,
            pid=pid,
            application_id=self._context.job.application_id,
            minute=self.history.observe(stats, status),
        )
        return self._former

    def measurements(self, *, is_last: bool) -> list[Put]:
        """Return the write of what was measured, if one is due."""
        now_s = time.monotonic()
        if not is_last and now_s < self._measured_s + self._context.job.tuning.measure_s:
            return []
        self._measured_s = now_s
        try:
            return [put_measurements(self._context.pipeline.name, self._measurements())]
        except Exception as error:  # noqa: BLE001 - no pipeline stops for its metrics
            _log.warning("not measured: %s: %s", type(error).__name__, redacted(str(error)))
            return []

    def _measurements(self) -> Measurements:
        policy = self._stats.policy
        return Measurements(
            generation=self._context.job.generation,
            version=__version__,
            required=sorted(policy.required) if policy is not None else [],
            pushes=self._context.job.pushes_metrics,
            counts=self._stats.measured.counts(),
            gauges=self._stats.measured.gauges(),
        )

    def _judge(self, outcome: Outcome | None) -> tuple[Status, str | None, str | None]:
        if outcome is not None and outcome.why != "window":
            status = _ENDED_AS.get(outcome.why, self._word)
            if status == "failed" and outcome.error_class == RetryableError.error_class:
                status = "starting"  # The driver begins again; if it gives up, it says so itself.
            return status, outcome.reason, outcome.error_class
        blocked = self._stats.blocked_by()
        if blocked is not None:
            name, last_error = blocked
            return "blocked", f"{name}: {last_error.reason}", last_error.error_class
        return self._word, None, None

    @property
    def _word(self) -> Status:
        return self._status if self.has_begun else "starting"


def _now_ms() -> int:
    return int(time.time() * 1000)
