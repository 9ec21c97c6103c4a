"""Copy tables: the pipeline's own snapshot once, or again what a run asks for.

The records judge what became of a copy: they are the truth, not an exit code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from airflow_provider_deltaforge.assets.tables import describe_events
from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.arrivals import Arrivals, arrivals, copied_rows
from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.launching.contract import LaunchSpec
from airflow_provider_deltaforge.control.pipelines import apply, existing, now_ms
from airflow_provider_deltaforge.control.snapshots import CopySelection
from airflow_provider_deltaforge.control.starting import REQUESTS_ONLY
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import (
    PipelineTask,
    TriggerArguments,
    attendance,
    owner_token,
    pipeline_name,
    request_id,
)
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator, give_up
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import ControlRecord
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.killed import ask_to_stop_from_worker
from airflow_provider_deltaforge.triggers.snapshot import (
    SnapshotTrigger,
    counts_of,
    mirror_of,
    publish,
    variable,
)
from airflow_provider_deltaforge.triggers.store import STORE_BACK
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_copy_from_worker


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy and who waits for it: the request ``asked``, or the pipeline's own snapshot (None)."""

    watch: TriggerArguments
    asked: str | None = None
    is_new: bool = True
    """False if it was finished before its task began."""

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
        return own and snapshots.found_nothing(store, self.name, self.watch.generation)

    def withdraw(self, store: Store, reason: str) -> None:
        """Take the request back, so that nothing is copied behind a red task."""
        if self.asked is not None:
            snapshots.cancel(store, self.name, self.asked, reason, by=self.watch.owner)

    def killed(self, conn_id: str, instance: Any) -> None:
        """Withdraw it, or end its job, if a user ended the task whose process is being killed."""
        if self.asked is not None:
            withdraw_copy_from_worker(conn_id, self.watch, self.asked, instance)
        else:
            ask_to_stop_from_worker(conn_id, self.watch, instance)


