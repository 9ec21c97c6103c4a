"""One Kafka broker from the jars on Maven Central: KRaft, transactions, a small heap."""

import hashlib
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.servers import cache
from tests.servers.process import HOST, Server, free_port, run

_VERSION = "4.3.1"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_JAVA_HINT = "Kafka needs Java 17 or later: apt-get install default-jre-headless"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>deltaforge.tests</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{_VERSION}</version>
      <scope>runtime</scope>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId>
      <artifactId>log4j-slf4j-impl</artifactId>
      <version>2.25.4</version>
      <scope>runtime</scope>
    </dependency>
  </dependencies>
</project>
"""
_LOGGING = """\
Configuration:
  status: ERROR
  Appenders:
    Console:
      name: console
      PatternLayout:
        pattern: "%d %p %c %m%n"
  Loggers:
    Root:
      level: WARN
      AppenderRef:
        ref: console
"""


def start(
    directory: Path,
    port: int | None = None,
    *,
    sasl_password: str | None = None,
    settings: Mapping[str, str] | None = None,
    heap_mib: int = 256,
    keep: bool = False,
) -> Server:
    """Start one broker that is its own controller; ``dsn()`` is the bootstrap address.

    Args:
        directory: an own directory; data of an earlier start in it is used again.
        port: loopback port, a free one by default.
        sasl_password: ask clients for SASL/PLAIN as user ``df`` with this password.
        settings: further broker settings, which win over the ones here.
        heap_mib: the JVM's heap in MiB.
        keep: leave it running when this process ends.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    properties = directory / "server.properties"
    controller = _controller_port(directory)
    text = "".join(
        f"{key}={value}\n"
        for key, value in {
            **_settings(directory, port, controller),
            **_sasl(sasl_password),
            **(settings or {}),
        }.items()
    )
    # The broker's own account goes into this file, as the broker wants it.
    properties.touch(mode=0o600)
    properties.write_text(text)
    (directory / "log4j2.yaml").write_text(_LOGGING)
    java = _java(directory, heap_mib)
    if not (directory / "data" / "meta.properties").exists():
        shutil.copytree(_formatted() / "data", directory / "data", dirs_exist_ok=True)
    return Server(
        name="kafka",
        directory=directory,
        port=port,
        command=[*java, "kafka.Kafka", str(properties)],
        probe=_sasl_probe if sasl_password else _probe,
        url=f"{HOST}:{port}",
        keep=keep,
        attributes={"user": "df", "password": sasl_password or ""},
    ).launch()


def jars() -> Path:
    """Return the directory with the broker's jars, fetched through Maven on first use."""
    key = hashlib.sha256(_POM.encode()).hexdigest()[:16]
    with cache.locked("kafka"):
        return cache.entry("kafka", key, _fetch)


def _fetch(directory: Path) -> None:
    (directory / "pom.xml").write_text(_POM)
    # -C makes a wrong checksum an error; Maven's own settings (mirrors, proxies) apply.
    command = ["mvn", "-q", "-B", "-C", _PLUGIN, "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={directory}"]
    run(command, "install Maven (apt-get install maven); it needs the network once", cwd=directory)
    run(["java", "-cp", f"{directory}/*", "kafka.Kafka", "--version"], _JAVA_HINT)


def _formatted() -> Path:
    """Return a directory with an empty broker's data: each is its own cluster, so all may share it.

    Formatting takes a JVM, which costs nearly as much as the broker's own start.
    """
    with cache.locked("kafka-formatted"):
        return cache.entry("kafka-formatted", f"{_VERSION}-1", _format)


def _format(directory: Path) -> None:
    properties = directory / "server.properties"
    settings = {**_settings(directory, 9092, 9093), "log.dirs": str(directory / "data")}
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    (directory / "log4j2.yaml").write_text(_LOGGING)
    command = [*_java(directory, 128), "kafka.tools.StorageTool", "format"]
    run([*command, "-t", uuid.uuid4().hex[:22], "-c", str(properties)], _JAVA_HINT)


def _java(directory: Path, heap_mib: int) -> list[str]:
    return [
        shutil.which("java") or "java",
        f"-Xmx{heap_mib}m",
        f"-Xms{heap_mib // 2}m",
        "-XX:+UseSerialGC",
        f"-Dlog4j2.configurationFile={directory / 'log4j2.yaml'}",
        "-cp",
        f"{jars()}/*",
    ]


def _settings(directory: Path, port: int, controller: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENTS://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"CLIENTS://{HOST}:{port}",
        "inter.broker.listener.name": "CLIENTS",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(directory / "data"),
        "auto.create.topics.enable": "true",
        "delete.topic.enable": "true",
        "num.partitions": "1",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        # A killed broker may come back only when its old session has run out (9 s by default).
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # An idle broker would write an empty record to its metadata twice a second.
        "metadata.max.idle.interval.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
        "log.cleaner.dedupe.buffer.size": "16777216",
        "log.cleaner.threads": "1",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "background.threads": "2",
        "log.index.size.max.bytes": "1048576",
    }


def _sasl(password: str | None) -> dict[str, str]:
    if password is None:
        return {}
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    account = f'username="df" password="{password}" user_df="{password}"'
    return {
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.clients.plain.sasl.jaas.config": f"{module} {account};",
    }


def _controller_port(directory: Path) -> int:
    """Return the controller's port; it is part of the quorum's identity, so it is kept."""
    kept = directory / "controller.port"
    if not kept.exists():
        kept.write_text(str(free_port()))
    return int(kept.read_text())


def _probe(server: Server) -> None:
    _ask(server, {})


def _sasl_probe(server: Server) -> None:
    _ask(
        server,
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": server.attributes["user"],
            "sasl.password": server.attributes["password"],
        },
    )


def _ask(server: Server, security: Mapping[str, str]) -> None:
    from confluent_kafka.admin import AdminClient

    client = AdminClient(
        {"bootstrap.servers": server.dsn(), "log_level": "0", "logger": _SILENT, **security}
    )
    if not client.list_topics(timeout=2).brokers:
        raise ConnectionError("the broker has not registered yet")


class _Silent:
    """Takes librdkafka's complaints about a broker that is still starting."""

    def log(self, *_: object) -> None: ...


_SILENT = _Silent()
