"""A driver between its lanes: waits while paused, writes its status, and limits restarts."""

import logging
import time
from collections import deque

from airflow_provider_deltaforge.engine.base.outcome import Outcome
from airflow_provider_deltaforge.engine.base.task_context import DriverAssignment, TaskContext
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.storage.contract import Fence
from airflow_provider_deltaforge.storage.records.control import Control, Status, heartbeat

_RESTARTS = 5
_RESTARTS_WITHIN_S = 600.0

_log = logging.getLogger(__name__)


def write_status(
    control: Control, driver: str, status: Status, outcome: Outcome | None = None
) -> None:
    """Renew the progress with another status; its counters stay.

    The epoch is renewed first: a heartbeat still under way, or of a lane that lives on at a lost
    executor, would overwrite the driver's word with its own.

    Raises:
        FencedError: ``driver`` is not the driver any more.
        RetryableError: the store is away.
    """
    _put(control, control.renew_epoch(driver), status, outcome)


def _put(control: Control, fence: Fence, status: Status, outcome: Outcome | None = None) -> None:
    progress = control.progress()
    if progress is None:
        return
    now_ms = int(time.time() * 1000)
    update = {
        "status": status,
        "reason": outcome.reason if outcome else None,
        "error_class": outcome.error_class if outcome else None,
        **heartbeat(progress),
        "since_ms": progress.since_ms if progress.status == status else now_ms,
    }
    control.store.transact([control.put_progress(progress.model_copy(update=update))], fence)


def wait_while_paused(context: TaskContext) -> Outcome | None:
    """Wait while the pipeline is paused; None when it goes on, else how it ended."""
    control, driver = context.control, context.job.driver
    lanes_fenced = False
    while True:
        try:
            record = control.read()
            if record is None or record.generation != context.job.generation:
                return Outcome("superseded")
            desired = "stopped" if context.job.leaves else record.desired
            if desired == "running":
                return None
            # Renewed once: whatever wrote before cannot write after it.
            fence = control.held_epoch(driver) if lanes_fenced else control.renew_epoch(driver)
            lanes_fenced = True
            _put(control, fence, desired)
            if desired == "stopped":
                return Outcome("stopped")
        except RetryableError as error:
            if context.job.leaves:
                return Outcome("stopped")
            _log.warning("the state store is away, still waiting: %s", error)
        context.job.wait(context.job.tuning.control_s)


class Restarts:
    """Counts how often work died of itself; a few times within minutes are forgiven."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=_RESTARTS)

    def may_go_on(self) -> bool:
        """Count one more; return whether the work may be started again, after ``wait``."""
        now = time.monotonic()
        if len(self._at) == _RESTARTS and now - self._at[0] < _RESTARTS_WITHIN_S:
            return False
        self._at.append(now)
        return True

    def wait(self, job: DriverAssignment) -> None:
        """Wait before the next attempt, longer each time, unless the process is to end."""
        job.wait(min(2.0 ** (len(self._at) - 1), 30.0) - 1.0)
