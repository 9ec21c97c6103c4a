"""The REST API inside Airflow's API server: its users, its roles, its audit log.

The routes are those of ``api``. Each request names, by ``conn_id``, the connection of the state
store it is about. A user who may not see a pipeline gets the answer that there is none of that
name. Nothing is started here: Airflow's tasks start drivers.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property, partial
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import get_user
from airflow.models import Log
from airflow.sdk.exceptions import AirflowNotFoundException
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, Query, Request

from airflow_provider_deltaforge.api.access import Caller, Right
from airflow_provider_deltaforge.api.app import create_app
from airflow_provider_deltaforge.api.context import ApiContext, Elsewhere
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.api.threads import RequestThreads
from airflow_provider_deltaforge.control.launching.contract import (
    Backend,
    Handle,
    JobStatus,
    LaunchSpec,
)
from airflow_provider_deltaforge.control.supervise import Supervisor
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.hooks.connections import dsn_of
from airflow_provider_deltaforge.hooks.deltaforge import DeltaForgeHook
from airflow_provider_deltaforge.plugins_airflow import access, connections
from airflow_provider_deltaforge.storage.contract import Store
from airflow_provider_deltaforge.storage.location import StoreLocation
from airflow_provider_deltaforge.storage.records.control import Control

ConnId = Annotated[
    str, Query(max_length=250, description="the Airflow connection of the state store")
]
User = Annotated[Any, Depends(get_user)]

_EVENT = "deltaforge_pipeline"
_THREADS = 8
_LOGGED_MAX = 500
_ELSEWHERE = Elsewhere(
    documents="a pipeline's document belongs to its DAG, which would apply its own at the next "
    "run; change the DAG's document, or send this to a `deltaforge serve`",
    starts="`deltaforge run`, `deltaforge serve` or its DAG starts it",
    servers="Airflow's API server reaches no source or sink and has none of their secrets; the "
    "task `preflight` of the pipeline's DAG does, a `DeltaForgeRewindOperator` delivers the log "
    "again, and `deltaforge preflight`, `schemas` and `rewind` do where drivers run",
)
_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class StoreConnection:
    """The Airflow connection that a request names; it is looked up once."""

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self._hook = DeltaForgeHook(conn_id)
        self._location: StoreLocation | None = None

    def require(self, user: Any) -> None:
        """Refuse what names no state store; only who may read connections learns more than that.

        Raises:
            ApiError: the connection is not for this user, or no state store's.
        """
        missing = ApiError(
            404, "CONNECTION_NOT_FOUND", f"there is no Airflow connection {self.conn_id!r}"
        )
        if not access.may_look(user):
            raise missing
        try:
            found = self._hook.get_connection(self.conn_id)
        except AirflowNotFoundException as error:
            raise missing from error
        if found.conn_type != DeltaForgeHook.conn_type:
            if not access.may_read_connection(user, self.conn_id):
                raise missing
            raise ApiError(
                422,
                "WRONG_CONNECTION",
                f"connection {self.conn_id!r} is of type {found.conn_type!r}, not "
                f"{DeltaForgeHook.conn_type!r}",
            )
        with answering(502, "WRONG_CONNECTION"):
            self._location = StoreLocation.from_dsn(dsn_of(found))

    @contextmanager
    def store(self) -> Iterator[Store]:
        """Open the state store for a block."""
        assert self._location is not None, "required before"  # noqa: S101 - by authorize
        store = self._location.open()
        try:
            yield store
        finally:
            store.close()

    @cached_property
    def backend(self) -> Backend:
        """Where the connection's drivers run."""
        return self._hook.backend()


_connection: ContextVar[StoreConnection] = ContextVar("deltaforge_store_connection")
"""Of the request that is answered; threads that answer it inherit it."""


class ConnectionBackend:
    """The launch backend of whichever connection a request names; it starts and ends nothing."""

    def submit(self, job: LaunchSpec) -> Handle:
        """Refuse: tasks start drivers.

        Raises:
            SpecError: always.
        """
        raise SpecError(f"{job.name} is not started by Airflow's API server; its DAG starts it")

    def status(self, handle: Handle) -> JobStatus:
        """Return what is known about a job."""
        return _connection.get().backend.status(handle)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Return when nothing of the job lives."""
        _connection.get().backend.stop(handle, grace_s)

    def logs_tail(self, handle: Handle, line_count: int = 40) -> str:
        """Return the last lines of the driver's log."""
        return _connection.get().backend.logs_tail(handle, line_count)

    def links(self, handle: Handle) -> dict[str, str]:
        """Return names and places a person can open."""
        return dict(_connection.get().backend.links(handle))


