"""NATS with JetStream from the machine's own packages."""

import shutil
from pathlib import Path

from tests.servers.process import HOST, Server, ServerError, answers, free_port


def start(directory: Path, port: int | None = None, *, keep: bool = False) -> Server:
    """Start one NATS server with JetStream on disk.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        raise ServerError("nats-server is missing: apt-get install nats-server")
    port = port or free_port()
    return Server(
        name="nats",
        directory=directory,
        port=port,
        command=[program, "-a", HOST, "-p", str(port), "-js", "-sd", str(directory / "data")],
        probe=lambda server: answers(server.port),
        url=f"nats://{HOST}:{port}",
        keep=keep,
    ).launch()
