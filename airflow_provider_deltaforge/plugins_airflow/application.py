"""The endpoints behind the page.

Airflow does not authenticate a plug-in's application: every endpoint here asks for the signed-in
user and then for what this user may do with the pipeline. A user who may not see a pipeline gets
the answer that there is none of that name.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import anyio.to_thread
from airflow.api_fastapi.core_api.security import get_user
from airflow.api_fastapi.logging.decorators import action_logging
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import APIRouter, Depends, FastAPI, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles

from airflow_provider_deltaforge.control import pipelines
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.errors import DeltaForgeError, RetryableError, SpecError
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.plugins_airflow import access, answers, connections
from airflow_provider_deltaforge.plugins_airflow.rest import create_rest_app
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.telemetry.redaction import redacted

T = TypeVar("T")

ConnId = Annotated[str, Query(max_length=250)]
User = Annotated[Any, Depends(get_user)]

_STATIC = Path(__file__).with_name("static")
_VERBS = {
    "pause": pipelines.pause,
    "resume": pipelines.resume,
    "stop": pipelines.ask_to_stop,
}
# A store that hangs must not take the threads that the rest of the API server works with.
_seats = anyio.CapacityLimiter(4)

router = APIRouter()


class RefusedError(Exception):
    """An answer that is not what was asked for; ``code`` is for the page, ``detail`` for people."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


