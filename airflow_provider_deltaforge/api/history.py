"""The route of what a pipeline did over the last day."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_deltaforge.api.context import ApiContext, require_pipeline
from airflow_provider_deltaforge.control.history import HistoryRange, history

_EXAMPLE = {
    "pipeline": "orders",
    "since": "2026-05-01T12:00:00Z",
    "until": "2026-05-01T12:01:00Z",
    "step_s": 60,
    "points": [
        {
            "at": "2026-05-01T12:00:00Z",
            "status": "running",
            "events": 72000,
            "events_per_s": 1200.0,
            "bytes_per_s": 310000.0,
            "lag_ms": 41,
            "lag_max_ms": 380,
            "latency_p50_ms": 34.5,
            "latency_p95_ms": 88.1,
            "latency_p99_ms": 120.0,
            "errors": 0,
            "dead_letters": 0,
        }
    ],
}


def routes(context: ApiContext) -> APIRouter:
    """Return the router of ``/pipelines/{name}/history``."""
    router = APIRouter(prefix="/pipelines/{name}/history", tags=["pipelines"])
    answers: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"example": _EXAMPLE}}}
    }

    @router.get("", dependencies=[context.requires("read")], responses=answers)
    def get_history(
        name: str,
        since: Annotated[
            str, Query(description="how long ago (`6h`), a time in ISO 8601, or epoch seconds")
        ] = "1h",
        step: Annotated[
            str, Query(description="between two points, whole minutes: `60s`, `5m`")
        ] = "",
    ) -> dict[str, Any]:
        """Return rate, lag and latency, point by point; the store keeps a day of them.

        A point's numbers are null while no driver worked. Rates are per second of work.
        """
        asked = HistoryRange.of(since, step)
        with context.open_store() as store:
            require_pipeline(store, name)
            return history(store, name, asked)

    return router
