"""Wait in the triggerer until something is true of a pipeline."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_deltaforge.control.conditions import Answer, look
from airflow_provider_deltaforge.errors import RetryableError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.triggers.settling import settled

_SAY_EVERY_S = 300.0


class ConditionTrigger(BaseTrigger):
    """Fires when a condition holds, when it cannot come any more, or when the time is up.

    The event is ``{"pipeline", "met", "words", "value"}``; ``met`` is False when the time is up and
    None when waiting has become pointless. A state store that is away fires nothing.

    Args:
        deltaforge_conn_id: connection of the state store.
        pipeline: the pipeline's name.
        condition: plain data, see ``control.conditions``.
        until_ms: when the time is up, in ms since the epoch; None leaves that to Airflow.
        poll_s: seconds between two looks at the store.
    """

    def __init__(
        self,
        deltaforge_conn_id: str,
        pipeline: str,
        condition: Mapping[str, Any],
        until_ms: int | None = None,
        poll_s: float = 5.0,
    ) -> None:
        super().__init__()
        self.deltaforge_conn_id = deltaforge_conn_id
        self.pipeline = pipeline
        self.condition = dict(condition)
        self.until_ms = until_ms
        self.poll_s = poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments: names and plain data only."""
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "deltaforge_conn_id": self.deltaforge_conn_id,
                "pipeline": self.pipeline,
                "condition": self.condition,
                "until_ms": self.until_ms,
                "poll_s": self.poll_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        began_s = time.monotonic()
        said: tuple[str, float] = ("", 0.0)
        while True:
            answer = await asyncio.to_thread(self.look)
            over = self.until_ms is not None and time.time() * 1000 >= self.until_ms
            if over or answer.met is not False:
                await settled(began_s)
                told = {"met": answer.met, "words": answer.words, "value": answer.value}
                yield TriggerEvent({"pipeline": self.pipeline, **told})
                return
            if answer.words != said[0] or time.monotonic() - said[1] > _SAY_EVERY_S:
                self.log.info("%s: %s", self.pipeline, answer.words)
                said = (answer.words, time.monotonic())
            await asyncio.sleep(self.poll_s)

    def look(self) -> Answer:
        """Return whether the condition holds now. Blocking."""
        hook = DeltaForgeHook(self.deltaforge_conn_id)
        try:
            with hook.store() as store:
                return look(store, self.pipeline, self.condition, hook.backend())
        except RetryableError as error:
            return Answer.not_yet(f"unknown, the state store is away: {error}")
