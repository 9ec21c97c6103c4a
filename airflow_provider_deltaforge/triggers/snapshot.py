"""Watch a snapshot from the triggerer, and publish how far it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk import Variable
from airflow.triggers.base import TriggerEvent

from airflow_provider_deltaforge.control.snapshots import progress
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.triggers.stream import StreamTrigger


class SnapshotTrigger(StreamTrigger):
    """Fires when the snapshot's driver ended; mirrors its progress into a Variable meanwhile.

    The Variable ``deltaforge_<pipeline>`` is for people and dashboards. The state store is the
    truth, and nothing here reads the Variable back.
    """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event; publish progress until then."""
        mirror = asyncio.create_task(self._mirror())
        try:
            async for event in super().run():
                yield event
        finally:
            mirror.cancel()

    async def _mirror(self) -> None:
        published: Mapping[str, Any] | None = None
        while True:
            try:
                counts = await asyncio.to_thread(self._progress)
                if counts is not None and counts != published:
                    await asyncio.to_thread(publish, self.watched.pipeline, counts)
                    published = counts
            except Exception:  # The mirror must never end the supervision.
                self.log.warning(
                    "progress of %s not published", self.watched.pipeline, exc_info=True
                )
            await asyncio.sleep(self.poll_s)

    def _progress(self) -> Mapping[str, Any] | None:
        with DeltaForgeHook(self.deltaforge_conn_id).store() as store:
            return progress(store, self.watched.pipeline)


def publish(pipeline: str, progress: Mapping[str, Any]) -> None:
    """Write the mirror Variable of a pipeline."""
    Variable.set(f"deltaforge_{pipeline}", json.dumps({"snapshot": progress}, default=str))
