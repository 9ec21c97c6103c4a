"""An HTTP server in a thread, and the addresses it listens on."""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from airflow_provider_deltaforge.errors import SpecError

_START_S = 5.0
_IDLE_S = 5
_END_S = 3
_PORT = re.compile("[0-9]{1,5}")
_PORT_MAX = 65535


@contextmanager
def serving(app: Any, address: str, limits: Any = None) -> Iterator[str]:
    """Serve an ASGI application in a thread while the block runs; yield its base URL.

    Args:
        app: the application.
        address: ``host:port``; port 0 takes a free one.
        limits: ``HttpLimits``, in place of the usual ones.

    Raises:
        SpecError: the address is malformed or taken, or the ``api`` extra is missing.
    """
    try:
        import uvicorn

        from airflow_provider_deltaforge.api.connection_limits import (
            HttpLimits,
            LimitedProtocol,
        )
    except ImportError as error:
        raise SpecError(
            "serving HTTP needs airflow-provider-deltaforge[api]; or pass --api-addr off"
        ) from error
    host, port = split_address(address)
    limits = limits or HttpLimits()
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=partial(LimitedProtocol, limits),
        ws="none",
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=_END_S,
    )
    listener = _listen(host, port)
    server = uvicorn.Server(config)
    thread = threading.Thread(
        target=server.run, kwargs={"sockets": [listener]}, daemon=True, name="http"
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


def split_address(address: str, option: str = "--api-addr") -> tuple[str, int]:
    """Return host and port of ``host:port``.

    Args:
        address: the text.
        option: where it was written, for the error.

    Raises:
        SpecError: it is not of that form.
    """
    host, _, port = address.rpartition(":")
    if not host or not _PORT.fullmatch(port) or int(port) > _PORT_MAX:
        raise SpecError(
            f"{option} must be host:port, with a port up to {_PORT_MAX} (0 takes a free one), "
            f"got {address!r}"
        )
    return host, int(port)


def check_address(address: str, option: str = "--api-addr") -> None:
    """Refuse an address that nobody can listen on at this moment, before anything else is done.

    Args:
        address: ``host:port``.
        option: where it was written, for the error.

    Raises:
        SpecError: the address is malformed, no address of this host, or taken.
    """
    _listen(*split_address(address, option), option).close()


def _listen(host: str, port: int, option: str = "--api-addr") -> Any:
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
            f"cannot listen on {host}:{port} ({reason}); choose another {option}"
        ) from error
    return listener
