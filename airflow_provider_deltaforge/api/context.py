"""What every router of the REST API works with, handed in by whoever mounts it."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_deltaforge.api.access import Authority
from airflow_provider_deltaforge.api.errors import answering
from airflow_provider_deltaforge.control.launch import Backend
from airflow_provider_deltaforge.control.pipelines import existing
from airflow_provider_deltaforge.control.tokens import Scope
from airflow_provider_deltaforge.storage.contract import Store


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
        starter: starts them.
        authority: tells who may.
        changing: keeps two requests of this server from changing one pipeline at once.
    """

    open_store: Callable[[], AbstractContextManager[Store]]
    backend: Backend
    starter: Starter
    authority: Authority
    changing: NameLocks = field(default_factory=NameLocks)

    def requires(self, scope: Scope) -> Any:
        """Return the dependency of a route: the caller's name, once it is sure that it may."""
        from fastapi import Depends, Request

        def authorize(request: Request) -> str:
            return self.authority(request, scope)

        return Depends(authorize)


def require_pipeline(store: Store, name: str) -> None:
    """Refuse a request for a pipeline that is not there.

    Raises:
        ApiError: there is none of that name.
    """
    with answering(404, "PIPELINE_NOT_FOUND"):
        existing(store, name)
