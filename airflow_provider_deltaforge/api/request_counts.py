"""How often each route of the REST API is asked, and how long it takes to answer."""

import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from airflow_provider_deltaforge.control.metrics import PREFIX
from airflow_provider_deltaforge.storage.records.stats import LATENCY_BUCKETS_S

_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_OTHER = "other"
_UNANSWERED = 500
_KIND_OF_NAME = re.compile(r":\w+(?=})")

REQUESTS = ("api_requests", "counter", "Requests answered.", ("method", "route", "status"))
SECONDS = (
    "api_request_latency_seconds",
    "histogram",
    "From a request to the end of its answer.",
    ("method", "route"),
)


class RequestCounts:
    """What one server process has answered. Used by any number of applications."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        (name, _, words, labels), (latency, _, latency_words, latency_labels) = REQUESTS, SECONDS
        self._requests = Counter(f"{PREFIX}{name}", words, labels, registry=self._registry)
        self._seconds = Histogram(
            f"{PREFIX}{latency}",
            latency_words,
            latency_labels,
            registry=self._registry,
            buckets=LATENCY_BUCKETS_S,
        )

    def note(self, scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
        """Count an answer, under the route's pattern: what callers write makes no series."""
        pattern = getattr(scope.get("route"), "path", _OTHER)
        route = _KIND_OF_NAME.sub("", pattern)  # As the API's description writes it.
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def families(self) -> Iterator[Any]:
        """Yield everything as families of ``prometheus_client``."""
        yield from self._registry.collect()

    def exposition(self) -> bytes:
        """Return everything as Prometheus text, without the times at which series began."""
        text: bytes = generate_latest(self._registry)
        lines = text.splitlines(keepends=True)
        return b"".join(line for line in lines if b"_created" not in line)


class CountingRequests:
    """The middleware that counts.

    Args:
        app: the ASGI application behind it.
        counts: where.
    """

    def __init__(self, app: Any, counts: RequestCounts) -> None:
        self._app, self._counts = app, counts

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[MutableMapping[str, Any]]],
        send: Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ) -> None:
        """Pass a request on, and count its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s = time.perf_counter()
        status = _UNANSWERED

        async def watched(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            self._counts.note(scope, status, time.perf_counter() - begun_s)
