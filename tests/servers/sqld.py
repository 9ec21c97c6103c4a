"""libsql-server (``sqld``), where the machine has one."""

import os
import shutil
import urllib.request
from pathlib import Path

from tests.servers.process import HOST, Server, ServerError, free_port

VARIABLE = "DELTAFORGE_SQLD"
"""Environment variable: the program, where it is not on the path."""


def program() -> str:
    """Return the server's program.

    Raises:
        ServerError: there is none.
    """
    found = os.environ.get(VARIABLE) or shutil.which("sqld")
    if not found:
        raise ServerError(f"sqld (libsql-server) is missing: put it on the path or into {VARIABLE}")
    return found


def start(directory: Path, port: int | None = None, *, key: Path | None = None) -> Server:
    """Start one server.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        key: file of the public key that tokens are checked by; without it none is asked for.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    words = ["--db-path", str(directory / "data"), "--http-listen-addr", f"{HOST}:{port}"]
    if key is not None:
        words += ["--auth-jwt-key-file", str(key)]
    return Server(
        name="sqld",
        directory=directory,
        port=port,
        command=[program(), *words],
        probe=_answers,
        url=f"http://{HOST}:{port}",
    ).launch()


def _answers(server: Server) -> None:
    urllib.request.urlopen(f"{server.url}/health", timeout=2).close()
