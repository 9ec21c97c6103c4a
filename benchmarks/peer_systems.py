"""The systems that ``peers`` measures, each from the benchmark's table to a topic of its own.

Every system has the settings that its own documents advise, for a backlog and for a steady load;
ours has its defaults for a steady load. Debezium is fetched through Maven at first use. The Rust
DeltaForge is measured where ``DELTAFORGE_RUST`` names its ``runner``.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import psutil

from benchmarks.whole import TUNED
from tests.servers import cache
from tests.servers.process import Server, free_port, run

RUNNER = "DELTAFORGE_RUST"
"""Environment variable: the program of the Rust DeltaForge."""
DEBEZIUM, _CONNECT = "3.6.1.Final", "4.3.1"
_STOP_S = 90.0


class System:
    """One system on one source.

    Args:
        place: a directory of its own.
        work: the workload of the source.
        server: of the source.
        brokers: of Kafka.
    """

    name: ClassVar[str]
    steady: ClassVar[Mapping[str, Any]]
    backlog: ClassVar[Mapping[str, Any]]
    ends_with: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self, place: Path, work: ModuleType, server: Server, brokers: str) -> None:
        place.mkdir(parents=True)
        self.place, self.work, self.server, self.brokers = place, work, server, brokers
        self.topic = self.id = f"{self.name}-{work.SOURCE_TYPE}"
        self._process: subprocess.Popen[bytes] | None = None

    def _command(self, settings: Mapping[str, Any]) -> list[str]:
        """Write what the system reads, and return its command line."""
        raise NotImplementedError

    def _write_document(self, source: Any, sink: Any, **more: Any) -> None:
        """Write ``pipeline.yaml``, as both that are called DeltaForge read it."""
        document = {
            "apiVersion": "deltaforge/v1",
            "kind": "Pipeline",
            "metadata": {"name": self.id, "tenant": "bench"},
            "spec": {
                "source": {"type": self.work.SOURCE_TYPE, "config": source},
                "sinks": [{"type": "kafka", "config": sink}],
                **more,
            },
        }
        (self.place / "pipeline.yaml").write_text(json.dumps(document))

    def start(self, settings: Mapping[str, Any]) -> int:
        """Start it; return its process id."""
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(settings),
                stdout=log,
                stderr=log,
                cwd=self.place,
                start_new_session=True,
                env={**os.environ, "RUST_LOG": "warn"},
            )
        return self._process.pid

    def check(self) -> None:
        """Raise ``RuntimeError`` when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            tail = (self.place / "log").read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.id} ended with {self._process.returncode}:\n{tail}")

    def stop(self) -> None:
        """Let it save its position and end."""
        self._end(self.ends_with)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def _end(self, signum: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        family = []
        with suppress(psutil.Error):
            family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signum)
        if signum is signal.SIGKILL:
            for member in family:
                with suppress(psutil.Error):
                    member.kill()
        process.wait(_STOP_S)
        _, alive = psutil.wait_procs(family, timeout=10)
        for member in alive:
            with suppress(psutil.Error):
                member.kill()


class Ours(System):
    """``deltaforge run``."""

    steady: ClassVar[Mapping[str, Any]] = {}
    backlog: ClassVar[Mapping[str, Any]] = TUNED
    engine: ClassVar[tuple[str, ...]]
    ends_with = signal.SIGINT

    def _command(self, settings: Mapping[str, Any]) -> list[str]:
        source = self.work.source_settings(self.server, self.id)
        if "slot" in source:
            source["slot"] = self.id.replace("-", "_")
        sink = {"id": "kafka", "brokers": self.brokers, "topic": self.topic}
        self._write_document(source, sink, batch=settings)
        program = [sys.executable, "-m", "airflow_provider_deltaforge.cli.app", "run"]
        store = f"sqlite:///{self.place}/state.db"
        return [*program, "pipeline.yaml", *self.engine, "--store", store, "--api-addr", "off"]


class OursInOneProcess(Ours):
    """Without Spark."""

    name = "ours"
    engine = ("--local",)


class OursOnSpark(Ours):
    """With Spark in this machine."""

    name = "ours-spark"
    engine = ("--master", "local[2]")


class Rust(System):
    """The Rust DeltaForge; stopped over REST, so that it saves its position."""

    name = "deltaforge-rust"
    steady: ClassVar[Mapping[str, Any]] = {"max_events": 2000, "max_ms": 5, "max_inflight": 4}
    backlog: ClassVar[Mapping[str, Any]] = {**TUNED, "max_bytes": 16_777_216}

    def _command(self, settings: Mapping[str, Any]) -> list[str]:
        source = self.work.source_settings(self.server, self.id)
        if "slot" in source:
            source |= {"slot": self.id.replace("-", "_"), "start_position": "earliest"}
        sink = {
            "id": "kafka",
            "brokers": self.brokers,
            "topic": self.topic,
            "required": True,
            "envelope": {"type": "native"},
            "encoding": "json",
            "client_conf": {"linger.ms": "0"},
        }
        self._write_document(
            source,
            sink,
            batch=settings,
            processors=[],
            schema_sensing={"enabled": False},
            commit_policy={"mode": "required"},
        )
        self._port = free_port()
        rest = ["--api-addr", f"127.0.0.1:{self._port}", "--metrics-addr", "127.0.0.1:0"]
        store = ["--storage-path", str(self.place / "deltaforge.db")]
        return [os.environ[RUNNER], "--config", "pipeline.yaml", *rest, *store]

    def stop(self) -> None:
        """Let it save its position and end."""
        url = f"http://127.0.0.1:{self._port}/pipelines/{self.id}/stop"
        with suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=30).read()
        time.sleep(1)
        super().stop()


