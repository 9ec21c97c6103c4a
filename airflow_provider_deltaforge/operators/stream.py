"""Run and supervise a pipeline's stream."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control.arrivals import Arrivals, arrivals
from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.pipelines import apply, now_ms
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments, attendance, owner_token
from airflow_provider_deltaforge.operators.pipeline import (
    PipelineOperator,
    give_up,
    refuse_gone,
    summary,
)
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.killed import ask_to_stop_from_worker
from airflow_provider_deltaforge.triggers.store import STORE_BACK
from airflow_provider_deltaforge.triggers.stream import StreamTrigger

_SCRIPT = "stream_job.py"


class DeltaForgeStreamOperator(PipelineOperator):
    """Adopt the pipeline's stream or start it, then watch it without a worker slot.

    The task succeeds when its window is over, *without stopping the stream*; the next run adopts
    it. It fails when the stream is dead and restarting cannot help, and when another supervisor
    took it over; it is skipped when a person stopped the stream.

    Args:
        window: how long one run supervises; None for ever.
        on_kill: ``stop`` the stream when a user marks the task failed or successful, or ``leave``
            it. Clearing the task, and whatever happens to workers and triggerers, leaves the
            stream to the next attempt either way.
        poll_interval: time between two looks at the state store.
    """

    def __init__(
        self,
        *,
        window: timedelta | None = timedelta(hours=6),
        on_kill: str = "stop",
        poll_interval: timedelta = timedelta(seconds=5),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if on_kill not in {"stop", "leave"}:
            raise ValueError(f"on_kill must be 'stop' or 'leave', got {on_kill!r}")
        self.window = window
        self.kill_policy = on_kill
        self.poll_interval = poll_interval
        self._held: tuple[Any, TriggerArguments] | None = None

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Apply the document, adopt or start the driver, and watch it."""
        return self.retry_until_done(context, self.document_label, self._begin)

    def _begin(self, context: Mapping[str, Any]) -> Any:
        task, owner = self.pipeline_task(), owner_token(context)
        window = self.window
        end_ms = now_ms() + int(window.total_seconds() * 1000) if window is not None else None
        hook = task.hook()
        try:
            task.check_launch()
            with hook.store(create=True) as store:
                name = apply(store, task.agreed_text()).name
                arrived = arrivals(store, name).as_dict() if self.outlets else None
                self._held = (context["ti"], TriggerArguments(name, 0, owner))
                started = start(store, task.job(name, 0, _SCRIPT), task.backend(), owner)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        word = "adopted" if started.adopted else "started"
        self.log.info("%s generation %d of %s", word, started.generation, name)
        self.tell_driver(context, started.handle)
        watch = TriggerArguments(name, started.generation, owner, end_ms, arrived)
        return self._watch(context, watch)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw; everything needed is in the event."""
        if event["event"] == STORE_BACK:
            return self.retry_until_done(context, self.document_label, self._begin)
        refuse_gone(event)
        watch = TriggerArguments.of(event)
        self._held = (context.get("ti"), watch)
        try:
            return self._after(context, event, watch)
        except RetryableError as error:
            self.log.warning("%s is watched on: %s", watch.pipeline, redacted(str(error)))
            return self._watch(context, watch)

    def _after(
        self, context: Mapping[str, Any], event: Mapping[str, Any], watch: TriggerArguments
    ) -> Any:
        name = watch.pipeline
        task = self.pipeline_task()
        hook, job = task.hook(), task.job(name, watch.generation, _SCRIPT)
        with hook.store() as store:
            if event["event"] == "window_over":
                shown = summary(status(store, name, hook.backend()))
                if watch.arrived is not None:
                    arrived = arrivals(store, name).since(Arrivals.of(watch.arrived))
                    self.tell_outlets(context, name, arrived)
                return shown
            if event["event"] == "resubmit":
                self.start_again(context, store, job, watch)
                return self._watch(context, watch)
            supervision = attendance(store, hook, job, watch.owner, self.budget)
            verdict = settle(supervision, event["exit_code"])
            present = status(store, name)
        if verdict.action == "finished":
            raise AirflowSkipException(f"{name} was stopped by request; to keep it, pause the DAG")
        if verdict.action == "give_up":
            raise give_up(hook, present, verdict, watch.owner)
        self.log.warning("%s died (%s); restart in %.0f s", name, verdict.reason, verdict.wait_s)
        return self._watch(context, watch, now_ms() + int(verdict.wait_s * 1000))

    def on_kill(self) -> None:
        """Ask the stream to end if a user ended the task while its process runs."""
        if self.kill_policy == "stop" and self._held is not None:
            instance, watch = self._held
            ask_to_stop_from_worker(self.deltaforge_conn_id, watch, instance)

    def _watch(
        self, context: Mapping[str, Any], watch: TriggerArguments, resubmit_at_ms: int | None = None
    ) -> Any:
        arguments = (self.deltaforge_conn_id, watch.as_dict(), resubmit_at_ms)
        poll_s = self.poll_interval.total_seconds()
        trigger = StreamTrigger(*arguments, kill_policy=self.kill_policy, poll_s=poll_s)
        return self.hand_over(context, trigger)
