"""A schema registry: Apicurio's, which speaks Confluent's API, from Maven Central; in memory."""

import json
import shutil
import tarfile
import urllib.request
from pathlib import Path

from tests.servers import cache
from tests.servers.process import HOST, Server, free_port, run

_VERSION = "2.6.13.Final"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_API = "/apis/ccompat/v7"
_JAVA_HINT = "the schema registry needs Java 11 or later: apt-get install default-jre-headless"


def start(directory: Path, port: int | None = None, *, keep: bool = False) -> Server:
    """Start one registry without schemas; ``dsn()`` is what a document names.

    Args:
        directory: an own directory; a registry that is started again has forgotten everything.
        port: loopback port, a free one by default.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    return Server(
        name="schema_registry",
        directory=directory,
        port=port,
        command=[
            shutil.which("java") or "java",
            "-Xmx192m",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            f"-Dquarkus.http.host={HOST}",
            f"-Dquarkus.http.port={port}",
            "-Dquarkus.log.level=WARN",
            "-jar",
            str(home() / f"apicurio-registry-app-{_VERSION}-runner.jar"),
        ],
        probe=_probe,
        url=f"http://{HOST}:{port}{_API}",
        keep=keep,
    ).launch()


def home() -> Path:
    """Return the directory of the registry's program, fetched through Maven on first use."""
    with cache.locked("schema-registry"):
        return cache.entry("schema-registry", _VERSION, _fetch)


def _fetch(directory: Path) -> None:
    artifact = f"io.apicurio:apicurio-registry-app:{_VERSION}:tar.gz:all"
    # -C makes a wrong checksum an error; Maven's own settings (mirrors, proxies) apply.
    command = ["mvn", "-q", "-B", "-C", _PLUGIN, f"-Dartifact={artifact}"]
    command += [f"-DoutputDirectory={directory}", "-Dmdep.useBaseVersion=true"]
    run(command, "install Maven (apt-get install maven); it needs the network once", cwd=directory)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(directory, filter="data")
    archive.unlink()
    run(["java", "-version"], _JAVA_HINT)


def _probe(server: Server) -> None:
    """Ask for the compatibility that Confluent's own registry has by default."""
    body = json.dumps({"compatibility": "BACKWARD"}).encode()
    asked = urllib.request.Request(
        f"{server.dsn()}/config", body, {"Content-Type": "application/json"}, method="PUT"
    )
    with urllib.request.urlopen(asked, timeout=2) as answer:
        answer.read()
