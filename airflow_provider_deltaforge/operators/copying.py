"""How a snapshot task begins its copy, and what it makes of the trigger's events."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.due import found_nothing
from airflow_provider_deltaforge.control.launch import Handle, Job
from airflow_provider_deltaforge.control.pipelines import existing, now_ms
from airflow_provider_deltaforge.control.snapshots import (
    NOT_DUE,
    SCRIPT,
    cancel,
    is_done,
    request_state,
    serve,
    start,
)
from airflow_provider_deltaforge.control.starting import REQUESTS_ONLY, restart
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import Watch, attendance
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator, give_up
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.control import ControlRecord
from airflow_provider_deltaforge.triggers.killed import ask_to_stop_from_worker
from airflow_provider_deltaforge.triggers.snapshot import SnapshotTrigger, counts_of, publish
from airflow_provider_deltaforge.triggers.withdrawing import withdraw_from_worker


def request_id(instance: Any) -> str:
    """Return the name of a task instance's request: the same for every attempt of it."""
    place = f"{instance.dag_id}/{instance.task_id}/{instance.run_id}/{instance.map_index}"
    return f"airflow:{place}"


class CopyingOperator(PipelineOperator):
    """Waits for a copy: for the request ``asked``, or for the pipeline's own snapshot (None)."""

    patience: timedelta
    poll_interval: timedelta
    _held: tuple[Any, Watch, str | None] | None = None
    """The task instance, what it watches and asked for: for ``on_kill``."""

    def begin(
        self,
        context: Mapping[str, Any],
        store: Store,
        watch: Watch,
        asked: str | None,
        *,
        force: bool = False,
    ) -> Any:
        """Start a job unless a driver is there or, without ``force``, may come back; and wait."""
        hook, job = self.pipeline_task().hook(), self._job(watch, asked)
        begin = serve if asked is not None else start
        try:
            started = begin(store, job, hook.backend(), watch.owner, force=force)
        except RetryableError as error:
            self.log.info("somebody else starts a driver at this moment: %s", error)
            started = None
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        if started is not None:
            self._tell(context, started.handle)
            watch = replace(watch, generation=started.generation)
        return self._wait(context, watch, asked)

    def after(
        self,
        context: Mapping[str, Any],
        store: Store,
        watch: Watch,
        asked: str | None,
        event: Mapping[str, Any],
    ) -> Any:
        """Act on an event. The records are the truth, not an exit code."""
        name, word = watch.pipeline, event["event"]
        if word == "deleted":
            raise AirflowFailException(f"{name}: {event['reason']}")
        record = existing(store, name).read()
        if record is None:
            raise AirflowFailException(f"{name}: the pipeline was deleted")
        if word == "resubmit":
            return self._resubmit(context, store, watch, asked)
        if self._settled(store, name, asked):
            return self.result(context, store, name, asked)
        if word == "not_due":
            raise AirflowFailException(NOT_DUE.format(name=name))
        if record.desired == "stopped":
            raise AirflowException(
                f"{name} was stopped before its snapshot was finished; the next attempt, or the "
                "next start of the stream, goes on with the chunks that are missing"
            )
        if word == "ended":
            return self._ended(context, store, watch, asked, event["exit_code"], record)
        return self.begin(context, store, watch, asked, force=word == "unserved")

    def result(
        self, context: Mapping[str, Any], store: Store, name: str, asked: str | None
    ) -> dict[str, Any]:
        """Return the final counts, and leave copies of them where people look."""
        counts = dict(counts_of(store, name, asked) or {})
        publish(name, counts)
        self.keep(context, "snapshot", counts)
        for outlet in self.outlets:
            try:
                context["asset_state_store"][outlet].set("deltaforge_snapshot", counts)
            except Exception:  # A copy that cannot be written must not fail what it describes.
                self.log.warning("counts not written to %r", outlet, exc_info=True)
        return counts

    def on_kill(self) -> None:
        """Withdraw the copy if a user ended the task while its process runs."""
        if self._held is not None:
            instance, watch, asked = self._held
            if asked is not None:
                withdraw_from_worker(self.deltaforge_conn_id, watch, asked, instance)
            else:
                ask_to_stop_from_worker(self.deltaforge_conn_id, watch, instance)

    def _settled(self, store: Store, name: str, asked: str | None) -> bool:
        """Say whether the copy is there; fail the task when it never will be."""
        if asked is None:
            return is_done(store, name)
        state = request_state(store, name, asked)
        if state is None:
            raise AirflowException(f"{name}: request {asked} is unknown; its records were deleted")
        if state.state == "failed":
            may_retry = state.error_class == RetryableError.error_class
            kind = AirflowException if may_retry else AirflowFailException
            raise kind(f"{state.error_class or 'failed'}: {name}: the copy failed: {state.reason}")
        if state.state == "cancelled":
            raise AirflowFailException(f"{name}: the copy was withdrawn: {state.reason}")
        return state.settled

    def _ended(
        self,
        context: Mapping[str, Any],
        store: Store,
        watch: Watch,
        asked: str | None,
        exit_code: int | None,
        record: ControlRecord,
    ) -> Any:
        """Judge the end of this task's own job."""
        name, hook = watch.pipeline, self.pipeline_task().hook()
        state = request_state(store, name, asked) if asked is not None else None
        submitted_at_ms = int((record.handle or {}).get("submitted_at_ms", 0))
        if exit_code == DRAINED and state and state.requested_at_ms > submitted_at_ms:
            return self.begin(context, store, watch, asked)  # It was about to leave.
        if exit_code == DRAINED and asked is None and found_nothing(store, name, watch.generation):
            self.log.info("the driver of %s found no snapshot to take", name)
            return None
        job = self._job(watch, asked)
        verdict = settle(attendance(store, hook, job, watch.owner, self.budget), exit_code)
        if verdict.action == "restart":
            self.log.warning("driver of %s died (%s); going on with it", name, verdict.reason)
            return self._wait(context, watch, asked, now_ms() + int(verdict.wait_s * 1000))
        if asked is not None:
            cancel(store, name, asked, f"its task gave up: {verdict.reason}", by=watch.owner)
        raise give_up(hook, status(store, name), verdict, "snapshot not finished, ")

    def _resubmit(
        self, context: Mapping[str, Any], store: Store, watch: Watch, asked: str | None
    ) -> Any:
        try:
            backend = self.pipeline_task().hook().backend()
            self._tell(context, restart(store, self._job(watch, asked), backend, watch.owner))
        except RetryableError as error:  # The trigger sees why.
            self.log.warning("%s not started again: %s", watch.pipeline, error)
        return self._wait(context, watch, asked)

    def _job(self, watch: Watch, asked: str | None) -> Job:
        arguments = (REQUESTS_ONLY,) if asked is not None else ()
        return self.pipeline_task().job(watch.pipeline, watch.generation, SCRIPT, arguments)

    def _tell(self, context: Mapping[str, Any], handle: Handle | None) -> None:
        if handle and "ti" in context:
            context["ti"].xcom_push(key="driver", value=dict(handle))
            self.keep(context, "driver", dict(handle))

    def _wait(
        self,
        context: Mapping[str, Any],
        watch: Watch,
        asked: str | None,
        resubmit_at_ms: int | None = None,
    ) -> Any:
        trigger = SnapshotTrigger(
            self.deltaforge_conn_id,
            watch.as_dict(),
            resubmit_at_ms,
            request_id=asked,
            patience_s=self.patience.total_seconds(),
            poll_s=self.poll_interval.total_seconds(),
        )
        return self.hand_over(context, trigger)
