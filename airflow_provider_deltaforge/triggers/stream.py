"""Watch a running stream from the triggerer, without holding a worker slot."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from airflow.sdk.configuration import conf
from airflow.triggers.base import TriggerEvent

from airflow_provider_deltaforge.control.driver_log import LogFollower
from airflow_provider_deltaforge.control.launching.contract import JobState
from airflow_provider_deltaforge.control.pipelines import now_ms
from airflow_provider_deltaforge.control.status import ENDED, PipelineStatus, status
from airflow_provider_deltaforge.control.supervise import WAIT_MAX_S, HangDetector
from airflow_provider_deltaforge.errors import FatalError, RetryableError, SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.triggers.killed import in_thread, stop_unless_adopted
from airflow_provider_deltaforge.triggers.polling_trigger import PollingTrigger, settled

_LOG_LINES = 100


class StreamTrigger(PollingTrigger):
    """Fires when the stream ended, was stopped or taken over, or when the window is over.

    A state store that is away fires nothing: not knowing is not an event. What the driver logs
    meanwhile, wherever it runs, is in the task's log.

    Args:
        deltaforge_conn_id: connection of the state store.
        watch: what is watched, as ``TriggerArguments.as_dict()``; returned with every event.
        resubmit_at_ms: fire ``resubmit`` then, instead of watching.
        kill_policy: ``stop`` or ``leave`` the stream when a user kills the task.
        poll_s: seconds between two looks at the store.
    """

    def __init__(
        self,
        deltaforge_conn_id: str,
        watch: Mapping[str, Any],
        resubmit_at_ms: int | None = None,
        kill_policy: str = "stop",
        poll_s: float = 5.0,
    ) -> None:
        super().__init__()
        self.deltaforge_conn_id = deltaforge_conn_id
        self.watch = dict(watch)
        self.pipeline = self.watched.pipeline
        self.resubmit_at_ms = resubmit_at_ms
        self.kill_policy = kill_policy
        self.poll_s = poll_s
        self._silence = HangDetector()
        lines_max = conf.getint("deltaforge", "driver_log_lines", fallback=_LOG_LINES)
        self._driver_log = LogFollower(self.pipeline, self.watched.generation, lines_max)

    @property
    def watched(self) -> TriggerArguments:
        """Return what is watched."""
        return TriggerArguments.of(self.watch)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        if self.resubmit_at_ms is None:
            async for event in super().run():
                yield event
            return
        began_s = time.monotonic()
        wait_s = (self.resubmit_at_ms - now_ms()) / 1000  # By the clocks of two machines.
        await asyncio.sleep(min(max(0.0, wait_s), WAIT_MAX_S))
        await settled(began_s)
        yield self._event("resubmit")

    async def on_kill(self) -> None:
        """Stop the stream if a user ended the task; see ``triggers.killed``."""
        if self.kill_policy == "stop":
            await in_thread(self.stop_if_still_owner)

    def stop_if_still_owner(self) -> None:
        """Stop the stream unless another attempt has adopted it, or is about to."""
        try:
            stop_unless_adopted(self.deltaforge_conn_id, self.watched, self.task_instance)
        except Exception:
            self.log.exception("could not stop %s; stop it with `deltaforge stop`", self.pipeline)

    def look(self) -> tuple[TriggerEvent | None, str]:
        """Return an event if there is one, and the present state in words. Blocking."""
        try:
            with self.hook.store() as store:
                self._show_driver_log(store)
                return self._judge(store, self.hook)
        except RetryableError as error:
            return None, f"unknown, the state store is away: {error}"

    def _show_driver_log(self, store: Store) -> None:
        """Write to the task's log what the driver has logged since the last look."""
        # A log that a later release wrote differently is no reason to end the supervision.
        with suppress(SpecError, FatalError):
            for line in self._driver_log.new_lines(store):
                self.log.info("driver: %s", line)

    def _judge(self, store: Store, hook: DeltaForgeHook) -> tuple[TriggerEvent | None, str]:
        record = Control(store, self.pipeline).read()
        if record is None:
            return self._event("deleted", reason="the pipeline was deleted"), "deleted"
        if record.owner != self.watched.owner or record.generation != self.watched.generation:
            return self._event("taken_over", reason=f"taken over by {record.owner}"), "taken over"
        backend = hook.backend()
        job = backend.status(record.handle) if record.handle else None
        present = status(store, self.pipeline, backend)
        # A driver that said its last word still has to leave, and its exit code is worth a wait.
        ended = present.status in ENDED
        hung = self._silence.too_long(lost=ended)
        elsewhere = job is None or job.state is JobState.UNKNOWN
        over = hung or (elsewhere and present.status in {"stopped", "failed"})
        if over or (job is not None and job.state is JobState.ENDED):
            code = job.exit_code if job is not None else None
            return self._event("ended", exit_code=code, reason=present.reason), present.status
        return self._window_over(present), present.words

    def _window_over(self, present: PipelineStatus) -> TriggerEvent | None:
        end_ms = self.watched.window_end_ms
        over = end_ms is not None and now_ms() >= end_ms
        # One that does not speak may be dead already, one that was stopped ends: no success yet.
        speaks = present.alive and present.status != "starting" and present.desired != "stopped"
        return self._event("window_over") if over and speaks else None

    def _event(self, event: str, **details: Any) -> TriggerEvent:
        return TriggerEvent({"event": event, **self.watch, **details})
