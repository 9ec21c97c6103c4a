"""Routes that look into a pipeline's driver and steer parts of it: checkpoints, sinks, logs."""

import os
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from airflow_provider_deltaforge import __version__
from airflow_provider_deltaforge.api import documents, errors
from airflow_provider_deltaforge.api.access import Caller
from airflow_provider_deltaforge.api.bodies import RequestBody
from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.api.documents import DocumentText
from airflow_provider_deltaforge.api.errors import ApiError, answering
from airflow_provider_deltaforge.control import driver_log, pipelines, rewind, sinks
from airflow_provider_deltaforge.control.preflight import preflight
from airflow_provider_deltaforge.control.rewind import RewindSelection
from airflow_provider_deltaforge.errors import SpecError
from airflow_provider_deltaforge.spec.load import load
from airflow_provider_deltaforge.storage.records.control import Control
from airflow_provider_deltaforge.telemetry import logs
from airflow_provider_deltaforge.telemetry.redaction import redacted


class RewindRequest(RequestBody):
    """Where the log is delivered again from, and changes of which tables."""

    to: str
    """A time of ISO 8601, how long ago (``2h ago``), or a place of the log."""
    tables: list[str] = Field(default_factory=list)
    confirm: str = ""
    """The pipeline's name once more; without it the answer says what would be done."""
    dry_run: bool = False
    """Only answer what would be done, with 200."""


def routes(context: ApiContext) -> APIRouter:
    """Return the router of what belongs to one pipeline, and of ``/validate``."""
    router = APIRouter()
    _add_checkpoints(router, context)
    _add_sinks(router, context)
    _add_checks(router, context)
    return router