class Debezium(System):
    """Kafka Connect in standalone mode, with one connector."""

    name = "debezium"
    _PRODUCER: ClassVar[Mapping[str, str]] = {
        "compression.type": "lz4",
        "batch.size": "1048576",
        "enable.idempotence": "true",
        "max.in.flight.requests.per.connection": "5",
    }
    steady: ClassVar[Mapping[str, Any]] = {
        "connector": {"max.batch.size": 2048, "max.queue.size": 8192, "poll.interval.ms": 1},
        "producer": {**_PRODUCER, "linger.ms": "0"},
    }
    backlog: ClassVar[Mapping[str, Any]] = {
        "connector": {"max.batch.size": 16384, "max.queue.size": 65536, "poll.interval.ms": 10},
        "producer": {**_PRODUCER, "linger.ms": "5", "buffer.memory": "134217728"},
    }
    _JAVA = ("-Xms1g", "-Xmx2g", "-XX:+UseParallelGC")

    def __init__(self, place: Path, work: ModuleType, server: Server, brokers: str) -> None:
        super().__init__(place, work, server, brokers)
        schema = "public" if work.SOURCE_TYPE == "postgres" else work.DATABASE
        self._table = f"{schema}.{work.TABLE}"
        self.topic = f"{self.id}.{self._table}"

    def _command(self, settings: Mapping[str, Any]) -> list[str]:
        jars = debezium()
        worker = {
            "bootstrap.servers": self.brokers,
            "offset.storage.file.filename": self.place / "offsets",
            "offset.flush.interval.ms": 5000,
            "plugin.path": jars / "plugins",
            "plugin.discovery": "service_load",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "topic.creation.enable": "false",
            **{f"producer.{key}": value for key, value in settings["producer"].items()},
        }
        for part in ("key", "value"):
            worker[f"{part}.converter"] = "org.apache.kafka.connect.json.JsonConverter"
            worker[f"{part}.converter.schemas.enable"] = "false"
        for name, values in (("worker", worker), ("connector", self._connector(settings))):
            text = "".join(f"{key}={value}\n" for key, value in values.items())
            (self.place / f"{name}.properties").write_text(text)
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        files = ["worker.properties", "connector.properties"]
        return ["java", *self._JAVA, "-cp", f"{jars / 'connect'}/*", main, *files]

    def _connector(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        common = {
            "name": self.id,
            "tasks.max": 1,
            "topic.prefix": self.id,
            "snapshot.mode": "no_data",
            "decimal.handling.mode": "string",
            "tombstones.on.delete": "false",
            "table.include.list": self._table,
            "database.hostname": self.server.host,
            "database.port": self.server.port,
            **settings["connector"],
        }
        if self.work.SOURCE_TYPE == "postgres":
            return {
                **common,
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "database.user": "postgres",
                "database.password": "unused",
                "database.dbname": self.work.DATABASE,
                "database.sslmode": "disable",
                "plugin.name": "pgoutput",
                "slot.name": self.id.replace("-", "_"),
                "publication.name": "bench",
                "publication.autocreate.mode": "disabled",
            }
        history = "schema.history.internal"
        return {
            **common,
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.user": "df",
            "database.password": "df-secret",
            "database.server.id": 7701,
            "database.ssl.mode": "disabled",
            "driver.allowPublicKeyRetrieval": "true",
            "database.include.list": self.work.DATABASE,
            "snapshot.locking.mode": "none",
            "include.schema.changes": "false",
            history: "io.debezium.storage.file.history.FileSchemaHistory",
            f"{history}.file.filename": self.place / "schema_history",
            f"{history}.store.only.captured.tables.ddl": "true",
        }


def systems() -> list[type[System]]:
    """Return what can be measured here."""
    found: list[type[System]] = [OursInOneProcess, OursOnSpark, Debezium]
    return [*found, Rust] if os.environ.get(RUNNER) else found


def debezium() -> Path:
    """Return a directory with Kafka Connect and Debezium's connectors, fetched at first use."""
    key = hashlib.sha256(_POM.encode()).hexdigest()[:16]
    with cache.locked("debezium"):
        return cache.entry("debezium", key, _fetch)


_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>deltaforge.benchmarks</groupId>
  <artifactId>debezium</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>connect-runtime</artifactId>
      <version>{_CONNECT}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>connect-json</artifactId>
      <version>{_CONNECT}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-core</artifactId>
      <version>2.25.4</version>
    </dependency>
  </dependencies>
</project>
"""
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_HINT = "install Maven (apt-get install maven); it needs the network once"


def _fetch(directory: Path) -> None:
    (directory / "pom.xml").write_text(_POM)
    maven = ["mvn", "-q", "-B", "-C"]
    run(
        [*maven, f"{_COPY}-dependencies", f"-DoutputDirectory={directory / 'connect'}"],
        _HINT,
        cwd=directory,
    )
    (directory / "plugins").mkdir()
    for database in ("mysql", "postgres"):
        artifact = f"io.debezium:debezium-connector-{database}:{DEBEZIUM}:tar.gz:plugin"
        run(
            [*maven, _COPY, f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"],
            _HINT,
            cwd=directory,
        )
    for archive in directory.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(directory / "plugins", filter="data")
        archive.unlink()
    if shutil.which("java") is None:
        raise RuntimeError("Debezium needs Java 17 or later: apt-get install default-jre-headless")
