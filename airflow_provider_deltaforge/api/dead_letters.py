"""Routes of the dead letters: look at them, replay them, forget them."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.bodies import RequestBody
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.control import dead_letters, replays
from airflow_provider_deltaforge.storage.records.dead_letters import DeadLetterFilter
from airflow_provider_deltaforge.storage.records.requests import Overtaken

LIMIT_MAX = 1000

_Number = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Acknowledgement(RequestBody):
    """Everything up to here is dealt with."""

    up_to_seq: _Number


class ReplayWish(RequestBody):
    """Which entries to send again; all that is named must fit."""

    all: bool = False
    """Must be true where nothing else is named."""
    sink_id: str | None = None
    processor_id: str | None = None
    error_kind: str | None = None
    table: str | None = None
    first: _Number | None = None
    last: _Number | None = None
    overtaken: Overtaken = "skip"
    """What becomes of entries whose row has newer events in the sink."""


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/journal/dlq``."""
    router = APIRouter(prefix="/pipelines/{name}/journal/dlq", tags=["dead letters"])
    _add_reads(router, context)
    _add_changes(router, context)
    return router


def _add_reads(router: APIRouter, context: ApiContext) -> None:
    may_read = context.requires("read")

    @router.get("", dependencies=[context.requires("read_rows")])
    def list_dead_letters(
        name: str,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 50,
        after: Annotated[_Number, Query(description="a `seq`: those behind it")] = 0,
        sink_id: Annotated[str | None, Query()] = None,
        error_kind: Annotated[str | None, Query()] = None,
    ) -> list[dict[str, Any]]:
        """Return what was set aside, oldest first; the limit counts what fits."""
        which = DeadLetterFilter(sink=sink_id, kind=error_kind)
        with context.open_store() as store:
            require_pipeline(store, name)
            return dead_letters.entries(store, name, which, limit, after)

    @router.get("/count", dependencies=[may_read])
    def count_dead_letters(
        name: str,
        sink_id: Annotated[str | None, Query()] = None,
        error_kind: Annotated[str | None, Query()] = None,
    ) -> dict[str, int]:
        """Return how many events are set aside."""
        which = DeadLetterFilter(sink=sink_id, kind=error_kind)
        with context.open_store() as store:
            require_pipeline(store, name)
            return {"count": dead_letters.count(store, name, which)}


def _add_changes(router: APIRouter, context: ApiContext) -> None:
    may_operate, may_forget = context.requires("operate"), context.requires("admin")

    @router.post("/ack", dependencies=[may_operate])
    def acknowledge(name: str, done: Acknowledgement) -> dict[str, int]:
        """Forget everything up to and including a sequence number."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return {"acked": dead_letters.ack(store, name, done.up_to_seq)}

    @router.delete("", dependencies=[may_forget])
    def purge(name: str) -> dict[str, int]:
        """Forget everything that was set aside."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return {"purged": dead_letters.purge(store, name)}

    @router.post("/replay", status_code=202)
    def replay(name: str, wish: ReplayWish, caller: Caller = may_operate) -> dict[str, Any]:
        """Ask the driver to send entries again, row by row in order; see ``replays/{ticket}``."""
        within = (wish.first, wish.last)
        which = DeadLetterFilter(
            wish.sink_id, wish.processor_id, wish.error_kind, wish.table, *within
        )
        if which == DeadLetterFilter() and not wish.all:
            fields = "sink_id, processor_id, error_kind, table, first, last or all"
            raise ApiError(400, "INVALID_REQUEST", f"say which entries: {fields}")
        with context.open_store() as store:
            require_pipeline(store, name)
            ticket = replays.request(store, name, which, wish.overtaken, f"rest: {caller}")
        return {"ticket": ticket, "state": "pending"}

    @router.get("/replays/{ticket}", dependencies=[context.requires("read")])
    def get_replay(name: str, ticket: str) -> dict[str, Any]:
        """Return what became of a replay."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(404, "REPLAY_NOT_FOUND"):
                found = replays.replay(store, name, ticket)
        return {"ticket": ticket, "state": "pending"} if found is None else found.model_dump()
