"""Keeps the dead-letter queue within what the document allows, and says what that costs."""

import logging
import threading
import time
from collections.abc import Callable

from airflow_provider_deltaforge.engine.base.processor_stats import DeadLetterStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.dead_letters.dead_letter import PreparedDeadLetter
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterRecords

NAME = "dead-letter queue"

_EXPIRY_S = 60.0
_CLOCK_SET_S = 60.0
_EVERY_S = 10.0
_WARN, _ALARM = 0.8, 0.95

_log = logging.getLogger(__name__)


def _clock_s() -> float:
    """Return when this machine was started, by its clock: it moves only with that."""
    return time.time() - time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class QueueLimits:
    """Waits for room, and removes what is too old or too much. Used by one thread.

    Args:
        context: the opened job.
        dead_letter_stats: where what is removed and lost is counted.
        report_error: called with the name and the error while the queue is full, then with None.
        ending: set when the lane ends.
        confirm: raises if a newer lane has started, whose limits hold then.
    """

    def __init__(
        self,
        context: TaskContext,
        dead_letter_stats: DeadLetterStats,
        report_error: Callable[[str, BaseException | None], None],
        ending: threading.Event,
        confirm: Callable[[], None],
    ) -> None:
        self._pipeline = context.pipeline.name
        self._limits = context.pipeline.spec.journal.dlq
        self._queue = DeadLetterRecords(context.store, context.pipeline.name)
        self._stats = dead_letter_stats
        self._report_error = report_error
        self._ending, self._confirm = ending, confirm
        self._is_reported = False
        self._clock_s, self._is_clock_doubted = _clock_s(), False
        self._poll_s = context.job.tuning.room_s
        self._expiry_at = time.monotonic() + context.job.tuning.first_expiry_s
        self.log = QueueLog(context.pipeline.name, self._limits.overflow_policy)

    def await_room(self, count: int) -> bool:
        """Wait for room for so many entries where the policy says so; False: the lane ended."""
        if not count or self._limits.overflow_policy != "block":
            return True
        while not self._has_room(count):
            self._is_reported = True  # Still so if the store goes away here.
            taken = self._queue.count()
            self._report_error(NAME, RetryableError(self._full(taken, count)))
            if self._ending.wait(self._poll_s):
                return False
        if self._is_reported:
            self._is_reported = False
            self._report_error(NAME, None)
        return True

    def that_fit(self, dead_letters: list[PreparedDeadLetter]) -> list[PreparedDeadLetter]:
        """Return what of some entries is stored."""
        most = self._limits.max_entries
        if self._limits.overflow_policy == "drop_oldest":
            return dead_letters[-most:]
        if dead_letters and self._limits.overflow_policy == "reject":
            return dead_letters[: max(0, most - self._queue.count())]
        return dead_letters

    def count(self, stored: int, lost: int) -> None:
        """Take note of entries that were stored, and of those that did not fit."""
        evicts = self._limits.overflow_policy == "drop_oldest"
        self._stats.count("evicted" if evicts else "rejected", lost)
        self.log.count(stored=stored, lost=lost)

    def trim(self) -> None:
        """Remove what is too much."""
        count, most = self._queue.count(), self._limits.max_entries
        if self._limits.overflow_policy == "drop_oldest" and count > most:
            self._confirm()
            evicted = self._queue.drop_oldest(count - most)
            self._stats.count("evicted", evicted)
            self.log.count(lost=evicted)
        self.log.write_at_times()
        self.log.fills(min(count, most) / most)

    @property
    def is_due(self) -> bool:
        """Return whether it is time to look for what is too old."""
        return time.monotonic() >= self._expiry_at

    def tend(self) -> None:
        """Remove what is too old."""
        self._expiry_at = time.monotonic() + _EXPIRY_S
        self._expire()

    def _expire(self) -> None:
        age_s = self._limits.max_age_secs
        if not age_s:
            return
        self._confirm()
        if not self._was_clock_set():
            expired = self._queue.expire(int((time.time() - age_s) * 1000))
            self._stats.count("expired", expired)
            if expired:
                _log.warning(
                    "%d dead letters were older than %d s, and were removed", expired, age_s
                )

    def _was_clock_set(self) -> bool:
        """Return whether the clock was set meanwhile: then the ages of entries are not known."""
        if abs(_clock_s() - self._clock_s) > _CLOCK_SET_S and not self._is_clock_doubted:
            self._is_clock_doubted = True
            _log.warning("the clock was set: no dead letter is removed for its age by this driver")
        return self._is_clock_doubted

    def _has_room(self, waiting: int) -> bool:
        """Return whether so many fit; what never would goes into an empty queue."""
        count = self._queue.count()
        if count and count + waiting > self._limits.max_entries:
            self._expire()
            count = self._queue.count()
        return not count or count + waiting <= self._limits.max_entries

    def _full(self, count: int, waiting: int) -> str:
        return (
            f"{count} of {self._limits.max_entries} entries are taken, and {waiting} more "
            f"wait; read them with `deltaforge dlq list {self._pipeline}`, then make room with "
            "`deltaforge dlq ack` or `deltaforge dlq purge`"
        )


class QueueLog:
    """Gathers what happens, and says it now and then. Used by one thread.

    Args:
        pipeline: whose queue it is.
        overflow_policy: why something is lost.
    """

    def __init__(self, pipeline: str, overflow_policy: str) -> None:
        self._pipeline, self._overflow_policy = pipeline, overflow_policy
        self._stored = self._lost = 0
        self._written_at = self._level = 0.0

    def count(self, *, stored: int = 0, lost: int = 0) -> None:
        """Take note of entries."""
        self._stored += stored
        self._lost += lost

    def write(self) -> None:
        """Log what was not logged yet."""
        self._written_at = time.monotonic()
        stored, lost = self._stored, self._lost
        self._stored = self._lost = 0
        if stored:
            _log.warning(
                "pipeline %s: events set aside: %s; see `deltaforge dlq list %s`",
                self._pipeline,
                stored,
                self._pipeline,
            )
        if lost:
            _log.error(
                "pipeline %s: the dead-letter queue is full; events lost: %s (%s)",
                self._pipeline,
                lost,
                self._overflow_policy,
            )

    def write_at_times(self) -> None:
        """Log it, unless something was logged a moment ago."""
        if time.monotonic() - self._written_at >= _EVERY_S:
            self.write()

    def fills(self, ratio: float) -> None:
        """Warn of a queue that fills, at each level once."""
        level = _ALARM if ratio >= _ALARM else _WARN if ratio >= _WARN else 0.0
        if level > self._level:
            _log.log(
                logging.ERROR if level == _ALARM else logging.WARNING,
                "pipeline %s: the dead-letter queue is %s%% full",
                self._pipeline,
                int(ratio * 100),
            )
        self._level = level
