"""Waiting without a worker slot where there is a triggerer, and in this process where not."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from airflow.sdk import NEVER_EXPIRE, BaseOperator  # type: ignore[attr-defined]
from airflow.sdk.exceptions import TaskDeferred
from airflow.triggers.base import BaseTrigger

from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.store import StoreTrigger, store_trouble


class DeferringOperator(BaseOperator):
    """Hands its waiting over to a trigger, and goes on in ``execute_complete`` with its event.

    Args:
        deferrable: wait in the triggerer. With False the task waits in its own process and holds
            a worker slot; Airflow's ``operators.default_deferrable`` is not read, because a stream
            must not hold a slot by accident.
    """

    deltaforge_conn_id: str

    def __init__(self, *, deferrable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self._attends = self._is_killed = False

    def on_kill(self) -> None:
        """Remember it; operators withdraw here what they asked for."""
        self._is_killed = True

    def hand_over(self, context: Mapping[str, Any], trigger: BaseTrigger) -> Any:
        """Wait for the trigger, and return what ``execute_complete`` makes of its event."""
        if self._is_killed:
            self.on_kill()  # The signal may have come when nothing was there to be withdrawn.
        # A second call while waiting here is the next turn of the loop below, not a deeper call.
        if self.deferrable or self._attends:
            self.defer(trigger=trigger, method_name="execute_complete")
        self._attends = True
        try:
            while True:
                event = asyncio.run(_first_event(trigger))
                try:
                    return self.execute_complete(context, event)
                except TaskDeferred as again:
                    trigger = again.trigger
        finally:
            self._attends = False

    def retry_until_done(
        self,
        context: Mapping[str, Any],
        pipeline: str,
        begin: Callable[[Mapping[str, Any]], Any],
        until_ms: int | None = None,
    ) -> Any:
        """Begin, or wait while the state store is away; ``execute_complete`` then begins.

        Args:
            context: of the task.
            pipeline: what is waited for, for the log.
            begin: what to do.
            until_ms: when the time is up, in ms since the epoch; None waits as long as Airflow
                does.

        Raises:
            RetryableError: the store is there, and something else may work later; or it is away
                still, and the time is up.
        """
        try:
            return begin(context)
        except RetryableError:
            trouble = store_trouble(self.deltaforge_conn_id)
            if trouble is None or (until_ms is not None and time.time() * 1000 >= until_ms):
                raise
            self.log.warning("the state store is away, waiting: %s", redacted(str(trouble)))
            return self.hand_over(
                context, StoreTrigger(self.deltaforge_conn_id, pipeline, until_ms=until_ms)
            )

    def execute_complete(self, context: Mapping[str, Any], event: Mapping[str, Any]) -> Any:
        """Act on what the trigger saw."""
        raise TypeError(f"{type(self).__name__} hands over and has no execute_complete")

    def keep(self, context: Mapping[str, Any], key: str, value: Any) -> None:
        """Write JSON to the task's state store: a copy for people and the next attempt, no truth.

        Airflow shows it in the task's tab *Storage*. Without such a store, or when it does not
        answer, the task goes on.
        """
        store = context.get("task_state_store")
        if store is None or value is None:
            return
        try:
            store.set(key, value, retention=NEVER_EXPIRE)
        except Exception:  # A copy that cannot be written must not fail what it describes.
            self.log.warning("%s not written to the task's state store", key, exc_info=True)

    def keep_with_outlets(self, context: Mapping[str, Any], key: str, value: Any) -> None:
        """Write JSON to the state store of every asset in ``outlets``, as ``keep`` does."""
        for outlet in self.outlets:
            try:
                context["asset_state_store"][outlet].set(key, value)
            except Exception:  # As with ``keep``: the task goes on without.
                self.log.warning("%s not written to %r", key, outlet, exc_info=True)

    def kept(self, context: Mapping[str, Any], key: str) -> Any:
        """Return what an attempt of this task instance kept; None if that cannot be known."""
        store = context.get("task_state_store")
        if store is None:
            return None
        try:
            return store.get(key)
        except Exception:  # As with ``keep``: the task goes on without.
            self.log.warning("%s not read from the task's state store", key, exc_info=True)
            return None


async def _first_event(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise TypeError(f"{type(trigger).__name__} ended without an event")
