"""Pause, resume, stop or reset a pipeline, and wait until it is so."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_deltaforge.control import conditions, pipelines
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.hooks.jobs import Document, document_label, pipeline_name
from airflow_provider_deltaforge.links.pipeline import DeltaForgePipelineLink
from airflow_provider_deltaforge.operators.deferral import DeferringOperator
from airflow_provider_deltaforge.triggers.condition import ConditionTrigger
from airflow_provider_deltaforge.triggers.store import STORE_BACK

_WORKING = ("running", "snapshotting", "blocked")
_ENDED = ("stopped", "failed", "lost", "pending")

_AWAITED = {
    "pause": conditions.status_in(("paused",), _ENDED, "paused"),
    "resume": conditions.status_in(_WORKING, _ENDED, "running"),
    "stop": conditions.at_rest(),
}
_POLL_S = 1.0
_ACTIONS = (*_AWAITED, "reset_checkpoint")


class DeltaForgeControlOperator(DeferringOperator):
    """Pause, resume or stop a pipeline, or reset its checkpoints; asked twice, it does nothing.

    Args:
        action: ``pause``, ``resume``, ``stop`` or ``reset_checkpoint``.
        pipeline: name of the pipeline; or give
        document: its YAML document: a path, or the document itself.
        confirm: must repeat the pipeline's name to reset its checkpoints.
        wait: succeed only once it is so; otherwise as soon as it is asked for.
        timeout: how long to wait, for the state store too. A driver that has not ended by itself
            then is ended; a pause or resume that has not happened fails the task.
        deltaforge_conn_id: connection of the state store.
    """

    template_fields: Sequence[str] = (
        *("action", "pipeline", "document", "confirm", "deltaforge_conn_id"),
    )
    ui_color = "#cfe8dc"
    operator_extra_links = (DeltaForgePipelineLink(),)

    def __init__(
        self,
        *,
        action: str,
        pipeline: str | None = None,
        document: Document | None = None,
        confirm: str | None = None,
        wait: bool = True,
        timeout: timedelta = timedelta(minutes=2),
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.action = action
        self.pipeline = pipeline
        self.document = document
        self.confirm = confirm
        self.wait = wait
        self.timeout = timeout
        self.deltaforge_conn_id = deltaforge_conn_id

    def execute(self, context: Mapping[str, Any]) -> Any:
        """Write what is wanted, and wait for it."""
        return self._act(context, self._deadline_ms())

    def _act(self, context: Mapping[str, Any], until_ms: int | None) -> Any:
        named = self.pipeline or document_label(self.document or "")
        return self.retry_until_done(context, named, partial(self._begin, until_ms), until_ms)

    def _begin(self, until_ms: int | None, context: Mapping[str, Any]) -> Any:
        try:
            name = pipeline_name(self.pipeline, self.document)
            with DeltaForgeHook(self.deltaforge_conn_id).store() as store:
                self._ask(store, name)
        except SpecError as error:
            raise AirflowFailException(str(error)) from error
        if not self.wait or self.action not in _AWAITED:
            return None
        awaited = _AWAITED[self.action]
        trigger = ConditionTrigger(self.deltaforge_conn_id, name, awaited, until_ms, poll_s=_POLL_S)
        return self.hand_over(context, trigger)

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Return the status, end a driver that did not end, or fail with the reason."""
        if event.get("event") == STORE_BACK:
            return self._act(context, event.get("until_ms"))
        if event["met"]:
            return event["value"]
        name = event["pipeline"]
        if event["met"] is False and self.action == "stop":
            self.log.warning("%s did not end by itself (%s); ending it", name, event["words"])
            end = partial(self._end, name)
            return self.retry_until_done(context, name, end, self._deadline_ms())
        raise AirflowFailException(f"{self.action} of {name}: {event['words']}")

    def _deadline_ms(self) -> int:
        return int((time.time() + self.timeout.total_seconds()) * 1000)

    def _end(self, name: str, _: Mapping[str, Any]) -> Any:
        hook = DeltaForgeHook(self.deltaforge_conn_id)
        hook.stop(name, timedelta(0))
        return hook.get_status(name).as_short_dict()

    def _ask(self, store: Any, name: str) -> None:
        if self.action == "pause":
            pipelines.pause(store, name)
        elif self.action == "resume":
            pipelines.resume(store, name)
        elif self.action == "stop":
            pipelines.ask_to_stop(store, name)
        elif self.action == "reset_checkpoint":
            backend = DeltaForgeHook(self.deltaforge_conn_id).backend()
            pipelines.reset_checkpoint(store, name, confirm=self.confirm or "", backend=backend)
        else:
            raise SpecError(f"action must be one of {', '.join(_ACTIONS)}: {self.action!r}")
