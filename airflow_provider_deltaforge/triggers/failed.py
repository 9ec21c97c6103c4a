"""An event for every failure of a pipeline that a person, or a DAG, has to act on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.control.supervise import HOPELESS
from airflow_provider_deltaforge.errors import RetryableError, SpecError
from airflow_provider_deltaforge.hooks.connections import LOOKUP_ERRORS
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.triggers.polling_trigger import SerializableTrigger


class DeltaForgeFailureTrigger(SerializableTrigger, BaseEventTrigger):
    """Watches a pipeline for an ``AssetWatcher``; fires at least once for every failure.

    The event's payload is ``{"pipeline", "error_class", "reason", "generation", "since_ms"}``. The
    last failure that fired is kept in the asset's state store one poll later, so that neither a
    restarted triggerer nor a redeployed DAG fires for it again, except one that ended in between.
    Give every asset a watcher of its own.

    Args:
        pipeline: the pipeline's name.
        error_class: fire on this class only, for example ``position_lost``. Without it, on every
            class that no restart cures.
        deltaforge_conn_id: connection of the state store.
        poll_s: seconds between two looks at the store.
    """

    def __init__(
        self,
        pipeline: str,
        error_class: str | None = None,
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        poll_s: float = 10.0,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.error_class = error_class
        self.deltaforge_conn_id = deltaforge_conn_id
        self.poll_s = poll_s

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each failure, for ever."""
        store = self.asset_state_store
        key = f"deltaforge_failure_{self.pipeline}"
        reported = await store.aget(key) if store is not None else None
        unwritten: str | None = None
        while True:
            present = await self._status()
            if present is not None and self._concerns(present):
                failure = f"{present.generation}/{present.since_ms}"
                if failure != reported:
                    yield TriggerEvent(_payload(present))
                    reported = unwritten = failure
            await asyncio.sleep(self.poll_s)
            # Only now: a triggerer that dies before it has handed the event on must fire again.
            if store is not None and unwritten is not None:
                await store.aset(key, unwritten)
                unwritten = None

    async def _status(self) -> PipelineStatus | None:
        try:
            return await self.hook.aget_status(self.pipeline)
        except (RetryableError, SpecError, *LOOKUP_ERRORS) as error:  # Away, or not applied yet.
            self.log.info("%s: %s", self.pipeline, error)
            return None

    def _concerns(self, present: PipelineStatus) -> bool:
        if present.status != "failed":
            return False
        if self.error_class is None:
            return present.error_class in HOPELESS
        return present.error_class == self.error_class


def _payload(present: PipelineStatus) -> dict[str, Any]:
    return {
        "pipeline": present.name,
        "error_class": present.error_class,
        "reason": present.reason,
        "generation": present.generation,
        "since_ms": present.since_ms,
    }
