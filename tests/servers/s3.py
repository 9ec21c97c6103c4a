"""An object store with S3's interface: Versity's gateway, which keeps objects as files.

It checks the signature of every request, as Amazon's own store does.
"""

import shutil
from pathlib import Path

from tests.servers import cache
from tests.servers.process import HOST, Server, ServerError, answers, free_port, run

ACCESS_KEY = "AKIAEXAMPLE"
SECRET_KEY = "a/secret+that-nobody-may-see"
BUCKET = "bucket"

_VERSION = "v1.8.0"
_MODULE = "github.com/versity/versitygw/cmd/versitygw"


def start(directory: Path) -> Server:
    """Start one store; ``dsn("FOLDER")`` is what a document names.

    Args:
        directory: an own directory; objects of an earlier start in it are there again.
    """
    directory = directory.resolve()
    objects = directory / "objects"
    (objects / BUCKET).mkdir(parents=True, exist_ok=True)
    port = free_port()
    options = f"region=us-east-1&scheme=http&endpoint_override={HOST}:{port}"
    return Server(
        name="s3",
        directory=directory,
        port=port,
        command=[str(_program()), "--port", f"{HOST}:{port}", "--quiet", "posix", str(objects)],
        probe=lambda server: answers(server.port),
        url=f"s3://{BUCKET}/{{database}}?{options}",
        env={"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY},
    ).launch()


def _program() -> Path:
    """Return the store's program, built from Go's modules on first use, which takes minutes."""
    with cache.locked("versitygw"):
        return cache.entry("versitygw", _VERSION, _build) / "versitygw"


def _build(directory: Path) -> None:
    if shutil.which("go") is None:
        raise ServerError(
            "the object store of these tests is built with Go: apt-get install golang"
        )
    work = directory / "work"
    own = {"GOPATH": work, "GOCACHE": work / "cache", "GOBIN": directory, "GOFLAGS": "-modcacherw"}
    environment = [f"{name}={value}" for name, value in own.items()]
    command = ["env", *environment, "go", "install", "-trimpath", f"{_MODULE}@{_VERSION}"]
    run(command, "it needs the network once")
    shutil.rmtree(work)
