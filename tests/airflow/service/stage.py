"""One Airflow and one state store for many kills."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_deltaforge.control.launching.contract import Backend
from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from tests.airflow.service.drivers import ON_A_CLUSTER, PLAIN, PODS, compose
from tests.airflow.service.processes import Driver, session_of, work_directory_of
from tests.airflow.service.spark_hosts import SparkHosts, spark_hosts
from tests.servers import airflow, postgres
from tests.servers.airflow import Airflow
from tests.servers.process import Server, python_path

DAGS = Path(__file__).parent / "dags"
HISTORY = "history"
"""In the directory of tasks' hosts: a line for each that was."""
_ROOT = Path(__file__).parents[3]
_EXECUTOR = "tests.airflow.service.pods.PodExecutor"
DAG_IDS = (
    *("stream_stop", "stream_leave", "stream_budget", "stream_other", "stream_window"),
    "stream_local",
)


@dataclass
class Stage:
    """A running Airflow whose default connection is the store of all pipelines here."""

    directory: Path
    airflow: Airflow
    dsn: str
    holds: Path
    hosts: SparkHosts | None = None
    """Where drivers run; None: beside Airflow."""
    pods: Path | None = None
    """Of the hosts that tasks get, where each has its own."""

    @property
    def backend(self) -> Backend:
        """Return where drivers are launched."""
        if self.hosts is not None:
            return self.hosts.backends(self.directory)
        return LocalBackend(jobs_directory(self.dsn), compose)

    @property
    def master(self) -> str:
        """Return Spark's master."""
        return self.hosts.master.url if self.hosts is not None else "local[1]"

    @property
    def driver_of(self) -> Callable[[int], Driver]:
        """Return what tells to which driver a process belongs."""
        return work_directory_of if self.hosts is not None else session_of


@contextlib.contextmanager
def stage(directory: Path, metadata: Server, kind: str = PLAIN) -> Iterator[Stage]:
    """Start Airflow with the DAGs of this folder, its own database on a PostgreSQL server.

    Args:
        directory: of everything that is made.
        metadata: the PostgreSQL server; it has the state store, too, where drivers run elsewhere.
        kind: of drivers, see ``drivers``.
    """
    with contextlib.ExitStack() as ending:
        dsn, connection, hosts, more = f"sqlite:///{directory}/state.db", None, None, {}
        if kind in ON_A_CLUSTER:
            hosts = ending.enter_context(spark_hosts(directory / "cluster"))
            dsn, connection = _state(metadata, hosts.extra)
            more = {"DELTAFORGE_TEST_MASTER": hosts.master.url}
        pods = directory / "pods" if kind == PODS else None
        if pods is not None:
            pods.mkdir(parents=True)
            more |= {"DELTAFORGE_TEST_PODS": str(pods), "AIRFLOW__CORE__EXECUTOR": _EXECUTOR}
        environment = {**stage_environment(directory, connection), **more}
        running = airflow.start(directory, dags=DAGS, env=environment, metadata=metadata)
        ending.callback(running.stop)
        unpause(running)
        yield Stage(directory, running, dsn, directory / "holds", hosts, pods)


def stage_environment(
    directory: Path, connection: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return what the DAGs of this folder find in their environment; make what it names.

    Args:
        directory: of everything that is made.
        connection: to the state store; None: it is a file there.
    """
    holds = directory / "holds"
    holds.mkdir(parents=True)
    if connection is None:
        connection = {"conn_type": "deltaforge", "extra": {"path": f"{directory}/state.db"}}
    return {
        "AIRFLOW_CONN_DELTAFORGE_DEFAULT": json.dumps(connection),
        "DELTAFORGE_TEST_HOLDS": str(holds),
        "PYTHONPATH": python_path(_ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # These drivers live for minutes: what they take to start is what counts.
        "SPARK_SUBMIT_OPTS": (
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
        ),
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
    }


def unpause(running: Airflow) -> None:
    """Let the DAGs of this folder run."""
    for dag in DAG_IDS:
        running.rest.wait_for_dag(dag)
        running.rest.unpause(dag)


def _state(server: Server, extra: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Create a database for the state; return its address, and Airflow's connection to it."""
    name = postgres.new_database(server)
    place = {"host": server.host, "port": server.port, "schema": name, "login": "postgres"}
    return server.dsn(name), {"conn_type": "deltaforge", **place, "extra": dict(extra)}