def _add_checkpoints(router: APIRouter, context: ApiContext) -> None:
    @router.get(
        "/pipelines/{name}/checkpoints",
        tags=["checkpoints"],
        dependencies=[context.requires("read")],
    )
    def list_checkpoints(name: str) -> list[dict[str, Any]]:
        """Return the position of each sink."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return pipelines.checkpoints(store, name)

    @router.delete(
        "/pipelines/{name}/checkpoint",
        tags=["checkpoints"],
        dependencies=[context.requires("admin")],
    )
    @router.delete(
        "/pipelines/{name}/checkpoints",
        tags=["checkpoints"],
        dependencies=[context.requires("admin")],
    )
    def reset_checkpoints(
        name: str,
        confirm: Annotated[str, Query(description="the pipeline's name once more")] = "",
    ) -> dict[str, Any]:
        """Forget every position and snapshot of a stopped pipeline: it starts as if it were new."""
        with context.open_store() as store:
            require_pipeline(store, name)
            if confirm != name:
                message = f"this forgets every position; if that is meant, add ?confirm={name}"
                raise ApiError(400, "NOT_CONFIRMED", message)
            with answering(409, "NOT_NOW"):
                pipelines.reset_checkpoint(store, name, confirm=confirm, backend=context.backend)
            return {"name": name, "reset": True}


def _add_sinks(router: APIRouter, context: ApiContext) -> None:
    @router.get("/pipelines/{name}/sinks", tags=["sinks"], dependencies=[context.requires("read")])
    def list_sinks(name: str) -> list[dict[str, Any]]:
        """Return how each sink is, and what it lacks for good."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return sinks.entries(store, name)

    may_operate = context.requires("operate")

    @router.post("/pipelines/{name}/sinks/{sink_id}/give-up", tags=["sinks"], status_code=202)
    def give_up_sink(name: str, sink_id: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Give a sink up that is behind: its gap is recorded, and no log is kept for it."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(409, "NOT_NOW"):
                sinks.want(store, name, sink_id, "give_up", f"rest: {caller}")
        return {"sink": sink_id, "wanted": "give_up"}

    @router.post("/pipelines/{name}/sinks/{sink_id}/resume", tags=["sinks"], status_code=202)
    def resume_sink(name: str, sink_id: str, caller: Caller = may_operate) -> dict[str, Any]:
        """Resume a sink that was given up, from the pipeline's position."""
        with context.open_store() as store:
            require_pipeline(store, name)
            with answering(409, "NOT_NOW"):
                sinks.want(store, name, sink_id, "resume", f"rest: {caller}")
        return {"sink": sink_id, "wanted": "resume"}

    def rewound(
        name: str, sink: str | None, asked: RewindRequest, caller: Caller
    ) -> dict[str, Any] | JSONResponse:
        context.require_servers()
        with context.open_store() as store:
            require_pipeline(store, name)
            selection = RewindSelection(asked.to, sink, tuple(asked.tables))
            planned = rewind.plan(store, name, selection)
            answer = {**planned.as_dict(), "summary": redacted(planned.summary)}
            if asked.dry_run:
                return JSONResponse(answer)
            if asked.confirm != name:
                message = f'{planned.summary}; if that is meant, add "confirm": "{name}"'
                raise ApiError(400, "NOT_CONFIRMED", redacted(message))
            rewind.request(store, name, planned, f"rest: {caller}")
        return answer

    @router.post("/pipelines/{name}/rewind", tags=["sinks"], status_code=202)
    def rewind_sinks(name: str, asked: RewindRequest, caller: Caller = may_operate) -> Any:
        """Deliver the source's log again to every sink, from a place or time on."""
        return rewound(name, None, asked, caller)

    @router.post("/pipelines/{name}/sinks/{sink_id}/rewind", tags=["sinks"], status_code=202)
    def rewind_sink(
        name: str, sink_id: str, asked: RewindRequest, caller: Caller = may_operate
    ) -> Any:
        """Deliver the source's log again to one sink, from a place or time on."""
        return rewound(name, sink_id, asked, caller)


def _add_checks(router: APIRouter, context: ApiContext) -> None:
    may_read, may_operate = context.requires("read"), context.requires("operate")
    may_read_log = context.requires("read_log")

    @router.get("/version", tags=["server"], dependencies=[may_read])
    def get_version() -> dict[str, Any]:
        """Return the release, and what this server can: start drivers, ask sources and sinks."""
        elsewhere = context.elsewhere
        return {
            "version": __version__,
            "starts_drivers": context.starter is not None,
            "asks_servers": elsewhere is None or elsewhere.servers is None,
        }

    @router.get("/pipelines/{name}/log", tags=["pipelines"], dependencies=[may_read_log])
    def get_log(
        name: str, lines: Annotated[int, Query(ge=1, le=driver_log.LINES_MAX)] = 200
    ) -> dict[str, Any]:
        """Return the end of the driver's log, or in words why it cannot be read here."""
        with context.open_store() as store:
            require_pipeline(store, name)
            return driver_log.log_tail(store, name, context.backend, lines)

    @router.post("/pipelines/{name}/preflight", tags=["pipelines"], dependencies=[may_operate])
    def run_preflight(name: str) -> dict[str, Any]:
        """Ask the source whether it can be captured, and each sink whether it takes us."""
        context.require_servers()
        with context.open_store() as store:
            require_pipeline(store, name)
            text = Control(store, name).document() or ""
        findings = preflight(load(text))
        shown = [
            {"check": found.check, "verdict": found.verdict, "message": redacted(found.message)}
            for found in findings
        ]
        return {"ok": all(found.verdict != "fail" for found in findings), "findings": shown}

    @router.get("/log-level", tags=["health"], dependencies=[may_read])
    def get_log_level() -> dict[str, str]:
        """Return the levels that this process logs at, as `DELTAFORGE_LOG` sets them."""
        return {"level": os.environ.get(logs.LEVELS) or "info"}

    @router.post(
        "/validate", tags=["documents"], dependencies=[may_read], openapi_extra=documents.body()
    )
    def validate(text: DocumentText) -> Any:
        """Check a document, without keeping it; every problem is named."""
        try:
            pipeline = load(text, expand=False)
            pipeline.refuse_unbuilt()
        except SpecError as error:
            refusal = errors.body("INVALID_DOCUMENT", redacted(str(error)))
            return JSONResponse({"valid": False, **refusal}, 400)
        spec = pipeline.spec
        return {
            "valid": True,
            "pipeline": pipeline.metadata.name,
            "source_type": spec.source.connector,
            "sink_count": len(spec.sinks),
        }
