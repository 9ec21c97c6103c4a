"""A Spark standalone cluster from the pip package: one master and one worker on loopback."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.servers.process import HOST, Server, answers, family, free_port, give_to

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_SMALL_JVM = "-XX:+UseSerialGC"


@dataclass
class Cluster:
    """A running master and worker; ``url`` is what ``--master`` takes."""

    master: Server
    worker: Server
    rest_url: str | None = None
    """Of the master's REST server, where it was asked for."""

    @property
    def url(self) -> str:
        """Return the master's address."""
        return self.master.url

    def executors(self) -> list[int]:
        """Return the process ids of the executors' JVMs."""
        return [pid for pid in family(self.worker.pid) if _EXECUTOR in command_line(pid)]

    def stop(self) -> None:
        """Stop the worker, with its executors, and the master."""
        self.worker.stop(10)
        self.master.stop(10)


def start_master(
    directory: Path,
    *,
    rest_port: int | None = None,
    settings: Mapping[str, str] | None = None,
    account: str | None = None,
) -> Server:
    """Start a master alone.

    Args:
        directory: an own directory.
        rest_port: of its REST server; None: it has none.
        settings: further Spark settings of the master.
        account: operating-system user to run as; only used by root.

    Raises:
        ServerError: it ended or did not answer.
    """
    port = free_port()
    rest = {"spark.master.rest.enabled": "false"}
    if rest_port is not None:
        rest = {"spark.master.rest.enabled": "true", "spark.master.rest.port": str(rest_port)}
    options = [f"-D{key}={value}" for key, value in {**rest, **(settings or {})}.items()]
    return _server(
        directory,
        port,
        [_MASTER, "--host", HOST, "--port", str(port), "--webui-port", "0"],
        lambda server: answers(rest_port or server.port),
        {"SPARK_DAEMON_JAVA_OPTS": " ".join([_SMALL_JVM, *options])},
        account,
    ).launch()


def start(
    directory: Path,
    *,
    cores: int = 2,
    memory: str = "2g",
    worker_environment: Mapping[str, str] | None = None,
    rest_port: int | None = None,
) -> Cluster:
    """Start a cluster whose worker shares neither directory nor environment with drivers.

    Args:
        directory: an own directory; the worker's executors run below ``directory/worker``.
        cores: cores the worker offers.
        memory: memory the worker offers.
        worker_environment: what executors find in their environment, beside a bare one.
        rest_port: of the master's REST server; None: it has none.

    Raises:
        ServerError: a process ended or did not answer.
    """
    master = start_master(directory / "master", rest_port=rest_port)
    try:
        worker = start_worker(
            directory / "worker",
            master,
            cores=cores,
            memory=memory,
            environment=worker_environment,
        )
    except BaseException:
        master.stop(10)
        raise
    return Cluster(master, worker, f"http://{HOST}:{rest_port}" if rest_port else None)


def start_worker(
    directory: Path,
    master: Server,
    *,
    cores: int = 2,
    memory: str = "2g",
    environment: Mapping[str, str] | None = None,
    account: str | None = None,
) -> Server:
    """Start a worker of a master that runs; see ``start`` and ``start_master``."""
    work = directory / "work"
    options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(work)]
    return _server(
        directory,
        master.port,
        [_WORKER, "--host", HOST, "--webui-port", "0", *options, master.url],
        _registered,
        environment or {},
        account,
    ).launch()


def command_line(pid: int) -> str:
    """Return a process's command line; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def jvm_of(pid: int) -> int:
    """Return the one JVM among a process and its descendants."""
    [jvm] = [each for each in family(pid) if command_line(each).partition(" ")[0].endswith("java")]
    return jvm


def spark_home() -> Path:
    """Return the Spark inside the installed ``pyspark``, found without importing it."""
    from importlib.util import find_spec

    found = find_spec("pyspark")
    assert found is not None
    return Path(next(iter(found.submodule_search_locations or ())))


def _server(
    directory: Path,
    port: int,
    words: list[str],
    probe: Callable[[Server], None],
    environment: Mapping[str, str],
    account: str | None = None,
) -> Server:
    directory.mkdir(parents=True, exist_ok=True)
    home = spark_home()
    bare = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "PYTHONPATH")
        if name in os.environ
    }
    is_another = account is not None and os.geteuid() == 0
    told = {
        **bare,
        **({"HOME": str(directory)} if is_another else {}),
        "SPARK_HOME": str(home),
        # The web pages bind to this address too.
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_JAVA_OPTS": _SMALL_JVM,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        **environment,
    }
    # `env -i`: an executor inherits the worker's environment, which must not be this process's.
    command = ["env", "-i", *(f"{name}={value}" for name, value in told.items())]
    if account is not None and is_another:
        give_to(account, directory)
        command = [*_as(account), *command]
    return Server(
        name=words[0].rpartition(".")[2].lower(),
        directory=directory,
        port=port,
        command=[*command, str(home / "bin" / "spark-class"), *words],
        probe=probe,
        url=f"spark://{HOST}:{port}",
    )


def _as(account: str) -> list[str]:
    """Return what runs a command as an account."""
    # The interpreter and its packages may lie where only root may look.
    look = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = [f"--reuid={account}", f"--regid={account}", "--init-groups", *look]
    # A change of user clears the parent-death signal.
    return ["setpriv", *user, "--pdeathsig", "KILL", "--"]


def _registered(server: Server) -> None:
    if not re.search("Successfully registered with master", server.log_tail(200)):
        raise ConnectionError("the worker has not registered")
