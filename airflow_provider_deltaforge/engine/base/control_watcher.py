"""What is wanted of a running worker, heard through the control record."""

import threading
import time
from collections.abc import Callable, Sequence

from airflow_provider_deltaforge.engine.base.outcome import Why
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.errors import FencedError, RetryableError
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.requests import SnapshotRequest

_LEAVING_POLL_S = 1.0


class ControlWatcher:
    """Notices that a worker must end. ``ending`` is set then, and ``why`` says for what.

    Args:
        context: whose control record to listen to.
        window_s: when the work ends in any case.
        makes_way: asked before making way for a replay that somebody wants.
        also: another reason to end, asked each time.
        ends_window: False leaves the end of the window to the worker, which calls ``end_window``
            where it leaves nothing unanswered.
    """

    def __init__(
        self,
        context: TaskContext,
        window_s: float,
        *,
        makes_way: Callable[[], bool] = lambda: False,
        also: Callable[[], Why | None] = lambda: None,
        ends_window: bool = True,
    ) -> None:
        self._context = context
        self._makes_way = makes_way
        self._also = also
        self._ends_window = ends_window
        self._deadline = time.monotonic() + window_s
        self.ending = threading.Event()
        self.ended_at = 0.0
        self._confirmed_at: float | None = None
        self.why: Why = "window"
        self.requests: Sequence[SnapshotRequest] = ()
        """The copies that are asked for, as of the last look."""
        self.failure: Exception | None = None
        """Why it can listen no longer; ``why`` is ``failed`` then."""
        if context.job.leaving is not None:
            threading.Thread(target=self._watch_leaving, daemon=True, name="leaving").start()

    def end(self, why: Why) -> None:
        """Ask the worker to end; the first reason stays."""
        if not self.ending.is_set():
            self.why = why
            self.ended_at = time.monotonic()
            self.ending.set()

    def check_desired(self) -> ControlRecord | None:
        """End if the pipeline is not to run; return its control record.

        Raises:
            RetryableError: the store is away.
        """
        record = self._context.control.read()
        if record is None or record.generation != self._context.job.generation:
            self.end("superseded")
        elif record.desired != "running":
            self.end(record.desired)
        elif record.is_draining:
            self.end("stopped")
        return record

    def check(self) -> None:
        """Look at the control record once.

        Raises:
            FencedError: a newer driver has started.
            RetryableError: the store is away.
        """
        record = self.check_desired()
        if record is None or self.ending.is_set():
            return
        self.requests = record.requests
        if record.replays and self._makes_way():
            self.end("request")
        elif (why := self._also()) is not None:
            self.end(why)
        elif self._ends_window:
            self.end_window()

    def end_window(self) -> None:
        """Ask the worker to end if its window is over."""
        if time.monotonic() >= self._deadline:
            self.end("window")

    def confirm(self) -> None:
        """Make sure that no newer worker has started, unless that was shown a moment ago.

        A process that was frozen, or that outlived its executor, must not write what a newer one
        has written and gone beyond.

        Raises:
            FencedError: one has.
            RetryableError: the store is away.
        """
        now, confirmed_s = time.monotonic(), self._context.job.tuning.confirmed_s
        if self._confirmed_at is not None and now - self._confirmed_at < confirmed_s:
            return
        if self._context.control.held_epoch(self._context.job.driver) != self._context.fence:
            raise FencedError("a newer worker of this driver has started; this one ends")
        self._confirmed_at = now

    def watch(self, every_s: float) -> None:
        """Go on listening in a daemon thread, for work that writes no progress of its own."""
        threading.Thread(target=self._watch, args=(every_s,), daemon=True).start()

    def _watch_leaving(self) -> None:
        """End with the process: the store, through which wishes come, may be away."""
        while not self.ending.is_set():
            self._context.job.wait(_LEAVING_POLL_S)
            if self._context.job.leaves:
                self.end("stopped")

    def _watch(self, every_s: float) -> None:
        while not self.ending.wait(every_s):
            try:
                fence = self._context.control.held_epoch(self._context.job.driver)
                if fence != self._context.fence:
                    self.end("fenced")
                self.check()
            except FencedError:
                self.end("fenced")
            except RetryableError:
                continue
            except Exception as error:  # noqa: BLE001 - deaf work would go on for ever
                self.failure = error
                self.end("failed")
