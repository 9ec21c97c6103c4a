"""NATS with JetStream from the machine's own packages."""

import shutil
from pathlib import Path

from tests.servers.process import HOST, Server, ServerError, answers, free_port


def start(
    directory: Path,
    port: int | None = None,
    *,
    keep: bool = False,
    settings: str = "",
    jetstream: bool = True,
) -> Server:
    """Start one NATS server with JetStream on disk.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        keep: leave it running when this process ends.
        settings: further lines of its configuration; ``configure`` changes them later.
        jetstream: enable JetStream.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        raise ServerError("nats-server is missing: apt-get install nats-server")
    port = port or free_port()
    server = Server(
        name="nats",
        directory=directory,
        port=port,
        command=[program, "-c", str(directory / "nats.conf")],
        probe=lambda server: answers(server.port),
        url=f"nats://{HOST}:{port}",
        keep=keep,
    )
    configure(server, settings, jetstream=jetstream)
    return server.launch()


def configure(server: Server, settings: str, *, jetstream: bool = True) -> None:
    """Write the configuration; a running server reads it again after SIGHUP."""
    lines = [f'listen: "{HOST}:{server.port}"', settings]
    if jetstream:
        lines.append(f'jetstream {{ store_dir: "{server.directory / "data"}" }}')
    (server.directory / "nats.conf").write_text("\n".join(lines) + "\n")
