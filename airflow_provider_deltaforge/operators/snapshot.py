"""Copy tables: the pipeline's own snapshot once, or again what a run asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.pipelines import apply
from airflow_provider_deltaforge.control.snapshots import (
    CopySelection,
    is_done,
    request,
    why_not_due,
)
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.jobs import TriggerArguments, owner_token, request_id
from airflow_provider_deltaforge.operators.copy_request import CopyingOperator
from airflow_provider_deltaforge.operators.copy_state import Copy
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.requests import SnapshotResults
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.store import STORE_BACK


class DeltaForgeSnapshotOperator(CopyingOperator):
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

    template_fields: Sequence[str] = (*CopyingOperator.template_fields, "tables", "where", "mode")

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
        super().__init__(**kwargs)
        self.mode, self.tables, self.where = mode, tables, where
        self.patience, self.poll_interval = patience, poll_interval

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Ask for the copy, start a job unless a driver is there, and wait."""
        return self.retry_until_done(context, self.document, self._begin)

    def _begin(self, context: Mapping[str, Any]) -> Any:
        task = self.pipeline_task()
        try:
            wish = self._wish()
            if wish is None:
                return None
            task.check_master()
            with task.hook().store(create=True) as store:
                name = apply(store, task.agreed_text()).name
                copy = Copy(TriggerArguments(name, 0, owner_token(context)))
                if wish.tables or self.mode == "always":
                    copy = replace(copy, asked=request_id(context["ti"]))
                    if self._was_served(context, store, name, wish):
                        self.log.info("%s was served for an earlier attempt", copy.asked)
                        return self.result(context, store, copy)
                    self._ask(context, store, copy, wish)
                elif is_done(store, name):
                    self.log.info("the snapshot of %s is already done", name)
                    return self.result(context, store, copy)
                elif reason := why_not_due(store, name):
                    self.log.info("no snapshot of %s is taken: %s", name, reason)
                    return None
                self._held = (context["ti"], copy)
                return self.begin(context, store, copy)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw; everything needed is in the event."""
        if event["event"] == STORE_BACK:
            return self.retry_until_done(context, self.document, self._begin)
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
        placed = request(store, copy.name, wish, asked, copy.watch.owner)
        mirror = {"request": asked, "state": "pending", "ticket": placed.ticket}
        self.keep(context, "snapshot", mirror)

    def _was_served(
        self, context: Mapping[str, Any], store: Store, name: str, wish: CopySelection
    ) -> bool:
        """Return whether an earlier attempt, killed before it could report, has made this copy."""
        kept = self.kept(context, "snapshot")
        if not isinstance(kept, dict) or kept.get("state") != "pending" or not kept.get("ticket"):
            return False
        served = SnapshotResults(store, name).of(kept["ticket"])
        return (
            served is not None
            and served.state == "done"
            and CopySelection.of(**served.wish) == wish
        )

    def _wish(self) -> CopySelection | None:
        if self.mode not in ("initial", "always", "never"):
            raise SpecError(f"mode: must be initial, always or never, got {self.mode!r}")
        return None if self.mode == "never" else CopySelection.of(self.tables, self.where)
