"""Health and metrics over HTTP, read from the state store on every request."""

from collections.abc import Callable, Sequence
from typing import Any

from airflow_provider_deltaforge.control.metrics import Observed, exposition
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import DeltaForgeError
from airflow_provider_deltaforge.telemetry.redaction import redacted

Look = Callable[[Any], Sequence[PipelineStatus]]
"""Returns the pipelines that this process answers for, as far as a request may see them."""

Observe = Callable[[Any], Sequence[Observed]]
"""Returns the same pipelines with what their drivers measure."""

Describe = Callable[[Sequence[PipelineStatus], Any], Sequence[dict[str, Any]]]
"""Returns pipelines as JSON-able data, as far as a request may see it."""

_UNHEALTHY = frozenset({"failed", "lost"})


def create_app(observe: Observe, *, alone: bool = True) -> Any:
    """Return a FastAPI application of these routes alone; see ``routes``."""
    from fastapi import FastAPI

    app = FastAPI(title="DeltaForge", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(routes_of(observe, alone=alone))
    return app


def routes_of(observe: Observe, *, alone: bool = True, more: Callable[[], bytes] = bytes) -> Any:
    """Return the router for pipelines that are observed anyway, open to everybody."""

    def look(request: Any) -> Sequence[PipelineStatus]:
        return [observed.status for observed in observe(request)]

    return routes(look, observe, alone=alone, more=more)


def _as_dicts(found: Sequence[PipelineStatus], _: Any) -> list[dict[str, Any]]:
    return [pipeline.as_dict() for pipeline in found]


def routes(
    look: Look,
    observe: Observe,
    *,
    alone: bool = True,
    sees: Callable[[Any], bool] = lambda _: True,
    describe: Describe = _as_dicts,
    require: Callable[[Any], object] = lambda _: None,
    more: Callable[[], bytes] = bytes,
) -> Any:
    """Return the router of health and metrics.

    ``/healthz`` answers ``ok``, for a process that serves one pipeline 503 while that is failed or
    lost; ``/health`` answers 503 while any is. ``/readyz`` (and ``/ready``) answer 503 while one is
    not ready: failed, lost, not started yet, or blocked from its start, or nobody knows.

    Args:
        look: returns the pipelines to answer for.
        observe: returns them for metrics.
        alone: this process is of no use once its pipeline has failed, and may be started anew.
        sees: whether the sender of a request may see more than how all is.
        describe: returns what `/readyz` shows of them to such a sender.
        require: refuses a request for metrics with an exception.
        more: returns metrics of this process, as Prometheus text.
    """
    from fastapi import APIRouter, Request
    from fastapi.responses import Response

    router = APIRouter(tags=["health"])
    _add_health(router, look, sees, alone=alone)
    _add_ready(router, look, sees, describe)

    @router.get("/metrics")
    def metrics(request: Request) -> Response:
        require(request)
        answer: Response = _exposition(observe, request, more)
        return answer

    return router


def _add_health(router: Any, look: Look, sees: Callable[[Any], bool], *, alone: bool) -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse, PlainTextResponse, Response

    @router.get("/healthz")
    def healthz(request: Request) -> Response:
        failed = _unhealthy(look, request)[1] if alone else []
        return PlainTextResponse("\n".join(failed) or "ok", 503 if failed else 200)

    @router.get("/health")
    def health(request: Request) -> Response:
        count, failed = _unhealthy(look, request)
        answer: dict[str, Any] = {"status": "unhealthy" if failed else "healthy"}
        if sees(request):
            answer |= {"failed_pipelines": failed} if failed else {"pipelines": count}
        return JSONResponse(answer, 503 if failed else 200)


def _add_ready(router: Any, look: Look, sees: Callable[[Any], bool], describe: Describe) -> None:
    from fastapi import Request
    from fastapi.responses import JSONResponse, Response

    @router.get("/ready")
    @router.get("/readyz")
    def ready(request: Request) -> Response:
        try:
            found = look(request)
        except DeltaForgeError as error:
            body = {"status": "unknown", "error": redacted(str(error)), "pipelines": []}
            return JSONResponse(body if sees(request) else {"status": "unknown"}, 503)
        is_ready = all(pipeline.is_ready for pipeline in found)
        answer: dict[str, Any] = {"status": "ready" if is_ready else "not_ready"}
        if sees(request):
            answer["pipelines"] = describe(found, request)
        return JSONResponse(answer, 200 if is_ready else 503)


def _exposition(observe: Observe, request: Any, more: Callable[[], bytes]) -> Any:
    from fastapi.responses import PlainTextResponse, Response
    from prometheus_client.exposition import CONTENT_TYPE_LATEST

    try:
        found = observe(request)
    except DeltaForgeError as error:  # A failed scrape is no scrape of nothing.
        return PlainTextResponse(f"state store: {redacted(str(error))}", 503)
    return Response(exposition(found) + more(), media_type=CONTENT_TYPE_LATEST)


def _unhealthy(look: Look, request: Any) -> tuple[int, list[str]]:
    """Return how many pipelines there are, and which are not well."""
    try:
        found = look(request)
    except DeltaForgeError as error:
        return 0, [f"state store: {redacted(str(error))}"]
    return len(found), [pipeline.name for pipeline in found if pipeline.status in _UNHEALTHY]
