"""What the triggers share: how they travel, and how they look until there is an event."""

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any

from airflow.sdk.configuration import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_deltaforge.errors import FatalError, SpecError
from airflow_provider_deltaforge.hooks.connections import LOOKUP_ERRORS
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.telemetry.redaction import redacted

_SAY_EVERY_S = 300.0
_SETTLE_S = 5.0


class SerializableTrigger(BaseTrigger):
    """Travels as its arguments: each one is kept, as plain data, in an attribute of its name."""

    deltaforge_conn_id: str

    @cached_property
    def hook(self) -> DeltaForgeHook:
        """The way to the state store."""
        return DeltaForgeHook(self.deltaforge_conn_id)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments: names, ids and plain data only."""
        kind = type(self)
        arguments = {name: getattr(self, name) for name in inspect.signature(kind).parameters}
        return f"{kind.__module__}.{kind.__qualname__}", arguments


class PollingTrigger(SerializableTrigger):
    """Looks every ``poll_s`` seconds until there is an event; says what it sees when it changes."""

    pipeline: str
    poll_s: float
    refusal_patience_s: float = 60.0
    """How long a state store may refuse us, as while its password is changed, or its connection be
    wrong or not be found, before the task fails with the reason."""

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event."""
        began_s = time.monotonic()
        logged: tuple[str, float] = ("", 0.0)
        refused_s: float | None = None
        while True:
            try:
                event, words = await asyncio.to_thread(self.look)
                refused_s = None
            except (SpecError, FatalError, *LOOKUP_ERRORS) as error:
                refused_s = refused_s or time.monotonic()
                if time.monotonic() - refused_s > self.refusal_patience_s:
                    raise
                event, words = None, f"unknown, looking again: {redacted(str(error))}"
            if event is not None:
                await settled(began_s)
                yield event
                return
            if words != logged[0] or time.monotonic() - logged[1] > _SAY_EVERY_S:
                self.log.info("%s: %s", self.pipeline, words)
                logged = (words, time.monotonic())
            await asyncio.sleep(self.poll_s)

    @abstractmethod
    def look(self) -> tuple[TriggerEvent | None, str]:
        """Return an event if there is one, and the present state in words. Blocking."""


async def settled(began_s: float) -> None:
    """Return once a trigger that began at ``began_s`` of the monotonic clock may fire.

    Airflow 3.3 fails a task that runs again before its scheduler has read that the former process
    deferred (apache/airflow issue 71580), which costs a retry, and turns a task without retries
    red. ``[deltaforge] trigger_settle_seconds`` is the time it gets for that.
    """
    settle_s = conf.getfloat("deltaforge", "trigger_settle_seconds", fallback=_SETTLE_S)
    await asyncio.sleep(max(0.0, settle_s - (time.monotonic() - began_s)))
