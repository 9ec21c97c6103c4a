"""Routes of snapshots that are asked for beside the stream."""

import uuid
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.bodies import RequestBody
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import ApiError
from airflow_provider_deltaforge.control import snapshots
from airflow_provider_deltaforge.control.snapshots import CopySelection

# As long as Airflow's own ids, of DAG, task, run and map index, may be together.
_ID_MAX = 1000
_PRINTABLE = r"^[^\p{C}\p{Zl}\p{Zp}]+$"


class SnapshotWish(RequestBody):
    """What to copy: every captured table, some of them, or some rows of one."""

    tables: list[str] = Field(default_factory=list)
    where: str | None = None
    id: Annotated[str, Field(pattern=_PRINTABLE, max_length=_ID_MAX)] | None = None
    """The asker's name for it; asked again under the same id it is not copied twice."""


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/snapshots``."""
    router = APIRouter(prefix="/pipelines/{name}/snapshots", tags=["snapshots"])
    may_read, may_operate = context.requires("read"), context.requires("operate")

    @router.get("", dependencies=[may_read])
    def list_snapshots(name: str) -> dict[str, Any]:
        """Return the progress of the pipeline's own snapshot, and every request."""
        with context.open_store() as store:
            require_pipeline(store, name)
            requests = [request.as_dict() for request in snapshots.requests(store, name)]
            return {"initial": snapshots.progress(store, name), "requests": requests}

    @router.post("", status_code=202)
    def request_snapshot(
        name: str, wish: SnapshotWish, caller: Caller = may_operate
    ) -> dict[str, Any]:
        """Ask for a copy; the pipeline's driver makes it, or the next one that starts."""
        selection = CopySelection.of(wish.tables, wish.where)
        request_id = wish.id or f"rest-{uuid.uuid4().hex[:12]}"
        with context.open_store() as store:
            require_pipeline(store, name)
            placed = snapshots.request(store, name, selection, request_id, f"rest: {caller}")
            return placed.as_dict()

    @router.get("/{request_id:slashed}", dependencies=[may_read])
    def get_snapshot(name: str, request_id: str) -> dict[str, Any]:
        """Return how a request stands."""
        with context.open_store() as store:
            require_pipeline(store, name)
            found = snapshots.request_state(store, name, request_id)
        if found is None:
            raise ApiError(404, "SNAPSHOT_NOT_FOUND", f"nobody asked for the copy {request_id!r}")
        return found.as_dict()

    @router.delete("/{request_id:slashed}")
    def cancel_snapshot(name: str, request_id: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Withdraw a request; one that is being served ends at its next chunk."""
        with context.open_store() as store:
            require_pipeline(store, name)
            done = snapshots.cancel(store, name, request_id, f"withdrawn by {caller}")
        return {"id": request_id, "withdrawn": done}

    return router
