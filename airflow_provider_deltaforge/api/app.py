"""The REST API as one application: routers, health, errors and limits."""

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.api import (
    dead_letters,
    documents,
    errors,
    health,
    history,
    operations,
    page,
    pipelines,
    schemas,
    sensing,
    slashed_names,
    snapshots,
    verification,
)
from airflow_provider_deltaforge.api.context import ApiContext, visible
from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.api.request_counts import CountingRequests
from airflow_provider_deltaforge.control.metrics import Observed, observe
from airflow_provider_deltaforge.control.status import PipelineStatus, statuses
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.spec.yaml_text import BYTES_MAX
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.records.control import Control

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_ROUTERS = (
    *(pipelines, operations, history, schemas, sensing, snapshots, dead_letters),
    verification,
)


def create_app(
    context: ApiContext,
    dependencies: Sequence[Any] = (),
    *,
    probes: Any = None,
    origins: Sequence[str] = (),
) -> Any:
    """Return the FastAPI application; its OpenAPI document is at ``/openapi.json``.

    Args:
        context: what it works with.
        dependencies: of FastAPI, solved before every request. With any, the description of the
            API is a request like others, and whoever mounts it serves the page.
        probes: a router of health and metrics, in place of one for the whole store.
        origins: of pages elsewhere that a browser lets use the API.
    """
    from fastapi import FastAPI, Request
    from starlette.middleware.cors import CORSMiddleware

    # A page of the documentation would load scripts from another site.
    app = FastAPI(
        title="DeltaForge",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None if dependencies else "/openapi.json",
        dependencies=list(dependencies),
    )
    slashed_names.register()
    for module in _ROUTERS:
        app.include_router(context.threads.answer(module.routes(context)))
    needed = [] if context.public_health else [context.requires("read")]
    app.include_router(context.threads.answer(probes or _health(context)), dependencies=needed)
    if dependencies:

        @app.get("/openapi.json", include_in_schema=False)
        async def describe(request: Request) -> dict[str, Any]:
            """Return the description of the API."""
            place = request.scope.get("root_path", "")
            return {**app.openapi(), "servers": [{"url": place}]}

    else:
        page.mount(app)
    errors.install(app)
    app.add_middleware(RequestLimits, bytes_max=BYTES_MAX)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_middleware(CountingRequests, counts=context.request_counts)
    return app


def create_metrics_app(context: ApiContext) -> Any:
    """Return an application of health and metrics alone, for an address of its own."""
    from fastapi import FastAPI

    app = FastAPI(title="DeltaForge metrics", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(context.threads.answer(_health(context)))
    errors.install(app)
    return app


def _health(context: ApiContext) -> Any:
    def seen(store: Store, request: Any) -> list[PipelineStatus]:
        found = statuses(store, context.backend)
        caller = getattr(request.state, "caller", None)  # None of a public probe.
        return found if caller is None else visible(found, caller)

    def look(request: Any) -> list[PipelineStatus]:
        with context.open_store() as store:
            return seen(store, request)

    def observed(request: Any) -> list[Observed]:
        with context.open_store() as store:
            return observe(store, seen(store, request))

    def require(request: Any) -> object:
        return context.authority(request, "read")

    def sees(request: Any) -> bool:
        try:
            require(request)
        except (ApiError, DeltaForgeError):  # Without the store nobody is known.
            return False
        return True

    def describe(found: Sequence[PipelineStatus], request: Any) -> list[dict[str, Any]]:
        caller = getattr(request.state, "caller", None) or context.authority(request, "read")
        with context.open_store() as store:
            texts = [
                Control(store, present.name).document()
                if caller.may("read_document", present.owner)
                else None
                for present in found
            ]
        return [
            {**present.as_dict(), "handle": None, "spec": documents.shown(text) if text else None}
            for present, text in zip(found, texts, strict=True)
        ]

    more = context.request_counts.exposition
    return health.routes(
        look, observed, alone=False, sees=sees, describe=describe, require=require, more=more
    )


class RequestLimits:
    """Refuses requests that no route takes: too long, or with a NUL, which no name may hold.

    Args:
        app: the ASGI application behind it.
        bytes_max: the most that a body may hold.
    """

    def __init__(self, app: Any, bytes_max: int) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Pass a request on, or answer it; one that only turns out to be long ends in its route."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from starlette.responses import JSONResponse

        lengths = [value for key, value in scope["headers"] if key == b"content-length"]
        if any(int(length) > self._bytes_max for length in lengths):
            refusal = errors.body("TOO_LARGE", self._message), 413
        elif "\0" in scope["path"]:
            refusal = errors.body("NOT_FOUND", "no name holds a NUL character"), 404
        else:
            refusal = None
        if refusal is not None:
            await JSONResponse(*refusal)(scope, receive, send)
            return
        received = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                from starlette.exceptions import HTTPException

                raise HTTPException(413, self._message)
            return message

        await self._app(scope, counted, send)

    @property
    def _message(self) -> str:
        return f"a request holds at most {self._bytes_max} bytes"
