"""Redis from the machine's own packages: a server, a sentinel, the nodes of a cluster."""

import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from tests.servers.process import HOST, Server, ServerError, answers, free_port

_SHIPPED = {"appendonly": "yes", "appendfsync": "always", "save": "", "maxmemory": "256mb"}
_NOTHING_KEPT = {"appendonly": "no", "save": ""}


def start(
    directory: Path,
    port: int | None = None,
    *,
    keep: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Server:
    """Start Redis with an append-only file that is flushed on every write.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        keep: leave it running when this process ends.
        settings: of the server's configuration, over the usual ones.
    """
    directory = directory.resolve()
    (directory / "data").mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    options = {"bind": HOST, "port": str(port), "dir": str(directory / "data"), **_SHIPPED}
    options |= settings or {}
    words = (word for key, value in options.items() for word in (f"--{key}", value))
    return Server(
        name="redis",
        directory=directory,
        port=port,
        command=[_program(), *words],
        probe=_loaded,
        url=f"redis://{HOST}:{port}/{{database}}",
        keep=keep,
    ).launch()


def _loaded(server: Server) -> None:
    """Ask whether it has read its file; whoever comes earlier is refused."""
    with socket.create_connection((HOST, server.port), timeout=2) as connection:
        connection.sendall(b"PING\r\n")
        if (connection.recv(64) or b"-LOADING").startswith(b"-LOADING"):
            raise ConnectionError("it still reads its file")


def start_forgetful(directory: Path, settings: Mapping[str, str] | None = None) -> Server:
    """Start Redis without any persistence: what it holds ends with it."""
    return start(directory, settings={**_NOTHING_KEPT, **(settings or {})})


def start_sentinel(directory: Path, master: Server, settings: str = "") -> Server:
    """Start a sentinel that alone decides, within a second, that ``master`` is gone.

    Args:
        directory: an own directory.
        master: what it watches, under the name ``mymaster``.
        settings: further lines of its configuration.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    file = directory / "sentinel.conf"
    file.write_text(
        f"bind {HOST}\nport {port}\ndir {directory.resolve()}\n"
        f"sentinel monitor mymaster {HOST} {master.port} 1\n"
        "sentinel down-after-milliseconds mymaster 500\n"
        f"sentinel failover-timeout mymaster 3000\n{settings}\n"
    )
    return Server(
        name="redis-sentinel",
        directory=directory.resolve(),
        port=port,
        command=[_program(), str(file.resolve()), "--sentinel"],
        probe=lambda server: answers(server.port),
        url=f"redis+sentinel://{HOST}:{port}/mymaster",
    ).launch()


def _program() -> str:
    program = shutil.which("redis-server")
    if program is None:
        raise ServerError("redis-server is missing: apt-get install redis-server")
    return program
