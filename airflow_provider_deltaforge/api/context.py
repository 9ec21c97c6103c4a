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
from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.storage.contract import Store


class Starter(Protocol):
    """Starts drivers."""

    def start(self, store: Store, name: str, *, resume: bool = False) -> object:
        """Start a pipeline's driver, or adopt the one that runs its present document."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What to do instead, in words, where the API is mounted beside whatever starts drivers.

    Attributes:
        documents: of sending or changing a document.
        starts: of starting a pipeline that no DAG supervises.
        servers: of asking sources and sinks; None where they are asked.
    """

    documents: str
    starts: str
    servers: str | None = None


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
        elsewhere: what to do instead, then; beside a starter, for documents: it takes none.
        authority: decides who may do what.
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
    elsewhere: Elsewhere | None = None
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

    def require_starter(self, present: PipelineStatus | None = None) -> Starter:
        """Return what starts drivers.

        Args:
            present: of the pipeline to start; without it a document is to be kept or changed.

        Raises:
            ApiError: nothing does here; it says what to do instead.
        """
        if self.starter is not None and (present is not None or self.elsewhere is None):
            return self.starter
        assert self.elsewhere is not None, "whoever starts nothing says who does"  # noqa: S101
        instead = self.elsewhere.documents
        if present is not None:
            supervisor = Supervisor.of(present.owner)
            starts = self.elsewhere.starts
            if supervisor is not None:
                starts = f"the next run of its DAG {supervisor.dag_id!r} starts it"
            instead = f"{present.name} is {present.status}; {starts}"
        raise ApiError(409, "NOT_HERE", f"not here: {instead}")

    def require_servers(self) -> None:
        """Refuse a request for which sources and sinks must be asked, where they are not.

        Raises:
            ApiError: it says what to do instead.
        """
        if self.elsewhere is not None and self.elsewhere.servers is not None:
            raise ApiError(409, "NOT_HERE", f"not here: {self.elsewhere.servers}")


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
