"""What a snapshot task waits for, judged by the records: they are the truth, not an exit code."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.launch import LaunchSpec
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.snapshots import found_nothing
from airflow_provider_deltaforge.control.starting import REQUESTS_ONLY
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.jobs import PipelineTask, TriggerArguments
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.triggers.killed import ask_to_stop_from_worker
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_from_worker


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy and who waits for it: the request ``asked``, or the pipeline's own snapshot (None)."""

    watch: TriggerArguments
    asked: str | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "Copy":
        """Return what the trigger that fired ``event`` waited for."""
        return cls(TriggerArguments.of(event), event.get("request_id"))

    @property
    def name(self) -> str:
        """Return the pipeline's name."""
        return self.watch.pipeline

    def under(self, generation: int) -> "Copy":
        """Return the same, made by this task's own driver."""
        return replace(self, watch=replace(self.watch, generation=generation))

    def job(self, task: PipelineTask) -> LaunchSpec:
        """Return the job that would make it."""
        arguments = (REQUESTS_ONLY,) if self.asked is not None else ()
        return task.job(self.name, self.watch.generation, snapshots.SCRIPT, arguments)

    def record(self, store: Store, event: Mapping[str, Any]) -> ControlRecord:
        """Return the pipeline's record; fail the task when the pipeline was deleted."""
        if event["event"] == "deleted":
            raise AirflowFailException(f"{self.name}: {event['reason']}")
        record = existing(store, self.name).read()
        if record is None:
            raise AirflowFailException(f"{self.name}: the pipeline was deleted")
        return record

    def settled(self, store: Store) -> bool:
        """Return whether the copy is done; fail the task when it never will be."""
        if self.asked is None:
            return snapshots.is_done(store, self.name)
        state = snapshots.request_state(store, self.name, self.asked)
        if state is None:
            raise AirflowException(
                f"{self.name}: request {self.asked} is unknown; its records were deleted"
            )
        if state.state == "failed":
            may_retry = state.error_class == RetryableError.error_class
            kind = AirflowException if may_retry else AirflowFailException
            word = state.error_class or "failed"
            raise kind(f"{word}: {self.name}: the copy failed: {state.reason}")
        if state.state == "cancelled":
            raise AirflowFailException(f"{self.name}: the copy was withdrawn: {state.reason}")
        return state.settled

    def came_late(self, store: Store, record: ControlRecord) -> bool:
        """Return whether the request came when its job was already there and about to end."""
        if self.asked is None:
            return False
        state = snapshots.request_state(store, self.name, self.asked)
        submitted_at_ms = int((record.handle or {}).get("submitted_at_ms", 0))
        return state is not None and state.requested_at_ms > submitted_at_ms

    def was_not_due(self, store: Store) -> bool:
        """Return whether this task's job ended because there was nothing to copy."""
        own = self.asked is None
        return own and found_nothing(store, self.name, self.watch.generation)

    def withdraw(self, store: Store, reason: str) -> None:
        """Take the request back, so that nothing is copied behind a red task."""
        if self.asked is not None:
            snapshots.cancel(store, self.name, self.asked, reason, by=self.watch.owner)

    def killed(self, conn_id: str, instance: Any) -> None:
        """Withdraw it, or end its job, if a user ended the task whose process is being killed."""
        if self.asked is not None:
            withdraw_from_worker(conn_id, self.watch, self.asked, instance)
        else:
            ask_to_stop_from_worker(conn_id, self.watch, instance)
