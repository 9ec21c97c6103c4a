"""What a driver watches while tasks elsewhere copy chunks."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from airflow_provider_deltaforge.engine.base.heartbeat import Heartbeat
from airflow_provider_deltaforge.engine.base.lane_stats import LaneStats
from airflow_provider_deltaforge.engine.base.task_context import TaskContext
from airflow_provider_deltaforge.engine.snapshot.snapshot_run import SnapshotPlan, SnapshotRun
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.storage import names
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

GUARD_S = 30.0
_SHOW_S = 1.0
_ERROR_TTL_S = 60.0


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
        while not over.wait(GUARD_S):
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


_SINK = "sink "


class CopyErrors:
    """Reports to the driver, through the store, what keeps a task from going on."""

    def __init__(self, store: Store, pipeline: str) -> None:
        self._store = store
        self._prefix = f"{pipeline}/trouble/"

    def report_sink_error(self, sink_id: str, error: BaseException | None) -> None:
        """Write or clear a sink's trouble."""
        self.report_error(f"{_SINK}{sink_id}", error)

    def report_processor_error(self, processor_id: str, error: BaseException | None) -> None:
        """Write or clear a processor's trouble."""
        self.report_error(f"processor {processor_id}", error)

    def report_error(self, name: str, error: BaseException | None) -> None:
        """Write or clear trouble; when the store is away there is nobody to tell."""
        key = f"{self._prefix}{name}"
        with suppress(RetryableError):
            if error is None:
                self._store.delete(names.SNAPSHOTS, key)
                return
            error_class = getattr(error, "error_class", "error")
            text = json.dumps({"reason": redacted(str(error)), "error_class": error_class})
            self._store.put(names.SNAPSHOTS, key, text.encode(), _ERROR_TTL_S)

    def read(self) -> dict[str, RetryableError]:
        """Return the troubles of now, by name."""
        return {
            key.removeprefix(self._prefix): RetryableError(json.loads(text)["reason"])
            for key, text in self._store.items(names.SNAPSHOTS, self._prefix)
        }


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
    if name.startswith(_SINK):
        stats.report_sink_error(name.removeprefix(_SINK), error)
    else:
        stats.report_error(name, error)
