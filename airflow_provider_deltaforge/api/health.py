"""Health and metrics over HTTP, read from the state store on every request.

Served beside a running ``deltaforge run``. It listens on loopback unless told otherwise: there is
no authentication here.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_provider_deltaforge.control.metrics import families
from airflow_provider_deltaforge.control.status import PipelineStatus
from airflow_provider_deltaforge.errors import DeltaForgeError, SpecError
from airflow_provider_deltaforge.telemetry.redaction import redacted

Look = Callable[[], Sequence[PipelineStatus]]
"""Returns the pipelines this process answers for."""

_UNHEALTHY = frozenset({"failed", "lost"})
_START_S = 5.0
_PORT = re.compile("[0-9]{1,5}")
_PORT_MAX = 65535


def create_app(look: Look) -> Any:
    """Return the FastAPI application.

    ``/healthz`` (and ``/health``) answer 503 while a pipeline is failed or lost, or while the
    state store cannot be read; ``/readyz`` (and ``/ready``) give the details, and answer 503 while
    one is not ready: failed, lost, not started yet, or blocked from its start, or nobody knows.
    """
    from fastapi import FastAPI
    from fastapi.responses import JSONResponse, PlainTextResponse, Response

    app = FastAPI(title="DeltaForge", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    def healthz() -> Response:
        failed = _unhealthy(look)
        return PlainTextResponse("\n".join(failed) or "ok", 503 if failed else 200)

    @app.get("/health")
    def health() -> Response:
        failed = _unhealthy(look)
        if failed:
            return JSONResponse({"status": "unhealthy", "failed_pipelines": failed}, 503)
        return JSONResponse({"status": "healthy", "pipelines": len(look())})

    @app.get("/ready")
    @app.get("/readyz")
    def ready() -> Response:
        try:
            found = look()
        except DeltaForgeError as error:
            body = {"status": "unknown", "error": redacted(str(error)), "pipelines": []}
            return JSONResponse(body, 503)
        is_ready = all(pipeline.is_ready for pipeline in found)
        answer = {
            "status": "ready" if is_ready else "not_ready",
            "pipelines": [pipeline.as_dict() for pipeline in found],
        }
        return JSONResponse(answer, 200 if is_ready else 503)

    @app.get("/metrics")
    def metrics() -> Response:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        try:
            found = look()
        except DeltaForgeError as error:  # A scrape that fails is told from one of nothing.
            return PlainTextResponse(f"state store: {redacted(str(error))}", 503)
        registry = CollectorRegistry()
        registry.register(_Collector(found))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


@contextmanager
def serving(look: Look, address: str) -> Iterator[str]:
    """Serve the application in a thread while the block runs; yield its base URL.

    Args:
        look: returns the pipelines to answer for.
        address: ``host:port``; port 0 takes a free one.

    Raises:
        SpecError: the address is malformed or taken, or the ``api`` extra is missing.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise SpecError(
            "serving health needs airflow-provider-deltaforge[api]; or pass --api-addr off"
        ) from error
    host, port = split_address(address)
    config = uvicorn.Config(
        create_app(look), host=host, port=port, log_level="warning", access_log=False
    )
    listener = _listen(host, port)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="health"
    )
    thread.start()
    deadline = time.monotonic() + _START_S
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(_START_S)
        listener.close()


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Raises:
        SpecError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise SpecError(
            f"--api-addr must be host:port, with a port up to {_PORT_MAX} (0 takes a free one), "
            f"got {address!r}; `off` serves nothing"
        )
    return host, int(port)


def check_address(address: str) -> None:
    """Refuse an address that nobody can listen on at this moment, before anything else is done.

    Raises:
        SpecError: the address is malformed, no address of this host, or taken.
    """
    _listen(*split_address(address)).close()


def _listen(host: str, port: int) -> Any:
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except (OSError, ValueError, TypeError) as error:  # The last two of names that are none.
        listener.close()
        reason = getattr(error, "strerror", None) or "no name of a host"
        raise SpecError(
            f"cannot listen on {host}:{port} ({reason}); choose another --api-addr"
        ) from error
    return listener


def _unhealthy(look: Look) -> list[str]:
    try:
        return [pipeline.name for pipeline in look() if pipeline.status in _UNHEALTHY]
    except DeltaForgeError as error:
        return [f"state store: {redacted(str(error))}"]


class _Collector:
    def __init__(self, found: Sequence[PipelineStatus]) -> None:
        self._found = found

    def collect(self) -> Iterator[Any]:
        """Yield the families, as prometheus_client asks."""
        return families(self._found)