def create_rest_app() -> FastAPI:
    """Return the application of the REST API for Airflow's signed-in users."""
    context = ApiContext(
        open_store=lambda: _connection.get().store(),
        backend=ConnectionBackend(),
        starter=None,
        authority=authorize,
        threads=RequestThreads(_THREADS),
        public_health=False,
        elsewhere=_ELSEWHERE,
    )
    app: FastAPI = create_app(context, [Depends(_sign_in)])

    @app.get("/connections", tags=["connections"])
    async def list_connections(user: User) -> list[str]:
        """Return the connections that name a state store, the default one first."""
        return await context.threads.run(
            lambda: connections.known() if access.may_look(user) else []
        )

    return app


async def _sign_in(
    request: Request, user: User, conn_id: ConnId = DeltaForgeHook.default_conn_name
) -> None:
    """Admit only users of Airflow, and refuse changes that a form of another site can send.

    The session cookie is ``SameSite=Lax`` as well; a browser asks before it sends JSON elsewhere.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method in _CHANGES and content_type != "application/json":
        raise ApiError(415, "NO_JSON", "send `Content-Type: application/json` with every change")
    request.state.airflow_user = user
    _connection.set(StoreConnection(conn_id))


def authorize(request: Any, right: Right) -> Caller:
    """Return the signed-in user, once it is sure that they have a right; see ``api.access``.

    Changes are in Airflow's audit log, also those that are refused.

    Raises:
        ApiError: they have not, or the pipeline is not there for them.
    """
    user, connection = request.state.airflow_user, _connection.get()
    connection.require(user)
    caller = Caller(user.get_name(), _memory_of(partial(_may, user, connection.conn_id)))
    name = request.path_params.get("name")
    owner = None
    is_there = True
    if name is not None:
        with connection.store() as store:
            record = Control(store, name).read()
        owner = record.owner if record is not None else None
        is_there = record is not None and caller.may("read", owner)
    if request.method in _CHANGES and right in {"operate", "admin"}:
        _audit(user, request, connection.conn_id, _dag(owner) if is_there else None)
    if not is_there:
        message = f"there is no pipeline {name!r} in this state store"
        raise ApiError(404, "PIPELINE_NOT_FOUND", message)
    # Who may look at anything may ask for a list, which holds what they may see.
    if not (name is None and right.startswith("read")) and not caller.may(right, owner):
        message = "you may not do this; an administrator of Airflow can help"
        raise ApiError(403, "FORBIDDEN", message)
    return caller


def _may(user: Any, conn_id: str, right: Right, dag_id: str | None) -> bool:
    if not access.may_see(user, dag_id):
        return False
    if right == "admin":
        return access.may_change_connection(user, conn_id)
    asked: dict[Right, Callable[[], bool]] = {
        "read_document": lambda: access.may_read_document(user, dag_id),
        "read_rows": lambda: access.may_read_rows(user, dag_id),
        "read_log": lambda: access.may_read_log(user, dag_id),
        "operate": lambda: access.may_change(user, dag_id, conn_id),
    }
    return right == "read" or asked[right]()


def _memory_of(
    may: Callable[[Right, str | None], bool],
) -> Callable[[Right, str | None], bool]:
    """Return a function that asks for each DAG once, though many pipelines may be of one."""
    known: dict[tuple[Right, str | None], bool] = {}

    def remembered(right: Right, owner: str | None) -> bool:
        key = (right, _dag(owner))
        if key not in known:
            known[key] = may(*key)
        return known[key]

    return remembered


def _dag(owner: str | None) -> str | None:
    supervisor = Supervisor.of(owner)
    return supervisor.dag_id if supervisor is not None else None


def _audit(user: Any, request: Any, conn_id: str, dag_id: str | None) -> None:
    """Write who asked for which change; not its body, in which a document may hold a secret."""
    extra = {"method": request.method, "conn_id": conn_id, **request.path_params}
    extra["path"] = request.url.path
    shown = {key: str(value)[:_LOGGED_MAX] for key, value in extra.items()}
    entry = Log(
        event=_EVENT,
        task_instance=None,
        owner=user.get_name(),
        owner_display_name=user.get_name(),
        extra=json.dumps(shown),
        dag_id=dag_id,
    )
    with create_session() as session:
        session.add(entry)
