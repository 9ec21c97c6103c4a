"""Deliver the source's log to sinks again, and wait until they have it."""

import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control import conditions, rewind
from airflow_provider_deltaforge.control.rewind import RewindSelection
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError
from airflow_provider_deltaforge.events.table_names import split_names
from airflow_provider_deltaforge.hooks.jobs import request_id
from airflow_provider_deltaforge.operators.pipeline import PipelineOperator
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from airflow_provider_deltaforge.triggers.store import STORE_BACK
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_from_worker

_KEPT = "rewind"


class DeltaForgeRewindOperator(PipelineOperator):
    """Deliver the source's log again, to one sink or all, and wait until they have caught up.

    The running pipeline does it, beside its stream; one that does not run does it when it starts.
    The source is searched on this worker, which has to reach it. A retry goes on waiting for the
    request of an earlier attempt; a task that is cleared after success delivers the log again.

    Args:
        to: a time of ISO 8601, how long ago (``2h ago``), or a place in the log, as
            ``deltaforge rewind --to`` takes it. Everything behind it is delivered again.
        sink: id of the only sink that gets it; every sink when None.
        tables: deliver changes of these tables only, up to the sink's present position: names or
            patterns, a list or a text with commas; of all tables when empty.
        wait: succeed only once the sinks have caught up; otherwise as soon as it is requested.
        timeout: how long to wait; None leaves that to Airflow. When the time is up the task fails,
            and a sink that has not begun is not given the log; one that has goes on.
        poll_interval: time between two looks at the state store.
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "to", "sink", "tables")

    def __init__(
        self,
        *,
        to: str,
        sink: str | None = None,
        tables: Sequence[str] | str = (),
        wait: bool = True,
        timeout: timedelta | None = None,
        poll_interval: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.to, self.sink, self.tables = to, sink, tables
        self.wait, self.timeout, self.poll_interval = wait, timeout, poll_interval
        self._requested: tuple[str, Mapping[str, str], Any] | None = None

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Find the place, ask for it, and wait."""
        seconds = None if self.timeout is None else self.timeout.total_seconds()
        return self._act(context, None if seconds is None else int((time.time() + seconds) * 1000))

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Return what was delivered again, or fail with the reason."""
        if event.get("event") == STORE_BACK:
            return self._act(context, event.get("until_ms"))
        name, kept = event["pipeline"], self._kept_request(context)
        if event["met"]:
            self.keep(context, _KEPT, {**kept, "state": "done"})
            return event["value"]
        if event["met"] is False:
            self._withdraw(context, name)
        raise AirflowFailException(f"the rewind of {name}: {event['words']}")

    def on_kill(self) -> None:
        """Withdraw what has not begun if a user ended the task while its process runs."""
        super().on_kill()
        if self._requested is not None:
            withdraw_from_worker(self.deltaforge_conn_id, *self._requested)

    def _act(self, context: Mapping[str, Any], until_ms: int | None) -> Any:
        return self.retry_until_done(
            context, self.document_label, partial(self._begin, until_ms), until_ms
        )

    def _begin(self, until_ms: int | None, context: Mapping[str, Any]) -> Any:
        try:
            task = self.pipeline_task()
            name = load(task.text(), expand=False).metadata.name
            with task.hook().store() as store:
                by, sinks = self._asked(context, store, name)
        except RetryableError:
            raise
        except DeltaForgeError as error:
            raise AirflowFailException(str(error)) from error
        if not self.wait:
            self.keep(context, _KEPT, {**self._kept_request(context), "state": "done"})
            return {"sinks": sinks}
        request = {"rewind": by}
        self._requested = (name, request, context["ti"])
        trigger = ConditionTrigger(
            self.deltaforge_conn_id,
            name,
            conditions.rewound(sinks, by),
            until_ms,
            poll_s=self.poll_interval.total_seconds(),
            withdraw=request,
        )
        return self.hand_over(context, trigger)

    def _asked(
        self, context: Mapping[str, Any], store: Store, name: str
    ) -> tuple[str, Sequence[str]]:
        """Return who asks, and for which sinks; what an earlier attempt asked for counts."""
        kept, prefix = self._kept_request(context), f"{request_id(context['ti'])}#"
        selection = RewindSelection(self.to, self.sink, split_names(self.tables))
        tables, by = list(selection.tables), kept.get("by", "")
        asked = {"state": "requested", "to": self.to, "sink": self.sink, "tables": tables}
        is_mine = kept.items() >= asked.items() and by.startswith(prefix)
        if is_mine and rewind.is_taken(store, name, by):
            self.log.info("%s: %s was requested by an earlier attempt", name, self.to)
            return by, list(kept["sinks"])
        planned = rewind.plan(store, name, selection, self.pipeline_task().whole_environment())
        self.log.info("%s: %s", name, planned.summary)
        by, sinks = f"{prefix}{uuid.uuid4().hex[:8]}", list(planned.sinks)
        self.keep(context, _KEPT, {**asked, "by": by, "sinks": sinks, "position": dict(planned.to)})
        rewind.request(store, name, planned, by)
        return by, sinks

    def _kept_request(self, context: Mapping[str, Any]) -> dict[str, Any]:
        kept = self.kept(context, _KEPT)
        return kept if isinstance(kept, dict) else {}

    def _withdraw(self, context: Mapping[str, Any], name: str) -> None:
        with self.pipeline_task().hook().store() as store:
            rewind.withdraw(store, name, f"{request_id(context['ti'])}#")
