"""Adopt what runs, or start it, and watch it without a worker slot: streams and fleets."""

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.pipelines import now_ms
from airflow_provider_deltaforge.control.starting import start
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments, attendance, owner_token
from airflow_provider_deltaforge.operators.launch import LaunchingOperator
from airflow_provider_deltaforge.operators.pipeline import give_up, refuse_gone
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.killed import ask_to_stop_from_worker
from airflow_provider_deltaforge.triggers.store import STORE_BACK
from airflow_provider_deltaforge.triggers.stream import StreamTrigger


class SupervisingOperator(LaunchingOperator):
    """Supervises what has a control record, and hands it over to the next run at a window's end.

    Args:
        window: how long one run supervises; None for ever.
        on_kill: ``stop`` what is supervised when the task is ended for good, because a user marks
            it failed or successful, or it or its run times out; or ``leave`` it. Clearing the task,
            and whatever happens to workers and triggerers, leaves it to the next attempt.
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
        _check_arguments(on_kill, window, None if self.deferrable else self.execution_timeout)
        self.window = window
        self.kill_policy = on_kill
        self.poll_interval = poll_interval
        self._held: tuple[TriggerArguments, Any] | None = None

    @abstractmethod
    def applied(self, store: Store) -> tuple[str, Mapping[str, Any] | None]:
        """Keep what is to run; return the name of its record, and what had arrived until now."""

    @abstractmethod
    def job(self, name: str, generation: int) -> LaunchSpec:
        """Return what is started for a record."""

    @abstractmethod
    def ended_window(
        self, context: Mapping[str, Any], store: Store, watch: TriggerArguments
    ) -> Any:
        """Return what the task returns at the end of its window."""

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Adopt or start what is to run, and watch it."""
        return self.retry_until_done(context, self.document_label, self._begin)

    def _begin(self, context: Mapping[str, Any]) -> Any:
        task, owner, window = self.pipeline_task(), owner_token(context), self.window
        end_ms = now_ms() + int(window.total_seconds() * 1000) if window is not None else None
        try:
            self.check_launch()
            with task.hook().store(create=True) as store:
                name, arrived = self.applied(store)
                self._held = (TriggerArguments(name, 0, owner), context["ti"])
                started = start(store, self.job(name, 0), task.backend(), owner)
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
        self._held = (watch, context.get("ti"))
        try:
            return self._after(context, event, watch)
        except RetryableError as error:
            self.log.warning("%s is watched on: %s", watch.pipeline, redacted(str(error)))
            return self._watch(context, watch)

    def _after(
        self, context: Mapping[str, Any], event: Mapping[str, Any], watch: TriggerArguments
    ) -> Any:
        name, hook = watch.pipeline, self.pipeline_task().hook()
        with hook.store() as store:
            if Control(store, name).read() is None:  # A retry would make it, and copy, anew.
                raise AirflowFailException(f"{name}: the pipeline was deleted")
            if event["event"] == "window_over":
                return self.ended_window(context, store, watch)
            if event["event"] == "resubmit":
                self.start_again(context, store, self.job(name, watch.generation), watch)
                return self._watch(context, watch)
            job = self.job(name, watch.generation)
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
        """Ask what is supervised to end if a user ended the task while its process runs."""
        super().on_kill()
        if self.kill_policy == "stop" and self._held is not None:
            ask_to_stop_from_worker(self.deltaforge_conn_id, *self._held)

    def _watch(
        self, context: Mapping[str, Any], watch: TriggerArguments, resubmit_at_ms: int | None = None
    ) -> Any:
        watched = (self.deltaforge_conn_id, watch.as_dict(), resubmit_at_ms, self.kill_policy)
        return self.hand_over(context, StreamTrigger(*watched, self.poll_interval.total_seconds()))


def _check_arguments(on_kill: str, window: timedelta | None, limit: timedelta | None) -> None:
    if on_kill not in {"stop", "leave"}:
        raise ValueError(f"on_kill must be 'stop' or 'leave', got {on_kill!r}")
    if limit is not None and (window is None or limit <= window):
        raise ValueError(
            f"execution_timeout: {limit} ends the task before its window ({window}) is over; make "
            "it longer than `window`, or leave deferrable=True"
        )
