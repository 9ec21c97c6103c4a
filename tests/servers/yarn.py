"""A YARN cluster of one node: resource manager and node manager from Maven Central, on loopback.

Their classes are in ``hadoop-client-minicluster``, of the release that the installed Spark's client
has; the rest of the class path is Spark's own. The file system is this machine's.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.servers import cache
from tests.servers.process import HOST, Server, free_port, run
from tests.servers.spark import spark_home

_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NODE = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_OURS = ("hadoop-client-api", "hadoop-client-runtime", "slf4j", "jcl-over", "log4j", "snappy-java")
"""Jars of the installed Spark that both need."""
_CASTLE = "1.82"
_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>deltaforge.tests</groupId>
  <artifactId>yarn-cluster</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.hadoop</groupId>
      <artifactId>hadoop-client-minicluster</artifactId>
      <version>{version}</version>
      <scope>runtime</scope>
      <exclusions>
        <exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>org.bouncycastle</groupId>
      <artifactId>bcpkix-jdk18on</artifactId>
      <version>{castle}</version>
      <scope>runtime</scope>
    </dependency>
  </dependencies>
</project>
"""
_LOGGING = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c %m%n%ex
"""


@dataclass
class YarnCluster:
    """A running resource manager, and its nodes."""

    manager: Server
    conf: Path
    """The directory that HADOOP_CONF_DIR names."""
    nodes: list[Server] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Return the resource manager's web address."""
        return self.manager.url

    def stop(self) -> None:
        """Stop nodes, with their containers, and manager."""
        for node in self.nodes:
            node.stop(15)
        self.manager.stop(10)


def start(directory: Path, settings: Mapping[str, str] | None = None) -> YarnCluster:
    """Start a resource manager that has no node yet.

    Args:
        directory: an own directory.
        settings: further settings of ``yarn-site.xml``.

    Raises:
        ServerError: it ended or did not answer.
    """
    conf = directory / "conf"
    conf.mkdir(parents=True)
    names = ("", "scheduler.", "resource-tracker.", "admin.", "webapp.")
    ports = {name: free_port() for name in names}
    _write(conf / "core-site.xml", {"fs.defaultFS": "file:///"})
    _write(
        conf / "yarn-site.xml",
        {
            "yarn.resourcemanager.hostname": HOST,
            **{
                f"yarn.resourcemanager.{name}address": f"{HOST}:{port}"
                for name, port in ports.items()
            },
            "yarn.scheduler.minimum-allocation-mb": "256",
            **(settings or {}),
        },
    )
    root = "yarn.scheduler.capacity"
    queues = {f"{root}.root.queues": "default", f"{root}.root.default.capacity": "100"}
    limits = {
        # A driver alone may take more than the tenth of the cluster that is usual.
        f"{root}.maximum-am-resource-percent": "0.6",
        # With `yarn.acl.enable`, who may kill what others submitted; without this everybody.
        f"{root}.root.acl_administer_queue": "nobody",
    }
    _write(conf / "capacity-scheduler.xml", {**queues, **limits})
    web = ports["webapp."]
    manager = _server("manager", directory / "manager", conf, web, _MANAGER, "/ws/v1/cluster/info")
    return YarnCluster(manager, conf)


def start_node(
    cluster: YarnCluster, directory: Path, environment: Mapping[str, str] | None = None
) -> Server:
    """Start a node of a cluster; its containers run below ``directory/local``.

    Args:
        cluster: whose node it is.
        directory: an own directory.
        environment: what containers may find in the node's environment, beside a bare one.

    Raises:
        ServerError: it ended or did not answer.
    """
    conf, web = directory / "conf", free_port()
    shutil.copytree(cluster.conf, conf)
    _write(
        conf / "yarn-site.xml",
        {
            **_read(cluster.conf / "yarn-site.xml"),
            "yarn.nodemanager.hostname": HOST,
            "yarn.nodemanager.address": f"{HOST}:{free_port()}",
            "yarn.nodemanager.localizer.address": f"{HOST}:{free_port()}",
            "yarn.nodemanager.webapp.address": f"{HOST}:{web}",
            "yarn.nodemanager.local-dirs": str(directory / "local"),
            "yarn.nodemanager.log-dirs": str(directory / "logs"),
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            # A JVM reserves much address space that it never uses.
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.9",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME,PATH,LANG,SPARK_LOCAL_IP",
        },
    )
    node = _server("node", directory, conf, web, _NODE, "/ws/v1/node/info", environment)
    cluster.nodes.append(node)
    return node


def _server(
    name: str,
    directory: Path,
    conf: Path,
    port: int,
    main: str,
    path: str,
    environment: Mapping[str, str] | None = None,
) -> Server:
    directory.mkdir(parents=True, exist_ok=True)
    # Not in `conf`, which travels to containers: those log as Spark does by default.
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING)
    java = Path(shutil.which("java") or "java").resolve()
    told = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
        "JAVA_HOME": str(java.parent.parent),
        "SPARK_LOCAL_IP": HOST,
        **(environment or {}),
    }
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    # `env -i`: containers inherit from the node, which must not have this process's environment.
    return Server(
        name=f"yarn {name}",
        directory=directory,
        port=port,
        command=[
            *("env", "-i", *(f"{name}={value}" for name, value in told.items()), str(java)),
            *options,
            f"-Dlog4j2.configurationFile={logging}",
            *("-cp", os.pathsep.join([str(conf), *map(str, jars())]), main),
        ],
        probe=lambda server: _probe(f"{server.url}{path}"),
        url=f"http://{HOST}:{port}",
    ).launch()


def _probe(url: str) -> None:
    try:
        urlopen(url, timeout=5).close()
    except HTTPError as error:
        if error.code != 401:  # It asks who we are: it is there.
            raise


def jars() -> list[Path]:
    """Return the jars of both; those that Spark has not are fetched through Maven on first use."""
    ours = [path for name in _OURS for path in (spark_home() / "jars").glob(f"{name}*.jar")]
    [client] = [path for path in ours if path.name.startswith("hadoop-client-api-")]
    version = client.stem.rpartition("-")[2]
    pom = _POM.format(version=version, castle=_CASTLE)
    key = hashlib.sha256(pom.encode()).hexdigest()[:16]
    with cache.locked("yarn"):
        fetched = cache.entry("yarn", key, lambda directory: _fetch(directory, pom))
    return [*sorted(fetched.glob("*.jar")), *sorted(ours)]


def _fetch(directory: Path, pom: str) -> None:
    (directory / "pom.xml").write_text(pom)
    # -C makes a wrong checksum an error; Maven's own settings (mirrors, proxies) apply.
    command = ["mvn", "-q", "-B", "-C", _PLUGIN, "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={directory}"]
    run(command, "install Maven (apt-get install maven); it needs the network once", cwd=directory)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>\n"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>\n{properties}</configuration>\n")


def _read(file: Path) -> dict[str, str]:
    from xml.etree import ElementTree

    found = ElementTree.parse(file).getroot().iter("property")
    return {str(one.findtext("name")): str(one.findtext("value")) for one in found}
