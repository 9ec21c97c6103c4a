"""What every router of the REST API works with, handed in by whoever mounts it."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from airflow_provider_deltaforge.api.access import Authority, Caller, Right
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.api.request_counts import RequestCounts
from airflow_provider_deltaforge.api.threads import RequestThreads
from airflow_provider_deltaforge.control.launch import Backend
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.storage.contract import Store

ASK_THE_SOURCE = (
    "it reaches no source or sink and has none of their secrets; the task `preflight` of the "
    "pipeline's DAG does, and so do `deltaforge preflight` and `deltaforge schemas` where drivers "
    "run"
)


class Starter(Protocol):
    """Starts drivers."""

    def start(self, store: Store, name: str, *, resume: bool = False) -> object:
        """Start a pipeline's driver, or adopt the one that runs its present document."""


class NameLocks:
    """A lock for each name."""

    def __init__(self) -> None:
        self._locks: dict[str, threading.Lock] = {}

    def __call__(self, name: str) -> threading.Lock:
        """Return the lock of a name, to be held in a ``with``."""
        return self._locks.setdefault(name, threading.Lock())


@dataclass(frozen=True, slots=True)
class ApiContext:
    """The pipelines of one state store, and what may be done with them.

    Attributes:
        open_store: opens the store for one request.
        backend: where drivers run.
        starter: starts them; None where nothing is started, and nobody waits for a driver.
        authority: tells who may.
        threads: in which requests are answered.
        public_health: probes need no right; without one they see no names.
        request_counts: how often each route is asked.
        changing: keeps two requests of this server from changing one pipeline at once.
    """

    open_store: Callable[[], AbstractContextManager[Store]]
    backend: Backend
    starter: Starter | None
    authority: Authority
    threads: RequestThreads = field(default_factory=RequestThreads)
    public_health: bool = True
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    changing: NameLocks = field(default_factory=NameLocks)

    def requires(self, right: Right) -> Any:
        """Return the dependency of a route: the ``Caller``, once it is sure that they may."""
        from fastapi import Depends, Request

        async def authorize(request: Request) -> Caller:
            caller = await self.threads.run(partial(self.authority, request, right))
            request.state.caller = caller
            return caller

        return Depends(authorize)

    def require_starter(self, instead: str) -> Starter:
        """Return what starts drivers.

        Raises:
            ApiError: nothing does here; ``instead`` says what to do.
        """
        if self.starter is None:
            raise ApiError(409, "NOT_HERE", f"not in Airflow's API server: {instead}")
        return self.starter


def visible(found: Sequence[PipelineStatus], caller: Caller) -> list[PipelineStatus]:
    """Return the pipelines that a caller may see."""
    return [present for present in found if caller.may("read", present.owner)]


def require_pipeline(store: Store, name: str) -> None:
    """Refuse a request for a pipeline that is not there.

    Raises:
        ApiError: there is none of that name.
    """
    with answering(404, "PIPELINE_NOT_FOUND"):
        existing(store, name)
