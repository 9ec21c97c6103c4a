"""An event for rows that arrived in a pipeline's sinks: it schedules DAGs by data."""

import asyncio
import time
from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider_deltaforge.control.arrivals import Arrivals, arrivals
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.hooks.connections import LOOKUP_ERRORS
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.telemetry.redaction import redacted
from airflow_provider_deltaforge.triggers.polling_trigger import SerializableTrigger


class DeltaForgeArrivalTrigger(SerializableTrigger, BaseEventTrigger):
    """Watches the checkpoints of a pipeline for an ``AssetWatcher``; see ``assets.tables``.

    It fires at least once for all rows that arrive after it first looked. The payload is
    ``{"pipeline", "tables", "rows", "exact", "position", "from_position", "generation"}``; see
    ``control.arrivals``. What was reported last is kept in the asset's state store one look later,
    so that a restarted triggerer goes on there. All triggers of one pipeline share one look at the
    state store.

    Args:
        pipeline: the pipeline's name.
        table: full name of a table, as ``deltaforge status`` shows it; None for all tables.
        sink: id of a sink that must not be behind; without one, sinks that are behind are not
            waited for.
        interval_s: seconds from one event to the next, at least.
        deltaforge_conn_id: connection of the state store.
        poll_s: seconds between two looks at the store.
        asset: name and URI of an asset that is not called as the table. Airflow makes one trigger
            of equal ones, and what was reported is kept for one asset.
    """

    def __init__(
        self,
        pipeline: str,
        table: str | None = None,
        sink: str | None = None,
        interval_s: float = 60.0,
        deltaforge_conn_id: str = DeltaForgeHook.default_conn_name,
        poll_s: float = 5.0,
        asset: str | None = None,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.table = table
        self.sink = sink
        self.interval_s = interval_s
        self.deltaforge_conn_id = deltaforge_conn_id
        self.poll_s = poll_s
        self.asset = asset

    def shared_stream_key(self) -> Hashable:
        """Return what triggers have in common that share a look at the store."""
        return ("deltaforge_arrivals", self.deltaforge_conn_id, self.pipeline, str(self.poll_s))

    @classmethod
    async def open_shared_stream(cls, kwargs: dict[str, Any]) -> AsyncIterator[Arrivals]:
        """Yield what has arrived at each look, for ever. A store that is away yields nothing."""
        trigger, trouble = cls(**kwargs), ""
        while True:
            try:
                seen = await asyncio.to_thread(trigger.look)
            except (DeltaForgeError, *LOOKUP_ERRORS) as error:
                words = redacted(str(error))
                if words != trouble:
                    trigger.log.warning("%s, looking again: %s", trigger.pipeline, words)
                trouble = words
            else:
                trouble = ""
                yield seen
            await asyncio.sleep(trigger.poll_s)

    def look(self) -> Arrivals:
        """Return what has arrived. Blocking."""
        with self.hook.store() as store:
            return arrivals(store, self.pipeline)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event whenever rows have arrived, for ever."""
        async for event in self.filter_shared_stream(self.open_shared_stream(self.serialize()[1])):
            yield event

    async def filter_shared_stream(
        self, shared_stream: AsyncIterator[Arrivals]
    ) -> AsyncIterator[TriggerEvent]:
        """Yield an event for what arrived of the table, not more often than ``interval_s``."""
        stored = await self._reported()
        reported = None if stored is None else Arrivals.of(stored)
        is_kept, fired_s = True, float("-inf")
        async for whole in shared_stream:
            seen = whole.only(self.table)
            if reported is None:
                reported, is_kept = seen, await self._keep(seen)
                continue
            # Only now: a triggerer that dies before it has handed the event on must fire again.
            is_kept = is_kept or await self._keep(reported)
            if seen.position is None and reported.position is not None:
                continue  # A driver that starts does not know yet how far it is.
            if self.sink in seen.lacking or time.monotonic() - fired_s < self.interval_s:
                continue
            arrived = seen.since(reported)
            if not arrived.is_empty:
                yield TriggerEvent(arrived.as_payload(self.pipeline))
                fired_s = time.monotonic()
            if not arrived.is_empty or seen.generation != reported.generation:
                reported, is_kept = seen, False

    @property
    def _key(self) -> str:
        return f"deltaforge_arrivals_{self.pipeline}_{self.table or ''}_{self.sink or ''}"

    async def _reported(self) -> Mapping[str, Any] | None:
        """Return what was reported before this trigger began; None if that is not known."""
        store = self.asset_state_store
        found = await store.aget(self._key) if store is not None else None
        return found if isinstance(found, Mapping) else None

    async def _keep(self, reported: Arrivals) -> bool:
        """Write down what was reported; without it, a restarted triggerer begins with now."""
        if self.asset_state_store is None:
            return True
        try:
            await self.asset_state_store.aset(self._key, reported.as_dict())
        except Exception:  # Written at the next look; the events themselves must not stop.
            self.log.warning(
                "what was reported of %s is not kept yet", self.pipeline, exc_info=True
            )
            return False
        return True
