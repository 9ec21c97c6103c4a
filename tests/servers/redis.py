"""Redis from the machine's own packages."""

import shutil
from pathlib import Path

from tests.servers.process import HOST, Server, ServerError, answers, free_port


def start(directory: Path, port: int | None = None, *, keep: bool = False) -> Server:
    """Start Redis with an append-only file that is flushed on every write.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    program = shutil.which("redis-server")
    if program is None:
        raise ServerError("redis-server is missing: apt-get install redis-server")
    port = port or free_port()
    options = {"bind": HOST, "port": port, "dir": data, "appendonly": "yes"}
    options |= {"appendfsync": "always", "save": "", "maxmemory": "256mb"}
    return Server(
        name="redis",
        directory=directory,
        port=port,
        command=[program, *(word for key, value in options.items() for word in _pair(key, value))],
        probe=lambda server: answers(server.port),
        url=f"redis://{HOST}:{port}/{{database}}",
        keep=keep,
    ).launch()


def _pair(key: str, value: object) -> tuple[str, str]:
    return f"--{key}", str(value)