class CopyOperator(PipelineOperator):
    """Supervises one copy: starts its job where no driver serves it, waits, and judges its end.

    Args:
        patience: see ``DeltaForgeSnapshotOperator``.
        poll_interval: likewise.
    """

    _held: tuple[Any, Copy] | None = None
    """The task instance and its copy: for ``on_kill``."""

    def __init__(self, *, patience: timedelta, poll_interval: timedelta, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience, self.poll_interval = patience, poll_interval

    def begin(
        self, context: Mapping[str, Any], store: Store, copy: Copy, *, force: bool = False
    ) -> Any:
        """Start a job unless a driver is there or, without ``force``, may come back; and wait."""
        task = self.pipeline_task()
        start = snapshots.serve if copy.asked is not None else snapshots.start
        job, backend = copy.job(task), task.backend()
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
        name, word, record = copy.name, event["event"], copy.record(store, event)
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
        whole = counts_of(store, copy.name, copy.asked) or {}
        counts = snapshots.short(whole)
        _publish_if_possible(store, copy.name, self.deltaforge_conn_id, self.log)
        self.keep(context, "snapshot", counts)
        self.keep_with_outlets(context, "deltaforge_snapshot", counts)
        copied = copied_rows(arrivals(store, copy.name), whole if copy.is_new else {})
        describe_events(context, self.outlets, copy.name, copied)
        return counts

    def on_kill(self) -> None:
        """Withdraw the copy if a user ended the task while its process runs."""
        super().on_kill()
        if self._held is not None:
            self._held[1].killed(self.deltaforge_conn_id, self._held[0])

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
            _describe_none(context, self.outlets, copy.name)
            return None
        task, owner, name = self.pipeline_task(), copy.watch.owner, copy.name
        verdict = settle(
            attendance(store, task.hook(), copy.job(task), owner, self.budget), exit_code
        )
        if verdict.action == "restart":
            self.log.warning("driver of %s died (%s); going on with it", copy.name, verdict.reason)
            return self.wait(context, copy, now_ms() + int(verdict.wait_s * 1000))
        copy.withdraw(store, f"its task gave up: {verdict.reason}")
        raise give_up(task.hook(), status(store, name), verdict, owner, "snapshot not finished, ")

    def wait(
        self, context: Mapping[str, Any], copy: Copy, resubmit_at_ms: int | None = None
    ) -> Any:
        """Wait for the copy, or until its job is to be started again."""
        watched = (self.deltaforge_conn_id, copy.watch.as_dict(), resubmit_at_ms)
        patience_s, poll_s = self.patience.total_seconds(), self.poll_interval.total_seconds()
        trigger = SnapshotTrigger(
            *watched, request_id=copy.asked, patience_s=patience_s, poll_s=poll_s
        )
        return self.hand_over(context, trigger)


def _describe_none(context: Mapping[str, Any], outlets: Iterable[Any], name: str) -> None:
    """Have the events of assets say that no row was copied."""
    describe_events(context, outlets, name, copied_rows(Arrivals(), {}))


def _publish_if_possible(store: Store, pipeline: str, conn_id: str, log: Any) -> None:
    name, mirror = variable(pipeline, conn_id), mirror_of(store, pipeline)
    try:
        publish(name, mirror)
    except Exception:  # It is for people, and must not fail the copy that it describes.
        log.warning("%s not written", name, exc_info=True)


class DeltaForgeSnapshotOperator(CopyOperator):
    """Copy captured tables, chunk by chunk, also while the pipeline streams.

    What a run asks for is a request in the control record, named after the task instance. The
    driver of the stream serves it and goes on; without a driver a snapshot job is started, which
    never streams. A retry adopts the request and goes on with the chunks not done, or returns what
    was copied meanwhile; a task that is cleared after success copies again. Marking the task failed
    withdraws the request and leaves the stream alone.

    Progress goes to the Variable ``deltaforge_<pipeline>`` while it runs; the final counts to
    XCom, to the task's state store, and to the state store of every asset in ``outlets``.

    Args:
        mode: ``initial``: the pipeline's own snapshot, unless it was done before, the document
            wants none, or the stream has begun without; ``always``: all captured tables (again)
            for this run; ``never``: nothing.
        tables: copy these (again), whatever was done before, unless ``mode`` is ``never``: a list
            of ``db.table``, or one text separated by commas; empty: see ``mode``.
        where: an SQL condition on the rows; needs exactly one table.
        patience: how long the driver of a stream may be gone, in which its own supervisor is to
            restart it, before a snapshot job is started.
        poll_interval: time between two looks at the state store.
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "tables", "where", "mode")

    def __init__(
        self,
        *,
        mode: str = "initial",
        tables: Sequence[str] | str = (),
        where: str | None = None,
        patience: timedelta = timedelta(minutes=3),
        poll_interval: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(patience=patience, poll_interval=poll_interval, **kwargs)
        self.mode, self.tables, self.where = mode, tables, where

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Ask for the copy, start a job unless a driver is there, and wait."""
        return self.retry_until_done(context, self.document_label, self._begin)

    def _begin(self, context: Mapping[str, Any]) -> Any:
        task = self.pipeline_task()
        try:
            wish = self._wish()
            if wish is None:
                if self.outlets:
                    _describe_none(context, self.outlets, pipeline_name(None, self.document))
                return None
            task.check_launch()
            with task.hook().store(create=True) as store:
                name = apply(store, task.agreed_text()).name
                copy = Copy(TriggerArguments(name, 0, owner_token(context)))
                if wish.tables or self.mode == "always":
                    copy = replace(copy, asked=request_id(context["ti"]))
                    if self._was_served(context, store, name, wish):
                        self.log.info("%s was served for an earlier attempt", copy.asked)
                        return self.result(context, store, copy)
                    self._ask(context, store, copy, wish)
                elif snapshots.is_done(store, name):
                    self.log.info("the snapshot of %s is already done", name)
                    copy = replace(copy, is_new=bool(self._pending(context)))
                    return self.result(context, store, copy)
                elif reason := snapshots.why_not_due(store, name):
                    self.log.info("no snapshot of %s is taken: %s", name, reason)
                    _describe_none(context, self.outlets, name)
                    return None
                else:
                    self.keep(context, "snapshot", {"request": None, "state": "pending"})
                self._held = (context["ti"], copy)
                return self.begin(context, store, copy)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw; everything needed is in the event."""
        if event["event"] == STORE_BACK:
            return self.retry_until_done(context, self.document_label, self._begin)
        copy = Copy.of(event)
        self._held = (context.get("ti"), copy)
        try:
            with self.pipeline_task().hook().store() as store:
                return self.after(context, store, copy, event)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        except RetryableError as error:
            self.log.warning("%s is waited for: %s", copy.name, redacted(str(error)))
            return self.wait(context, copy)

    def _ask(
        self, context: Mapping[str, Any], store: Store, copy: Copy, wish: CopySelection
    ) -> None:
        asked = str(copy.asked)
        placed = snapshots.request(store, copy.name, wish, asked, copy.watch.owner)
        mirror = {"request": asked, "state": "pending", "ticket": placed.ticket}
        self.keep(context, "snapshot", mirror)

    def _was_served(
        self, context: Mapping[str, Any], store: Store, name: str, wish: CopySelection
    ) -> bool:
        """Return whether an earlier attempt, killed before it could report, has made this copy."""
        ticket = self._pending(context).get("ticket")
        served = SnapshotResults(store, name).of(ticket) if ticket else None
        return (
            served is not None
            and served.state == "done"
            and CopySelection.of(**served.wish) == wish
        )

    def _pending(self, context: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what an attempt that could not report kept of its copy; nothing without one."""
        kept = self.kept(context, "snapshot")
        return kept if isinstance(kept, dict) and kept.get("state") == "pending" else {}

    def _wish(self) -> CopySelection | None:
        if self.mode not in ("initial", "always", "never"):
            raise SpecError(f"mode: must be initial, always or never, got {self.mode!r}")
        return None if self.mode == "never" else CopySelection.of(self.tables, self.where)
