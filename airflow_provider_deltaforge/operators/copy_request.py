"""How a snapshot task begins its copy, and what it makes of the trigger's events."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.pipelines import now_ms
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.jobs import attendance
from airflow_provider_deltaforge.operators.copy_state import Copy
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator, give_up
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.triggers.snapshot import (
    SnapshotTrigger,
    counts_of,
    mirror_of,
    publish,
    variable,
)


class CopyingOperator(PipelineOperator):
    """Waits for a copy, and starts the job that makes it where there is no driver."""

    patience: timedelta
    poll_interval: timedelta
    _held: tuple[Any, Copy] | None = None
    """The task instance and its copy: for ``on_kill``."""

    def begin(
        self, context: Mapping[str, Any], store: Store, copy: Copy, *, force: bool = False
    ) -> Any:
        """Start a job unless a driver is there or, without ``force``, may come back; and wait."""
        task = self.pipeline_task()
        start = snapshots.serve if copy.asked is not None else snapshots.start
        job, backend = copy.job(task), task.hook().backend()
        try:
            started = start(store, job, backend, copy.watch.owner, force=force)
        except RetryableError as error:
            self.log.info("somebody else starts a driver at this moment: %s", error)
            started = None
        if started is not None:
            self.tell_driver(context, started.handle)
            copy = copy.under(started.generation)
        return self.wait(context, copy)

    def after(
        self, context: Mapping[str, Any], store: Store, copy: Copy, event: Mapping[str, Any]
    ) -> Any:
        """Act on an event."""
        name, word = copy.name, event["event"]
        record = copy.record(store, event)
        if word == "resubmit":
            self.start_again(context, store, copy.job(self.pipeline_task()), copy.watch)
            return self.wait(context, copy)
        if copy.settled(store):
            return self.result(context, store, copy)
        if word == "not_due":
            raise AirflowFailException(snapshots.NOT_DUE.format(name=name))
        if record.desired == "stopped":
            raise AirflowException(
                f"{name} was stopped before its snapshot was finished; the next attempt, or the "
                "next start of the stream, goes on with the chunks that are missing"
            )
        if word == "ended":
            return self._ended(context, store, copy, event["exit_code"], record)
        return self.begin(context, store, copy, force=word == "unserved")

    def result(self, context: Mapping[str, Any], store: Store, copy: Copy) -> dict[str, Any]:
        """Return the final counts, and leave copies of them where people look."""
        counts = dict(counts_of(store, copy.name, copy.asked) or {})
        publish(variable(copy.name, self.deltaforge_conn_id), mirror_of(store, copy.name))
        self.keep(context, "snapshot", counts)
        self.keep_with_outlets(context, "deltaforge_snapshot", counts)
        return counts

    def on_kill(self) -> None:
        """Withdraw the copy if a user ended the task while its process runs."""
        if self._held is not None:
            instance, copy = self._held
            copy.killed(self.deltaforge_conn_id, instance)

    def _ended(
        self,
        context: Mapping[str, Any],
        store: Store,
        copy: Copy,
        exit_code: int | None,
        record: ControlRecord,
    ) -> Any:
        """Judge the end of this task's own job."""
        if exit_code == DRAINED and copy.came_late(store, record):
            return self.begin(context, store, copy)
        if exit_code == DRAINED and copy.was_not_due(store):
            self.log.info("the driver of %s found no snapshot to take", copy.name)
            return None
        task, owner = self.pipeline_task(), copy.watch.owner
        task_of_job = attendance(store, task.hook(), copy.job(task), owner, self.budget)
        verdict = settle(task_of_job, exit_code)
        if verdict.action == "restart":
            self.log.warning("driver of %s died (%s); going on with it", copy.name, verdict.reason)
            return self.wait(context, copy, now_ms() + int(verdict.wait_s * 1000))
        copy.withdraw(store, f"its task gave up: {verdict.reason}")
        present = status(store, copy.name)
        raise give_up(task.hook(), present, verdict, owner, "snapshot not finished, ")

    def wait(
        self, context: Mapping[str, Any], copy: Copy, resubmit_at_ms: int | None = None
    ) -> Any:
        """Wait for the copy, or until its job is to be started again."""
        trigger = SnapshotTrigger(
            self.deltaforge_conn_id,
            copy.watch.as_dict(),
            resubmit_at_ms,
            request_id=copy.asked,
            patience_s=self.patience.total_seconds(),
            poll_s=self.poll_interval.total_seconds(),
        )
        return self.hand_over(context, trigger)