def create_app() -> FastAPI:
    """Return the application: endpoints for signed-in users, and the page's files."""
    app = FastAPI(title="DeltaForge", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    app.mount("/static", _Files(directory=_STATIC))
    app.mount("/api", create_rest_app())
    app.add_exception_handler(RefusedError, _answer_refusal)
    return app


@router.get("/connections")
async def get_connections(user: User) -> dict[str, Any]:
    """Return the connections that name a state store, to choose from."""

    def look() -> list[str]:
        return connections.known() if access.may_look(user) else []

    return {"connections": await anyio.to_thread.run_sync(look, limiter=_seats)}


@router.get("/pipelines")
async def get_pipelines(
    user: User, conn_id: ConnId = DeltaForgeHook.default_conn_name, dag_id: str | None = None
) -> dict[str, Any]:
    """Return every pipeline of the store that the user may see, or those of one DAG."""

    def look(store: Store, hook: DeltaForgeHook) -> list[dict[str, Any]]:
        backend = hook.backend()
        return [
            answers.overview(store, name, backend, owner)
            for name, owner in answers.supervisors(store).items()
            if (dag_id is None or _dag(owner) == dag_id) and access.may_see(user, _dag(owner))
        ]

    return _envelope(conn_id, pipelines=await _ask(user, conn_id, look))


@router.get("/pipelines/{name}")
async def get_pipeline(
    user: User, name: str, conn_id: ConnId = DeltaForgeHook.default_conn_name
) -> dict[str, Any]:
    """Return everything about one pipeline."""

    def look(store: Store, hook: DeltaForgeHook) -> dict[str, Any]:
        dag_id = _visible(store, user, name)
        details = answers.details(store, name, hook.backend())
        return {**details, "may_change": access.may_change(user, dag_id, conn_id)}

    return _envelope(conn_id, pipeline=await _ask(user, conn_id, look))


@router.get("/pipelines/{name}/log")
async def get_log(
    user: User,
    name: str,
    conn_id: ConnId = DeltaForgeHook.default_conn_name,
    lines: Annotated[int, Query(ge=1, le=pipelines.LOG_LINES_MAX)] = 200,
) -> dict[str, Any]:
    """Return the end of the driver's log."""

    def look(store: Store, hook: DeltaForgeHook) -> dict[str, Any]:
        _require(access.may_read_log(user, _visible(store, user, name)), "read this log")
        return pipelines.log_tail(store, name, hook.backend(), lines)

    return await _ask(user, conn_id, look)


@router.get("/pipelines/{name}/document")
async def get_document(
    user: User, name: str, conn_id: ConnId = DeltaForgeHook.default_conn_name
) -> dict[str, Any]:
    """Return the document, its variables unresolved."""

    def look(store: Store, _: DeltaForgeHook) -> dict[str, Any]:
        _require(access.may_read_document(user, _visible(store, user, name)), "read this document")
        return answers.document(store, name)

    return await _ask(user, conn_id, look)


async def _require_json(request: Request, content_type: Annotated[str, Header()] = "") -> None:
    """Refuse what a form of another site can send; the session cookie is ``SameSite=Lax`` too."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "no_json", "send the JSON object {} with its content type")
    try:
        await request.json()
    except ValueError as error:
        raise RefusedError(422, "no_json", "the body is no JSON; send {}") from error


@router.post(
    "/pipelines/{name}/{verb}",
    dependencies=[Depends(_require_json), Depends(action_logging(event="deltaforge_pipeline"))],
)
async def change_pipeline(
    user: User, name: str, verb: str, conn_id: ConnId = DeltaForgeHook.default_conn_name
) -> dict[str, Any]:
    """Ask the driver to pause, to go on or to end; return without waiting for it."""
    if verb not in _VERBS:
        raise RefusedError(404, "unknown_verb", f"{verb!r} is none of {', '.join(_VERBS)}")

    def change(store: Store, hook: DeltaForgeHook) -> dict[str, Any]:
        dag_id = _visible(store, user, name)
        _require(access.may_change(user, dag_id, conn_id), f"{verb} this pipeline")
        try:
            _VERBS[verb](store, name)
        except SpecError as error:
            raise RefusedError(409, "not_now", str(error)) from error
        return {**answers.details(store, name, hook.backend()), "may_change": True}

    return _envelope(conn_id, pipeline=await _ask(user, conn_id, change))


def _visible(store: Store, user: Any, name: str) -> str | None:
    """Return the DAG that supervises a pipeline, once it is sure that the user may see it."""
    try:
        dag_id = _dag(answers.supervisor_of(store, name))
    except SpecError:
        dag_id, seen = None, False
    else:
        seen = access.may_see(user, dag_id)
    if not seen:
        raise RefusedError(
            404, "unknown_pipeline", f"there is no pipeline {name!r} in this state store"
        )
    return dag_id


def _require(allowed: bool, what: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not allowed:
        raise RefusedError(
            403, "forbidden", f"you may not {what}; an administrator of Airflow can help"
        )


def _dag(owner: Supervisor | None) -> str | None:
    return owner.dag_id if owner is not None else None


def _envelope(conn_id: str, **content: Any) -> dict[str, Any]:
    return {"conn_id": conn_id, "now_ms": int(time.time() * 1000), **content}


async def _ask(user: Any, conn_id: str, call: Callable[[Store, DeltaForgeHook], T]) -> T:
    """Open the store in a thread, and turn what goes wrong into an answer."""
    return await anyio.to_thread.run_sync(_with_store, user, conn_id, call, limiter=_seats)


def _with_store(user: Any, conn_id: str, call: Callable[[Store, DeltaForgeHook], T]) -> T:
    hook = DeltaForgeHook(conn_id)
    _require_connection(user, hook, conn_id)
    try:
        with hook.store() as store:
            return call(store, hook)
    except RetryableError as error:
        raise RefusedError(503, "store_away", redacted(str(error))) from error
    except DeltaForgeError as error:
        raise RefusedError(502, "store_refused", redacted(str(error))) from error


def _require_connection(user: Any, hook: DeltaForgeHook, conn_id: str) -> None:
    """Refuse what names no state store; only who may read connections learns more than that."""
    missing = RefusedError(404, "no_connection", f"there is no Airflow connection {conn_id!r}")
    if not access.may_look(user):
        raise missing
    try:
        found = hook.get_connection(conn_id).conn_type
    except AirflowNotFoundException as error:
        raise missing from error
    if found == DeltaForgeHook.conn_type:
        return
    if not access.may_read_connection(user, conn_id):
        raise missing
    message = f"connection {conn_id!r} is of type {found!r}, not {DeltaForgeHook.conn_type!r}"
    raise RefusedError(422, "wrong_connection", message)


def _answer_refusal(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RefusedError)  # noqa: S101 - registered for nothing else
    return JSONResponse({"code": error.code, "detail": error.detail}, error.status)


class _Files(StaticFiles):
    """Files that browsers ask about each time, so that a new release shows at once."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return the file, or 304 when the browser has it."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response
