"""One Airflow and one state store for many kills."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_deltaforge.control.launching.local import LocalBackend, jobs_directory
from tests.airflow.service.drivers import compose
from tests.servers import airflow
from tests.servers.airflow import Airflow
from tests.servers.process import Server, python_path

DAGS = Path(__file__).parent / "dags"
_ROOT = Path(__file__).parents[3]
DAG_IDS = ("stream_stop", "stream_leave", "stream_budget", "stream_other", "stream_window")


@dataclass
class Stage:
    """A running Airflow whose default connection is the store of all pipelines here."""

    directory: Path
    airflow: Airflow
    dsn: str
    holds: Path

    @property
    def backend(self) -> LocalBackend:
        """Return where drivers are launched."""
        return LocalBackend(jobs_directory(self.dsn), compose)


@contextlib.contextmanager
def stage(directory: Path, metadata: Server) -> Iterator[Stage]:
    """Start Airflow with the DAGs of this folder, its own database on a PostgreSQL server."""
    environment = stage_environment(directory)
    running = airflow.start(directory, dags=DAGS, env=environment, metadata=metadata)
    try:
        unpause(running)
        yield Stage(directory, running, f"sqlite:///{directory}/state.db", directory / "holds")
    finally:
        running.stop()


def stage_environment(directory: Path) -> dict[str, str]:
    """Return what the DAGs of this folder find in their environment; make what it names."""
    holds = directory / "holds"
    holds.mkdir(parents=True)
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
