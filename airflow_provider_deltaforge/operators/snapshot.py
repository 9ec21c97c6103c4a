"""Run a pipeline's snapshot, or go on with one that was interrupted."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control.attend import settle
from airflow_provider_deltaforge.control.pipelines import apply, now_ms
from airflow_provider_deltaforge.control.snapshots import SCRIPT, Wish, is_done, progress, start
from airflow_provider_deltaforge.control.starting import restart
from airflow_provider_deltaforge.control.status import status
from airflow_provider_deltaforge.control.supervise import DRAINED
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.jobs import Watch, attendance, owner_token
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator, give_up, refuse_gone
from airflow_provider_deltaforge.triggers.snapshot import SnapshotTrigger, publish


class DeltaForgeSnapshotOperator(PipelineOperator):
    """Copy the captured tables once, chunk by chunk; a finished snapshot is not repeated.

    Progress by table and chunk goes to the Variable ``deltaforge_<pipeline>`` while it runs, and
    the final counts to XCom. A retry, or a run after a crash, goes on with the chunks not done.

    Args:
        mode: ``initial`` copies what was there once; ``never`` copies nothing.
        tables: copy only these (``db.table``), a list or separated by commas; all captured tables
            when empty.
        where: an SQL condition on the rows; needs exactly one table.
        poll_interval: time between two looks at the state store.
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "tables", "where", "mode")

    def __init__(
        self,
        *,
        mode: str = "initial",
        tables: Sequence[str] | str = (),
        where: str | None = None,
        poll_interval: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.mode = mode
        self.tables = tables
        self.where = where
        self.poll_interval = poll_interval

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Start the snapshot job unless it is done, and defer."""
        task, owner = self.pipeline_task(), owner_token(context)
        hook = task.hook()
        wish = self._wish()
        if self.mode not in {"initial", "never"} and not wish.tables:
            raise AirflowFailException(f"mode must be 'initial' or 'never', got {self.mode!r}")
        if self.mode == "never" and not wish.tables:
            return None
        try:
            with hook.store() as store:
                name = apply(store, task.agreed_text()).name
                if is_done(store, name, wish):
                    self.log.info("the snapshot of %s is already done", name)
                    return self._result(name, progress(store, name))
                job = task.job(name, 0, SCRIPT, wish.arguments())
                started = start(store, job, hook.backend(), owner)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        context["ti"].xcom_push(key="driver", value=dict(started.handle))
        return self._watch(Watch(name, started.generation, owner))

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw; everything needed is in the event."""
        del context
        name, word, generation = event["pipeline"], event["event"], event["generation"]
        refuse_gone(event)
        task = self.pipeline_task()
        hook, wish = task.hook(), self._wish()
        job = task.job(name, generation, SCRIPT, wish.arguments())
        with hook.store() as store:
            if word == "resubmit":
                restart(store, job, hook.backend())
                return self._watch(Watch.of(event))
            # The chunks in the store are the truth, not an exit code.
            if is_done(store, name, wish):
                return self._result(name, progress(store, name))
            supervision = attendance(store, hook, job, event["owner"], self.budget)
            verdict = settle(supervision, event["exit_code"])
            present, counts = status(store, name), progress(store, name)
        if wish.tables and event["exit_code"] == DRAINED and (counts or {}).get("finished"):
            return self._result(name, counts)
        if verdict.action == "restart":
            self.log.warning("driver of %s died (%s); going on with it", name, verdict.reason)
            again_ms = now_ms() + int(verdict.wait_s * 1000)
            return self._watch(Watch.of(event), again_ms)
        raise give_up(hook, present, verdict, "snapshot not finished, ")

    def _wish(self) -> Wish:
        tables = self.tables.split(",") if isinstance(self.tables, str) else self.tables
        return Wish(tuple(name.strip() for name in tables if name.strip()), self.where or None)

    def _result(self, name: str, counts: Mapping[str, Any] | None) -> dict[str, Any]:
        publish(name, counts or {})
        return dict(counts or {})

    def _watch(self, watch: Watch, resubmit_at_ms: int | None = None) -> None:
        told = (self.deltaforge_conn_id, watch.as_dict(), resubmit_at_ms)
        trigger = SnapshotTrigger(*told, poll_s=self.poll_interval.total_seconds())
        self.defer(trigger=trigger, method_name="execute_complete")
