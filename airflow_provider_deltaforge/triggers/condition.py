"""Wait in the triggerer until something is true of a pipeline."""

import time
from collections.abc import Mapping
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_deltaforge.control.conditions import ConditionResult, look
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.jobs import PipelineTask
from airflow_provider_deltaforge.triggers.killed import in_thread
from airflow_provider_deltaforge.triggers.polling_trigger import PollingTrigger
from airflow_provider_deltaforge.triggers.withdrawal import withdraw_once_over


class ConditionTrigger(PollingTrigger):
    """Fires when a condition holds, when it cannot come any more, or when the time is up.

    The event is ``{"pipeline", "met", "words", "value"}``; ``met`` is False when the time is up and
    None when waiting has become pointless. A state store that is away fires nothing.

    Args:
        deltaforge_conn_id: connection of the state store.
        pipeline: the pipeline's name.
        condition: plain data, see ``control.conditions``.
        until_ms: when the time is up, in ms since the epoch; None leaves that to Airflow.
        poll_s: seconds between two looks at the store.
        connections: environment variable of the document to Airflow connection id, for conditions
            that ask the source.
        withdraw: what is withdrawn when a user ends the task, see ``triggers.withdrawal``; it is
            also in the event, for a task that withdraws it because the time is up.
    """

    def __init__(
        self,
        deltaforge_conn_id: str,
        pipeline: str,
        condition: Mapping[str, Any],
        until_ms: int | None = None,
        poll_s: float = 5.0,
        connections: Mapping[str, str] | None = None,
        withdraw: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.deltaforge_conn_id = deltaforge_conn_id
        self.pipeline = pipeline
        self.condition = dict(condition)
        self.until_ms = until_ms
        self.poll_s = poll_s
        self.connections = connections
        self.withdraw = withdraw

    async def on_kill(self) -> None:
        """Withdraw what the task asked for, if a user ended it; a cleared task wants it still."""
        if self.withdraw:
            await in_thread(self._withdraw)

    def look(self) -> tuple[TriggerEvent | None, str]:
        """Return an event if the condition holds, cannot come, or the time is up. Blocking."""
        answer = self.answer()
        over = self.until_ms is not None and time.time() * 1000 >= self.until_ms
        if not over and answer.met is False:
            return None, answer.words
        result = {"met": answer.met, "words": answer.words, "value": answer.value}
        event = {"pipeline": self.pipeline, **result}
        if self.withdraw:
            event["withdraw"] = dict(self.withdraw)
        return TriggerEvent(event), answer.words

    def _withdraw(self) -> None:
        asked = (self.deltaforge_conn_id, self.pipeline, self.withdraw or {})
        try:
            withdraw_once_over(*asked, self.task_instance)
        except Exception:
            self.log.exception("could not withdraw %s of %s", self.withdraw, self.pipeline)

    def answer(self) -> ConditionResult:
        """Return whether the condition holds now. Blocking."""
        task = PipelineTask(None, self.deltaforge_conn_id, self.connections or {})
        asked = (self.pipeline, self.condition, self.hook.backend())
        try:
            with self.hook.store() as store:
                return look(store, *asked, environment=task.whole_environment)
        except RetryableError as error:
            return ConditionResult.not_yet(f"unknown, the state store is away: {error}")
